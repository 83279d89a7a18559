/*
 * The interface of the fake libcuda.so.1 and the fake runtime for the tests.
 */
#ifndef WEIR_PRELOAD_FAKE_CUDA_H
#define WEIR_PRELOAD_FAKE_CUDA_H

#include "weir/driver.h"

/* The driver behind the fake library: the software device, wrapped in a table that makes calls fail. */
weir_driver *fake_cuda_driver(void);

/* The number of calls of a function of the fake library, by its symbol. */
unsigned long fake_cuda_calls(const char *symbol);

/* Makes the next allocation and every call after it fail with this code; 0 ends that. */
void fake_cuda_break(weir_cu_result result);

/* The functions of NVIDIA's runtime that the tests call. For these, the runtime's codes are the same as the
 * driver's. */
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

/* The result of dlsym(RTLD_NEXT) from within the fake runtime: no later library has a fake_marker. */
extern int fake_marker;
void *fake_next_marker(void);

#endif
