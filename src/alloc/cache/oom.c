/*
 * Out of memory: the message, the observers, and the rejection of requests that would exceed the limit.
 */
#include <stdio.h>
#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/miss.h"
#include "alloc/cache/observers.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "base/thread.h"
#include "driver/call.h"
#include "driver/nvml.h"

weir_status weir_last_shortage(weir_shortage *shortage) {
  const weir_shortage *last = weir__last_facts();
  if (!shortage || shortage->size < sizeof shortage->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: shortage is NULL, or its size is not set", __func__);
  if (!last)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the last error of this thread is no lack of device memory", __func__);
  size_t size = shortage->size;
  weir__copy_sized(shortage, size, last, sizeof *last);
  shortage->size = size;
  return WEIR_OK;
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
                              weir__format_bytes_as_pytorch(weir__reserved(heap), bytes));
  for (size_t i = 0; i < count && i < MAX_LISTED; i++) {
    char subject[80];
    snprintf(subject, sizeof subject, "Including non-%s memory, this process", heap->allocator->owner);
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
  else if (!weir__growth_reserves(settings) && heap->allocator->advice)
    snprintf(text, size, "%s", heap->allocator->advice);
  else if (!weir__growth_reserves(settings))
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

/* Names the account of a pool whose limit refused the request, and returns the length. That of the device is in the
 * text of every out-of-memory error. */
static size_t name_refusal(const weir__heap *heap, char *text, size_t size) {
  const weir__account *by = heap->refused_by;
  char name[64], most[32], taken[32];
  if (!by || !by->parent)
    return 0;
  weir__account_name(by, heap->device, name, sizeof name);
  return (size_t)snprintf(
      text, size, " The limit of %s is %s, of which %s is taken.", name,
      weir__format_bytes_as_pytorch(by->limit[WEIR__LIMIT_HARD], most),
      weir__format_bytes_as_pytorch((uint64_t)by->reserved[WEIR_STAT_ALL].current + by->promised, taken));
}

/* How many bytes a tag holds from the driver: those of its pools. */
static uint64_t reserved_of(const weir__heap *heap, const weir_tag *tag) {
  uint64_t bytes = 0;
  for (const weir__private_pool *p = heap->private_pools; p; p = p->next)
    if (p->tag == tag)
      bytes += (uint64_t)p->small.account->reserved[WEIR_STAT_ALL].current;
  return bytes;
}

/* Says which tags hold memory, as far as there is room, and returns the length. */
static size_t name_tags(const weir__heap *heap, char *text, size_t size) {
  char bytes[32];
  size_t length = 0;
  for (const weir_tag *tag = heap->tags; tag; tag = tag->next) {
    uint64_t held = reserved_of(heap, tag);
    int more = held ? snprintf(text + length, size - length, "%s %s of the tag '%s'", length ? "," : " Reserved are",
                               weir__format_bytes_as_pytorch(held, bytes), tag->name)
                    : 0;
    if ((size_t)more + 2 > size - length)
      break;
    length += (size_t)more;
  }
  if (length)
    text[length++] = '.';
  text[length] = 0;
  return length;
}

/* The heap's lock is held. */
static weir_shortage measure(weir__heap *heap, weir_cu_stream stream, uint64_t requested, uint64_t wanted) {
  weir_driver *driver = heap->allocator->driver;
  weir_allocator_stats stats;
  weir_shortage of = {.size = sizeof of,
                      .device = heap->device,
                      .stream = stream,
                      .requested = requested,
                      .wanted = wanted,
                      .total = heap->total,
                      .reserved = weir__reserved(heap),
                      .limbo = (uint64_t)heap->stats.ipc_limbo_bytes};
  driver->MemGetInfo(driver, &of.device_free, &of.total);
  of.limit = heap->accounts.device.limit[WEIR__LIMIT_HARD];
  if (of.limit == UINT64_MAX)
    of.limit = of.total;
  weir__accounts_read(&heap->accounts, &stats);
  for (weir__private_pool *p = heap->private_pools; p; p = p->next) {
    weir__glance pool = weir__account_glance(&heap->accounts, p->small.account);
    const weir__amounts *used = &pool.counted[WEIR_STAT_ALL].of;
    of.free_in_private_pools +=
        (uint64_t)(pool.reserved[WEIR_STAT_ALL].current - used->allocated_bytes - used->waiting_bytes);
  }
  of.allocated = (uint64_t)stats.allocated_bytes[WEIR_STAT_ALL].current;
  return of;
}

/* Programs and tests for PyTorch search for these two texts. PyTorch counts the free memory of private pools as
 * allocated. */
static void say_async(const char *caller, const weir_allocator *allocator, const weir_shortage *of) {
  char text[5][32];
  weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
             "%s: Allocation on device %d would exceed allowed memory. (out of memory)\n"
             "Currently allocated     : %s\n"
             "Requested               : %s\n"
             "Device limit            : %s\n"
             "Free (according to CUDA): %s\n"
             "%s limit (set by user-supplied memory fraction)\n"
             "                        : %s",
             caller, of->device, weir__format_bytes_as_pytorch(of->allocated + of->free_in_private_pools, text[0]),
             weir__format_bytes_as_pytorch(of->requested, text[1]), weir__format_bytes_as_pytorch(of->total, text[2]),
             weir__format_bytes_as_pytorch(of->device_free, text[3]), allocator->owner,
             weir__format_bytes_as_pytorch(of->limit, text[4]));
}

static void say_cached(const char *caller, weir__heap *heap, const weir_shortage *of, const char *advice) {
  char text[5][32], processes[800], allowed[64] = "", private_part[96] = "", limbo_part[96] = "";
  const char *owner = heap->allocator->owner;
  uint64_t in_use = of->allocated + of->free_in_private_pools;
  list_processes(heap, processes, sizeof processes);
  if (of->limit < of->total)
    snprintf(allowed, sizeof allowed, "%s allowed; ", weir__format_bytes_as_pytorch(of->limit, text[0]));
  if (of->free_in_private_pools)
    snprintf(private_part, sizeof private_part, "with %s allocated in private pools (e.g., CUDA Graphs), ",
             weir__format_bytes_as_pytorch(of->free_in_private_pools, text[0]));
  if (of->limbo)
    snprintf(limbo_part, sizeof limbo_part, " Of these, %s was freed, but is used by other processes.",
             weir__format_bytes_as_pytorch(of->limbo, text[0]));
  weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
             "%s: CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. %s%s"
             "Of the allocated memory %s is allocated by %s, %sand %s is reserved by %s but unallocated.%s%s",
             caller, weir__format_bytes_as_pytorch(of->wanted, text[0]), of->device,
             weir__format_bytes_as_pytorch(of->total, text[1]), weir__format_bytes_as_pytorch(of->device_free, text[2]),
             processes, allowed, weir__format_bytes_as_pytorch(in_use, text[3]), owner, private_part,
             weir__format_bytes_as_pytorch(of->reserved > in_use ? of->reserved - in_use : 0, text[4]), owner,
             limbo_part, advice);
}

