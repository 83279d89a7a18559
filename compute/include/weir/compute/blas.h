/*
 * cuBLAS: its handles, its workspaces, and the settings of matrix products (weir_array_matmul). Part of
 * libweir_compute.
 *
 * The library is loaded when it is first needed (weir_library_find says from where). The software device has no cuBLAS:
 * its matrix products are plain kernels, its handles are tokens that identify thread and device, and the settings are
 * kept without effect. Workspaces are allocated all the same, so that memory is used as on a GPU.
 */
#ifndef WEIR_BLAS_H
#define WEIR_BLAS_H

#include <stdint.h>

#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles and workspaces ---- */

/* The handle (a cublasHandle_t) of the calling thread for the stream's device, set to the stream, with a workspace of
 * that stream and with the math mode of the settings, as torch.cuda.current_blas_handle(). A handle that a thread has
 * used is reused by others after its end. It is valid until the runtime is shut down, and for this thread's use only.
 * The first call for a stream allocates the workspace from the allocator of weir/compute/compute.h. */
weir_status weir_blas_handle(weir_stream stream, void **handle);

/* The size of a workspace: CUBLAS_WORKSPACE_CONFIG, which is a list of :KIB:COUNT, or PyTorch's default, which is
 * 32 MiB on devices of capability 9.0 and 8.125 MiB on others. A value that cannot be parsed is ignored with a
 * warning. */
weir_status weir_blas_workspace_bytes(int device, uint64_t *bytes);

/* Frees the workspaces of all handles, in the order of their streams. No other thread may be in a matrix product. Call
 * it before weir_shutdown, which refuses while memory of the process default allocator is allocated. */
weir_status weir_blas_clear_workspaces(void);

/* ---- Settings of the process, with PyTorch's defaults ----
 *
 * Getters never fail. They need no device. */

/* TF32 in products of float32: off. Changes the float32 precision too (off is "highest", on "high"), and vice versa.
 * TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 in the environment turns it on, and then it cannot be turned off. */
void weir_blas_set_allow_tf32(int allow);
int weir_blas_get_allow_tf32(void);

typedef enum weir_matmul_precision {
  WEIR_MATMUL_HIGHEST, /* float32: the default */
  WEIR_MATMUL_HIGH,    /* TF32 */
  WEIR_MATMUL_MEDIUM   /* TF32; cuBLAS has nothing below it for float32 */
} weir_matmul_precision;
/* The precision of products of float32, as torch.set_float32_matmul_precision. */
weir_status weir_blas_set_float32_precision(weir_matmul_precision precision);
weir_matmul_precision weir_blas_get_float32_precision(void);
/* "highest", "high" or "medium", and back; anything else is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_matmul_precision_parse(const char *text, weir_matmul_precision *precision);
const char *weir_matmul_precision_name(weir_matmul_precision precision);

/* Whether partial sums of 16-bit products may be added in 16 bits, and if not, whether a product may be split along the
 * summed dimension at all. */
typedef enum weir_reduced_precision {
  WEIR_REDUCED_PRECISION_DISALLOW_SPLIT = -1,
  WEIR_REDUCED_PRECISION_DISALLOW = 0,
  WEIR_REDUCED_PRECISION_ALLOW = 1 /* the default */
} weir_reduced_precision;
weir_status weir_blas_set_fp16_reduced_precision(weir_reduced_precision mode);
weir_reduced_precision weir_blas_get_fp16_reduced_precision(void);
weir_status weir_blas_set_bf16_reduced_precision(weir_reduced_precision mode);
weir_reduced_precision weir_blas_get_bf16_reduced_precision(void);

/* Products of float16 accumulated in float16: off. */
void weir_blas_set_allow_fp16_accumulation(int allow);
int weir_blas_get_allow_fp16_accumulation(void);

/* What operations do whose results may differ from one run to the next: nothing, a warning (weir/log.h), or an error
 * with PyTorch's text (torch.use_deterministic_algorithms). Such are matrix products on a GPU if
 * CUBLAS_WORKSPACE_CONFIG is not :4096:8 or :16:8, with which cuBLAS is reproducible across streams, and counts with
 * weights (weir_array_bincount). weir_array_index_put then keeps the last of several values for an element. */
typedef enum weir_deterministic {
  WEIR_DETERMINISTIC_OFF,
  WEIR_DETERMINISTIC_WARN,
  WEIR_DETERMINISTIC_ERROR
} weir_deterministic;
weir_status weir_blas_set_deterministic(weir_deterministic mode);
weir_deterministic weir_blas_get_deterministic(void);
/* WEIR_OK, or WEIR_ERROR_BAD_STATE in the mode ERROR; WARN logs. The check that matrix products make, on any device. */
weir_status weir_blas_check_deterministic(void);

#ifdef __cplusplus
}
#endif
#endif
