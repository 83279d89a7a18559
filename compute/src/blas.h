/*
 * Matrix products by cuBLAS.
 */
#pragma once

#include "src/compute.h"
#include "weir/compute/blas.h"
#include "weir/compute/dtype.h"

/* c = op(a) op(b) for `batch` matrices in column-major order, m x n with k summands. */
typedef struct weir__gemm {
  weir_dtype dtype;
  bool transposes_a, transposes_b;
  int64_t m, n, k, batch;
  const void *a, *b;
  void *c;
  int64_t lda, ldb, ldc;                /* elements from one column to the next */
  int64_t a_stride, b_stride, c_stride; /* elements from one matrix to the next */
  uint32_t alignment[3];                /* of a, b and c in bytes, up to 256; 0 if the addresses say it */
} weir__gemm;

/* Enqueues a product on the stream of a device that has cuBLAS, by one of its algorithms (cublasGemmAlgo_t). */
enum { WEIR__BLAS_DEFAULT_ALGORITHM = -1 };
weir_status weir__blas_gemm(const char *caller, weir_stream stream, const weir__gemm *gemm, int algorithm);

/* The same by cuBLASLt, with the algorithm that has this rank, from 0 on, among those that its heuristics propose.
 * WEIR_ERROR_NOT_SUPPORTED if there are fewer, or if the library has no cuBLASLt. */
enum { WEIR__BLAS_LT_ALGORITHMS = 8 };
weir_status weir__blas_lt_gemm(const char *caller, weir_stream stream, const weir__gemm *gemm, int rank);

/* cuBLAS's version, such as "13.0.2"; false on a device that does not use it, or if it cannot be loaded. */
bool weir__blas_version(weir_driver *driver, char *text, size_t size);

/* ---- For the files of cuBLAS and cuBLASLt ---- */

/* The calling thread's handle, set to a stream, and the workspace of both. */
typedef struct weir__blas_ready {
  void *handle;
  void *workspace;
  uint64_t workspace_bytes;
} weir__blas_ready;
weir_status weir__blas_prepare(const char *caller, const weir__on_device *on, weir_stream stream,
                               weir__blas_ready *ready);

/* Forgets the algorithms that cuBLASLt has chosen: after a restart a number may mean another device. */
void weir__blas_lt_end(void);

/* The status for a result of cuBLAS. */
weir_status weir__blas_check(const char *caller, int result, const char *call);

/* A cudaDataType_t. */
int weir__blas_data_type(weir_dtype dtype);

/* For an operation whose results may differ from one run to the next: WEIR_ERROR_BAD_STATE or a warning, with PyTorch's
 * text and its name of the operation, as the mode says. */
weir_status weir__alert_not_deterministic(const char *caller, const char *operation);

/* Called at the shutdown of the runtime, while the driver still works. */
void weir__blas_end(void);
