#include <stdlib.h>

#include "base/base.h"
#include "base/hash_map.h"
#include "inspect/json.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/levels.h"
#include "offline/analyse/lives.h"
#include "offline/render/export.h"

/* Some readers take process 0 for the idle process, so devices begin at 1; ranges without a device get the last
 * process. */
enum { FIRST_PROCESS = 1, SEGMENT_THREAD = 1, FIRST_STREAM_THREAD = 2 };

typedef struct tracer {
  const weir__recording *s;
  weir__sink *sink;
  size_t done;
  weir__step step;
  void *step_context;
} tracer;

/* The first members of an entry. */
#define ENTRY(phase, name, process, thread)                                                                            \
  JSON_OBJECT(NULL), JSON_TEXT("ph", phase), JSON_TEXT("name", name), JSON_INTEGER("pid", process),                    \
      JSON_INTEGER("tid", thread)

static void name_it(tracer *t, const char *what, int64_t process, int64_t thread, const char *name) {
  WEIR__JSON(t->sink, ENTRY("M", what, process, thread), JSON_OBJECT("args"), JSON_TEXT("name", name), JSON_CLOSE,
             JSON_CLOSE);
}

static void name_all(tracer *t, int device) {
  char name[64], stream[48];
  snprintf(name, sizeof name, "device %d", device);
  name_it(t, "process_name", FIRST_PROCESS + device, 0, name);
  name_it(t, "thread_name", FIRST_PROCESS + device, SEGMENT_THREAD, "segments");
  bool *used = calloc(t->s->stream_count, sizeof *used);
  const weir__recording_device *d = &t->s->devices[device];
  for (size_t i = 0; i < d->event_count && used; i++)
    used[d->events[i].stream] = true;
  for (size_t i = 0; i < t->s->stream_count && used; i++) /* without host memory streams are named by number */
    if (used[i])
      name_it(t, "thread_name", FIRST_PROCESS + device, FIRST_STREAM_THREAD + (int64_t)i,
              weir__describe_stream(t->s, (uint16_t)i, stream));
  free(used);
}

/* Driver calls are in a row of their own, apart from the streams. */
static bool is_of_segments(uint8_t action) {
  return action >= WEIR_TRACE_SEGMENT_ALLOC && action <= WEIR_TRACE_SEGMENT_UNMAP;
}

static void instant(tracer *t, int device, size_t number, const weir__recording_entry *e, int64_t time) {
  const weir__recording_remark *remark = &t->s->remarks[e->remark];
  const weir__string *strings = t->s->strings.items;
  char stack[WEIR__DESCRIBE_TEXT], address[32];
  bool is_oom = e->action == WEIR_TRACE_OOM;
  const char *name = e->action == WEIR__ACTION_UNKNOWN ? strings[remark->action].text
                                                       : weir_trace_action_name((weir_trace_action)e->action);
  int64_t thread = is_of_segments(e->action) ? SEGMENT_THREAD : FIRST_STREAM_THREAD + (int64_t)e->stream;
  WEIR__JSON(t->sink, ENTRY("i", name, FIRST_PROCESS + device, thread), JSON_TEXT("s", is_oom ? "p" : "t"),
             JSON_INTEGER("ts", time), JSON_OBJECT("args"), JSON_NATURAL("event", number),
             JSON_NATURAL("size", e->size));
  snprintf(address, sizeof address, "0x%llx", (unsigned long long)e->address);
  if (is_oom)
    WEIR__JSON(t->sink, JSON_NATURAL("device_free", e->address));
  else
    WEIR__JSON(t->sink, JSON_TEXT("address", address));
  if (e->stack)
    WEIR__JSON(t->sink, JSON_TEXT("stack", weir__describe_stack(t->s, e->stack, stack)));
  if (strings[remark->user_metadata].length)
    WEIR__JSON(t->sink, JSON_TEXT("user_metadata", strings[remark->user_metadata].text));
  if (strings[remark->phase].length)
    WEIR__JSON(t->sink, JSON_TEXT("phase", strings[remark->phase].text));
  if (strings[remark->compile_context].length && strcmp(strings[remark->compile_context].text, "N/A") != 0)
    WEIR__JSON(t->sink, JSON_TEXT("compile_context", strings[remark->compile_context].text));
  WEIR__JSON(t->sink, JSON_CLOSE, JSON_CLOSE);
}

