/*
 * A consistency check of the whole device, for builds with expensive checks and for tests. Every counter is compared
 * with a fresh count, and every pair of links is followed both ways. An inconsistency is printed, and the process
 * aborts.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "driver/soft/soft.h"

_Noreturn static void corrupt(const char *format, ...) WEIR_PRINTF(1, 2);

_Noreturn static void corrupt(const char *format, ...) {
  char text[WEIR__TEXT_SIZE];
  va_list arguments;
  va_start(arguments, format);
  weir__format_text(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "weir: the software device is corrupt: %s\n", text);
  abort();
}

#define CHECK(condition, ...)                                                                                          \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      corrupt(__VA_ARGS__);                                                                                            \
  } while (0)

#define CHECK_EQUAL(counted, kept, what)                                                                               \
  CHECK((counted) == (kept), "%s: counted %" PRIu64 ", recorded %" PRIu64, what, (uint64_t)(counted), (uint64_t)(kept))

/* ---- Handles ---- */

static void check_handles(const model *m) {
  const weir__handles *tables[] = {&m->streams, &m->events, &m->memories, &m->pools,     &m->graphs,
                                   &m->nodes,   &m->execs,  &m->modules,  &m->functions, &m->user_objects};
  for (size_t i = 0; i < WEIR_COUNT_OF(tables); i++) {
    const char *fault = weir__handles_fault(tables[i]);
    CHECK(!fault, "handles of kind %d: %s", (int)(tables[i]->tag >> WEIR__HANDLE_KIND_SHIFT), fault);
  }
}

/* ---- Memory ---- */

/* Sums over all ranges and handles, by device. */
struct sums {
  uint64_t used[WEIR_SOFT_MAX_DEVICES], graphs[WEIR_SOFT_MAX_DEVICES];
};

static bool is_file_extent(const struct soft_extent *extent, const model_device *device) {
  const struct soft_device *of = (const struct soft_device *)device;
  return extent->own_file || (extent->fd == of->fd && extent->offset + extent->bytes <= of->file_end);
}

static void check_mappings(const model *m, const model_range *range) {
  unsigned long mappings = 0;
  uint64_t at = range->base, end = range->base + range->bytes;
  for (const model_mapping *mapping; (mapping = weir__model_next_mapping(range, &at, end));) {
    uint64_t base = mapping->base;
    CHECK(base >= range->base && base + mapping->bytes <= end,
          "mappings: the mapping at %" PRIx64 " is not inside its reservation", base);
    for (uint64_t page = base; page < at; page += MODEL_GRANULARITY)
      CHECK(weir__model_mapping(range, page) == mapping,
            "mappings: the page table lacks pages of the mapping at %" PRIx64, base);
    CHECK(mapping->memory->bytes == mapping->bytes,
          "mappings: the mapping at %" PRIx64 " and its memory differ in size", base);
    CHECK(!(mapping->writers & ~mapping->readers), "mappings: the mapping at %" PRIx64 " is writable but not readable",
          base);
    CHECK(m->device_count == WEIR_SOFT_MAX_DEVICES || !(mapping->readers >> m->device_count),
          "mappings: the mapping at %" PRIx64 " is accessible from a device that does not exist", base);
    ((struct soft_memory *)mapping->memory)->seen++;
    mappings++;
  }
  CHECK_EQUAL(mappings, range->mappings, "mappings");
}

static void check_range(model *m, model_range *range, void *data) {
  struct sums *sums = data;
  struct soft_range *of = (struct soft_range *)range;
  uint64_t base = 0, room = 0;
  CHECK(weir__rangemap_find(&m->placed, range->base, &base, &room) == range && base == range->base &&
            room == range->room && range->bytes && range->bytes <= room,
        "ranges: the range at %" PRIx64 " differs from its entry in the map", range->base);
  CHECK(range->id && range->id <= m->last_id, "ranges: the range at %" PRIx64 " has no valid id", base);
  CHECK((range->kind == MODEL_RANGE_IPC) == (of->opens > 0), "ranges: %u IPC openings of the range at %" PRIx64,
        of->opens, base);
  if (range->kind == MODEL_RANGE_RESERVATION) {
    check_mappings(m, range);
    return;
  }
  CHECK(range->device, "ranges: the range at %" PRIx64 " has no device", base);
  if (range->kind != MODEL_RANGE_PLAIN && range->kind != MODEL_RANGE_POOLED)
    return;
  CHECK(of->extent.bytes == room && is_file_extent(&of->extent, range->device),
        "ranges: the range at %" PRIx64 " has an invalid extent", base);
  sums->used[range->device->ordinal] += room;
  sums->graphs[range->device->ordinal] += range->kind == MODEL_RANGE_POOLED && !range->pool ? room : 0;
}

