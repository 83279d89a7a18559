/*
 * The interface of the stand-ins for libcuda.so.1 and NVIDIA's runtime.
 */
#pragma once

#include "weir/driver.h"

/* The driver behind the stand-in: the software device, wrapped in a fault table. */
weir_driver *fake_cuda_driver(void);

/* The number of calls of the stand-in itself, by symbol; NULL for all. */
unsigned long fake_cuda_calls(const char *symbol);

/* The next allocation, and every call after it, fails with this code; 0 ends the failures. */
void fake_cuda_break(weir_cu_result result);

/* The functions of NVIDIA's runtime that the tests call. For these, the error codes of the runtime equal those of the
 * driver. */
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

/* The result of dlsym(RTLD_NEXT, "fake_marker") in the stand-in of the runtime: no later library has that symbol. */
extern int fake_marker;
void *fake_next_marker(void);
