#include "src/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/environment.h"
#include "src/libraries.h"
#include "src/memory.h"

/* ---- Settings ---- */

static atomic_int float32_precision = WEIR_MATMUL_HIGHEST;
static atomic_int fp16_reduced = WEIR_REDUCED_PRECISION_ALLOW, bf16_reduced = WEIR_REDUCED_PRECISION_ALLOW;
static atomic_int fp16_accumulation, deterministic;

/* The environment raises the default, and forbids to lower it. */
static bool is_overridden(void) { return weir__compute_env_is(WEIR__ENV_ALLOW_TF32, "1"); }

void weir_blas_set_allow_tf32(int allow) {
  if (!allow && is_overridden())
    weir__log(WEIR_LOG_WARN, "TF32 stays allowed: TORCH_ALLOW_TF32_CUBLAS_OVERRIDE is 1");
  atomic_store(&float32_precision, allow ? WEIR_MATMUL_HIGH : WEIR_MATMUL_HIGHEST);
}

int weir_blas_get_allow_tf32(void) { return weir_blas_get_float32_precision() != WEIR_MATMUL_HIGHEST; }

weir_status weir_blas_set_float32_precision(weir_matmul_precision precision) {
  if (precision < WEIR_MATMUL_HIGHEST || precision > WEIR_MATMUL_MEDIUM)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d is not a precision", __func__, (int)precision);
  atomic_store(&float32_precision, precision);
  return WEIR_OK;
}

weir_matmul_precision weir_blas_get_float32_precision(void) {
  int precision = atomic_load(&float32_precision);
  return precision == WEIR_MATMUL_HIGHEST && is_overridden() ? WEIR_MATMUL_HIGH : (weir_matmul_precision)precision;
}

static const char *const precision_names[] = {"highest", "high", "medium"};

weir_status weir_matmul_precision_parse(const char *text, weir_matmul_precision *precision) {
  WEIR__CHECK_ARGUMENT(text);
  WEIR__CHECK_ARGUMENT(precision);
  for (size_t i = 0; i < WEIR_COUNT_OF(precision_names); i++)
    if (!strcmp(text, precision_names[i])) {
      *precision = (weir_matmul_precision)i;
      return WEIR_OK;
    }
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: \"%s\" is not a precision; expected highest, high or medium",
                    __func__, text);
}

const char *weir_matmul_precision_name(weir_matmul_precision precision) {
  return (size_t)precision < WEIR_COUNT_OF(precision_names) ? precision_names[precision] : NULL;
}

static weir_status set_reduced(const char *caller, atomic_int *setting, weir_reduced_precision mode) {
  if (mode < WEIR_REDUCED_PRECISION_DISALLOW_SPLIT || mode > WEIR_REDUCED_PRECISION_ALLOW)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d is not a mode", caller, (int)mode);
  atomic_store(setting, mode);
  return WEIR_OK;
}
weir_status weir_blas_set_fp16_reduced_precision(weir_reduced_precision mode) {
  return set_reduced(__func__, &fp16_reduced, mode);
}
weir_status weir_blas_set_bf16_reduced_precision(weir_reduced_precision mode) {
  return set_reduced(__func__, &bf16_reduced, mode);
}
weir_reduced_precision weir_blas_get_fp16_reduced_precision(void) {
  return (weir_reduced_precision)atomic_load(&fp16_reduced);
}
weir_reduced_precision weir_blas_get_bf16_reduced_precision(void) {
  return (weir_reduced_precision)atomic_load(&bf16_reduced);
}

void weir_blas_set_allow_fp16_accumulation(int allow) { atomic_store(&fp16_accumulation, allow != 0); }
int weir_blas_get_allow_fp16_accumulation(void) { return atomic_load(&fp16_accumulation); }

