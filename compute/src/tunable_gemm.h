/*
 * Matrix products as a tunable operation, with PyTorch's names and parameters.
 */
#pragma once

#include "src/blas.h"

/* The plain product of the software device: `shape` is a number of a block shape, 0 being the default. `gemm` has the
 * addresses to use instead of those in the arguments; a and b are in cuBLAS's order. */
typedef struct weir__gemm_plain {
  weir_status (*run)(const char *caller, const void *arguments, const weir__gemm *gemm, int shape, weir_stream stream);
  const void *arguments;
} weir__gemm_plain;

/* Runs a product by the fastest known implementation, or tunes it. `plain` is NULL on a device that has cuBLAS. */
weir_status weir__gemm_run_tuned(const char *caller, const weir__gemm *gemm, const weir__gemm_plain *plain,
                                 weir_stream stream);