static void counter(tracer *t, int device, const char *name, int64_t time, int64_t bytes) {
  WEIR__JSON(t->sink, ENTRY("C", name, FIRST_PROCESS + device, 0), JSON_INTEGER("ts", time), JSON_OBJECT("args"),
             JSON_INTEGER("bytes", bytes), JSON_CLOSE, JSON_CLOSE);
}

/* ---- Lives of blocks ---- */

/* The lives that an entry begins, frees or ends. */
typedef struct spans {
  weir__lives lives;
  uint32_t *freed, *ended; /* by entry: the life + 1 */
  size_t next;             /* the first life that has not begun */
  int64_t time;            /* the last; spans do not run back */
} spans;

static weir_status spans_begin(const weir__recording *s, int device, spans *spans) {
  weir_status status = weir__lives_make(s, device, &spans->lives);
  if (status)
    return status;
  size_t count = s->devices[device].event_count;
  spans->freed = calloc(count + 1, sizeof *spans->freed);
  spans->ended = calloc(count + 1, sizeof *spans->ended);
  if (!spans->freed || !spans->ended)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the lives of blocks");
  for (size_t i = 0; i < spans->lives.block_count; i++) {
    const weir__life *life = &spans->lives.blocks[i];
    if (life->freed < count && (life->freed || !life->is_before))
      spans->freed[life->freed] = (uint32_t)i + 1;
    if (life->end < count)
      spans->ended[life->end] = (uint32_t)i + 1;
  }
  return WEIR_OK;
}

static void spans_clear(spans *spans) {
  weir__lives_clear(&spans->lives);
  free(spans->freed);
  free(spans->ended);
}

/* Viewers put spans of one name that overlap into rows of their own below one another, so spans have the name of their
 * pool: it makes a track for each pool. */
static const char *track_of(const tracer *t, const weir__life *life, char text[64]) {
  if (life->pool == WEIR__LIFE_NO_POOL || life->pool >= t->s->pool_count)
    snprintf(text, 64, "blocks, pool not known");
  else if (life->pool)
    snprintf(text, 64, "blocks of private pool (%lld, %lld)", (long long)t->s->pools[life->pool].id[0],
             (long long)t->s->pools[life->pool].id[1]);
  else
    snprintf(text, 64, "blocks of the default pool");
  return text;
}

static void put_span(tracer *t, int device, const spans *spans, size_t number, bool begins) {
  const weir__life *life = &spans->lives.blocks[number];
  char track[64], id[32], address[32], stack[WEIR__DESCRIBE_TEXT], stream[48];
  snprintf(id, sizeof id, "0x%x%08zx", (unsigned)device + 1, number);
  WEIR__JSON(t->sink, ENTRY(begins ? "b" : "e", track_of(t, life, track), FIRST_PROCESS + device, SEGMENT_THREAD),
             JSON_TEXT("cat", "block"), JSON_TEXT("id", id), JSON_INTEGER("ts", spans->time));
  if (begins) {
    snprintf(address, sizeof address, "0x%llx", (unsigned long long)life->address);
    WEIR__JSON(t->sink, JSON_OBJECT("args"), JSON_NATURAL("size", life->size), JSON_TEXT("address", address),
               JSON_TEXT("stream", weir__describe_stream(t->s, life->stream, stream)));
    if (life->stack)
      WEIR__JSON(t->sink, JSON_TEXT("stack", weir__describe_stack(t->s, life->stack, stack)));
    WEIR__JSON(t->sink, JSON_CLOSE);
  }
  WEIR__JSON(t->sink, JSON_CLOSE);
}