weir_status weir_blas_set_deterministic(weir_deterministic mode) {
  if (mode < WEIR_DETERMINISTIC_OFF || mode > WEIR_DETERMINISTIC_ERROR)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d is not a mode", __func__, (int)mode);
  atomic_store(&deterministic, mode);
  return WEIR_OK;
}
weir_deterministic weir_blas_get_deterministic(void) { return (weir_deterministic)atomic_load(&deterministic); }

weir_status weir_blas_check_deterministic(void) {
  static const char text[] =
      "Deterministic behavior was enabled with `torch.use_deterministic_algorithms(True)`, but this operation is not "
      "deterministic because it uses CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, "
      "you must set an environment variable before running your application: CUBLAS_WORKSPACE_CONFIG=:4096:8 or "
      "CUBLAS_WORKSPACE_CONFIG=:16:8. For more information, go to "
      "https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility";
  int mode = atomic_load(&deterministic);
  const char *config = weir__compute_env(WEIR__ENV_WORKSPACE);
  if (mode == WEIR_DETERMINISTIC_OFF || (config && (!strcmp(config, ":4096:8") || !strcmp(config, ":16:8"))))
    return WEIR_OK;
  if (mode == WEIR_DETERMINISTIC_ERROR)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: %s", __func__, text);
  weir__log(WEIR_LOG_WARN, "%s", text);
  return WEIR_OK;
}

weir_status weir__alert_not_deterministic(const char *caller, const char *operation) {
  int mode = atomic_load(&deterministic);
  if (mode == WEIR_DETERMINISTIC_ERROR)
    return weir__fail(WEIR_ERROR_BAD_STATE,
                      "%s: %s does not have a deterministic implementation, but you set "
                      "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this "
                      "operation, or you can use the 'warn_only=True' option, if that's acceptable for your "
                      "application.",
                      caller, operation);
  if (mode == WEIR_DETERMINISTIC_WARN)
    weir__log(WEIR_LOG_WARN,
              "%s does not have a deterministic implementation, but you set "
              "'torch.use_deterministic_algorithms(True, warn_only=True)'.",
              operation);
  return WEIR_OK;
}

/* ---- Workspaces ---- */

/* A list of :KIB:COUNT anywhere in the text. False if there is none. */
static bool parse_config(const char *text, uint64_t *bytes) {
  bool found = false;
  *bytes = 0;
  for (const char *at = strchr(text, ':'); at;) {
    char *end;
    unsigned long long kib = strtoull(at + 1, &end, 10), count = 0;
    bool is_pair = end > at + 1 && at[1] >= '0' && at[1] <= '9' && *end == ':' && end[1] >= '0' && end[1] <= '9';
    if (is_pair) {
      count = strtoull(end + 1, &end, 10);
      *bytes += kib * 1024 * count;
      found = true;
    }
    at = strchr(is_pair ? end : at + 1, ':');
  }
  return found;
}

weir_status weir_blas_workspace_bytes(int device, uint64_t *bytes) {
  WEIR__CHECK_ARGUMENT(bytes);
  const char *config = weir__compute_env(WEIR__ENV_WORKSPACE);
  uint64_t parsed;
  if (config && parse_config(config, &parsed)) {
    *bytes = parsed;
    return WEIR_OK;
  }
  int major, minor;
  weir_status status = weir_device_capability(device, &major, &minor);
  if (status)
    return weir__fail_as(__func__, status);
  *bytes = major == 9 && minor == 0 ? 32ull << 20 : (8ull << 20) + (128ull << 10);
  static atomic_bool has_warned;
  if (config && !atomic_exchange(&has_warned, true))
    weir__log(WEIR_LOG_WARN, "Could not parse CUBLAS_WORKSPACE_CONFIG, using default workspace size of %llu bytes.",
              (unsigned long long)*bytes);
  return WEIR_OK;
}

/* ---- The library ---- */

typedef int (*create_fn)(void **handle);
typedef int (*destroy_fn)(void *handle);
typedef int (*set_stream_fn)(void *handle, weir_cu_stream stream);
typedef int (*set_workspace_fn)(void *handle, void *workspace, size_t bytes);
typedef int (*set_math_mode_fn)(void *handle, int mode);
typedef int (*gemm_fn)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                       const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const void *beta,
                       void *c, int c_type, int ldc, int compute_type, int algorithm);
