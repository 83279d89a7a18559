/*
 * A walk through everything, for builds with expensive checks and for tests: whatever is counted is counted again, and
 * whatever points back is followed both ways. What is wrong is said before the process ends.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "driver/soft/soft.h"

_Noreturn static void broken(const char *format, ...) WEIR_PRINTF(1, 2);

_Noreturn static void broken(const char *format, ...) {
  char text[WEIR__TEXT_SIZE];
  va_list arguments;
  va_start(arguments, format);
  weir__format_text(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "weir: the software device is broken: %s\n", text);
  abort();
}

#define CHECK(condition, ...)                                                                                          \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      broken(__VA_ARGS__);                                                                                             \
  } while (0)

#define CHECK_EQUAL(counted, kept, what)                                                                               \
  CHECK((counted) == (kept), "%s: %" PRIu64 " counted, %" PRIu64 " kept", what, (uint64_t)(counted), (uint64_t)(kept))

/* ---- Handles ---- */

/* The handle that an object says it has; 0 for those that do not know theirs. */
static uintptr_t own_handle(enum soft_kind kind, const void *object) {
  switch (kind) {
  case SOFT_CONTEXT:
    return ((const struct soft_device *)object)->context;
  case SOFT_STREAM:
    return ((const struct soft_stream *)object)->handle;
  case SOFT_EVENT:
    return ((const struct soft_event *)object)->handle;
  case SOFT_GRAPH:
    return ((const struct soft_graph *)object)->handle;
  case SOFT_NODE:
    return ((const struct soft_node *)object)->handle;
  case SOFT_EXEC:
    return ((const struct soft_exec *)object)->handle;
  case SOFT_MODULE:
    return ((const struct soft_module *)object)->handle;
  case SOFT_FUNCTION:
    return ((const struct soft_function *)object)->handle;
  case SOFT_POOL:
    return ((const struct soft_pool *)object)->handle;
  default:
    return 0;
  }
}

static void check_handles(const struct soft *soft) {
  unsigned long live[SOFT_KINDS] = {0};
  for (size_t i = 0; i < soft->slot_count; i++) {
    const struct soft_slot *slot = &soft->slots[i];
    CHECK(slot->kind < SOFT_KINDS, "handles: slot %zu has the kind %d", i, slot->kind);
    live[slot->kind]++;
    if (slot->kind == SOFT_FREE)
      continue;
    uintptr_t handle = own_handle(slot->kind, slot->object);
    CHECK(slot->kind == SOFT_HANDLE || weir__soft_handle_get(soft, slot->kind, handle) == slot->object,
          "handles: the object of kind %d in slot %zu does not know its handle", slot->kind, i);
  }
  for (int kind = SOFT_FREE + 1; kind < SOFT_KINDS; kind++)
    CHECK(live[kind] == soft->live[kind], "handles: %lu of kind %d counted, %lu kept", live[kind], kind,
          soft->live[kind]);
  unsigned long in_list = 0;
  for (size_t at = soft->free_slot; at; at = (size_t)(uintptr_t)soft->slots[at - 1].object) {
    CHECK(at <= soft->slot_count && soft->slots[at - 1].kind == SOFT_FREE, "handles: slot %zu in the free list",
          at - 1);
    CHECK(++in_list <= live[SOFT_FREE], "handles: the free list goes in a circle");
  }
  CHECK_EQUAL(in_list, live[SOFT_FREE], "handles: free slots");
}

/* ---- Memory ---- */

static bool is_file_extent(const struct soft_extent *extent) {
  return extent->own_file ||
         (extent->fd == extent->device->fd && extent->offset + extent->bytes <= extent->device->file_end);
}

