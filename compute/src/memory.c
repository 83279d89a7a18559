#include "src/memory.h"

#include <stdatomic.h>

#include "weir/compute/compute.h"
#include "weir/memory.h"
#include "weir/runtime.h"

static _Atomic(weir_allocator *) chosen; /* NULL for the process default */

weir_status weir_compute_use_allocator(weir_allocator *allocator) {
  atomic_store(&chosen, allocator);
  return WEIR_OK;
}

weir_status weir__compute_allocator(weir_allocator **allocator) {
  weir_allocator *found = atomic_load(&chosen);
  if (!found)
    return weir_default_allocator(allocator);
  *allocator = found;
  return WEIR_OK;
}

weir_status weir__compute_alloc(uint64_t bytes, weir_stream stream, weir__device_memory *memory) {
  weir_allocator *allocator;
  weir_cu_stream raw;
  weir_status status = weir__compute_allocator(&allocator);
  void *pointer = NULL;
  if (!status && !(status = weir_stream_raw(stream, &raw)))
    status = weir_allocator_alloc(allocator, stream.device, bytes, raw, &pointer);
  if (!status)
    *memory = (weir__device_memory){pointer, allocator};
  return status;
}

weir_status weir__compute_record_stream(const weir__device_memory *memory, weir_stream stream) {
  weir_cu_stream raw;
  weir_status status = weir_stream_raw(stream, &raw);
  return status ? status : weir_allocator_record_stream(memory->allocator, memory->pointer, raw);
}

void weir__compute_free(weir__device_memory *memory) {
  if (memory->pointer && !weir_is_in_bad_fork())
    weir_allocator_free(memory->allocator, memory->pointer);
  *memory = (weir__device_memory){0};
}