typedef int (*gemm_batched_fn)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                               const void *a, int a_type, int lda, long long a_stride, const void *b, int b_type,
                               int ldb, long long b_stride, const void *beta, void *c, int c_type, int ldc,
                               long long c_stride, int batch, int compute_type, int algorithm);

static struct cublas {
  create_fn create;
  destroy_fn destroy;
  set_stream_fn set_stream;
  set_workspace_fn set_workspace;
  set_math_mode_fn set_math_mode;
  gemm_fn gemm;
  gemm_batched_fn gemm_batched;
  bool is_loaded;
} cublas; /* guarded by lock until it is loaded */

/* cuBLAS's numbers. */
enum {
  DEFAULT_MATH = 0,
  TF32_MATH = 3,
  DISALLOW_REDUCED_PRECISION = 16,
  COMPUTE_16F = 64,
  COMPUTE_32F = 68,
  COMPUTE_64F = 70
};

weir_status weir__blas_check(const char *caller, int result, const char *call) {
  static const char *const names[] = {[1] = "CUBLAS_STATUS_NOT_INITIALIZED", [3] = "CUBLAS_STATUS_ALLOC_FAILED",
                                      [7] = "CUBLAS_STATUS_INVALID_VALUE",   [8] = "CUBLAS_STATUS_ARCH_MISMATCH",
                                      [11] = "CUBLAS_STATUS_MAPPING_ERROR",  [13] = "CUBLAS_STATUS_EXECUTION_FAILED",
                                      [14] = "CUBLAS_STATUS_INTERNAL_ERROR", [15] = "CUBLAS_STATUS_NOT_SUPPORTED",
                                      [16] = "CUBLAS_STATUS_LICENSE_ERROR"};
  if (!result)
    return WEIR_OK;
  const char *name = result > 0 && result < (int)WEIR_COUNT_OF(names) ? names[result] : NULL;
  return weir__fail(result == 3 ? WEIR_ERROR_OUT_OF_MEMORY : WEIR_ERROR_DRIVER,
                    "%s: CUDA error: %s (%d) when calling `%s`", caller, name ? name : "an unknown cuBLAS error",
                    result, call);
}

static weir_status load_cublas(const char *caller) {
  static const char *const names[] = {"cublasCreate_v2",           "cublasDestroy_v2",  "cublasSetStream_v2",
                                      "cublasSetWorkspace_v2",     "cublasSetMathMode", "cublasGemmEx",
                                      "cublasGemmStridedBatchedEx"};
  if (cublas.is_loaded)
    return WEIR_OK;
  char reason[1400];
  void *library = weir__library_load("cublas", reason, sizeof reason);
  if (!library)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: matrix products on a GPU need cuBLAS, and %s", caller, reason);
  void *symbols[WEIR_COUNT_OF(names)];
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) {
    symbols[i] = dlsym(library, names[i]);
    if (!symbols[i])
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                        "%s: the cuBLAS that was found has no %s; version 11.2 or later is needed", caller, names[i]);
  }
  memcpy(&cublas.create, &symbols[0], sizeof symbols[0]);
  memcpy(&cublas.destroy, &symbols[1], sizeof symbols[1]);
  memcpy(&cublas.set_stream, &symbols[2], sizeof symbols[2]);
  memcpy(&cublas.set_workspace, &symbols[3], sizeof symbols[3]);
  memcpy(&cublas.set_math_mode, &symbols[4], sizeof symbols[4]);
  memcpy(&cublas.gemm, &symbols[5], sizeof symbols[5]);
  memcpy(&cublas.gemm_batched, &symbols[6], sizeof symbols[6]);
  cublas.is_loaded = true;
  return WEIR_OK;
}

typedef int (*get_property_fn)(int property, int *value);

