/*
 * Allocations with caching off: plain driver calls. Pointers are kept only to be recognized when they are freed.
 */
#include "alloc/cache/uncached.h"

#include <string.h>

#include "base/environment.h"
#include "base/thread.h"
#include "driver/call.h"

/* As in PyTorch, every value of its variable other than 1 is silently ignored. */
bool weir__caching_from_env(void) {
  const char *pytorchs = weir__env_text(WEIR__ENV_PYTORCH_NO_CACHING);
  int own = 0;
  bool is_valid = weir__env_choice(WEIR__ENV_NO_MEMORY_CACHING, &own),
       is_off = own || (pytorchs && !strcmp(pytorchs, "1"));
  if (!is_valid)
    weir__env_ignore(WEIR__ENV_NO_MEMORY_CACHING,
                     is_off ? "memory is not cached, because of PYTORCH_NO_CUDA_MEMORY_CACHING=1" : "memory is cached");
  return !is_off;
}

weir_status weir_allocator_set_caching(weir_allocator *allocator, int on) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (allocator->backend)
    on = 1; /* there is no cache to turn off */
  atomic_store(&allocator->caching, on != 0);
  for (int i = 0; i < allocator->heap_count; i++)
    weir__slow_reason_set(&allocator->heaps[i], WEIR__SLOW_UNCACHED, !on);
  return WEIR_OK;
}

weir_status weir_allocator_is_caching(const weir_allocator *allocator, int *is_caching) {
  WEIR__CHECK_ARGUMENT(allocator);
  WEIR__CHECK_ARGUMENT(is_caching);
  *is_caching = atomic_load(&allocator->caching);
  return WEIR_OK;
}

weir_status weir__uncached_alloc(const char *caller, weir__heap *heap, uint64_t bytes, uint64_t *address) {
  weir_allocator *allocator = heap->allocator;
  weir_driver *driver = allocator->driver;
  weir_cu_context previous;
  weir_cu_deviceptr memory;
  weir_cu_result r = weir__heap_open(heap, &previous);
  if (!r) {
    r = driver->MemAlloc(driver, &memory, bytes);
    weir__heap_close(heap, previous);
  }
  if (r)
    return weir__driver_status(driver, r, caller, "cuMemAlloc(driver, &memory, bytes)");
  weir__mutex_lock(&allocator->uncached_lock);
  bool known = weir__rangemap_insert(&allocator->uncached, memory, bytes, heap);
  weir__mutex_unlock(&allocator->uncached_lock);
  if (!known) {
    driver->MemFree(driver, memory);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  }
  *address = memory;
  return WEIR_OK;
}

static weir_cu_result give_back(weir__heap *heap, uint64_t memory) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_context previous;
  weir_cu_result r = weir__heap_open(heap, &previous);
  if (!r) {
    r = driver->MemFree(driver, memory);
    weir__heap_close(heap, previous);
  }
  return r;
}

weir__heap *weir__uncached_find(weir_allocator *allocator, uint64_t address, uint64_t *bytes) {
  uint64_t base, size;
  weir__mutex_lock(&allocator->uncached_lock);
  weir__heap *heap = weir__rangemap_find(&allocator->uncached, address, &base, &size);
  weir__mutex_unlock(&allocator->uncached_lock);
  if (!heap || base != address)
    return NULL;
  if (bytes)
    *bytes = size;
  return heap;
}

bool weir__uncached_free(const char *caller, weir_allocator *allocator, uint64_t address, weir_status *status) {
  uint64_t base, bytes;
  weir__mutex_lock(&allocator->uncached_lock);
  weir__heap *heap = weir__rangemap_find(&allocator->uncached, address, &base, &bytes);
  if (heap && base == address)
    weir__rangemap_remove(&allocator->uncached, base);
  else
    heap = NULL;
  weir__mutex_unlock(&allocator->uncached_lock);
  if (!heap)
    return false;
  weir_cu_result r = give_back(heap, base);
  if (r) { /* it is still allocated, and can be freed later */
    weir__mutex_lock(&allocator->uncached_lock);
    weir__rangemap_insert(&allocator->uncached, base, bytes, heap);
    weir__mutex_unlock(&allocator->uncached_lock);
  }
  *status = r ? weir__driver_status(allocator->driver, r, caller, "cuMemFree(driver, memory)") : WEIR_OK;
  return true;
}

void weir__uncached_clear(weir_allocator *allocator) {
  uint64_t memory;
  weir__heap *heap;
  while ((heap = weir__rangemap_at_or_after(&allocator->uncached, 0, &memory, NULL))) {
    weir__rangemap_remove(&allocator->uncached, memory);
    give_back(heap, memory);
  }
  weir__rangemap_clear(&allocator->uncached);
}
