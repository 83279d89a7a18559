/*
 * What the tests know of the stand-ins for libcuda.so.1 and NVIDIA's runtime.
 */
#ifndef WEIR_PRELOAD_FAKE_CUDA_H
#define WEIR_PRELOAD_FAKE_CUDA_H

#include "weir/driver.h"

/* What stands behind the stand-in of the driver: the software device, in a table that makes calls fail. */
weir_driver *fake_cuda_driver(void);

/* How often the stand-in was called itself, by its symbol. */
unsigned long fake_cuda_calls(const char *symbol);

/* The next allocation fails with this code, and every call after it; 0: none does any more. */
void fake_cuda_break(weir_cu_result result);

/* The functions of NVIDIA's runtime that the tests call. Codes are those of the driver, as the runtime's are for these. */
int cudaMalloc(void **pointer, size_t bytes);
int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
int cudaFree(void *pointer);
int cudaMallocAsync(void **pointer, size_t bytes, weir_cu_stream stream);
int cudaMallocAsync_ptsz(void **pointer, size_t bytes, weir_cu_stream stream);
int cudaMallocFromPoolAsync(void **pointer, size_t bytes, weir_cu_mempool pool, weir_cu_stream stream);
int cudaFreeAsync(void *pointer, weir_cu_stream stream);
int cudaFreeAsync_ptsz(void *pointer, weir_cu_stream stream);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaDeviceReset(void);
int cudaGetLastError(void);
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags);

/* What dlsym(RTLD_NEXT) finds from where the stand-in of the runtime is: nobody behind it has a fake_marker. */
extern int fake_marker;
void *fake_next_marker(void);

#endif