bool weir__blas_version(weir_driver *driver, char *text, size_t size) {
  if (weir__driver_can(driver, WEIR_DRIVER_HOST_KERNELS))
    return false;
  char reason[1400];
  void *library = weir__library_load("cublas", reason, sizeof reason);
  void *symbol = library ? dlsym(library, "cublasGetProperty") : NULL;
  get_property_fn get_property;
  int parts[3];
  if (!symbol)
    return false;
  memcpy(&get_property, &symbol, sizeof symbol);
  for (int i = 0; i < 3; i++)
    if (get_property(i, &parts[i]))
      return false;
  snprintf(text, size, "%d.%d.%d", parts[0], parts[1], parts[2]);
  return true;
}

/* ---- Handles ---- */

typedef struct workspace {
  weir_stream stream;
  uint64_t bytes;
  weir__device_memory memory;
} workspace;

/* A handle of a device, of one thread at a time. */
typedef struct handle handle;
struct handle {
  handle *next;
  int device;
  bool is_taken; /* by a thread */
  void *cublas;  /* NULL on the software device, where the address of this struct is the token */
  workspace *workspaces;
  size_t workspace_count, workspace_room;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, is_taken, and the workspaces */
static handle *handles;

/* The handles that a thread has taken, which others may take after its end. */
typedef struct taken {
  unsigned long epoch;
  handle *on[WEIR_MAX_DEVICES];
} taken;
static pthread_key_t key;
static bool has_key;

static void thread_ends(void *value) {
  taken *own = value;
  pthread_mutex_lock(&lock);
  if (own->epoch == weir__compute_epoch)
    for (int i = 0; i < WEIR_MAX_DEVICES; i++)
      if (own->on[i])
        own->on[i]->is_taken = false;
  pthread_mutex_unlock(&lock);
  free(own);
}

static void make_key(void) { has_key = !pthread_key_create(&key, thread_ends); }

static taken *taken_by_thread(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_key);
  if (!has_key)
    return NULL;
  taken *own = pthread_getspecific(key);
  if (!own) {
    own = calloc(1, sizeof *own);
    if (own && pthread_setspecific(key, own)) {
      free(own);
      own = NULL;
    }
  }
  if (own && own->epoch != weir__compute_epoch)
    *own = (taken){.epoch = weir__compute_epoch};
  return own;
}

/* Creating a handle allocates memory in the driver, which a capture allows in the relaxed mode only. */
static weir_status create_cublas(const char *caller, weir_driver *driver, void **made) {
  weir_status status = load_cublas(caller);
  if (status)
    return status;
  int mode = weir__compute_relax(driver);
  status = weir__blas_check(caller, cublas.create(made), "cublasCreate(handle)");
  weir__compute_restore(driver, mode);
  return status;
}

static weir_status find_handle(const char *caller, const weir__on_device *on, handle **found) {
  taken *own = taken_by_thread();
  if (!own)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the handles of a thread", caller);
  *found = own->on[on->device];
  if (*found)
    return WEIR_OK;
  weir_status status = WEIR_OK;
  pthread_mutex_lock(&lock);
  handle *h = handles;
  while (h && (h->is_taken || h->device != on->device))
    h = h->next;
  if (!h) {
    h = calloc(1, sizeof *h);
    if (!h)
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a handle", caller);
    else if (!weir__driver_can(on->driver, WEIR_DRIVER_HOST_KERNELS))
      status = create_cublas(caller, on->driver, &h->cublas);
    if (!status && h) {
      h->device = on->device;
      h->next = handles;
      handles = h;
    } else
      free(h);
  }
  if (!status && h) {
    h->is_taken = true;
    own->on[on->device] = *found = h;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static weir_status find_workspace(const char *caller, handle *h, weir_stream stream, workspace *found) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < h->workspace_count; i++)
    if (weir_stream_equal(h->workspaces[i].stream, stream)) {
      *found = h->workspaces[i];
      pthread_mutex_unlock(&lock);
      return WEIR_OK;
    }
  pthread_mutex_unlock(&lock);
  *found = (workspace){.stream = stream};
  weir_status status = weir_blas_workspace_bytes(stream.device, &found->bytes);
  if (!status && found->bytes)
    status = weir__compute_alloc(found->bytes, stream, &found->memory);
  if (status)
    return weir__fail_as(caller, status);
  pthread_mutex_lock(&lock);
  bool has_room = WEIR__RESERVE(h->workspaces, h->workspace_room, h->workspace_count + 1);
  if (has_room)
    h->workspaces[h->workspace_count++] = *found;
  pthread_mutex_unlock(&lock);
  if (has_room)
    return WEIR_OK;
  weir__compute_free(&found->memory);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a workspace", caller);
}