/* Releases the heap's lock before the observers run. */
weir_status weir__out_of_memory(const char *caller, weir__heap *heap, weir__arena *arena, uint64_t bytes,
                                uint64_t segment_bytes) {
  weir_allocator *allocator = heap->allocator;
  weir_shortage shortage = measure(heap, arena->stream, bytes, segment_bytes);
  enum { TAGS = 512 };
  char advice[640 + TAGS];
  heap->stats.num_ooms++;
  size_t length = name_refusal(heap, advice, sizeof advice - TAGS);
  length += name_tags(heap, advice + length, TAGS);
  advise(heap, weir__settings_of(heap), arena->stream, segment_bytes, advice + length, sizeof advice - length);
  weir__biased_acquire(&arena->lock);
  weir__trace(arena, WEIR_TRACE_OOM, shortage.device_free, bytes, 0);
  weir__biased_release(&arena->lock);
  weir__mutex_unlock(&heap->lock);
  weir__op_notify();

  weir__observe_shortage(allocator, &shortage);
  const weir__recording_hooks *hooks = atomic_load(&allocator->hooks);
  if (hooks)
    hooks->out_of_memory(allocator);
  if (weir__backend_is_async(allocator))
    say_async(caller, allocator, &shortage);
  else
    say_cached(caller, heap, &shortage, advice);
  weir__keep_facts(&shortage, sizeof shortage);
  return WEIR_ERROR_OUT_OF_MEMORY;
}

weir_status weir__reject(const char *caller, weir__heap *heap, weir_cu_stream stream, const weir__settings *settings,
                         uint64_t segment_bytes, uint64_t requested) {
  char text[32];
  uint64_t limit = (uint64_t)(settings->memory_fraction * (double)heap->total);
  if (!settings->throw_on_oom || weir__reserved(heap) + segment_bytes <= limit)
    return WEIR_OK;
  const weir_shortage shortage = {.size = sizeof shortage,
                                  .device = heap->device,
                                  .is_rejection = 1,
                                  .stream = stream,
                                  .requested = requested,
                                  .wanted = segment_bytes,
                                  .limit = limit,
                                  .total = heap->total,
                                  .reserved = weir__reserved(heap)};
  heap->stats.num_oom_rejections++;
  weir__mutex_unlock(&heap->lock);
  weir__observe_shortage(heap->allocator, &shortage);
  weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
             "%s: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
             "per_process_memory_fraction limit. Requested size: %s",
             caller, weir__format_bytes_as_pytorch(requested, text));
  weir__keep_facts(&shortage, sizeof shortage);
  return WEIR_ERROR_OUT_OF_MEMORY;
}