static void check_mappings(struct soft *soft, const struct soft_range *range, unsigned long *mappings) {
  uint64_t base = 0, bytes = 0;
  CHECK(weir__rangemap_is_valid(&range->mappings), "ranges: the map of the mappings at %" PRIx64, range->base);
  const struct soft_mapping *mapping;
  while ((mapping = weir__rangemap_at_or_after(&range->mappings, base, &base, &bytes))) {
    CHECK(mapping->base == base && mapping->bytes == bytes && base >= range->base &&
              base + bytes <= range->base + range->bytes,
          "mappings: the one at %" PRIx64 " is not inside its reservation", base);
    CHECK(mapping->memory->extent.bytes == bytes, "mappings: the one at %" PRIx64 " is not as large as its memory",
          base);
    CHECK(!(mapping->writable & ~mapping->readable), "mappings: the one at %" PRIx64 " can be written, not read", base);
    CHECK(soft->device_count == WEIR_SOFT_MAX_DEVICES || !(mapping->readable >> soft->device_count),
          "mappings: the one at %" PRIx64 " is for devices that are not there", base);
    mapping->memory->seen++;
    ++*mappings;
    base += bytes;
  }
}

/* Both ways to a piece of physical memory: handles and mappings. */
static void for_each_memory(struct soft *soft, void (*visit)(struct soft_memory *memory, uint64_t *used),
                            uint64_t *used) {
  for (size_t i = 0; i < soft->slot_count; i++)
    if (soft->slots[i].kind == SOFT_HANDLE)
      visit(soft->slots[i].object, used);
  uint64_t at = 0, bytes = 0;
  const struct soft_range *range;
  while ((range = weir__rangemap_at_or_after(&soft->space, at, &at, &bytes))) {
    at += bytes;
    uint64_t base = 0;
    const struct soft_mapping *mapping;
    while ((mapping = weir__rangemap_at_or_after(&range->mappings, base, &base, &bytes))) {
      visit(mapping->memory, used);
      base += bytes;
    }
  }
}

static void forget_memory(struct soft_memory *memory, uint64_t *used) {
  (void)used;
  memory->seen = 0;
}

/* Counts it once, however many ways lead here. */
static void count_memory(struct soft_memory *memory, uint64_t *used) {
  if (!memory->seen)
    return;
  CHECK_EQUAL(memory->seen, memory->refs, "memory: handles and mappings of one piece");
  CHECK(is_file_extent(&memory->extent), "memory: a piece lies outside of its file");
  memory->seen = 0;
  if (memory->extent.charged)
    used[memory->extent.device->ordinal] += memory->extent.bytes;
}

static void check_ranges(struct soft *soft) {
  unsigned long counts[SOFT_RANGE_IPC + 1] = {0}, mappings = 0;
  uint64_t used[WEIR_SOFT_MAX_DEVICES] = {0}, graphs[WEIR_SOFT_MAX_DEVICES] = {0};
  CHECK(weir__rangemap_is_valid(&soft->space), "ranges: the map of all");
  for_each_memory(soft, forget_memory, used);
  for (size_t i = 0; i < soft->slot_count; i++)
    if (soft->slots[i].kind == SOFT_HANDLE)
      ((struct soft_memory *)soft->slots[i].object)->seen++;

  uint64_t base = 0, bytes = 0;
  const struct soft_range *range;
  while ((range = weir__rangemap_at_or_after(&soft->space, base, &base, &bytes))) {
    CHECK(range->kind <= SOFT_RANGE_IPC && range->base == base && range->mapped_bytes == bytes && range->bytes &&
              range->bytes <= bytes,
          "ranges: the one at %" PRIx64 " does not know where it is", base);
    CHECK(range->id && range->id <= soft->next_id, "ranges: the one at %" PRIx64 " has no number", base);
    counts[range->kind]++;
    if (range->kind == SOFT_RANGE_RESERVED)
      check_mappings(soft, range, &mappings);
    else
      CHECK(range->device && !weir__rangemap_count(&range->mappings), "ranges: the one at %" PRIx64 " has mappings",
            base);
    if (range->kind == SOFT_RANGE_PLAIN || range->kind == SOFT_RANGE_CHUNK) {
      CHECK(range->extent.bytes == bytes && range->extent.device == range->device && is_file_extent(&range->extent),
            "ranges: the one at %" PRIx64 " has the wrong memory", base);
      used[range->device->ordinal] += range->extent.charged ? bytes : 0;
    }
    CHECK((range->kind == SOFT_RANGE_CHUNK) == (range->chunk != NULL), "ranges: a chunk at %" PRIx64, base);
    if (range->chunk) {
      CHECK(range->chunk->range == range && range->chunk->bytes == bytes, "chunks: the one at %" PRIx64, base);
      graphs[range->device->ordinal] += range->chunk->pool ? 0 : bytes;
    }
    CHECK((range->kind == SOFT_RANGE_IPC) == (range->opens > 0), "ranges: %u openings at %" PRIx64, range->opens, base);
    base += bytes;
  }
  for_each_memory(soft, count_memory, used);
  for (int kind = 0; kind <= SOFT_RANGE_IPC; kind++)
    CHECK(counts[kind] == soft->range_counts[kind], "ranges: %lu of kind %d counted, %lu kept", counts[kind], kind,
          soft->range_counts[kind]);
  CHECK_EQUAL(mappings, soft->mapping_count, "mappings");
  for (int i = 0; i < soft->device_count; i++) {
    CHECK_EQUAL(used[i], soft->devices[i].used, "memory: bytes used of a device");
    CHECK(used[i] <= soft->options.bytes, "memory: more is used than there is");
    CHECK_EQUAL(graphs[i], soft->devices[i].graph_used, "memory: bytes of graphs");
  }
}

