/*
 * Elementwise functions from source. A function has a module for each combination of device, types and layout with
 * which it was called.
 */
#include "weir/compute/jiterator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jit_texts.h" /* generated: device_h, complex_h */
#include "src/compute.h"
#include "src/jit_source.h"
#include "src/kernel_cache.h"
#include "src/module.h"

enum { MAX_OPERANDS = WEIR_JIT_MAX_INPUTS + WEIR_JIT_MAX_OUTPUTS, BLOCK = 256, MAX_BLOCKS = 1 << 16 };

/* The parameters of the kernels; the source below has the same structs. */
typedef struct scalar_args {
  double real[WEIR_JIT_MAX_SCALARS], imag[WEIR_JIT_MAX_SCALARS];
  int64_t integer[WEIR_JIT_MAX_SCALARS];
  uint64_t is_integer; /* a bit for each */
} scalar_args;

typedef struct flat_args {
  int64_t count;
  void *data[MAX_OPERANDS];
  scalar_args scalars;
} flat_args;

typedef struct strided_args {
  int64_t count, rank;
  int64_t shape[WEIR_JIT_MAX_RANK];
  int64_t strides[MAX_OPERANDS][WEIR_JIT_MAX_RANK];
  void *data[MAX_OPERANDS];
  scalar_args scalars;
} strided_args;

static const char structs[] =
    "struct weir_scalars { double real[8], imag[8]; long long integer[8]; unsigned long long is_integer; };\n"
    "struct weir_flat { long long count; void *data[16]; weir_scalars scalars; };\n"
    "struct weir_strided { long long count, rank, shape[12], strides[16][12]; void *data[16];\n"
    "  weir_scalars scalars; };\n";
_Static_assert(sizeof(flat_args) == 8 + 16 * 8 + 25 * 8, "as in the source");
_Static_assert(sizeof(strided_args) == 16 + 12 * 8 + 16 * 12 * 8 + 16 * 8 + 25 * 8, "as in the source");

/* The C++ name of a type in the kernel. */
static const char *const names_in_source[] = {[WEIR_UINT8] = "unsigned char",
                                              [WEIR_INT8] = "signed char",
                                              [WEIR_INT16] = "short",
                                              [WEIR_INT32] = "int",
                                              [WEIR_INT64] = "long long",
                                              [WEIR_FLOAT16] = "weir_half",
                                              [WEIR_FLOAT32] = "float",
                                              [WEIR_FLOAT64] = "double",
                                              [WEIR_COMPLEX64] = "std::complex<float>",
                                              [WEIR_COMPLEX128] = "std::complex<double>",
                                              [WEIR_BOOL] = "bool",
                                              [WEIR_BFLOAT16] = "weir_bfloat16"};

/* A module of the function. */
typedef struct variant {
  struct variant *next;
  int device, input_count;
  bool is_flat;
  unsigned char type, operands[MAX_OPERANDS];
  weir_module *module;
  weir_kernel *kernel;
} variant;

struct weir_jit_fn {
  pthread_mutex_t lock; /* guards the variants */
  variant *variants;
  int output_count, scalar_count;
  bool by_reference; /* the results are parameters */
  char *scalar_names[WEIR_JIT_MAX_SCALARS];
  char *code, *name;
};

/* ---- Making one ---- */

