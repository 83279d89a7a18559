/*
 * A stand-in for libcublas: products of float matrices in memory that the host can access. Each call can be made to
 * fail.
 */
#include "tests/fake_cublas.h"

#include <stdio.h>
#include <stdlib.h>

fake_cublas_state fake_cublas = {.fail_at = -1};

static int begin(const char *name) {
  snprintf(fake_cublas.last, sizeof fake_cublas.last, "%s", name);
  return fake_cublas.calls++ == fake_cublas.fail_at ? fake_cublas.fail_with : 0;
}
#define BEGIN()                                                                                                        \
  int failed = begin(__func__);                                                                                        \
  if (failed)                                                                                                          \
  return failed

int cublasCreate_v2(void **handle) {
  BEGIN();
  *handle = malloc(1);
  fake_cublas.live++;
  return 0;
}

/* What fails here is gone all the same. */
int cublasDestroy_v2(void *handle) {
  int failed = begin(__func__);
  free(handle);
  fake_cublas.live--;
  return failed;
}

int cublasSetStream_v2(void *handle, void *stream) {
  BEGIN();
  (void)handle;
  fake_cublas.stream = stream;
  return 0;
}

int cublasSetWorkspace_v2(void *handle, void *workspace, size_t bytes) {
  BEGIN();
  (void)handle;
  fake_cublas.workspace = workspace;
  fake_cublas.workspace_bytes = bytes;
  return 0;
}

int cublasSetMathMode(void *handle, int mode) {
  BEGIN();
  (void)handle;
  fake_cublas.math_mode = mode;
  return 0;
}

/* In columns, as cuBLAS has it. */
static void multiply(int transpose_a, int transpose_b, int m, int n, int k, const float *a, int lda, const float *b,
                     int ldb, float *c, int ldc) {
  for (int column = 0; column < n; column++)
    for (int row = 0; row < m; row++) {
      float sum = 0;
      for (int i = 0; i < k; i++)
        sum += a[transpose_a ? row * lda + i : i * lda + row] * b[transpose_b ? i * ldb + column : column * ldb + i];
      c[column * ldc + row] = sum;
    }
}

int cublasGemmEx(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
                 int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type,
                 int ldc, int compute_type, int algorithm) {
  BEGIN();
  (void)handle, (void)alpha, (void)a_type, (void)b_type, (void)beta, (void)c_type, (void)compute_type, (void)algorithm;
  multiply(transpose_a, transpose_b, m, n, k, a, lda, b, ldb, c, ldc);
  if (fake_cublas.ran)
    fake_cublas.ran(fake_cublas.stream);
  return 0;
}

int cublasGemmStridedBatchedEx(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                               const void *a, int a_type, int lda, long long a_stride, const void *b, int b_type,
                               int ldb, long long b_stride, const void *beta, void *c, int c_type, int ldc,
                               long long c_stride, int batch, int compute_type, int algorithm) {
  BEGIN();
  (void)handle, (void)alpha, (void)a_type, (void)b_type, (void)beta, (void)c_type, (void)compute_type, (void)algorithm;
  for (int i = 0; i < batch; i++)
    multiply(transpose_a, transpose_b, m, n, k, (const float *)a + i * a_stride, lda, (const float *)b + i * b_stride,
             ldb, (float *)c + i * c_stride, ldc);
  if (fake_cublas.ran)
    fake_cublas.ran(fake_cublas.stream);
  return 0;
}