static void check_kept(const model *m, const struct soft_device *device) {
  uint64_t bytes = 0;
  for (int i = 0; i < device->kept_count; i++) {
    const struct soft_kept *kept = &device->kept[i];
    CHECK(kept->bytes && kept->offset + kept->bytes <= device->file_end, "kept memory: an invalid range");
    CHECK(!weir__model_overlap(m, kept->base, kept->bytes), "kept memory: the range at %" PRIx64 " is in use",
          kept->base);
    for (int k = 0; k < i; k++)
      CHECK(kept->offset + kept->bytes <= device->kept[k].offset ||
                device->kept[k].offset + device->kept[k].bytes <= kept->offset,
            "kept memory: two ranges overlap");
    bytes += kept->bytes;
  }
  CHECK_EQUAL(bytes, device->kept_bytes, "kept memory: bytes");
}

static void check_memory(model *m) {
  struct sums sums = {0};
  CHECK(weir__rangemap_is_valid(&m->placed), "ranges: the map is invalid");
  FOR_EACH_HANDLE(struct soft_memory, memory, &m->memories)
    memory->seen = 0;
  weir__model_each_range(m, check_range, &sums);
  FOR_EACH_HANDLE(const struct soft_memory, memory, &m->memories)
    if (memory->same)
      memory->same->seen++;
  FOR_EACH_HANDLE(const struct soft_memory, memory, &m->memories) {
    CHECK_EQUAL(memory->seen, memory->m.mappings, "memory: mappings of a handle");
    CHECK(memory->seen || !memory->m.released, "memory: a handle is neither retained nor mapped");
    CHECK(is_file_extent(&memory->extent, memory->m.device), "memory: a handle has an invalid extent");
    sums.used[memory->m.device->ordinal] += memory->m.imported ? 0 : memory->m.bytes;
  }
  for (int i = 0; i < m->device_count; i++) {
    sums.used[i] += m->devices[i]->retains ? m->context_bytes : 0;
    CHECK_EQUAL(sums.used[i], m->devices[i]->used, "memory: bytes used on a device");
    CHECK(sums.used[i] <= m->bytes, "memory: more bytes are used than the device has");
    CHECK_EQUAL(sums.graphs[i], m->devices[i]->graph_used, "memory: bytes used by graphs");
    check_kept(m, (const struct soft_device *)m->devices[i]);
  }
}

/* ---- Pools ---- */

static void check_pool(const model *m, const struct soft_pool *pool) {
  uint64_t reserved = 0, used = 0;
  for (const struct soft_range *range = pool->ranges; range; range = range->next) {
    CHECK(range->r.pool == &pool->p, "pools: a range belongs to another pool");
    CHECK(weir__rangemap_find(&m->placed, range->r.base, NULL, NULL) == range, "pools: a range was freed");
    CHECK(range->r.idle || !range->freeing, "pools: a range is both in use and being freed");
    CHECK(!range->freeing || range->r.refs, "pools: a range is being freed, but by no queued work");
    reserved += range->r.room;
    used += !range->r.idle || range->freeing ? range->r.bytes : 0;
  }
  CHECK_EQUAL(reserved, pool->p.reserved, "pools: bytes reserved");
  CHECK_EQUAL(used, pool->p.used, "pools: bytes used");
  CHECK(reserved <= pool->p.reserved_high && used <= pool->p.used_high, "pools: a high-water mark is too low");
}

/* NULL, for a pool that has not been created yet, is valid. */
static bool has_pool(const model *m, const model_device *device, const model_pool *pool) {
  FOR_EACH_HANDLE(const model_pool, p, &m->pools)
    if (p == pool)
      return p->device == device && !p->destroyed;
  return !pool;
}

/* ---- Work ---- */

static void see_range(const model_work *work) {
  if (work->kind == MODEL_WORK_FREE || work->kind == MODEL_WORK_ALLOC)
    ((struct soft_range *)work->as.memory.range)->seen++;
}

static bool is_waiting_for(const struct soft_stream *stream, const struct soft_signal *signal) {
  for (const struct soft_stream *s = signal->waiters; s; s = s->next_waiter)
    if (s == stream)
      return true;
  return false;
}