/* ---- Pools ---- */

static void check_pool(struct soft *soft, const struct soft_device *device, const struct soft_pool *pool) {
  uint64_t reserved = 0, used = 0;
  CHECK(pool->device == device, "pools: one of another device");
  CHECK(pool->destroyed || weir__soft_handle_get(soft, SOFT_POOL, pool->handle) == pool, "pools: one without a handle");
  for (const struct soft_chunk *chunk = pool->chunks; chunk; chunk = chunk->next) {
    CHECK(chunk->pool == pool, "pools: a chunk of another pool");
    CHECK(weir__rangemap_find(&soft->space, chunk->range->base, NULL, NULL) == chunk->range,
          "pools: a chunk without a range");
    CHECK(!chunk->in_use || !chunk->freeing, "pools: a chunk that is in use and freed");
    CHECK(!chunk->freeing || chunk->refs, "pools: a chunk that no work is going to free");
    reserved += chunk->bytes;
    used += chunk->in_use || chunk->freeing ? chunk->range->bytes : 0;
  }
  CHECK_EQUAL(reserved, pool->reserved, "pools: bytes reserved");
  CHECK_EQUAL(used, pool->used, "pools: bytes used");
  CHECK(reserved <= pool->reserved_high && used <= pool->used_high, "pools: a high mark is too low");
}

/* ---- Work ---- */

static void see_chunk(const struct soft_work *work) {
  if (work->kind == SOFT_WORK_FREE || work->kind == SOFT_WORK_ALLOC)
    work->as.chunk.chunk->seen++;
}

static bool is_waiting_for(const struct soft_stream *stream, const struct soft_signal *signal) {
  for (const struct soft_stream *s = signal->waiters; s; s = s->next_waiter)
    if (s == stream)
      return true;
  return false;
}

static void check_work(const struct soft_stream *stream, const struct soft_work *work) {
  if (work->end) {
    CHECK(work->end->refs && !work->end->done && work->end->owner == stream, "work: the end of a piece is not its own");
    for (const struct soft_stream *s = work->end->waiters; s; s = s->next_waiter)
      CHECK(s->first && s->first->kind == SOFT_WORK_WAIT && s->first->signal == work->end && !s->running && !s->queued,
            "work: a stream waits for a piece, and does something else");
  }
  if (work->kind == SOFT_WORK_WAIT)
    CHECK(work->signal && work->signal->refs && (work->signal->done || work->signal->owner),
          "work: a wait for what nobody does");
  see_chunk(work);
}

static bool is_linked(const struct soft_stream *stream) {
  for (const struct soft_stream *s = stream->device->streams; s; s = s->next)
    if (s == stream)
      return true;
  return false;
}

