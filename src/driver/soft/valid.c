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

static void check_handles(const model *m) {
  const weir__handles *tables[] = {&m->streams, &m->events, &m->memories, &m->pools,    &m->graphs,
                                   &m->nodes,   &m->execs,  &m->modules,  &m->functions};
  for (size_t i = 0; i < WEIR_COUNT_OF(tables); i++) {
    const char *fault = weir__handles_fault(tables[i]);
    CHECK(!fault, "handles: of kind %d: %s", (int)(tables[i]->tag >> WEIR__HANDLE_KIND_SHIFT), fault);
  }
}

/* ---- Memory ---- */

/* What the ranges of a walk add up to, by device. */
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
    CHECK(base >= range->base && base + mapping->bytes <= end, "mappings: the one at %" PRIx64 " is not inside", base);
    for (uint64_t page = base; page < at; page += MODEL_GRANULARITY)
      CHECK(weir__model_mapping(range, page) == mapping, "mappings: the one at %" PRIx64 " has not all pages", base);
    CHECK(mapping->memory->bytes == mapping->bytes, "mappings: the one at %" PRIx64 " is not as large as its memory",
          base);
    CHECK(!(mapping->writers & ~mapping->readers), "mappings: the one at %" PRIx64 " can be written, not read", base);
    CHECK(m->device_count == WEIR_SOFT_MAX_DEVICES || !(mapping->readers >> m->device_count),
          "mappings: the one at %" PRIx64 " is for devices that are not there", base);
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
        "ranges: the one at %" PRIx64 " does not know where it is", range->base);
  CHECK(range->id && range->id <= m->last_id, "ranges: the one at %" PRIx64 " has no number", base);
  CHECK((range->kind == MODEL_RANGE_IPC) == (of->opens > 0), "ranges: %u openings at %" PRIx64, of->opens, base);
  if (range->kind == MODEL_RANGE_RESERVATION) {
    check_mappings(m, range);
    return;
  }
  CHECK(range->device, "ranges: the one at %" PRIx64 " is of no device", base);
  if (range->kind != MODEL_RANGE_PLAIN && range->kind != MODEL_RANGE_POOLED)
    return;
  CHECK(of->extent.bytes == room && is_file_extent(&of->extent, range->device),
        "ranges: the one at %" PRIx64 " has the wrong memory", base);
  sums->used[range->device->ordinal] += room;
  sums->graphs[range->device->ordinal] += range->kind == MODEL_RANGE_POOLED && !range->pool ? room : 0;
}

static void check_memory(model *m) {
  struct sums sums = {0};
  uint32_t index = 0;
  CHECK(weir__rangemap_is_valid(&m->placed), "ranges: the map of all");
  for (struct soft_memory *memory; (memory = weir__handles_next(&m->memories, &index));)
    memory->seen = 0;
  weir__model_each_range(m, check_range, &sums);
  index = 0;
  for (const struct soft_memory *memory; (memory = weir__handles_next(&m->memories, &index));)
    if (memory->same)
      memory->same->seen++;
  index = 0;
  for (const struct soft_memory *memory; (memory = weir__handles_next(&m->memories, &index));) {
    CHECK_EQUAL(memory->seen, memory->m.mappings, "memory: mappings of one piece");
    CHECK(memory->seen || !memory->m.released, "memory: a piece that is neither held nor mapped");
    CHECK(is_file_extent(&memory->extent, memory->m.device), "memory: a piece lies outside of its file");
    sums.used[memory->m.device->ordinal] += memory->m.imported ? 0 : memory->m.bytes;
  }
  for (int i = 0; i < m->device_count; i++) {
    CHECK_EQUAL(sums.used[i], m->devices[i]->used, "memory: bytes used of a device");
    CHECK(sums.used[i] <= m->bytes, "memory: more is used than there is");
    CHECK_EQUAL(sums.graphs[i], m->devices[i]->graph_used, "memory: bytes of graphs");
  }
}

/* ---- Pools ---- */