static void check_work(const struct soft_stream *stream, const struct soft_work *work) {
  if (work->end) {
    CHECK(work->end->refs && !work->end->done && work->end->owner == stream,
          "work: the end signal of an item has the wrong owner or state");
    for (const struct soft_stream *s = work->end->waiters; s; s = s->next_waiter)
      CHECK(s->first && weir__soft_work_is(s->first, SOFT_WAIT) && s->first->signal == work->end && !s->running &&
                !s->queued,
            "work: a stream is listed as waiting for an item, but does not wait for it");
  }
  if (weir__soft_work_is(work, SOFT_WAIT))
    CHECK(work->signal && work->signal->refs && (work->signal->done || work->signal->owner),
          "work: a wait for a signal that nothing sets");
  see_range(&work->w);
}

static void check_nodes(const model *m, const model_nodes *nodes, const model_graph *graph, const char *what) {
  for (size_t i = 0; i < nodes->count; i++) {
    const model_node *node = weir__model_node(m, nodes->items[i]);
    CHECK(node && node->graph == graph, "%s depends on a node of another graph", what);
  }
}

static bool is_member(const model_stream *stream) {
  for (const model_stream *s = stream->capture->members; s; s = s->member_next)
    if (s == stream)
      return true;
  return false;
}

static void check_stream(const struct soft *soft, const struct soft_device *device, const struct soft_stream *s) {
  unsigned long items = 0;
  uint64_t seq = 0;
  CHECK(*s->link == s && s->s.device == &device->d, "streams: a stream is in the wrong list");
  CHECK(weir__handles_get(&soft->m.streams, weir__handle_of(&soft->m.streams, s)) == s,
        "streams: a stream has no handle");
  CHECK(!s->s.dropped || s->first || s->running || s->waits, "streams: a finished stream was not freed");
  CHECK(s->s.is_legacy == (device->d.legacy == &s->s) || s->s.dropped,
        "streams: the legacy stream of the device is another one");
  if (s->running) {
    check_work(s, s->running);
    seq = s->running->seq;
    items++;
  }
  for (const struct soft_work *work = s->first; work; work = work->next) {
    CHECK(work->seq > seq && work->seq <= soft->next_seq, "streams: work items are out of order");
    CHECK(work->next || work == s->last, "streams: the tail is not the last item");
    check_work(s, work);
    seq = work->seq;
    items++;
  }
  CHECK(s->first || !s->last, "streams: the queue has a tail and no head");
  CHECK_EQUAL(items, s->pending, "streams: work items");

  bool has_workers = soft->options.clock == WEIR_SOFT_THREADS && !soft->stopping;
  CHECK(has_workers || !s->queued, "streams: a stream is in the ready list in stepped time");
  CHECK(!s->queued || (s->first && !s->running), "streams: a stream in the ready list has no work, or is running");
  if (has_workers && s->first && !s->running && !s->queued)
    CHECK(weir__soft_work_is(s->first, SOFT_WAIT) && is_waiting_for(s, s->first->signal),
          "streams: a stream with work is neither ready nor waiting");
  CHECK(has_workers || s->time_ns <= soft->now_ns || soft->options.clock == WEIR_SOFT_THREADS,
        "streams: a stream is ahead of the clock");

  const model_capture *capture = soft->m.captures;
  while (capture && capture != s->s.capture)
    capture = capture->next;
  CHECK(capture == s->s.capture, "captures: a stream is in a capture that has ended");
  CHECK(capture || !s->s.at.count, "captures: a stream outside of a capture depends on nodes");
  if (!capture)
    return;
  CHECK(is_member(&s->s), "captures: a capture does not list a stream that is in it");
  check_nodes(&soft->m, &s->s.at, capture->graph, "captures: a stream");
}

static void check_ready(const struct soft *soft) {
  unsigned queued = 0, listed = 0;
  for (int i = 0; i < soft->m.device_count; i++)
    for (const struct soft_stream *s = soft->devices[i].streams; s; s = s->next)
      queued += s->queued;
  for (const struct soft_stream *s = soft->ready; s; s = s->next_ready) {
    CHECK(++listed <= queued && s->queued, "ready list: a stream is not ready");
    CHECK(!s->next_ready || s->s.priority <= s->next_ready->s.priority, "ready list: not sorted by priority");
  }
  CHECK_EQUAL(listed, queued, "ready list: streams");
  CHECK_EQUAL(listed, soft->ready_count, "ready list: count");
  CHECK(soft->workers <= SOFT_MAX_WORKERS && soft->idle_workers <= soft->workers,
        "workers: the counts are out of range");
}