static void check_stream(const struct soft *soft, const struct soft_device *device, const struct soft_stream *s) {
  unsigned long pieces = 0;
  uint64_t seq = 0;
  CHECK(*s->link == s && s->device == device, "streams: one is in the wrong list");
  CHECK(!s->handle || weir__soft_handle_get(soft, SOFT_STREAM, s->handle) == s, "streams: one with a wrong handle");
  CHECK(!s->dropped || !s->handle, "streams: one that was destroyed has a handle");
  CHECK(!s->dropped || s->first || s->running || s->waits, "streams: one that is over is still there");
  CHECK(s->is_legacy == (device->legacy == s) || s->dropped, "streams: which one is the legacy one");
  if (s->running) {
    check_work(s, s->running);
    seq = s->running->seq;
    pieces++;
  }
  for (const struct soft_work *work = s->first; work; work = work->next) {
    CHECK(work->seq > seq && work->seq <= soft->next_seq, "streams: work out of order");
    CHECK(work->next || work == s->last, "streams: the last piece is not the last");
    check_work(s, work);
    seq = work->seq;
    pieces++;
  }
  CHECK(s->first || !s->last, "streams: a last piece without a first");
  CHECK_EQUAL(pieces, s->pending, "streams: pieces of work");

  bool by_itself = soft->options.clock == WEIR_SOFT_THREADS && !soft->stopping;
  CHECK(by_itself || !s->queued, "streams: one is ready in stepped time");
  CHECK(!s->queued || (s->first && !s->running), "streams: one is ready without work, or while it works");
  if (by_itself && s->first && !s->running && !s->queued)
    CHECK(s->first->kind == SOFT_WORK_WAIT && is_waiting_for(s, s->first->signal), "streams: one was forgotten");
  CHECK(by_itself || s->time_ns <= soft->now_ns || soft->options.clock == WEIR_SOFT_THREADS,
        "streams: one is ahead of the clock");

  const struct soft_capture *capture = soft->captures;
  while (capture && capture != s->capture)
    capture = capture->next;
  CHECK(capture == s->capture, "captures: a stream is in one that is over");
  CHECK(capture || !s->tip_count, "captures: a stream has tips without one");
  for (size_t i = 0; i < s->tip_count; i++)
    CHECK(s->tips[i]->graph == capture->graph, "captures: a stream depends on a node of another graph");
}

static void check_ready(const struct soft *soft) {
  unsigned queued = 0, listed = 0;
  for (int i = 0; i < soft->device_count; i++)
    for (const struct soft_stream *s = soft->devices[i].streams; s; s = s->next)
      queued += s->queued;
  for (const struct soft_stream *s = soft->ready; s; s = s->next_ready) {
    CHECK(++listed <= queued && s->queued, "ready: the list has streams that are not ready");
    CHECK(!s->next_ready || s->priority <= s->next_ready->priority, "ready: the list is not in order");
  }
  CHECK_EQUAL(listed, queued, "ready: streams in the list");
  CHECK_EQUAL(listed, soft->ready_count, "ready: streams");
  CHECK(soft->workers <= SOFT_MAX_WORKERS && soft->idle_workers <= soft->workers, "ready: workers");
}

/* ---- Captures, graphs, events ---- */

/* Every node depends on earlier ones alone. */
static void check_graph(struct soft_graph *graph) {
  uint32_t mark = ++graph->mark;
  CHECK(graph->count <= graph->room, "graphs: more nodes than room");
  for (size_t i = 0; i < graph->count; i++) {
    struct soft_node *node = graph->nodes[i];
    CHECK(node->graph == graph && node->work && node->work->device, "graphs: a node of another graph, or without work");
    for (size_t k = 0; k < node->from_count; k++)
      CHECK(node->from[k]->graph == graph && node->from[k]->mark == mark, "graphs: a node depends on a later one");
    node->mark = mark;
    see_chunk(node->work);
  }
}