/* The handle of the thread, made ready for a stream. */
static weir_status prepare(const char *caller, const weir__on_device *on, weir_stream stream, handle **prepared,
                           workspace *prepared_work) {
  handle *h = NULL;
  workspace work = {0};
  weir_cu_stream raw;
  weir_status status = weir_stream_raw(stream, &raw);
  if (status)
    return weir__fail_as(caller, status);
  status = find_handle(caller, on, &h);
  if (!status && h)
    status = find_workspace(caller, h, stream, &work);
  if (!status && h && h->cublas) {
    status = weir__blas_check(caller, cublas.set_stream(h->cublas, raw), "cublasSetStream(handle, stream)");
    if (!status)
      status = weir__blas_check(caller, cublas.set_workspace(h->cublas, work.memory.pointer, work.bytes),
                                "cublasSetWorkspace(handle, workspace, bytes)");
    int mode = weir_blas_get_allow_tf32() ? TF32_MATH : DEFAULT_MATH;
    if (!status)
      status = weir__blas_check(caller, cublas.set_math_mode(h->cublas, mode), "cublasSetMathMode(handle, mode)");
  }
  *prepared = h;
  if (prepared_work)
    *prepared_work = work;
  return status;
}

weir_status weir__blas_prepare(const char *caller, const weir__on_device *on, weir_stream stream,
                               weir__blas_ready *ready) {
  handle *h = NULL;
  workspace work = {0};
  weir_status status = prepare(caller, on, stream, &h, &work);
  if (!status && h)
    *ready = (weir__blas_ready){h->cublas, work.memory.pointer, work.bytes};
  return status;
}

weir_status weir_blas_handle(weir_stream stream, void **result) {
  WEIR__CHECK_ARGUMENT(result);
  weir__on_device on;
  handle *h = NULL;
  weir_status status = weir__compute_enter(__func__, stream.device, &on);
  if (status)
    return status;
  status = prepare(__func__, &on, stream, &h, NULL);
  weir__compute_leave(&on);
  if (!status && h)
    *result = h->cublas ? h->cublas : h;
  return status;
}

static void free_workspaces(handle *h) {
  for (size_t i = 0; i < h->workspace_count; i++)
    weir__compute_free(&h->workspaces[i].memory);
  free(h->workspaces);
  h->workspaces = NULL;
  h->workspace_count = h->workspace_room = 0;
}

