/*
 * libweir_torch_pluggable.so: Weir by PyTorch's plain way, torch.cuda.memory.CUDAPluggableAllocator, and for the memory of a
 * torch.cuda.MemPool(allocator=...). No header and no library of PyTorch's is needed to build it, so it fits every version.
 *
 * It has an allocator of its own, beside whatever else uses Weir in the process. Nothing here can raise an exception: what fails
 * is told on stderr, and NULL comes back, which a MemPool takes as out of memory.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "weir/weir.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void *weir_torch_alloc(ssize_t size, int device, weir_cu_stream stream);
EXPORT void weir_torch_free(void *pointer, size_t size, int device, weir_cu_stream stream);
EXPORT void weir_torch_init(int device_count);
EXPORT void weir_torch_reset(void);
EXPORT void weir_torch_memory_fraction(double fraction, int device);
EXPORT void *weir_torch_base_alloc(void *pointer, size_t *size);
EXPORT void weir_torch_record_stream(void *pointer, weir_cu_stream stream);
EXPORT void weir_torch_begin_pool(int device, weir_pool_id pool, void *filter);
EXPORT void weir_torch_end_pool(int device, weir_pool_id pool);
EXPORT void weir_torch_release_pool(int device, weir_pool_id pool);
EXPORT weir_allocator *weir_torch_pluggable_allocator(void);

static weir_driver *driver;
static weir_allocator *allocator; /* NULL: the start failed, and that was told */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void complain(weir_status status) {
  if (status)
    fprintf(stderr, "weir: error: %s\n", weir_last_error());
}

/* The settings are those of the environment: WEIR_ALLOC_CONF, or PyTorch's. */
static void start(void) {
  weir_status status = weir_driver_open_cuda(&driver);
  if (!status && driver->Init(driver, 0)) {
    fprintf(stderr, "weir: error: cuInit failed: there is no CUDA device that can be used\n");
    return;
  }
  if (!status)
    status = weir_allocator_create(driver, NULL, &allocator);
  complain(status);
}

EXPORT weir_allocator *weir_torch_pluggable_allocator(void) {
  pthread_once(&once, start);
  return allocator;
}

EXPORT void *weir_torch_alloc(ssize_t size, int device, weir_cu_stream stream) {
  void *pointer = NULL;
  weir_allocator *a = weir_torch_pluggable_allocator();
  if (a && size > 0)
    complain(weir_allocator_alloc(a, device, (size_t)size, stream, &pointer));
  return pointer;
}

EXPORT void weir_torch_free(void *pointer, size_t size, int device, weir_cu_stream stream) {
  (void)size;
  (void)device;
  (void)stream;
  if (allocator)
    complain(weir_allocator_free(allocator, pointer));
}

/* ---- The optional hooks: set_init_fn, set_reset_fn and so on ---- */

EXPORT void weir_torch_init(int device_count) {
  (void)device_count;
  weir_torch_pluggable_allocator();
}

EXPORT void weir_torch_reset(void) {
  if (allocator)
    complain(weir_allocator_empty_cache(allocator));
}

EXPORT void weir_torch_memory_fraction(double fraction, int device) {
  weir_allocator *a = weir_torch_pluggable_allocator();
  if (a)
    complain(weir_allocator_set_fraction(a, device, fraction));
}

EXPORT void *weir_torch_base_alloc(void *pointer, size_t *size) {
  void *base = pointer;
  size_t bytes = 0;
  if (allocator)
    complain(weir_allocator_base(allocator, pointer, &base, &bytes));
  if (size)
    *size = bytes;
  return base;
}

EXPORT void weir_torch_record_stream(void *pointer, weir_cu_stream stream) {
  if (allocator)
    complain(weir_allocator_record_stream(allocator, pointer, stream));
}

/* PyTorch's filter is a C++ object, which C cannot call. It is for streams that are being captured: those are asked. */
static int is_captured(void *context, weir_cu_stream stream) {
  int status = WEIR_CU_CAPTURE_STATUS_NONE;
  (void)context;
  return !driver->StreamIsCapturing(driver, stream, &status) && status == WEIR_CU_CAPTURE_STATUS_ACTIVE;
}

EXPORT void weir_torch_begin_pool(int device, weir_pool_id pool, void *filter) {
  weir_allocator *a = weir_torch_pluggable_allocator();
  (void)filter;
  if (!a)
    return;
  weir_status status = weir_pool_begin(a, device, pool, is_captured, NULL);
  if (!status)
    status = weir_allocator_begin_capture(a, device);
  complain(status);
}

EXPORT void weir_torch_end_pool(int device, weir_pool_id pool) {
  if (!allocator)
    return;
  complain(weir_pool_end(allocator, device, pool));
  complain(weir_allocator_end_capture(allocator, device));
}

EXPORT void weir_torch_release_pool(int device, weir_pool_id pool) {
  if (allocator)
    complain(weir_pool_release(allocator, device, pool));
}