/* A flow leaves the entry that was written last on that row, and arrives at one in the same way. */
static void put_flow(tracer *t, int device, size_t number, int64_t time, uint16_t stream, bool begins) {
  char id[32];
  snprintf(id, sizeof id, "0x%x%08zx", (unsigned)device + 1, number);
  WEIR__JSON(t->sink, ENTRY(begins ? "s" : "f", "life", FIRST_PROCESS + device, FIRST_STREAM_THREAD + (int64_t)stream),
             JSON_TEXT("cat", "life"), JSON_TEXT("id", id), JSON_INTEGER("ts", time));
  if (!begins)
    WEIR__JSON(t->sink, JSON_TEXT("bp", "e"));
  WEIR__JSON(t->sink, JSON_CLOSE);
}

/* What an entry begins and ends; it has been written. */
static void put_lives(tracer *t, int device, spans *spans, size_t number, const weir__recording_entry *e,
                      int64_t time) {
  spans->time = time > spans->time ? time : spans->time;
  const weir__lives *l = &spans->lives;
  if (spans->ended[number])
    put_span(t, device, spans, spans->ended[number] - 1, false);
  if (spans->freed[number]) {
    const weir__life *life = &l->blocks[spans->freed[number] - 1];
    /* An entry that allocates at the same address ends a life whose free is missing; there is no flow to it. */
    if (!life->is_before && e->action != WEIR_TRACE_ALLOC)
      put_flow(t, device, spans->freed[number] - 1, time, e->stream, false);
  }
  for (; spans->next < l->block_count && l->blocks[spans->next].begin <= number; spans->next++) {
    const weir__life *life = &l->blocks[spans->next];
    put_span(t, device, spans, spans->next, true);
    if (!life->is_before && life->freed != WEIR__LIFE_OPEN)
      put_flow(t, device, spans->next, time, e->stream, true);
  }
}

/* Those that were there before. */
static void put_lives_before(tracer *t, int device, spans *spans, int64_t time) {
  spans->time = time;
  for (; spans->next < spans->lives.block_count && spans->lives.blocks[spans->next].is_before; spans->next++)
    put_span(t, device, spans, spans->next, true);
}

/* Without recorded times, each entry takes a microsecond. */
static weir_status history(tracer *t, int device) {
  const weir__recording_device *d = &t->s->devices[device];
  weir__levels levels = {0};
  spans spans = {.next = 0};
  weir_status status = weir__levels_begin(t->s, device, &levels);
  if (!status)
    status = spans_begin(t->s, device, &spans);
  for (size_t i = 0; i < d->event_count && !t->sink->error && !status; i++) {
    const weir__recording_entry *e = &d->events[i];
    int64_t time = e->time_us ? e->time_us : (int64_t)i;
    weir__levels before = levels;
    weir__levels_move(&levels, e);
    if (!i)
      put_lives_before(t, device, &spans, time);
    if (!i || levels.allocated != before.allocated)
      counter(t, device, "allocated", time, levels.allocated);
    if (!i || levels.reserved != before.reserved)
      counter(t, device, "reserved", time, levels.reserved);
    instant(t, device, i, e, time);
    put_lives(t, device, &spans, i, e, time);
    if (++t->done % WEIR__STEP_EVENTS == 0 && t->step)
      t->step(t->step_context, t->done, t->s->event_count);
  }
  spans_clear(&spans);
  return status;
}

/* Counts open ranges by name and device (or none), and notes which rows have a name. */
typedef struct open_ranges {
  uint32_t *counts; /* by name * rows + device + 1 */
  bool *is_named;   /* by device + 1 */
  size_t rows;
} open_ranges;

static bool ranges_begin(const weir__recording *s, open_ranges *open) {
  size_t names = 0, devices = s->device_count;
  for (size_t i = 0; i < s->annotation_count; i++) {
    const weir__recording_annotation *a = &s->annotations[i];
    names = a->name >= names ? (size_t)a->name + 1 : names;
    devices = a->device >= 0 && (size_t)a->device >= devices ? (size_t)a->device + 1 : devices;
  }
  for (size_t i = 0; i < s->work_count; i++) {
    int device = s->works[i].annotation.device;
    devices = device >= 0 && (size_t)device >= devices ? (size_t)device + 1 : devices;
  }
  open->rows = devices + 1;
  open->counts = calloc(names * open->rows + 1, sizeof *open->counts);
  open->is_named = calloc(open->rows, sizeof *open->is_named);
  for (size_t d = 0; d < s->device_count && open->is_named; d++)
    open->is_named[d + 1] = s->devices[d].event_count > 0;
  return open->counts && open->is_named;
}

