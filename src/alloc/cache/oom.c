/*
 * Out of memory: the message, the observers, and the rejection of requests that would exceed the limit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc/backends/backend.h"
#include "alloc/cache/arena.h"
#include "alloc/cache/miss.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "base/thread.h"
#include "driver/call.h"
#include "driver/nvml.h"

static uint64_t free_bytes_of(const weir__pool *pool) {
  weir__arena **arenas;
  size_t count = weir__pool_arenas(pool, &arenas);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    weir__arena_lock(arenas[i]);
    for (weir__block *b = weir__index_first(&arenas[i]->free); b; b = weir__index_next(&arenas[i]->free, b))
      bytes += weir__block_bytes(b);
    weir__arena_unlock(arenas[i]);
  }
  free(arenas);
  return bytes;
}

/* This process first, then the largest ones. */
static int by_importance(const void *a, const void *b) {
  const weir__nvml_process *x = a, *y = b;
  unsigned self = (unsigned)weir__process_id();
  if ((x->pid == self) != (y->pid == self))
    return x->pid == self ? -1 : 1;
  return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* Writes "Process 12 has 1.00 GiB memory in use. " for this process and the largest others, and the sum of the rest.
 * In a container, this process may have another number in the list. */
static void list_processes(const weir__heap *heap, char *text, size_t size) {
  enum { MAX_LISTED = 8 };
  weir__nvml_process processes[256];
  char bytes[32];
  size_t length = 0;
  size_t count = weir__device_processes(heap->allocator->driver, heap->device, processes, WEIR_COUNT_OF(processes));
  uint64_t rest = 0;
  *text = 0;
  qsort(processes, count, sizeof *processes, by_importance);
  if (count && processes[0].pid != (unsigned)weir__process_id())
    length = (size_t)snprintf(text, size, "This process, perhaps under another number, has %s at least. ",
                              weir__format_bytes_as_pytorch(heap->reserved, bytes));
  for (size_t i = 0; i < count && i < MAX_LISTED; i++) {
    char subject[64] = "Including non-Weir memory, this process";
    if (processes[i].pid != (unsigned)weir__process_id())
      snprintf(subject, sizeof subject, "Process %u", processes[i].pid);
    length += (size_t)snprintf(text + length, size - length, "%s has %s memory in use. ", subject,
                               weir__format_bytes_as_pytorch(processes[i].bytes, bytes));
  }
  for (size_t i = MAX_LISTED; i < count; i++)
    rest += processes[i].bytes;
  if (count > MAX_LISTED)
    snprintf(text + length, size - length, "%zu other processes have %s. ", count - MAX_LISTED,
             weir__format_bytes_as_pytorch(rest, bytes));
}

/* Adds advice, as far as the settings suggest any. */
static void advise(const weir__heap *heap, const weir__settings *settings, weir_cu_stream stream, uint64_t bytes,
                   char *text, size_t size) {
  char reserve[32], wanted[32];
  uint64_t room = weir__reserve_bytes(heap, settings, stream);
  if (heap->allocator->backend)
    *text = 0;
  else if (!settings->expandable_segments)
    snprintf(text, size,
             " If reserved but unallocated memory is large, fragmentation is the cause: try "
             "WEIR_ALLOC_CONF=expandable_segments:True.");
  else if (room < bytes && bytes <= heap->total)
    snprintf(
        text, size,
        " This allocation exceeds the expandable-segment reserve of %s for this stream, and a single allocation "
        "cannot span expandable segments. Raise expandable_segments_reserve or expandable_segments_reserve_by_class "
        "so that a segment is at least %s.",
        weir__format_bytes_as_pytorch(room, reserve), weir__format_bytes_as_pytorch(bytes, wanted));
  else
    snprintf(text, size,
             " expandable_segments is enabled. If instead the process runs out of address space, the reserves are too "
             "large: reduce them by expandable_segments_reserve or expandable_segments_reserve_by_class.");
}

/* Releases the heap's lock before the observers run. */
weir_status weir__out_of_memory(const char *caller, weir__heap *heap, weir__arena *arena, uint64_t bytes,
                                uint64_t segment_bytes) {
  weir_allocator *allocator = heap->allocator;
  weir_driver *driver = allocator->driver;
  const weir__settings *settings = weir__settings_of(heap);
  uint64_t device_free = 0, device_total = heap->total;
  driver->MemGetInfo(driver, &device_free, &device_total);
  uint64_t in_private = 0;
  for (weir__private_pool *p = heap->private_pools; p; p = p->next)
    in_private += free_bytes_of(&p->small) + free_bytes_of(&p->large);
  heap->stats.num_ooms++;
  weir_allocator_stats stats;
  weir__gauges_read(heap, &stats);
  uint64_t allocated = (uint64_t)stats.allocated_bytes[WEIR_STAT_ALL].current + in_private;
  uint64_t reserved = heap->reserved, in_limbo = (uint64_t)heap->stats.ipc.limbo_bytes;
  uint64_t limit = heap->has_limit ? heap->limit : device_total;
  bool has_limit = heap->has_limit && heap->limit < device_total;
  char advice[320], processes[800];
  advise(heap, settings, arena->stream, segment_bytes, advice, sizeof advice);
  weir__biased_acquire(&arena->lock);
  weir__trace(heap, WEIR_TRACE_OOM, arena->pool, device_free, bytes, arena->stream);
  weir__biased_release(&arena->lock);
  weir__mutex_unlock(&heap->lock);
  weir__op_notify();

  const weir__observers *observers = &allocator->oom_observers;
  for (int i = 0, count = atomic_load(&observers->count); i < count; i++)
    observers->at[i].call.oom(observers->at[i].context, heap->device, segment_bytes, limit, device_free);
  if (allocator->hooks)
    allocator->hooks->out_of_memory(allocator);

  char text[6][32], allowed[64] = "", private_part[96] = "", limbo_part[96] = "";
  if (weir__backend_is_async(allocator)) /* programs and tests for PyTorch search for this text */
    return weir__fail(
        WEIR_ERROR_OUT_OF_MEMORY,
        "%s: Allocation on device %d would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : %s\n"
        "Requested               : %s\n"
        "Device limit            : %s\n"
        "Free (according to CUDA): %s\n"
        "Weir limit (set by user-supplied memory fraction)\n"
        "                        : %s",
        caller, heap->device, weir__format_bytes_as_pytorch(allocated, text[0]),
        weir__format_bytes_as_pytorch(bytes, text[1]), weir__format_bytes_as_pytorch(device_total, text[2]),
        weir__format_bytes_as_pytorch(device_free, text[3]), weir__format_bytes_as_pytorch(limit, text[4]));
  list_processes(heap, processes, sizeof processes);
  if (has_limit)
    snprintf(allowed, sizeof allowed, "%s allowed; ", weir__format_bytes_as_pytorch(limit, text[0]));
  if (in_private)
    snprintf(private_part, sizeof private_part, "with %s allocated in private pools (e.g., CUDA Graphs), ",
             weir__format_bytes_as_pytorch(in_private, text[1]));
  if (in_limbo)
    snprintf(limbo_part, sizeof limbo_part, " Of these, %s was freed, but is used by other processes.",
             weir__format_bytes_as_pytorch(in_limbo, text[1]));
  return weir__fail(
      WEIR_ERROR_OUT_OF_MEMORY,
      "%s: CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. %s%sOf the "
      "allocated memory %s is allocated by Weir, %sand %s is reserved by Weir but unallocated.%s%s",
      caller, weir__format_bytes_as_pytorch(segment_bytes, text[0]), heap->device,
      weir__format_bytes_as_pytorch(device_total, text[1]), weir__format_bytes_as_pytorch(device_free, text[2]),
      processes, allowed, weir__format_bytes_as_pytorch(allocated, text[3]), private_part,
      weir__format_bytes_as_pytorch(reserved > allocated ? reserved - allocated : 0, text[4]), limbo_part, advice);
}

weir_status weir__reject(const char *caller, weir__heap *heap, const weir__settings *settings, uint64_t segment_bytes,
                         uint64_t requested) {
  char text[32];
  weir_allocator *allocator = heap->allocator;
  uint64_t reserved = heap->reserved;
  if (!settings->throw_on_oom ||
      reserved + segment_bytes <= (uint64_t)(settings->memory_fraction * (double)heap->total))
    return WEIR_OK;
  heap->stats.num_oom_rejections++;
  weir__mutex_unlock(&heap->lock);
  const weir__observers *observers = &allocator->rejection_observers;
  for (int i = 0, count = atomic_load(&observers->count); i < count; i++)
    observers->at[i].call.rejection(observers->at[i].context, heap->device, segment_bytes, reserved, heap->total);
  return weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
                    "%s: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                    "per_process_memory_fraction limit. Requested size: %s",
                    caller, weir__format_bytes_as_pytorch(requested, text));
}
