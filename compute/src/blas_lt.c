/*
 * Matrix products by cuBLASLt, which libcublas depends on, so that its functions are found through that library. The
 * handle of cuBLAS is one of cuBLASLt, too.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "src/blas.h"
#include "src/libraries.h"

/* cuBLASLt's numbers. */
enum {
  COMPUTE_16F = 64,
  COMPUTE_32F = 68,
  COMPUTE_64F = 70,
  COMPUTE_32F_FAST_TF32 = 77,
  TYPE_16F = 2,
  TYPE_32F = 0,
  DESC_TRANSPOSES_A = 3,
  DESC_TRANSPOSES_B = 4,
  LAYOUT_BATCH_COUNT = 5,
  LAYOUT_BATCH_STRIDE = 6,
  PREFERENCE_MAX_WORKSPACE = 1,
  PREFERENCE_REDUCTIONS = 3,
  PREFERENCE_ALIGNMENT_A = 5, /* and of b, c and d */
  REDUCTION_NONE = 0,
  REDUCTION_COMPUTE_TYPE = 2,
  NOT_SUPPORTED = 15
};

typedef struct algorithm {
  uint64_t data[8];
} algorithm;

typedef struct heuristic {
  algorithm it;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
} heuristic;
_Static_assert(sizeof(heuristic) == 96, "cublasLtMatmulHeuristicResult_t");

typedef void *lt_object;

/* name, parameters */
#define FUNCTIONS(X)                                                                                                   \
  X(MatmulDescCreate, (lt_object * desc, int compute, int scale))                                                      \
  X(MatmulDescDestroy, (lt_object desc))                                                                               \
  X(MatmulDescSetAttribute, (lt_object desc, int attribute, const void *value, size_t bytes))                          \
  X(MatrixLayoutCreate, (lt_object * layout, int type, uint64_t rows, uint64_t columns, int64_t leading))              \
  X(MatrixLayoutDestroy, (lt_object layout))                                                                           \
  X(MatrixLayoutSetAttribute, (lt_object layout, int attribute, const void *value, size_t bytes))                      \
  X(MatmulPreferenceCreate, (lt_object * preference))                                                                  \
  X(MatmulPreferenceDestroy, (lt_object preference))                                                                   \
  X(MatmulPreferenceSetAttribute, (lt_object preference, int attribute, const void *value, size_t bytes))              \
  X(MatmulAlgoGetHeuristic, (void *handle, lt_object desc, lt_object a, lt_object b, lt_object c, lt_object d,         \
                             lt_object preference, int requested, heuristic *results, int *count))                     \
  X(Matmul, (void *handle, lt_object desc, const void *alpha, const void *a, lt_object a_layout, const void *b,        \
             lt_object b_layout, const void *beta, const void *c, lt_object c_layout, void *d, lt_object d_layout,     \
             const algorithm *it, void *workspace, size_t workspace_bytes, weir_cu_stream stream))

#define X(name, parameters) typedef int(*name##_fn) parameters;
FUNCTIONS(X)
#undef X

static struct lt {
#define X(name, parameters) name##_fn name;
  FUNCTIONS(X)
#undef X
  bool is_loaded;
} lt;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards lt until it is loaded, and the cache */

static weir_status load(const char *caller) {
  static const char *const names[] = {
#define X(name, parameters) "cublasLt" #name,
      FUNCTIONS(X)
#undef X
  };
  void *symbols[WEIR_COUNT_OF(names)];
  char reason[1400];
  void *library = weir__library_load("cublas", reason, sizeof reason);
  if (!library)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: matrix products by cuBLASLt need cuBLAS, and %s", caller, reason);
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) {
    symbols[i] = dlsym(library, names[i]);
    if (!symbols[i])
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the cuBLAS that was found has no %s", caller, names[i]);
  }
  size_t at = 0;
#define X(name, parameters) memcpy(&lt.name, &symbols[at++], sizeof symbols[0]);
  FUNCTIONS(X)