static weir_status create(const char *caller, const char *code, int output_count, bool by_reference,
                          const char *const *scalar_names, int scalar_count, weir_jit_fn **fn) {
  if (output_count < 1 || output_count > WEIR_JIT_MAX_OUTPUTS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: output_count is %d; allowed are 1 to %d", caller, output_count,
                      WEIR_JIT_MAX_OUTPUTS);
  if (scalar_count < 0 || scalar_count > WEIR_JIT_MAX_SCALARS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: scalar_count is %d; allowed are 0 to %d", caller, scalar_count,
                      WEIR_JIT_MAX_SCALARS);
  if (scalar_count && !scalar_names)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: scalar_names is NULL", caller);
  char *name = weir__jit_parse_name(code);
  if (!name)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Couldn't parse code, please check correctness:\n%.1000s",
                      caller, code);
  weir_jit_fn *made = calloc(1, sizeof *made);
  bool has_memory = made && (made->code = strdup(code));
  for (int i = 0; has_memory && i < scalar_count; i++)
    has_memory = (made->scalar_names[i] = strdup(scalar_names[i] ? scalar_names[i] : ""));
  if (!has_memory) {
    weir_jit_destroy(made);
    free(name);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the function", caller);
  }
  pthread_mutex_init(&made->lock, NULL);
  made->name = name;
  made->output_count = output_count;
  made->by_reference = by_reference;
  made->scalar_count = scalar_count;
  *fn = made;
  return WEIR_OK;
}

weir_status weir_jit_create(const char *code, int output_count, const char *const *scalar_names, int scalar_count,
                            weir_jit_fn **fn) {
  WEIR__CHECK_ARGUMENT(code);
  WEIR__CHECK_ARGUMENT(fn);
  return create(__func__, code, output_count, output_count > 1, scalar_names, scalar_count, fn);
}

weir_status weir_jit_create_by_reference(const char *code, int output_count, const char *const *scalar_names,
                                         int scalar_count, weir_jit_fn **fn) {
  WEIR__CHECK_ARGUMENT(code);
  WEIR__CHECK_ARGUMENT(fn);
  return create(__func__, code, output_count, true, scalar_names, scalar_count, fn);
}

void weir_jit_destroy(weir_jit_fn *fn) {
  if (!fn)
    return;
  while (fn->variants) {
    variant *v = fn->variants;
    fn->variants = v->next;
    weir_module_destroy(v->module);
    free(v);
  }
  for (int i = 0; i < WEIR_JIT_MAX_SCALARS; i++)
    free(fn->scalar_names[i]);
  pthread_mutex_destroy(&fn->lock);
  free(fn->code);
  free(fn->name);
  free(fn);
}

const char *weir_jit_name(const weir_jit_fn *fn) { return fn ? fn->name : ""; }

int weir_jit_scalar_index(const weir_jit_fn *fn, const char *name) {
  for (int i = 0; fn && name && i < fn->scalar_count; i++)
    if (!strcmp(fn->scalar_names[i], name))
      return i;
  return -1;
}

/* ---- The source of a variant ---- */