weir_status weir_blas_clear_workspaces(void) {
  pthread_mutex_lock(&lock);
  for (handle *h = handles; h; h = h->next)
    free_workspaces(h);
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

void weir__blas_end(void) {
  weir__blas_lt_end();
  pthread_mutex_lock(&lock);
  while (handles) {
    handle *h = handles;
    handles = h->next;
    free_workspaces(h);
    weir__on_device on;
    if (h->cublas && !weir__compute_enter(__func__, h->device, &on)) {
      if (weir__blas_check(__func__, cublas.destroy(h->cublas), "cublasDestroy(handle)"))
        weir__log(WEIR_LOG_ERROR, "a handle of cuBLAS could not be destroyed: %s", weir_last_error());
      weir__compute_leave(&on);
    }
    free(h);
  }
  pthread_mutex_unlock(&lock);
}

/* ---- Products ---- */

static int math_mode(weir_dtype dtype) {
  int mode = dtype == WEIR_FLOAT32 || dtype == WEIR_COMPLEX64 ? weir_blas_get_allow_tf32() ? TF32_MATH : DEFAULT_MATH
                                                              : DEFAULT_MATH;
  bool disallows = (dtype == WEIR_FLOAT16 && atomic_load(&fp16_reduced) != WEIR_REDUCED_PRECISION_ALLOW) ||
                   (dtype == WEIR_BFLOAT16 && atomic_load(&bf16_reduced) != WEIR_REDUCED_PRECISION_ALLOW);
  return disallows ? mode | DISALLOW_REDUCED_PRECISION : mode;
}

int weir__blas_data_type(weir_dtype dtype) {
  switch (dtype) {
  case WEIR_FLOAT16:
    return 2;
  case WEIR_BFLOAT16:
    return 14;
  case WEIR_FLOAT32:
    return 0;
  case WEIR_FLOAT64:
    return 1;
  case WEIR_COMPLEX64:
    return 4;
  default:
    return 5;
  }
}

static weir_status call_gemm(const char *caller, void *blas, const weir__gemm *g, int algorithm) {
  static const struct {
    float f[2], zero_f[2];
    double d[2], zero_d[2];
    uint16_t half, zero_half;
  } one = {.f = {1, 0}, .d = {1, 0}, .half = 0x3c00};
  int type = weir__blas_data_type(g->dtype), compute = COMPUTE_32F;
  const void *alpha = &one.f, *beta = &one.zero_f;
  if (g->dtype == WEIR_FLOAT64 || g->dtype == WEIR_COMPLEX128)
    compute = COMPUTE_64F, alpha = &one.d, beta = &one.zero_d;
  if (g->dtype == WEIR_FLOAT16 && atomic_load(&fp16_accumulation))
    compute = COMPUTE_16F, alpha = &one.half, beta = &one.zero_half;
  int m = (int)g->m, n = (int)g->n, k = (int)g->k, lda = (int)g->lda, ldb = (int)g->ldb, ldc = (int)g->ldc;
  if (g->batch == 1)
    return weir__blas_check(caller,
                            cublas.gemm(blas, g->transposes_a, g->transposes_b, m, n, k, alpha, g->a, type, lda, g->b,
                                        type, ldb, beta, g->c, type, ldc, compute, algorithm),
                            "cublasGemmEx");
  return weir__blas_check(caller,
                          cublas.gemm_batched(blas, g->transposes_a, g->transposes_b, m, n, k, alpha, g->a, type, lda,
                                              g->a_stride, g->b, type, ldb, g->b_stride, beta, g->c, type, ldc,
                                              g->c_stride, (int)g->batch, compute, algorithm),
                          "cublasGemmStridedBatchedEx");
}

weir_status weir__blas_gemm(const char *caller, weir_stream stream, const weir__gemm *g, int algorithm) {
  int64_t most = INT32_MAX;
  if (g->m > most || g->n > most || g->k > most || g->lda > most || g->ldb > most || g->ldc > most || g->batch > most)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: a dimension or stride of the matrices is above 2^31 - 1, which cuBLAS does not support",
                      caller);
  weir__on_device on;
  handle *h = NULL;
  weir_status status = weir__fail_as(caller, weir_blas_check_deterministic());
  if (!status)
    status = weir__compute_enter(caller, stream.device, &on);
  if (status)
    return status;
  status = prepare(caller, &on, stream, &h, NULL);
  if (!status && h)
    status = weir__blas_check(caller, cublas.set_math_mode(h->cublas, math_mode(g->dtype)),
                              "cublasSetMathMode(handle, mode)");
  if (!status && h)
    status = call_gemm(caller, h->cublas, g, algorithm);
  weir__compute_leave(&on);
  return status;
}
