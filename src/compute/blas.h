/*
 * Matrix products by cuBLAS.
 */
#ifndef WEIR_COMPUTE_BLAS_H
#define WEIR_COMPUTE_BLAS_H

#include "compute/compute.h"
#include "weir/blas.h"
#include "weir/dtype.h"

/* c = op(a) op(b) for `batch` matrices in column-major order, m x n with k summands. */
typedef struct weir__gemm {
  weir_dtype dtype;
  bool transposes_a, transposes_b;
  int64_t m, n, k, batch;
  const void *a, *b;
  void *c;
  int64_t lda, ldb, ldc;                /* elements from one column to the next */
  int64_t a_stride, b_stride, c_stride; /* elements from one matrix to the next */
} weir__gemm;

/* Enqueues a product on the stream of a device that has cuBLAS. */
weir_status weir__blas_gemm(const char *caller, weir_stream stream, const weir__gemm *gemm);

/* For an operation whose results may differ from one run to the next: WEIR_ERROR_BAD_STATE or a warning, with PyTorch's
 * text and its name of the operation, as the mode says. */
weir_status weir__alert_not_deterministic(const char *caller, const char *operation);

/* Called at the shutdown of the runtime, while the driver still works. */
void weir__blas_end(void);

#endif
