#include "src/tunable_gemm.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>

#include "src/tunable.h"

/* What an implementation gets. */
typedef struct product {
  const char *caller;
  const weir__gemm *gemm;
  const weir__gemm_plain *plain;
} product;

enum { OPERANDS = 3 };

static weir__gemm with_operands(const product *p, const weir_tunable_operand *operands) {
  weir__gemm gemm = *p->gemm;
  gemm.a = operands[0].data;
  gemm.b = operands[1].data;
  gemm.c = operands[2].data;
  return gemm;
}

static weir_status not_here(const product *p) {
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: an implementation for another kind of device", p->caller);
}

/* `context` points to the number of the algorithm. */
static weir_status run_cublas(const weir_tunable_operand *operands, int count, const void *arguments,
                              weir_stream stream, void *context) {
  (void)count;
  const product *p = arguments;
  if (p->plain)
    return not_here(p);
  weir__gemm gemm = with_operands(p, operands);
  return weir__blas_gemm(p->caller, stream, &gemm, *(const int *)context);
}

static weir_status run_cublas_lt(const weir_tunable_operand *operands, int count, const void *arguments,
                                 weir_stream stream, void *context) {
  (void)count;
  const product *p = arguments;
  if (p->plain)
    return not_here(p);
  weir__gemm gemm = with_operands(p, operands);
  return weir__blas_lt_gemm(p->caller, stream, &gemm, *(const int *)context);
}

static weir_status run_plain(const weir_tunable_operand *operands, int count, const void *arguments, weir_stream stream,
                             void *context) {
  (void)count;
  const product *p = arguments;
  if (!p->plain)
    return not_here(p);
  weir__gemm gemm = with_operands(p, operands);
  return p->plain->run(p->caller, p->plain->arguments, &gemm, *(const int *)context, stream);
}

static weir_status run_default(const weir_tunable_operand *operands, int count, const void *arguments,
                               weir_stream stream, void *context) {
  static int none = WEIR__BLAS_DEFAULT_ALGORITHM, first = 0;
  (void)context;
  return ((const product *)arguments)->plain ? run_plain(operands, count, arguments, stream, &first)
                                             : run_cublas(operands, count, arguments, stream, &none);
}

/* GPUs of capability 8.0 and above ignore the algorithms of cublasGemmEx, and use the default for all. */
static int numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};