static void name_row(tracer *t, int device, int64_t process) {
  char name[64] = "program";
  if (device >= 0)
    snprintf(name, sizeof name, "device %d", device);
  name_it(t, "process_name", process, 0, name);
}

/* ---- Ranges of threads ---- */

/* Ranges of one thread nest, and are slices on a row of the thread. */
typedef struct thread_row {
  uint64_t key;   /* the thread's number */
  uint64_t depth; /* of open ranges */
} thread_row;

static void name_thread(tracer *t, int64_t process, uint64_t thread) {
  char name[32];
  snprintf(name, sizeof name, "thread %llu", (unsigned long long)thread);
  name_it(t, "thread_name", process, (int64_t)thread, name);
}

/* Writes the beginning or end of a range of a thread. The end of a range that began before the recording is left
 * out. */
static void thread_range(tracer *t, const weir__recording_annotation *a, bool begins, uint64_t thread, int64_t process,
                         weir__hash_map *rows) {
  thread_row *row = weir__hash_map_find(rows, sizeof *row, thread);
  if (!row) {
    name_thread(t, process, thread);
    row = weir__hash_map_put(rows, sizeof *row, thread);
    if (!row)
      return;
    row->depth = 0;
  }
  if (!begins && !row->depth)
    return;
  row->depth += begins ? 1 : (uint64_t)-1;
  WEIR__JSON(t->sink, ENTRY(begins ? "B" : "E", t->s->strings.items[a->name].text, process, (int64_t)thread),
             JSON_TEXT("cat", "range"), JSON_INTEGER("ts", a->time_us), JSON_CLOSE);
}

/* Other ranges may overlap without nesting, so they are asynchronous events, with a row for each name. The end of a
 * range that began before the recording is left out. */
static void ranges(tracer *t, int device, open_ranges *open) {
  weir__hash_map threads = {0};
  for (size_t i = 0; i < t->s->annotation_count && !t->sink->error; i++) {
    const weir__recording_annotation *a = &t->s->annotations[i];
    const char *stage = t->s->strings.items[a->stage].text;
    bool begins = strcmp(stage, "START") == 0, ends = strcmp(stage, "END") == 0;
    int row = a->device >= 0 ? a->device + 1 : 0;
    uint32_t *count = &open->counts[a->name * open->rows + (size_t)row];
    int64_t process = a->device >= 0 ? FIRST_PROCESS + a->device : FIRST_PROCESS + (int64_t)open->rows - 1;
    char id[32];
    uint64_t thread = begins || ends ? weir__export_thread_of(t->s, a) : 0;
    if (thread) {
      row = 0;
      process = FIRST_PROCESS + (int64_t)open->rows - 1;
    }
    if ((!thread && device >= 0 && a->device >= 0 && a->device != device) || (!thread && ends && !*count))
      continue;
    if (!open->is_named[row])
      name_row(t, row ? a->device : -1, process);
    open->is_named[row] = true;
    if (thread) {
      thread_range(t, a, begins, thread, process, &threads);
      continue;
    }
    if (begins)
      ++*count;
    else if (ends)
      --*count;
    snprintf(id, sizeof id, "0x%x%08x", (unsigned)row, (unsigned)a->name);
    const char *phase = begins ? "b" : ends ? "e" : "i";
    bool is_range = begins || ends;
    WEIR__JSON(t->sink, ENTRY(phase, t->s->strings.items[a->name].text, process, SEGMENT_THREAD),
               JSON_TEXT("cat", "annotation"), JSON_TEXT(is_range ? "id" : "s", is_range ? id : "p"),
               JSON_INTEGER("ts", a->time_us), JSON_CLOSE);
  }
  weir__hash_map_clear(&threads);
}