#undef X
  lt.is_loaded = true;
  return WEIR_OK;
}

/* ---- The chosen algorithms ---- */

/* What cuBLASLt's choice depends on. Without padding, so that keys can be compared as bytes. */
typedef struct key {
  int64_t m, n, k, batch, lda, ldb, ldc, a_stride, b_stride, c_stride;
  uint64_t workspace_bytes;
  uint32_t alignment[3];
  int32_t dtype, compute, reductions, transposes, device, rank, is_used;
} key;
_Static_assert(sizeof(key) == 128, "no padding");

enum { CACHE_SLOTS = 256 };
static struct slot {
  key of;
  algorithm it;
} cache[CACHE_SLOTS];

static struct slot *slot_of(const key *k) {
  const unsigned char *bytes = (const unsigned char *)k;
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < sizeof *k; i++)
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return &cache[(hash >> 32) % CACHE_SLOTS];
}

static bool find_cached(const key *k, algorithm *it) {
  pthread_mutex_lock(&lock);
  const struct slot *s = slot_of(k);
  bool found = !memcmp(&s->of, k, sizeof *k);
  if (found)
    *it = s->it;
  pthread_mutex_unlock(&lock);
  return found;
}

static void keep(const key *k, const algorithm *it) {
  pthread_mutex_lock(&lock);
  *slot_of(k) = (struct slot){*k, *it};
  pthread_mutex_unlock(&lock);
}

void weir__blas_lt_end(void) {
  pthread_mutex_lock(&lock);
  memset(cache, 0, sizeof cache);
  pthread_mutex_unlock(&lock);
}

/* ---- Products ---- */

/* What cuBLASLt does not support can be done by another implementation. */
static weir_status check(const char *caller, int result, const char *call) {
  return result == NOT_SUPPORTED
             ? weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: cuBLASLt does not support this product: %s", caller, call)
             : weir__blas_check(caller, result, call);
}

/* As check, for a call that creates an object: what a failing call has written is not used. */
static weir_status check_created(const char *caller, int result, const char *call, lt_object *made) {
  if (result)
    *made = NULL;
  return check(caller, result, call);
}

typedef struct problem {
  lt_object desc, a, b, c, preference;
} problem;

/* The product itself has been enqueued or has failed, so that a failure here does not change its status. */
static void check_destroyed(int result, const char *call) {
  if (result)
    weir__log(WEIR_LOG_ERROR, "an object of cuBLASLt could not be destroyed: %s returned %d", call, result);
}

static void destroy(problem *p) {
  lt_object layouts[] = {p->c, p->b, p->a};
  if (p->preference)
    check_destroyed(lt.MatmulPreferenceDestroy(p->preference), "cublasLtMatmulPreferenceDestroy");
  for (size_t i = 0; i < WEIR_COUNT_OF(layouts); i++)
    if (layouts[i])
      check_destroyed(lt.MatrixLayoutDestroy(layouts[i]), "cublasLtMatrixLayoutDestroy");
  if (p->desc)
    check_destroyed(lt.MatmulDescDestroy(p->desc), "cublasLtMatmulDescDestroy");
}

static weir_status make_layout(const char *caller, const weir__gemm *g, int64_t rows, int64_t columns, int64_t leading,
                               int64_t stride, lt_object *layout) {
  int32_t batch = (int32_t)g->batch;
  weir_status status = check_created(
      caller, lt.MatrixLayoutCreate(layout, weir__blas_data_type(g->dtype), (uint64_t)rows, (uint64_t)columns, leading),
      "cublasLtMatrixLayoutCreate", layout);
  if (!status && batch > 1)
    status = check(caller, lt.MatrixLayoutSetAttribute(*layout, LAYOUT_BATCH_COUNT, &batch, sizeof batch),
                   "cublasLtMatrixLayoutSetAttribute(BATCH_COUNT)");
  if (!status && batch > 1)
    status = check(caller, lt.MatrixLayoutSetAttribute(*layout, LAYOUT_BATCH_STRIDE, &stride, sizeof stride),
                   "cublasLtMatrixLayoutSetAttribute(STRIDED_BATCH_OFFSET)");
  return status;
}