/* ---- Captures, graphs, events ---- */

/* A node depends on earlier nodes only. */
static void check_graph(const model *m, model_graph *graph) {
  uint32_t mark = ++graph->mark;
  CHECK(graph->nodes.count <= graph->nodes.room, "graphs: the node array is overfull");
  for (size_t i = 0; i < graph->nodes.count; i++) {
    model_node *node = weir__model_node(m, graph->nodes.items[i]);
    CHECK(node && node->graph == graph && node->work.device, "graphs: a node belongs to another graph, or has no work");
    for (size_t k = 0; k < node->behind.count; k++) {
      const model_node *before = weir__model_node(m, node->behind.items[k]);
      CHECK(before && before->graph == graph && before->mark == mark, "graphs: a node depends on a later node");
    }
    node->mark = mark;
    see_range(&node->work);
  }
}

static void check_captures(const struct soft *soft) {
  uint64_t id = UINT64_MAX;
  for (const model_capture *c = soft->m.captures; c; c = c->next) {
    CHECK(c->id && c->id < id && c->id <= soft->m.last_capture, "captures: not sorted by id");
    id = c->id;
    CHECK(c->origin && !c->origin->dropped && c->origin->capture == c,
          "captures: the origin stream is not in its capture");
    CHECK(c->graph && c->graph->open, "captures: a capture has no graph");
    const struct soft_thread *thread = soft->threads;
    while (thread && &thread->t != c->thread)
      thread = thread->next;
    CHECK(!c->thread || thread, "captures: a capture belongs to a thread that has exited");
  }
}

static void check_event(const model *m, const struct soft_event *event) {
  CHECK(!(event->e.flags & WEIR_CU_EVENT_INTERPROCESS) == !event->shared,
        "events: the interprocess flag and the shared page disagree");
  CHECK(!event->signal || event->signal->refs, "events: an event refers to a freed signal");
  CHECK(!event->signal || !event->e.capture, "events: an event is recorded both in a stream and in a capture");
  const model_capture *capture = weir__model_capture(m, event->e.capture);
  if (capture)
    check_nodes(m, &event->e.at, capture->graph, "events: an event");
}

static void check_seen(model *m, model_range *range, void *data) {
  struct soft_range *of = (struct soft_range *)range;
  (void)m, (void)data;
  if (range->kind != MODEL_RANGE_POOLED)
    return;
  CHECK_EQUAL(of->seen, range->refs, "pools: work items that refer to a range");
  CHECK(range->pool || range->refs, "pools: a range of a graph has no owner");
  of->seen = 0;
}

void weir__soft_is_valid(struct soft *soft) {
  model *m = &soft->m;
  check_handles(m);
  check_memory(m);
  for (int i = 0; i < m->device_count; i++) {
    const struct soft_device *device = &soft->devices[i];
    const model_device *d = &device->d;
    CHECK(!d->retains == !d->legacy, "devices: a context without a legacy stream, or the reverse");
    for (int k = 0; k < WEIR_SOFT_MAX_DEVICES; k++)
      CHECK(!(d->peers >> k & 1) || (k != i && k < m->device_count && m->devices[k]->retains),
            "devices: an invalid peer");
    CHECK(has_pool(m, d, d->pool) && has_pool(m, d, d->default_pool),
          "devices: the current or default pool is invalid");
    for (const struct soft_stream *s = device->streams; s; s = s->next) {
      CHECK(d->retains || s->s.dropped, "devices: a stream without a context");
      check_stream(soft, device, s);
    }
  }
  check_ready(soft);
  check_captures(soft);
  FOR_EACH_HANDLE(const struct soft_pool, pool, &m->pools)
    check_pool(m, pool);
  FOR_EACH_HANDLE(model_graph, graph, &m->graphs)
    check_graph(m, graph);
  FOR_EACH_HANDLE(const struct soft_event, event, &m->events)
    check_event(m, event);
  FOR_EACH_HANDLE(const model_exec, exec, &m->execs)
    for (size_t i = 0; i < exec->count; i++)
      see_range(&exec->works[i]);
  weir__model_each_range(m, check_seen, NULL);
}