static void add(weir__bytes *to, const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  int length = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  weir__bytes_add(to, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

/* Where an operand's element is: operand k of n has n outputs before its inputs. */
static void add_element(weir__bytes *to, const variant *v, int k) {
  if (v->is_flat)
    add(to, "((%s *)a.data[%d])[i]", names_in_source[v->operands[k]], k);
  else
    add(to, "(*(%s *)((char *)a.data[%d] + at[%d]))", names_in_source[v->operands[k]], k, k);
}

/* The beginning of a conversion, which a parenthesis and the value follow, and its end behind the value. A complex
 * number that becomes a real one loses its imaginary part. */
static void add_cast(weir__bytes *to, int type) {
  const char *text = names_in_source[type];
  add(to, strchr(text, ' ') ? "(%s)(" : "%s(", text);
}
static const char *end_of_cast(int from, int type) {
  return weir_dtype_is_complex(from) && !weir_dtype_is_complex(type) ? ".real())" : ")";
}

static bool has_complex(const weir_jit_fn *fn, const variant *v) {
  bool has = weir_dtype_is_complex(v->type);
  for (int k = 0; k < fn->output_count + v->input_count; k++)
    has = has || weir_dtype_is_complex(v->operands[k]);
  return has;
}

static void write_source(const weir_jit_fn *fn, const variant *v, weir__bytes *to) {
  int operands = fn->output_count + v->input_count;
  const char *type = names_in_source[v->type];
  add(to, "#include \"device.h\"\n%s#line 1 \"%s\"\n", has_complex(fn, v) ? "#include \"complex.h\"\n" : "", fn->name);
  weir__bytes_add(to, fn->code, strlen(fn->code));
  add(to, "\n#line 1 \"elements\"\n");
  weir__bytes_add(to, structs, strlen(structs));
  add(to, "extern \"C\" __global__ void weir_jit(weir_%s a) {\n", v->is_flat ? "flat" : "strided");
  add(to, "  typedef %s weir_t;\n", type);
  for (int i = 0; i < fn->scalar_count; i++)
    add(to,
        weir_dtype_is_complex(v->type)
            ? "  const weir_scalar s%d = {a.scalars.is_integer >> %d & 1 ? double(a.scalars.integer[%d]) : "
              "a.scalars.real[%d], a.scalars.imag[%d]};\n"
            : "  const weir_t s%d = a.scalars.is_integer >> %d & 1 ? weir_t(a.scalars.integer[%d]) : "
              "weir_t(a.scalars.real[%d]);\n",
        i, i, i, i, i);
  add(to, "  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < a.count;\n"
          "       i += gridDim.x * (long long)blockDim.x) {\n");
  if (!v->is_flat)
    add(to,
        "    long long at[%d] = {}, rest = i;\n"
        "    for (int d = (int)a.rank - 1; d >= 0; d--) {\n"
        "      long long index = rest %% a.shape[d];\n"
        "      rest /= a.shape[d];\n"
        "      for (int k = 0; k < %d; k++) at[k] += index * a.strides[k][d];\n"
        "    }\n",
        operands, operands);
  for (int i = 0; fn->by_reference && i < fn->output_count; i++)
    add(to, "    weir_t r%d;\n", i);
  add(to, "    %s%s<weir_t>(", fn->by_reference ? "" : "weir_t r0 = ", fn->name);
  for (int i = 0; i < v->input_count; i++) {
    add(to, "%sweir_t(", i ? ", " : "");
    add_element(to, v, fn->output_count + i);
    add(to, "%s", end_of_cast(v->operands[fn->output_count + i], v->type));
  }
  for (int i = 0; i < fn->scalar_count; i++)
    add(to, "%ss%d", i || v->input_count ? ", " : "", i);
  for (int i = 0; fn->by_reference && i < fn->output_count; i++)
    add(to, "%sr%d", i || v->input_count || fn->scalar_count ? ", " : "", i);
  add(to, ");\n");
  for (int i = 0; i < fn->output_count; i++) {
    add(to, "    ");
    add_element(to, v, i);
    add(to, " = ");
    add_cast(to, v->operands[i]);
    add(to, "r%d%s;\n", i, end_of_cast(v->type, v->operands[i]));
  }
  add(to, "  }\n}\n");
  weir__bytes_add(to, "", 1);
}

/* A copy of an embedded text that ends with 0. */
static char *copy_text(const unsigned char *text, size_t bytes) {
  char *copy = malloc(bytes + 1);
  if (copy) {
    memcpy(copy, text, bytes);
    copy[bytes] = 0;
  }
  return copy;
}

static weir_status compile(const char *caller, const weir_jit_fn *fn, variant *v) {
  weir__bytes source = {0};
  write_source(fn, v, &source);
  char *device = copy_text(device_h, sizeof device_h), *complex = copy_text(complex_h, sizeof complex_h);
  weir_status status = WEIR_OK;
  if (source.failed || !device || !complex)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the source", caller);
  if (!status) {
    weir_compile_options options;
    weir_compile_options_init(&options);
    options.header_names = (const char *const[]){"device.h", "complex.h"};
    options.headers = (const char *const[]){device, complex};
    options.header_count = has_complex(fn, v) ? 2 : 1;
    options.options = (const char *const[]){"--device-as-default-execution-space"}; /* the function has no __device__ */
    options.option_count = 1;
    status = weir__fail_as(caller, weir_module_compile(v->device, (const char *)source.data, &options, &v->module));
  }
  if (!status) {
    status = weir__fail_as(caller, weir_module_kernel(v->module, "weir_jit", &v->kernel));
    if (status)
      weir_module_destroy(v->module);
  }
  free(device);
  free(complex);
  weir__bytes_end(&source);
  return status;
}

/* The variant like `wanted`, compiled if there is none. Variants of a runtime that was shut down are dropped. */
static weir_status find_variant(const char *caller, weir_jit_fn *fn, const variant *wanted, weir_kernel **kernel) {
  weir_status status = WEIR_OK;
  pthread_mutex_lock(&fn->lock);
  variant **at = &fn->variants;
  while (*at) {
    variant *v = *at;
    if (v->module->is_expired) {
      *at = v->next;
      weir_module_destroy(v->module);
      free(v);
      continue;
    }
    if (v->device == wanted->device && v->input_count == wanted->input_count && v->is_flat == wanted->is_flat &&
        v->type == wanted->type && !memcmp(v->operands, wanted->operands, sizeof v->operands))
      break;
    at = &v->next;
  }
  if (!*at) {
    variant *v = malloc(sizeof *v);
    if (!v) {
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a kernel", caller);
    } else {
      *v = *wanted;
      v->next = NULL;
      status = compile(caller, fn, v);
      if (status)
        free(v);
      else
        *at = v;
    }
  }
  if (!status && *at)
    *kernel = (*at)->kernel;
  pthread_mutex_unlock(&fn->lock);
  return status;
}

/* ---- Launches ---- */

typedef struct layout {
  int rank;
  int64_t count, shape[WEIR_JIT_MAX_RANK], strides[MAX_OPERANDS][WEIR_JIT_MAX_RANK];
} layout;

/* Merges dimensions that lie next to each other in all operands, from the last to the first, and drops those of size 1.
 * False if too many are left. */
static bool merge(int rank, const int64_t *shape, const weir_jit_operand *const *operands, int count, layout *l) {
  int64_t sizes[WEIR_JIT_MAX_RANK], strides[MAX_OPERANDS][WEIR_JIT_MAX_RANK];
  int used = 0; /* the innermost dimension comes first */
  for (int d = rank - 1; d >= 0; d--) {
    if (shape[d] == 1)
      continue;
    bool joins = used > 0;
    for (int k = 0; k < count && joins; k++)
      joins = operands[k]->strides[d] == strides[k][used - 1] * sizes[used - 1];
    if (joins) {
      sizes[used - 1] *= shape[d];
      continue;
    }
    if (used == WEIR_JIT_MAX_RANK)
      return false;
    sizes[used] = shape[d];
    for (int k = 0; k < count; k++)
      strides[k][used] = operands[k]->strides[d];
    used++;
  }
  l->rank = used;
  for (int d = 0; d < used; d++) {
    l->shape[d] = sizes[used - 1 - d];
    for (int k = 0; k < count; k++)
      l->strides[k][d] = strides[k][used - 1 - d];
  }
  return true;
}

static weir_status check_operands(const char *caller, const char *what, const weir_jit_operand *operands, int count,
                                  int rank) {
  if (count && !operands)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %ss is NULL", caller, what);
  for (int i = 0; i < count; i++) {
    if (!weir_dtype_size(operands[i].type))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s %d has type %d; expected a weir_dtype", caller, what, i,
                        (int)operands[i].type);
    if (rank && !operands[i].strides)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s %d has no strides", caller, what, i);
  }
  return WEIR_OK;
}

static weir_status check_launch(const char *caller, const weir_jit_fn *fn, weir_dtype type, int rank,
                                const int64_t *shape, int output_count, int input_count, const weir_jit_scalar *scalars,
                                int scalar_count) {
  if (!weir_dtype_size(type))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: type is %d; expected a weir_dtype", caller, (int)type);
  if (rank < 0 || (rank && !shape))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: rank is %d, with %s shape", caller, rank, shape ? "a" : "no");
  for (int d = 0; d < rank; d++)
    if (shape[d] < 0)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: shape[%d] is %lld", caller, d, (long long)shape[d]);
  if (output_count != fn->output_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s has %d outputs (got %d)", caller, fn->name, fn->output_count,
                      output_count);
  if (input_count < 0 || input_count > WEIR_JIT_MAX_INPUTS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: jiterator only supports up to %d tensor inputs (got %d)",
                      caller, WEIR_JIT_MAX_INPUTS, input_count);
  if (scalar_count != fn->scalar_count || (scalar_count && !scalars))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s has %d scalars (got %d)", caller, fn->name, fn->scalar_count,
                      scalars ? scalar_count : 0);
  for (int i = 0; i < scalar_count; i++)
    if (scalars[i].imag != 0 && !weir_dtype_is_complex(type))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: scalar '%s' is complex, but the computation is in '%s'",
                        caller, fn->scalar_names[i], names_in_source[type]);
  return WEIR_OK;
}