static weir_status make_problem(const char *caller, const weir__gemm *g, const key *k, int scale, problem *p) {
  int32_t transposes[] = {g->transposes_a, g->transposes_b};
  weir_status status =
      check_created(caller, lt.MatmulDescCreate(&p->desc, k->compute, scale), "cublasLtMatmulDescCreate", &p->desc);
  for (int i = 0; i < 2 && !status; i++)
    status =
        check(caller, lt.MatmulDescSetAttribute(p->desc, DESC_TRANSPOSES_A + i, &transposes[i], sizeof transposes[i]),
              "cublasLtMatmulDescSetAttribute(TRANSA or TRANSB)");
  if (!status)
    status = g->transposes_a ? make_layout(caller, g, g->k, g->m, g->lda, g->a_stride, &p->a)
                             : make_layout(caller, g, g->m, g->k, g->lda, g->a_stride, &p->a);
  if (!status)
    status = g->transposes_b ? make_layout(caller, g, g->n, g->k, g->ldb, g->b_stride, &p->b)
                             : make_layout(caller, g, g->k, g->n, g->ldb, g->b_stride, &p->b);
  return status ? status : make_layout(caller, g, g->m, g->n, g->ldc, g->c_stride, &p->c);
}

static weir_status set_preference(const char *caller, problem *p, int attribute, const void *value, size_t bytes) {
  return check(caller, lt.MatmulPreferenceSetAttribute(p->preference, attribute, value, bytes),
               "cublasLtMatmulPreferenceSetAttribute");
}

/* Asks for the algorithms, and takes the one of the rank in the key. */
static weir_status choose(const char *caller, void *handle, problem *p, const key *k, algorithm *it) {
  heuristic results[WEIR__BLAS_LT_ALGORITHMS];
  size_t workspace_bytes = k->workspace_bytes;
  uint32_t reductions = (uint32_t)k->reductions;
  int count = 0;
  weir_status status = check_created(caller, lt.MatmulPreferenceCreate(&p->preference),
                                     "cublasLtMatmulPreferenceCreate", &p->preference);
  if (!status)
    status = set_preference(caller, p, PREFERENCE_MAX_WORKSPACE, &workspace_bytes, sizeof workspace_bytes);
  if (!status && k->reductions >= 0)
    status = set_preference(caller, p, PREFERENCE_REDUCTIONS, &reductions, sizeof reductions);
  for (int i = 0; i < 4 && !status; i++) /* the result is both c and d */
    status = set_preference(caller, p, PREFERENCE_ALIGNMENT_A + i, &k->alignment[i < 3 ? i : 2], sizeof(uint32_t));
  if (status)
    return status;
  int result = lt.MatmulAlgoGetHeuristic(handle, p->desc, p->a, p->b, p->c, p->c, p->preference,
                                         WEIR__BLAS_LT_ALGORITHMS, results, &count);
  if (result == NOT_SUPPORTED || (!result && (k->rank >= count || results[k->rank].status)))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: cuBLASLt has no algorithm %d for this product", caller, k->rank);
  if (result)
    return weir__blas_check(caller, result, "cublasLtMatmulAlgoGetHeuristic");
  *it = results[k->rank].it;
  return WEIR_OK;
}

/* Whether partial sums of a product that is split may be added in the type of the result. -1 for no restriction. */
static int allowed_reductions(weir_dtype dtype) {
  weir_reduced_precision mode = dtype == WEIR_FLOAT16    ? weir_blas_get_fp16_reduced_precision()
                                : dtype == WEIR_BFLOAT16 ? weir_blas_get_bf16_reduced_precision()
                                                         : WEIR_REDUCED_PRECISION_ALLOW;
  return mode == WEIR_REDUCED_PRECISION_ALLOW      ? -1
         : mode == WEIR_REDUCED_PRECISION_DISALLOW ? REDUCTION_COMPUTE_TYPE
                                                   : REDUCTION_NONE;
}

