#include "support/alloc.h"

#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "support/valid.h"

#include <stdio.h>
#include <string.h>

weir_allocator *allocator;
weir_driver *faults;

enum { MAX_STREAMS = 64 };
static weir_cu_stream streams[MAX_STREAMS];
static int stream_count;

void *live_blocks[MAX_LIVE_BLOCKS];
int live_block_count;

/* ---- Opening and closing ---- */

void alloc_open_devices(weir_soft_clock clock, int devices, unsigned long long bytes) {
  soft_open(clock, devices, bytes);
  stream_count = live_block_count = 0;
  assert_ok(weir_driver_open_fault(d, &faults));
}

weir_allocator *alloc_create(const char *conf) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf ? conf : "";
  weir_allocator *made = NULL;
  assert_ok(weir_allocator_create(faults, &options, &made));
  return made;
}

void alloc_open_on(weir_soft_clock clock, int devices, unsigned long long bytes, const char *conf) {
  alloc_open_devices(clock, devices, bytes);
  allocator = alloc_create(conf);
}

void alloc_open_with(const weir_allocator_options *options) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  assert_ok(weir_allocator_create(faults, options, &allocator));
}

void alloc_open(const char *conf, unsigned long long bytes) { alloc_open_on(WEIR_SOFT_STEPPED, 1, bytes, conf); }

void alloc_close(void) {
  if (allocator)
    assert_valid();
  weir_allocator_destroy(allocator);
  allocator = NULL;
  while (stream_count > 0)
    assert_cu(d->StreamDestroy(d, streams[--stream_count]));
  weir_driver_close(faults);
  faults = NULL;
  soft_close();
}

int alloc_teardown(void **state) {
  if (faults)
    weir_fault_clear(faults);
  weir_allocator_destroy(allocator);
  allocator = NULL;
  weir_driver_close(faults);
  faults = NULL;
  return soft_teardown(state);
}

void alloc_open_runtime(const char *conf) {
  alloc_open(conf, GIB);
  assert_ok(weir_use_driver(faults));
  assert_ok(weir_graph_use_allocator(allocator));
}

void alloc_close_runtime(void) {
  assert_ok(weir_graph_use_allocator(NULL));
  assert_ok(weir_shutdown());
  assert_ok(weir_use_driver(NULL));
  alloc_close();
}

int alloc_teardown_runtime(void **state) {
  weir_graph_use_allocator(NULL);
  weir_shutdown();
  weir_use_driver(NULL);
  return alloc_teardown(state);
}

/* ---- The calls ---- */

/* The segments of the allocator account for exactly the memory that the device has handed out. Pools with functions of
 * their own do not take memory from the device. */
void assert_valid(void) {
  assert_true(weir__allocator_is_valid(allocator));
  if (allocator->backend)
    return; /* the back end may get its memory anywhere */
  unsigned long long bytes = 0;
  unsigned long fixed = weir__rangemap_count(&allocator->uncached), reservations = 0, orphans = 0;
  unsigned long pages = 0, mappings = 0; /* a page may have several slots, and may be mapped as an alias too */
  for (int i = 0; i < allocator->heap_count; i++) {
    const weir__heap *heap = &allocator->heaps[i];
    orphans += heap->pages.orphan_count;
    reservations += heap->apart_blocks.space.base != 0;
    for (const weir__segment *s = heap->segments; s; s = s->next) {
      if (s->arena->pool->owner && s->arena->pool->owner->alloc)
        continue;
      if (weir__apart_has(&heap->apart_blocks, s->memory.base)) { /* its page is in the space of all of them */
        bytes += weir__growth_held(heap, s->growth, s->memory.bytes);
        mappings++;
        pages++;
        continue;
      }
      fixed += s->memory.slot == 0;
      reservations += s->memory.slot != 0;
      bytes += s->memory.slot ? s->memory.owned * s->memory.slot : s->memory.bytes;
      for (size_t k = 0; k < s->memory.room; k++) {
        const weir__mapping *mapping = s->memory.slots[k];
        bool begins = mapping && mapping->address == s->memory.base + k * s->memory.slot;
        bool is_asleep = begins && weir__is_asleep(mapping), has_memory = is_asleep && mapping->page->handle;
        mappings += begins && (!is_asleep || mapping->page->stays_mapped);
        pages += begins && (weir__is_owner(mapping) || has_memory);
        bytes += has_memory ? mapping->page->bytes : 0; /* it could not be released */
      }
    }
  }
  weir_soft_census census = soft_census();
  assert_int_equal(census.allocations, fixed);
  assert_int_equal(census.reservations, reservations);
  assert_int_equal(census.mappings, mappings);
  assert_int_equal(census.handles, pages + orphans);
  if (fixed > 0 && weir__rangemap_count(&allocator->uncached) > 0)
    return; /* the sizes of uncached allocations are not known */
  if (orphans)
    assert_true(census.device_bytes > bytes);
  else
    assert_int_equal(census.device_bytes, bytes);
}

weir_status try_get(size_t bytes, weir_cu_stream stream, void **pointer) {
  *pointer = NULL;
  weir_status status = weir_allocator_alloc(allocator, 0, bytes, stream, pointer);
  if (status != WEIR_OK)
    assert_null(*pointer);
  assert_valid();
  return status;
}

void *get_on(int device, size_t bytes, weir_cu_stream stream) {
  void *pointer = NULL;
  assert_ok(weir_allocator_alloc(allocator, device, bytes, stream, &pointer));
  assert_valid();
  return pointer;
}

void *get(size_t bytes, weir_cu_stream stream) { return get_on(0, bytes, stream); }