weir_status weir_jit_launch(weir_jit_fn *fn, weir_stream stream, weir_dtype type, int rank, const int64_t *shape,
                            const weir_jit_operand *outputs, int output_count, const weir_jit_operand *inputs,
                            int input_count, const weir_jit_scalar *scalars, int scalar_count) {
  WEIR__CHECK_ARGUMENT(fn);
  weir_status status = check_launch(__func__, fn, type, rank, shape, output_count, input_count, scalars, scalar_count);
  if (!status)
    status = check_operands(__func__, "output", outputs, output_count, rank);
  if (!status)
    status = check_operands(__func__, "input", inputs, input_count, rank);
  if (status)
    return status;
  const weir_jit_operand *all[MAX_OPERANDS];
  int operands = 0;
  for (int i = 0; i < output_count; i++)
    all[operands++] = &outputs[i];
  for (int i = 0; i < input_count; i++)
    all[operands++] = &inputs[i];
  layout l = {.count = 1};
  for (int d = 0; d < rank; d++)
    l.count *= shape[d];
  if (!l.count)
    return WEIR_OK;
  if (!merge(rank, shape, all, operands, &l))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: the operands have more than %d dimensions that cannot be merged", __func__,
                      WEIR_JIT_MAX_RANK);

  variant wanted = {.device = stream.device, .input_count = input_count, .type = (unsigned char)type};
  wanted.is_flat = l.rank <= 1;
  for (int k = 0; k < operands; k++) {
    wanted.operands[k] = (unsigned char)all[k]->type;
    wanted.is_flat = wanted.is_flat && (!l.rank || l.strides[k][0] == (int64_t)weir_dtype_size(all[k]->type));
  }
  weir_kernel *kernel = NULL;
  weir_cu_stream raw = NULL;
  status = find_variant(__func__, fn, &wanted, &kernel);
  if (!status)
    status = weir__fail_as(__func__, weir_stream_raw(stream, &raw));
  if (status)
    return status;

  union {
    flat_args flat;
    strided_args strided;
  } a;
  scalar_args *s = wanted.is_flat ? &a.flat.scalars : &a.strided.scalars;
  void **data = wanted.is_flat ? a.flat.data : a.strided.data;
  if (wanted.is_flat) {
    a.flat.count = l.count;
  } else {
    a.strided.count = l.count;
    a.strided.rank = l.rank;
    memcpy(a.strided.shape, l.shape, sizeof l.shape);
    memcpy(a.strided.strides, l.strides, sizeof l.strides);
  }
  for (int k = 0; k < operands; k++)
    data[k] = all[k]->data;
  s->is_integer = 0;
  for (int i = 0; i < scalar_count; i++) {
    s->real[i] = scalars[i].real;
    s->imag[i] = scalars[i].imag;
    s->integer[i] = scalars[i].integer;
    s->is_integer |= (uint64_t)(scalars[i].is_integer != 0) << i;
  }
  int64_t blocks = (l.count + BLOCK - 1) / BLOCK;
  weir_launch_dims dims = {.grid = {blocks < MAX_BLOCKS ? (unsigned)blocks : MAX_BLOCKS}, .block = {BLOCK}};
  return weir__fail_as(__func__, weir_kernel_launch_unchecked(kernel, dims, raw, (void *[]){&a}));
}
