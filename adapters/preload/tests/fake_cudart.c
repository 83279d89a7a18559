/*
 * A fake NVIDIA runtime, which finds the driver as the real one does: dlsym for cuGetProcAddress_v2, which finds the
 * other functions. Used as a library, or linked into the program.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

enum { VERSION = 13000, LEGACY = 1, PER_THREAD = 2 };

static weir_cu_result (*get_address)(const char *, void **, int, uint64_t, int *);
static weir_cu_result (*init)(unsigned);
static weir_cu_result (*retain)(weir_cu_context *, weir_cu_device);
static weir_cu_result (*set_current)(weir_cu_context);
static weir_cu_result (*reset)(weir_cu_device);
static weir_cu_result (*mem_alloc)(weir_cu_deviceptr *, size_t);
static weir_cu_result (*mem_pitch)(weir_cu_deviceptr *, size_t *, size_t, size_t, unsigned);
static weir_cu_result (*mem_free)(weir_cu_deviceptr);
static weir_cu_result (*mem_info)(size_t *, size_t *);
static weir_cu_result (*alloc_async[2])(weir_cu_deviceptr *, size_t, weir_cu_stream);
static weir_cu_result (*free_async[2])(weir_cu_deviceptr, weir_cu_stream);
static weir_cu_result (*alloc_pool)(weir_cu_deviceptr *, size_t, weir_cu_mempool, weir_cu_stream);

static _Thread_local int last_error;
static _Thread_local int has_context;
static int is_reset; /* tests that reset the device have one thread */

static void find(void *function, const char *name, uint64_t flags) {
  if (get_address(name, function, VERSION, flags, NULL) != WEIR_CU_SUCCESS)
    abort();
}

static void start(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  void *address = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
  if (!address)
    abort();
  memcpy(&get_address, &address, sizeof address);
  find(&init, "cuInit", LEGACY);
  find(&retain, "cuDevicePrimaryCtxRetain", LEGACY);
  find(&set_current, "cuCtxSetCurrent", LEGACY);
  find(&reset, "cuDevicePrimaryCtxReset", LEGACY);
  find(&mem_alloc, "cuMemAlloc", LEGACY);
  find(&mem_pitch, "cuMemAllocPitch", LEGACY);
  find(&mem_free, "cuMemFree", LEGACY);
  find(&mem_info, "cuMemGetInfo", LEGACY);
  find(&alloc_async[0], "cuMemAllocAsync", LEGACY);
  find(&alloc_async[1], "cuMemAllocAsync", PER_THREAD);
  find(&free_async[0], "cuMemFreeAsync", LEGACY);
  find(&free_async[1], "cuMemFreeAsync", PER_THREAD);
  find(&alloc_pool, "cuMemAllocFromPoolAsync", LEGACY);
  init(0);
}

/* Makes the primary context of device 0 current. It is created at the first call. */
static void enter(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  weir_cu_context context;
  if ((!has_context || is_reset) && (retain(&context, 0) || set_current(context)))
    return;
  has_context = 1;
  is_reset = 0;
}

static int note(weir_cu_result result) {
  if (result)
    last_error = result;
  return result;
}

#define AS(pointer) ((weir_cu_deviceptr)(uintptr_t)(pointer))

int cudaMalloc(void **pointer, size_t bytes) {
  enter();
  return note(mem_alloc((weir_cu_deviceptr *)pointer, bytes));
}
int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
  enter();
  return note(mem_pitch((weir_cu_deviceptr *)pointer, pitch, width, height, 4));
}
int cudaFree(void *pointer) {
  enter();
  return note(mem_free(AS(pointer)));
}
int cudaMallocAsync(void **pointer, size_t bytes, weir_cu_stream stream) {
  enter();
  return note(alloc_async[0]((weir_cu_deviceptr *)pointer, bytes, stream));
}
int cudaMallocAsync_ptsz(void **pointer, size_t bytes, weir_cu_stream stream) {
  enter();
  return note(alloc_async[1]((weir_cu_deviceptr *)pointer, bytes, stream));
}
int cudaMallocFromPoolAsync(void **pointer, size_t bytes, weir_cu_mempool pool, weir_cu_stream stream) {
  enter();
  return note(alloc_pool((weir_cu_deviceptr *)pointer, bytes, pool, stream));
}
int cudaFreeAsync(void *pointer, weir_cu_stream stream) {
  enter();
  return note(free_async[0](AS(pointer), stream));
}
int cudaFreeAsync_ptsz(void *pointer, weir_cu_stream stream) {
  enter();
  return note(free_async[1](AS(pointer), stream));
}
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  enter();
  return note(mem_info(free_bytes, total_bytes));
}
int cudaDeviceReset(void) {
  enter();
  is_reset = 1;
  return note(reset(0));
}
int cudaGetLastError(void) {
  int error = last_error;
  last_error = 0;
  return error;
}
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags) {
  enter();
  return note(get_address(name, function, (int)version, flags, NULL));
}

/* ---- The scope of a lookup ---- */

int fake_marker = 1;

void *fake_next_marker(void) { return dlsym(RTLD_NEXT, "fake_marker"); }