static void check_pool(const model *m, const struct soft_pool *pool) {
  uint64_t reserved = 0, used = 0;
  for (const struct soft_range *range = pool->ranges; range; range = range->next) {
    CHECK(range->r.pool == &pool->p, "pools: a range of another pool");
    CHECK(weir__rangemap_find(&m->placed, range->r.base, NULL, NULL) == range, "pools: a range that is gone");
    CHECK(range->r.idle || !range->freeing, "pools: a range that is in use and freed");
    CHECK(!range->freeing || range->r.refs, "pools: a range that no work is going to free");
    reserved += range->r.room;
    used += !range->r.idle || range->freeing ? range->r.bytes : 0;
  }
  CHECK_EQUAL(reserved, pool->p.reserved, "pools: bytes reserved");
  CHECK_EQUAL(used, pool->p.used, "pools: bytes used");
  CHECK(reserved <= pool->p.reserved_high && used <= pool->p.used_high, "pools: a high mark is too low");
}

/* Whether the device knows the pool; one that was not made yet is fine. */
static bool has_pool(const model *m, const model_device *device, const model_pool *pool) {
  uint32_t index = 0;
  const model_pool *p;
  while ((p = weir__handles_next(&m->pools, &index)))
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
    CHECK(work->end->refs && !work->end->done && work->end->owner == stream, "work: the end of a piece is not its own");
    for (const struct soft_stream *s = work->end->waiters; s; s = s->next_waiter)
      CHECK(s->first && weir__soft_is(s->first, SOFT_WAIT) && s->first->signal == work->end && !s->running &&
                !s->queued,
            "work: a stream waits for a piece, and does something else");
  }
  if (weir__soft_is(work, SOFT_WAIT))
    CHECK(work->signal && work->signal->refs && (work->signal->done || work->signal->owner),
          "work: a wait for what is never done");
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
  unsigned long pieces = 0;
  uint64_t seq = 0;
  CHECK(*s->link == s && s->s.device == &device->d, "streams: one is in the wrong list");
  CHECK(weir__handles_get(&soft->m.streams, weir__handle_of(&soft->m.streams, s)) == s,
        "streams: one without a handle");
  CHECK(!s->s.dropped || s->first || s->running || s->waits, "streams: one that is over is still there");
  CHECK(s->s.is_legacy == (device->d.legacy == &s->s) || s->s.dropped, "streams: which one is the legacy one");
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
    CHECK(weir__soft_is(s->first, SOFT_WAIT) && is_waiting_for(s, s->first->signal), "streams: one was forgotten");
  CHECK(by_itself || s->time_ns <= soft->now_ns || soft->options.clock == WEIR_SOFT_THREADS,
        "streams: one is ahead of the clock");

  const model_capture *capture = soft->m.captures;
  while (capture && capture != s->s.capture)
    capture = capture->next;
  CHECK(capture == s->s.capture, "captures: a stream is in one that is over");
  CHECK(capture || !s->s.at.count, "captures: a stream depends on nodes without one");
  if (!capture)
    return;
  CHECK(is_member(&s->s), "captures: a stream is in one that does not know it");
  check_nodes(&soft->m, &s->s.at, capture->graph, "captures: a stream");
}

static void check_ready(const struct soft *soft) {
  unsigned queued = 0, listed = 0;
  for (int i = 0; i < soft->m.device_count; i++)
    for (const struct soft_stream *s = soft->devices[i].streams; s; s = s->next)
      queued += s->queued;
  for (const struct soft_stream *s = soft->ready; s; s = s->next_ready) {
    CHECK(++listed <= queued && s->queued, "ready: the list has streams that are not ready");
    CHECK(!s->next_ready || s->s.priority <= s->next_ready->s.priority, "ready: the list is not in order");
  }
  CHECK_EQUAL(listed, queued, "ready: streams in the list");
  CHECK_EQUAL(listed, soft->ready_count, "ready: streams");
  CHECK(soft->workers <= SOFT_MAX_WORKERS && soft->idle_workers <= soft->workers, "ready: workers");
}

/* ---- Captures, graphs, events ---- */