#define CUBLAS(n)                                                                                                      \
  { "Gemm_Cublas_" #n, run_cublas, &numbers[n] }
#define CUBLAS_LT(n)                                                                                                   \
  { "Gemm_CublasLt_" #n, run_cublas_lt, &numbers[n] }
static weir__tunable_candidate old_devices[] = {
    {"Default", run_default, NULL},
    CUBLAS_LT(0),
    CUBLAS_LT(1),
    CUBLAS_LT(2),
    CUBLAS_LT(3),
    CUBLAS_LT(4),
    CUBLAS_LT(5),
    CUBLAS_LT(6),
    CUBLAS_LT(7),
    CUBLAS(0),
    CUBLAS(1),
    CUBLAS(2),
    CUBLAS(3),
    CUBLAS(4),
    CUBLAS(5),
    CUBLAS(6),
    CUBLAS(7),
    CUBLAS(8),
    CUBLAS(9),
    CUBLAS(10),
    CUBLAS(11),
    CUBLAS(12),
    CUBLAS(13),
    CUBLAS(14),
    CUBLAS(15),
    CUBLAS(16),
    CUBLAS(17),
    CUBLAS(18),
    CUBLAS(19),
    CUBLAS(20),
    CUBLAS(21),
    CUBLAS(22),
    CUBLAS(23),
};
static weir__tunable_candidate new_devices[] = {
    {"Default", run_default, NULL},
    CUBLAS_LT(0),
    CUBLAS_LT(1),
    CUBLAS_LT(2),
    CUBLAS_LT(3),
    CUBLAS_LT(4),
    CUBLAS_LT(5),
    CUBLAS_LT(6),
    CUBLAS_LT(7),
};
static weir__tunable_candidate soft_devices[] = {{"Default", run_default, NULL},
                                                 {"Gemm_Block_1x32", run_plain, &numbers[1]},
                                                 {"Gemm_Block_4x8", run_plain, &numbers[2]}};

/* PyTorch's name of a type in the name of an operation. */
static const char *type_name(weir_dtype dtype) {
  switch (dtype) {
  case WEIR_FLOAT16:
    return "Half";
  case WEIR_BFLOAT16:
    return "BFloat16";
  case WEIR_FLOAT64:
    return "double";
  case WEIR_COMPLEX64:
    return "c10::complex<float>";
  case WEIR_COMPLEX128:
    return "c10::complex<double>";
  default:
    return weir_blas_get_allow_tf32() ? "tf32" : "float";
  }
}

static uint64_t extent(const weir__gemm *g, int64_t leading, int64_t rows, int64_t columns, int64_t stride) {
  int64_t elements = (g->batch - 1) * stride + (columns - 1) * leading + rows;
  return (uint64_t)elements * weir_dtype_size(g->dtype);
}

/* Of an address and the distance between matrices. */
static uint32_t alignment_of(const void *address, int64_t stride, weir_dtype dtype) {
  uint64_t bits = (uintptr_t)address | (uint64_t)stride * weir_dtype_size(dtype);
  uint32_t alignment = 256;
  while (bits % alignment)
    alignment /= 2;
  return alignment;
}

/* Copies of the operands, on which implementations are timed, are aligned better than the operands may be, so that
 * cuBLASLt would propose other algorithms for them. */
weir_status weir__gemm_run_tuned(const char *caller, const weir__gemm *given, const weir__gemm_plain *plain,
                                 weir_stream stream) {
  weir__gemm gemm = *given, *g = &gemm;
  g->alignment[0] = alignment_of(g->a, g->batch > 1 ? g->a_stride : 0, g->dtype);
  g->alignment[1] = alignment_of(g->b, g->batch > 1 ? g->b_stride : 0, g->dtype);
  g->alignment[2] = alignment_of(g->c, g->batch > 1 ? g->c_stride : 0, g->dtype);
  product p = {caller, g, plain};
  char name[64], params[256], a = g->transposes_a ? 't' : 'n', b = g->transposes_b ? 't' : 'n';
  snprintf(name, sizeof name, "%s_%s_%c%c", g->batch == 1 ? "GemmTunableOp" : "GemmStridedBatchedTunableOp",
           type_name(g->dtype), toupper(a), toupper(b));
  int written = snprintf(params, sizeof params, "%c%c_%" PRId64 "_%" PRId64 "_%" PRId64, a, b, g->m, g->n, g->k);
  if (g->batch != 1)
    written += snprintf(params + written, sizeof params - (size_t)written, "_B_%" PRId64, g->batch);
  snprintf(params + written, sizeof params - (size_t)written, "_ld_%" PRId64 "_%" PRId64 "_%" PRId64, g->lda, g->ldb,
           g->ldc);
  int major = 0, minor;
  weir_status status = plain ? WEIR_OK : weir_device_capability(stream.device, &major, &minor);
  if (status)
    return weir__fail_as(caller, status);
  weir_tunable_op op = {.name = name, .candidates = soft_devices, .count = WEIR_COUNT_OF(soft_devices)};
  if (!plain && major >= 8)
    op = (weir_tunable_op){.name = name, .candidates = new_devices, .count = WEIR_COUNT_OF(new_devices)};
  else if (!plain)
    op = (weir_tunable_op){.name = name, .candidates = old_devices, .count = WEIR_COUNT_OF(old_devices)};
  int64_t a_rows = g->transposes_a ? g->k : g->m, a_columns = g->transposes_a ? g->m : g->k;
  int64_t b_rows = g->transposes_b ? g->n : g->k, b_columns = g->transposes_b ? g->k : g->n;
  weir_tunable_operand operands[OPERANDS] = {
      {(void *)(uintptr_t)g->a, extent(g, g->lda, a_rows, a_columns, g->a_stride), 0, g->dtype},
      {(void *)(uintptr_t)g->b, extent(g, g->ldb, b_rows, b_columns, g->b_stride), 0, g->dtype},
      {g->c, extent(g, g->ldc, g->m, g->n, g->c_stride), 1, g->dtype}};
  weir_tunable_call call = {.size = sizeof call,
                            .params = params,
                            .operands = operands,
                            .operand_count = OPERANDS,
                            .arguments = &p,
                            .stream = stream};
  return weir__tunable_run(caller, &op, &call);
}