static void check_captures(const struct soft *soft) {
  uint64_t id = UINT64_MAX;
  for (const struct soft_capture *c = soft->captures; c; c = c->next) {
    CHECK(c->id && c->id < id && c->id <= soft->next_capture, "captures: out of order");
    id = c->id;
    CHECK(c->status == WEIR_CU_CAPTURE_STATUS_ACTIVE || c->status == WEIR_CU_CAPTURE_STATUS_INVALIDATED,
          "captures: status %d", c->status);
    CHECK(c->origin && is_linked(c->origin) && c->origin->capture == c,
          "captures: one whose first stream is not in it");
    CHECK(weir__soft_handle_get(soft, SOFT_GRAPH, c->graph->handle) == c->graph, "captures: one without a graph");
    const struct soft_thread *thread = soft->threads;
    while (thread && thread != c->thread)
      thread = thread->next;
    CHECK(thread == c->thread, "captures: one of a thread that is gone");
  }
}

static void check_event(const struct soft *soft, const struct soft_event *event) {
  CHECK(!(event->flags & WEIR_CU_EVENT_INTERPROCESS) == !event->shared, "events: which ones are shared");
  CHECK(!event->signal || event->signal->refs, "events: one points to a record that is gone");
  CHECK(!event->signal || !event->capture_id, "events: one is recorded in a stream and in a capture");
  const struct soft_capture *capture = soft->captures;
  while (capture && capture->id != event->capture_id)
    capture = capture->next;
  for (size_t i = 0; capture && i < event->tip_count; i++)
    CHECK(event->tips[i]->graph == capture->graph, "events: one depends on a node of another graph");
}

/* Work that names chunks is in queues, graphs and executables. */
static void check_chunks(struct soft *soft) {
  uint64_t base = 0, bytes = 0;
  const struct soft_range *range;
  while ((range = weir__rangemap_at_or_after(&soft->space, base, &base, &bytes))) {
    if (range->chunk) {
      CHECK_EQUAL(range->chunk->seen, range->chunk->refs, "chunks: pieces of work that name one");
      CHECK(range->chunk->pool || range->chunk->refs, "chunks: one of a graph that is gone");
      range->chunk->seen = 0;
    }
    base += bytes;
  }
}

void weir__soft_is_valid(struct soft *soft) {
  check_handles(soft);
  check_ranges(soft);
  for (int i = 0; i < soft->device_count; i++) {
    struct soft_device *device = &soft->devices[i];
    CHECK(!device->context == !device->retains, "devices: a context that nobody holds");
    CHECK(!device->context || weir__soft_handle_get(soft, SOFT_CONTEXT, device->context) == device,
          "devices: a context without a handle");
    CHECK(!device->context == !device->legacy, "devices: a legacy stream without a context");
    for (int k = 0; k < WEIR_SOFT_MAX_DEVICES; k++)
      CHECK(!(device->peers >> k & 1) || (k != i && k < soft->device_count && soft->devices[k].context),
            "devices: a peer that is not there");
    bool has_pool = !device->pool, has_default = !device->default_pool;
    for (const struct soft_pool *pool = device->pools; pool; pool = pool->next) {
      check_pool(soft, device, pool);
      has_pool |= pool == device->pool && !pool->destroyed;
      has_default |= pool == device->default_pool && pool->is_default;
    }
    CHECK(has_pool && has_default, "devices: a current pool that is gone");
    for (const struct soft_stream *s = device->streams; s; s = s->next) {
      CHECK(device->context || s->dropped, "devices: a stream without a context");
      check_stream(soft, device, s);
    }
  }
  check_ready(soft);
  check_captures(soft);
  for (const struct soft_thread *thread = soft->threads; thread; thread = thread->next)
    for (int i = 0; i < soft->device_count; i++)
      CHECK(!thread->streams[i] || (is_linked(thread->streams[i]) && !thread->streams[i]->dropped),
            "threads: one whose own stream is gone");
  for (size_t i = 0; i < soft->slot_count; i++) {
    void *object = soft->slots[i].object;
    if (soft->slots[i].kind == SOFT_GRAPH)
      check_graph(object);
    if (soft->slots[i].kind == SOFT_EVENT)
      check_event(soft, object);
    if (soft->slots[i].kind == SOFT_EXEC)
      for (const struct soft_work *work = ((struct soft_exec *)object)->first; work; work = work->next)
        see_chunk(work);
  }
  check_chunks(soft);
}