void put(void *pointer) {
  assert_ok(weir_allocator_free(allocator, pointer));
  assert_valid();
}

void also_used_by(void *pointer, weir_cu_stream stream) {
  assert_ok(weir_allocator_record_stream(allocator, pointer, stream));
  assert_valid();
}

void configure(const char *conf) { assert_ok(weir_allocator_configure(allocator, conf)); }

void empty_cache(void) {
  assert_ok(weir_allocator_empty_cache(allocator));
  assert_valid();
}

/* ---- Looking ---- */

weir_allocator_stats stats_of(int device) {
  weir_allocator_stats stats = {.size = sizeof stats};
  assert_ok(weir_allocator_get_stats(allocator, device, &stats));
  return stats;
}

void assert_backend(const char *name) {
  char text[64];
  size_t length;
  assert_ok(weir_allocator_backend(allocator, text, sizeof text, &length));
  assert_string_equal(text, name);
  assert_int_equal(length, strlen(name));
}

int64_t reserved(void) { return stats_of(0).reserved_bytes[WEIR_STAT_ALL].current; }
int64_t allocated(void) { return stats_of(0).allocated_bytes[WEIR_STAT_ALL].current; }
int64_t active(void) { return stats_of(0).active_bytes[WEIR_STAT_ALL].current; }
int64_t segments(void) { return stats_of(0).segment[WEIR_STAT_ALL].current; }

weir__segment *segment_at(const void *pointer) {
  uint64_t address = (uint64_t)pointer;
  weir__arena *arena = weir__page_map_find(allocator->page_map, address);
  assert_non_null(arena);
  weir__arena_lock(arena); /* processes the frees that are queued for the arena */
  weir__arena_unlock(arena);
  weir__segment *segment = arena->pool->heap->segments;
  while (segment && (segment->arena != arena || address - segment->memory.base >= segment->memory.bytes))
    segment = segment->next;
  assert_non_null(segment);
  return segment;
}

const char *layout(const void *pointer) {
  static char text[4096];
  size_t used = 0;
  const weir__segment *segment = segment_at(pointer);
  for (const weir__block *b = segment->first; b; b = weir__block_next(b)) {
    const char *unit = "", *state = "";
    unsigned long long size = weir__block_bytes(b);
    if (size % MIB == 0) {
      size /= MIB;
      unit = "M";
    } else if (size % KIB == 0) {
      size /= KIB;
      unit = "K";
    }
    if (!weir__block_is_mapped(b))
      state = "-";
    else if (weir__block_is_active(b))
      state = b->state == WEIR__ALLOCATED ? "*" : "~";
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%llu%s%s", used ? " " : "", size, unit, state);
    assert_true(used < sizeof text);
  }
  return text;
}

weir_pool_id pool_of(const void *pointer) {
  const weir__private_pool *owner = segment_at(pointer)->arena->pool->owner;
  return owner ? owner->id : (weir_pool_id){0, 0};
}

unsigned long calls(weir_driver_call call) {
  unsigned long made = 0, failed = 0;
  assert_ok(weir_fault_counts(faults, call, &made, &failed));
  return made;
}

/* ---- Faults ---- */

void keep_live(void *pointer) {
  assert_true(live_block_count < MAX_LIVE_BLOCKS);
  live_blocks[live_block_count++] = pointer;
}

void *get_live(int device, size_t bytes, weir_cu_stream stream) {
  void *pointer = NULL;
  if (weir_allocator_alloc(allocator, device, bytes, stream, &pointer) != WEIR_OK)
    return NULL;
  keep_live(pointer);
  return pointer;
}

void forget_live(void *pointer) {
  int i = 0;
  while (live_blocks[i] != pointer)
    i++;
  live_blocks[i] = live_blocks[--live_block_count];
}

void put_live(void *pointer) {
  if (pointer && weir_allocator_free(allocator, pointer) == WEIR_OK)
    forget_live(pointer);
}

void put_all_live(void) {
  while (live_block_count)
    put(live_blocks[--live_block_count]);
}

void sweep_driver_calls(const fault_sweep *sweep) {
  static const weir_cu_result results[] = {WEIR_CU_OUT_OF_MEMORY, WEIR_CU_UNKNOWN, WEIR_CU_STREAM_CAPTURE_UNSUPPORTED};
  sweep->open(sweep->argument);
  unsigned long before = calls(WEIR_CALL_COUNT);
  sweep->act();
  unsigned long count = calls(WEIR_CALL_COUNT) - before, failed = 0;
  sweep->close();
  assert_true(count > 30);
  for (unsigned long nth = 1; nth <= count; nth++)
    for (size_t i = 0; i < WEIR_COUNT_OF(results); i++) {
      unsigned long made = 0, faulty = 0;
      sweep->open(sweep->argument);
      assert_ok(weir_fault_nth_any(faults, nth, results[i]));
      sweep->act();
      assert_ok(weir_fault_counts(faults, WEIR_CALL_COUNT, &made, &faulty));
      failed += faulty;
      sweep->close();
    }
  assert_true(failed >= count); /* a failure may make later calls unnecessary */
}

void ignore_trace(void *context, const weir_trace_entry *entry) { (void)context, (void)entry; }

/* ---- Streams ---- */

weir_cu_stream work_stream(void) {
  assert_true(stream_count < MAX_STREAMS);
  return streams[stream_count++] = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
}

static void nothing(void *data) { (void)data; }

void work(weir_cu_stream stream) { assert_cu(d->LaunchHostFunc(d, stream, nothing, NULL)); }