/* Every node depends on earlier ones alone. */
static void check_graph(const model *m, model_graph *graph) {
  uint32_t mark = ++graph->mark;
  CHECK(graph->nodes.count <= graph->nodes.room, "graphs: more nodes than room");
  for (size_t i = 0; i < graph->nodes.count; i++) {
    model_node *node = weir__model_node(m, graph->nodes.items[i]);
    CHECK(node && node->graph == graph && node->work.device, "graphs: a node of another graph, or without work");
    for (size_t k = 0; k < node->behind.count; k++) {
      const model_node *before = weir__model_node(m, node->behind.items[k]);
      CHECK(before && before->graph == graph && before->mark == mark, "graphs: a node depends on a later one");
    }
    node->mark = mark;
    see_range(&node->work);
  }
}

static void check_captures(const struct soft *soft) {
  uint64_t id = UINT64_MAX;
  for (const model_capture *c = soft->m.captures; c; c = c->next) {
    CHECK(c->id && c->id < id && c->id <= soft->m.last_capture, "captures: out of order");
    id = c->id;
    CHECK(c->origin && !c->origin->dropped && c->origin->capture == c, "captures: one whose first stream is not in it");
    CHECK(c->graph && c->graph->open, "captures: one without a graph");
    const struct soft_thread *thread = soft->threads;
    while (thread && &thread->t != c->thread)
      thread = thread->next;
    CHECK(!c->thread || thread, "captures: one of a thread that is gone");
  }
}

static void check_event(const model *m, const struct soft_event *event) {
  CHECK(!(event->e.flags & WEIR_CU_EVENT_INTERPROCESS) == !event->shared, "events: which ones are shared");
  CHECK(!event->signal || event->signal->refs, "events: one points to a record that is gone");
  CHECK(!event->signal || !event->e.capture, "events: one is recorded in a stream and in a capture");
  const model_capture *capture = weir__model_capture(m, event->e.capture);
  if (capture)
    check_nodes(m, &event->e.at, capture->graph, "events: one");
}

static void check_seen(model *m, model_range *range, void *data) {
  struct soft_range *of = (struct soft_range *)range;
  (void)m, (void)data;
  if (range->kind != MODEL_RANGE_POOLED)
    return;
  CHECK_EQUAL(of->seen, range->refs, "pools: pieces of work that name a range");
  CHECK(range->pool || range->refs, "pools: a range of a graph that is gone");
  of->seen = 0;
}

void weir__soft_is_valid(struct soft *soft) {
  model *m = &soft->m;
  check_handles(m);
  check_memory(m);
  for (int i = 0; i < m->device_count; i++) {
    const struct soft_device *device = &soft->devices[i];
    const model_device *d = &device->d;
    CHECK(!d->retains == !d->legacy, "devices: a legacy stream without a context");
    for (int k = 0; k < WEIR_SOFT_MAX_DEVICES; k++)
      CHECK(!(d->peers >> k & 1) || (k != i && k < m->device_count && m->devices[k]->retains),
            "devices: a peer that is not there");
    CHECK(has_pool(m, d, d->pool) && has_pool(m, d, d->default_pool), "devices: a current pool that is gone");
    for (const struct soft_stream *s = device->streams; s; s = s->next) {
      CHECK(d->retains || s->s.dropped, "devices: a stream without a context");
      check_stream(soft, device, s);
    }
  }
  check_ready(soft);
  check_captures(soft);
  uint32_t index = 0;
  for (const struct soft_pool *pool; (pool = weir__handles_next(&m->pools, &index));)
    check_pool(m, pool);
  index = 0;
  for (model_graph *graph; (graph = weir__handles_next(&m->graphs, &index));)
    check_graph(m, graph);
  index = 0;
  for (const struct soft_event *event; (event = weir__handles_next(&m->events, &index));)
    check_event(m, event);
  index = 0;
  for (const model_exec *exec; (exec = weir__handles_next(&m->execs, &index));)
    for (size_t i = 0; i < exec->count; i++)
      see_range(&exec->works[i]);
  weir__model_each_range(m, check_seen, NULL);
}
