/*
 * Reports an allocator's memory to a tool: a segment is a heap of NVTX's memory extension, and a block in use is a
 * region of it, with the bytes that were requested. The tool then detects accesses to the rest of the segment.
 *
 * The allocator's witness reports inside each operation, so that what the tool is told about an address is in order.
 * A segment's heap is not unregistered: its end is known only after the driver has freed the memory, and the tool,
 * which watches the driver, drops the heap there.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "src/base.h"
#include "src/compute.h"
#include "src/environment.h"
#include "src/nvtx.h"
#include "weir/adapter.h"
#include "weir/compute/nvtx.h"
#include "weir/snapshot.h"

/* ---- The tool's functions ---- */

static intptr_t slots[WEIR__NVTX_MEMORY_SLOTS];
static void *domain;
static bool is_wanted; /* the tool has the functions below */

static void attach(void) {
  weir__on_device on;
  if (weir__compute_env_is(WEIR__ENV_NVTX_MEMORY, "0"))
    return;
  /* compute-sanitizer allows the extension only once there is a context. */
  if (weir_nvtx_is_listening() && weir_is_initialized() && !weir__compute_enter(__func__, -1, &on))
    weir__compute_leave(&on);
  weir__nvtx_segment segment = {1, WEIR__NVTX_MEMORY_SLOTS, slots};
  weir__nvtx_extension extension = {.version = WEIR__NVTX_VERSION,
                                    .size = sizeof extension,
                                    .module = WEIR__NVTX_MEMORY,
                                    .compatibility = WEIR__NVTX_MEMORY_COMPATIBILITY,
                                    .segment_count = 1,
                                    .segments = &segment};
  is_wanted = weir__nvtx_extend(&extension) && slots[WEIR__NVTX_HEAP_REGISTER] > 1 &&
              slots[WEIR__NVTX_REGIONS_REGISTER] > 1 && slots[WEIR__NVTX_REGIONS_UNREGISTER] > 1;
  weir__nvtx_function create = weir__nvtx_find(WEIR__NVTX_CORE2, WEIR__NVTX_DOMAIN_CREATE);
  if (is_wanted && create)
    domain = ((void *(*)(const char *))create)("weir");
}

static void *register_heap(uint64_t address, uint64_t bytes) {
  weir__nvtx_range range = {bytes, (const void *)(uintptr_t)address};
  weir__nvtx_heap heap = {.compatibility = WEIR__NVTX_MEMORY_COMPATIBILITY,
                          .size = sizeof heap,
                          .usage = WEIR__NVTX_SUB_ALLOCATOR,
                          .type = WEIR__NVTX_VIRTUAL_ADDRESS,
                          .range_size = sizeof range,
                          .range = &range};
  return ((void *(*)(void *, const weir__nvtx_heap *))slots[WEIR__NVTX_HEAP_REGISTER])(domain, &heap);
}

static void unregister_heap(void *heap) {
  if (slots[WEIR__NVTX_HEAP_UNREGISTER] > 1)
    ((void (*)(void *, void *))slots[WEIR__NVTX_HEAP_UNREGISTER])(domain, heap);
}

static void register_region(void *heap, uint64_t address, uint64_t bytes) {
  weir__nvtx_range range = {bytes, (const void *)(uintptr_t)address};
  weir__nvtx_regions regions = {.compatibility = WEIR__NVTX_MEMORY_COMPATIBILITY,
                                .size = sizeof regions,
                                .type = WEIR__NVTX_VIRTUAL_ADDRESS,
                                .heap = heap,
                                .count = 1,
                                .range_size = sizeof range,
                                .ranges = &range};
  ((void (*)(void *, const weir__nvtx_regions *))slots[WEIR__NVTX_REGIONS_REGISTER])(domain, &regions);
}

static void unregister_region(uint64_t address) {
  const void *pointer = (const void *)(uintptr_t)address;
  weir__nvtx_region_refs refs = {.compatibility = WEIR__NVTX_MEMORY_COMPATIBILITY,
                                 .size = sizeof refs,
                                 .ref_type = WEIR__NVTX_BY_POINTER,
                                 .count = 1,
                                 .ref_size = sizeof pointer,
                                 .refs = &pointer};
  ((void (*)(void *, const weir__nvtx_region_refs *))slots[WEIR__NVTX_REGIONS_UNREGISTER])(domain, &refs);
}

/* ---- Segments ---- */

typedef struct heap {
  uint64_t address, bytes;
  void *handle;
} heap;

/* The segments of one allocator. It lives as long as the process, because the witness may still be running when it is
 * removed. */
typedef struct reporter {
  weir_allocator *allocator;
  struct reporter *next;
  pthread_mutex_t lock; /* guards what follows */
  heap *heaps;          /* by address */
  size_t count, room;
} reporter;