/* ---- Work ---- */

/* The work of a stream has a row of its own: in the row of its entries, flows would leave from kernels. */
typedef struct stream_row {
  uint64_t key; /* of the device and the handle */
  int64_t row;
} stream_row;

static int64_t row_of(tracer *t, int device, uint64_t stream, weir__hash_map *rows) {
  stream_row *row = weir__hash_map_put(rows, sizeof *row, stream << 12 | (uint64_t)device << 1 | 1);
  if (!row)
    return FIRST_STREAM_THREAD + (int64_t)t->s->stream_count; /* without host memory all streams share a row */
  if (row->row)
    return row->row;
  char name[64] = "work of the default stream";
  if (stream)
    snprintf(name, sizeof name, "work of stream 0x%llx", (unsigned long long)stream);
  row->row = FIRST_STREAM_THREAD + (int64_t)(t->s->stream_count + rows->count);
  name_it(t, "thread_name", FIRST_PROCESS + device, row->row, name);
  return row->row;
}

/* Readers keep times as doubles, which hold present times in quarters of a microsecond, and may drop a slice that
 * overlaps the one before. Rounding both ends down keeps them apart. */
static double quarters(int64_t ns) {
  int64_t whole = ns / 250;
  return (double)whole / 4;
}

/* Kernels, copies, fills and host functions are slices on the rows of their streams. */
static void works(tracer *t, int device, open_ranges *open) {
  weir__hash_map rows = {0};
  for (size_t i = 0; i < t->s->work_count && !t->sink->error; i++) {
    const weir__recording_work *w = &t->s->works[i];
    int of = w->annotation.device;
    if (of < 0 || (size_t)of + 1 >= open->rows || (device >= 0 && of != device))
      continue;
    if (!open->is_named[of + 1])
      name_row(t, of, FIRST_PROCESS + of);
    open->is_named[of + 1] = true;
    const uint64_t most = INT64_MAX - (uint64_t)w->start_ns; /* a file may have any number */
    int64_t end = w->start_ns + (int64_t)(w->duration_ns < most ? w->duration_ns : most);
    double begin = quarters(w->start_ns);
    WEIR__JSON(
        t->sink,
        ENTRY("X", t->s->strings.items[w->annotation.name].text, FIRST_PROCESS + of, row_of(t, of, w->stream, &rows)),
        JSON_TEXT("cat", t->s->strings.items[w->kind].text), JSON_REAL("ts", begin, 2),
        JSON_REAL("dur", quarters(end) - begin, 2), JSON_OBJECT("args"), JSON_NATURAL("duration_ns", w->duration_ns));
    if (w->bytes)
      WEIR__JSON(t->sink, JSON_NATURAL("bytes", w->bytes));
    WEIR__JSON(t->sink, JSON_CLOSE, JSON_CLOSE);
  }
  weir__hash_map_clear(&rows);
}

weir_status weir__export_perfetto(const weir__recording *recording, int device, weir__step step, void *step_context,
                                  FILE *file) {
  open_ranges open;
  weir__sink *sink = malloc(sizeof *sink);
  if (!ranges_begin(recording, &open) || !sink) {
    free(open.counts);
    free(open.is_named);
    free(sink);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  }
  tracer t = {.s = recording, .sink = sink, .step = step, .step_context = step_context};
  weir_status status = WEIR_OK;
  weir__sink_begin(sink, &weir__json_format, weir_write_file, file);
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("displayTimeUnit", "ms"), JSON_LIST("traceEvents"));
  for (size_t d = 0; d < recording->device_count && !status; d++) {
    if ((device >= 0 && (size_t)device != d) || !recording->devices[d].event_count)
      continue;
    name_all(&t, (int)d);
    status = history(&t, (int)d);
  }
  works(&t, device, &open);
  ranges(&t, device, &open);
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
  weir_status ended = weir__sink_end(sink, NULL);
  free(open.counts);
  free(open.is_named);
  free(sink);
  return status ? status : ended;
}