static weir_status multiply(const char *caller, const weir__on_device *on, weir_stream stream, const weir__gemm *g,
                            int rank) {
  static const float one_f[2] = {1, 0}, zero_f[2] = {0, 0};
  static const double one_d[2] = {1, 0}, zero_d[2] = {0, 0};
  static const uint16_t one_half = 0x3c00, zero_half = 0;
  const void *alpha = one_f, *beta = zero_f;
  bool is_complex = weir_dtype_is_complex(g->dtype);
  int compute = COMPUTE_32F, scale = is_complex ? weir__blas_data_type(WEIR_COMPLEX64) : TYPE_32F;
  if (g->dtype == WEIR_FLOAT64 || g->dtype == WEIR_COMPLEX128)
    compute = COMPUTE_64F, scale = weir__blas_data_type(g->dtype), alpha = one_d, beta = zero_d;
  else if (g->dtype == WEIR_FLOAT16 && weir_blas_get_allow_fp16_accumulation())
    compute = COMPUTE_16F, scale = TYPE_16F, alpha = &one_half, beta = &zero_half;
  else if ((g->dtype == WEIR_FLOAT32 || g->dtype == WEIR_COMPLEX64) && weir_blas_get_allow_tf32())
    compute = COMPUTE_32F_FAST_TF32;

  weir__blas_ready ready;
  weir_cu_stream raw;
  weir_status status = weir__blas_prepare(caller, on, stream, &ready);
  if (!status)
    status = weir__fail_as(caller, weir_stream_raw(stream, &raw));
  if (status)
    return status;
  key k;
  memset(&k, 0, sizeof k);
  k = (key){g->m,
            g->n,
            g->k,
            g->batch,
            g->lda,
            g->ldb,
            g->ldc,
            g->a_stride,
            g->b_stride,
            g->c_stride,
            ready.workspace_bytes,
            {g->alignment[0], g->alignment[1], g->alignment[2]},
            (int32_t)g->dtype,
            compute,
            allowed_reductions(g->dtype),
            g->transposes_a * 2 + g->transposes_b,
            on->device,
            rank,
            1};
  problem p = {0};
  algorithm it;
  status = make_problem(caller, g, &k, scale, &p);
  if (!status && !find_cached(&k, &it)) {
    status = choose(caller, ready.handle, &p, &k, &it);
    if (!status)
      keep(&k, &it);
  }
  if (!status) {
    int result = lt.Matmul(ready.handle, p.desc, alpha, g->a, p.a, g->b, p.b, beta, g->c, p.c, g->c, p.c, &it,
                           ready.workspace, ready.workspace_bytes, raw);
    status = result == NOT_SUPPORTED ? weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                                                  "%s: algorithm %d of cuBLASLt cannot do this product", caller, rank)
                                     : weir__blas_check(caller, result, "cublasLtMatmul");
  }
  destroy(&p);
  return status;
}

weir_status weir__blas_lt_gemm(const char *caller, weir_stream stream, const weir__gemm *g, int rank) {
  if (g->batch > INT32_MAX)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: cuBLASLt has at most 2^31 - 1 matrices", caller);
  weir__on_device on;
  pthread_mutex_lock(&lock);
  weir_status status = lt.is_loaded ? WEIR_OK : load(caller);
  pthread_mutex_unlock(&lock);
  if (!status)
    status = weir__fail_as(caller, weir_blas_check_deterministic());
  if (!status)
    status = weir__compute_enter(caller, stream.device, &on);
  if (status)
    return status;
  status = multiply(caller, &on, stream, g, rank);
  weir__compute_leave(&on);
  return status;
}