/* The number of heaps that begin at or below an address. */
static size_t heaps_below(const reporter *r, uint64_t address) {
  size_t low = 0, high = r->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (r->heaps[middle].address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* The heap that contains an address, or NULL. */
static heap *heap_at(const reporter *r, uint64_t address) {
  size_t below = heaps_below(r, address);
  heap *found = below ? &r->heaps[below - 1] : NULL;
  return found && address - found->address < found->bytes ? found : NULL;
}

/* A heap that does not fit in host memory is not reported, and neither are its regions. */
static void add_heap(reporter *r, uint64_t address, uint64_t bytes) {
  size_t at = heaps_below(r, address);
  if (!WEIR__RESERVE(r->heaps, r->room, r->count + 1))
    return;
  memmove(r->heaps + at + 1, r->heaps + at, (r->count - at) * sizeof *r->heaps);
  r->heaps[at] = (heap){address, bytes, register_heap(address, bytes)};
  r->count++;
}

static void remove_heap(reporter *r, uint64_t address) {
  heap *found = heap_at(r, address);
  if (!found || found->address != address)
    return;
  size_t at = (size_t)(found - r->heaps);
  memmove(found, found + 1, (--r->count - at) * sizeof *found);
}

static void witness(void *context, const weir_trace_entry *entry) {
  reporter *r = context;
  const heap *in;
  pthread_mutex_lock(&r->lock);
  switch (entry->action) {
  case WEIR_TRACE_SEGMENT_ALLOC:
    add_heap(r, entry->address, entry->bytes);
    break;
  case WEIR_TRACE_SEGMENT_FREE:
    remove_heap(r, entry->address);
    break;
  case WEIR_TRACE_ALLOC:
    in = heap_at(r, entry->address);
    if (in && entry->bytes)
      register_region(in->handle, entry->address, entry->bytes);
    break;
  case WEIR_TRACE_FREE_COMPLETED: /* until then, other streams may use it */
    if (heap_at(r, entry->address) && entry->bytes)
      unregister_region(entry->address);
    break;
  default:
    break;
  }
  pthread_mutex_unlock(&r->lock);
}

/* ---- The calls ---- */

static reporter *reporters;
static pthread_mutex_t reporters_lock = PTHREAD_MUTEX_INITIALIZER;

/* The reporter of an allocator, which is made if `makes`. NULL if there is none, or the host has no memory. */
static reporter *reporter_of(weir_allocator *allocator, bool makes) {
  pthread_mutex_lock(&reporters_lock);
  reporter *r = reporters;
  while (r && r->allocator != allocator)
    r = r->next;
  if (!r && makes && (r = calloc(1, sizeof *r))) {
    pthread_mutex_init(&r->lock, NULL);
    r->allocator = allocator;
    r->next = reporters;
    reporters = r;
  }
  pthread_mutex_unlock(&reporters_lock);
  return r;
}

/* Reports what the allocator has already. */
static weir_status report_present(reporter *r) {
  weir_snapshot_options options;
  weir_snapshot *snapshot;
  const weir_snapshot_segment *segments;
  size_t count;
  weir_snapshot_options_init(&options);
  options.traces = 0;
  weir_status status = weir_snapshot_take(r->allocator, &options, &snapshot);
  if (status)
    return status;
  status = weir_snapshot_segments(snapshot, &segments, &count);
  pthread_mutex_lock(&r->lock);
  for (size_t i = 0; i < count && !status; i++) {
    const weir_snapshot_segment *segment = weir_snapshot_segment_at(segments, i);
    if (segment->is_expandable || heap_at(r, segment->address))
      continue;
    add_heap(r, segment->address, segment->bytes);
    const heap *in = heap_at(r, segment->address);
    for (size_t k = 0; in && k < segment->block_count; k++) {
      const weir_snapshot_block *block = weir_snapshot_block_at(segment, k);
      if (block->requested)
        register_region(in->handle, block->address, block->requested);
    }
  }
  pthread_mutex_unlock(&r->lock);
  weir_snapshot_destroy(snapshot);
  return status;
}

weir_status weir_nvtx_report_memory(weir_allocator *allocator, int *listens) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  WEIR__CHECK_ARGUMENT(allocator);
  pthread_once(&once, attach);
  weir_status status = WEIR_OK;
  if (is_wanted) {
    reporter *r = reporter_of(allocator, true);
    if (!r)
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
    status = weir_allocator_set_witness(allocator, witness, r, WEIR_WITNESS_ALL);
    if (!status)
      status = report_present(r);
    if (status)
      return weir__fail_as(__func__, status);
  }
  if (listens)
    *listens = is_wanted;
  return WEIR_OK;
}

weir_status weir_nvtx_forget_memory(weir_allocator *allocator) {
  WEIR__CHECK_ARGUMENT(allocator);
  reporter *r = reporter_of(allocator, false);
  if (!r)
    return WEIR_OK;
  weir_status status = weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL);
  pthread_mutex_lock(&r->lock);
  while (r->count)
    unregister_heap(r->heaps[--r->count].handle);
  pthread_mutex_unlock(&r->lock);
  return weir__fail_as(__func__, status);
}
