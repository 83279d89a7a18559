#include "offline/render/export.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/hash_map.h"
#include "base/text.h"
#include "offline/analyse/levels.h"

uint64_t weir__export_thread_of(const weir__recording *recording, const weir__recording_annotation *annotation) {
  const char *text = weir__recording_pair_of(recording, annotation, "thread");
  char *end;
  unsigned long long thread = text && *text >= '1' && *text <= '9' ? strtoull(text, &end, 10) : 0;
  return thread && !*end && thread <= INT32_MAX ? thread : 0;
}

/* ---- Tables ---- */

static const char *const table_names[] = {
#define X(name, text, sql) text,
    WEIR__EXPORT_MAP(X)
#undef X
};

const char *weir__export_table_name(weir__export_table table) { return table_names[table]; }

typedef struct walk {
  const weir__recording *s;
  int device;
  weir__step step;
  void *step_context;
  weir__rows *to;
} walk;

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_status status_ = (call);                                                                                      \
    if (status_)                                                                                                       \
      return status_;                                                                                                  \
  } while (0)

#define BEGIN(w, table, columns) TRY((w)->to->begin((w)->to, (table), (columns), WEIR_COUNT_OF(columns)))

static inline void integer(walk *w, int64_t value) { w->to->integer(w->to, value); }
static inline void natural(walk *w, uint64_t value) { w->to->natural(w->to, value); }
static inline void nothing(walk *w) { w->to->nothing(w->to); }
static inline void text(walk *w, uint32_t string) { w->to->text(w->to, w->s->strings.items[string].text); }

static inline bool wants(const walk *w, int device) { return w->device < 0 || device == w->device; }

static void stack(walk *w, uint32_t number) {
  if (number)
    natural(w, number);
  else
    nothing(w);
}

static void pool(walk *w, uint32_t number) {
  for (int i = 0; i < 2; i++) {
    if (number == WEIR__RECORDING_NO_POOL)
      nothing(w);
    else
      integer(w, w->s->pools[number].id[i]);
  }
}

static weir_status segments(walk *w) {
  static const weir__export_column columns[] = {
      {"segment", false},     {"device", false},        {"address", false}, {"size", false}, {"allocated", false},
      {"active", false},      {"requested", false},     {"stream", false},  {"type", true},  {"pool_first", false},
      {"pool_second", false}, {"is_expandable", false}, {"stack", false}};
  BEGIN(w, WEIR__EXPORT_SEGMENTS, columns);
  for (size_t i = 0; i < w->s->segment_count; i++) {
    const weir__recording_segment *s = &w->s->segments[i];
    if (!wants(w, s->device))
      continue;
    natural(w, i);
    integer(w, s->device);
    natural(w, s->address);
    natural(w, s->size);
    natural(w, s->allocated);
    natural(w, s->active);
    natural(w, s->requested);
    integer(w, w->s->streams[s->stream]);
    w->to->text(w->to, s->is_large ? "large" : "small");
    pool(w, s->pool);
    integer(w, s->is_expandable);
    stack(w, s->stack);
    TRY(w->to->row(w->to));
  }
  return WEIR_OK;
}

static weir_status blocks(walk *w) {
  static const weir__export_column columns[] = {{"block", false},   {"segment", false}, {"device", false},
                                                {"address", false}, {"size", false},    {"requested", false},
                                                {"state", true},    {"stack", false}};
  BEGIN(w, WEIR__EXPORT_BLOCKS, columns);
  for (size_t i = 0, first = 0; i < w->s->segment_count; first += w->s->segments[i++].block_count) {
    const weir__recording_segment *s = &w->s->segments[i];
    for (size_t k = 0; k < s->block_count && wants(w, s->device); k++) {
      const weir__recording_block *b = &s->blocks[k];
      natural(w, first + k);
      natural(w, i);
      integer(w, s->device);
      natural(w, b->address);
      natural(w, b->size);
      natural(w, b->requested);
      w->to->text(w->to, weir_block_state_name((weir_block_state)b->state));
      stack(w, b->stack);
      TRY(w->to->row(w->to));
    }
  }
  return WEIR_OK;
}

static void event(walk *w, int device, size_t number, const weir__recording_entry *e, const weir__levels *levels) {
  const weir__recording_remark *remark = &w->s->remarks[e->remark];
  integer(w, device);
  natural(w, number);
  if (e->action == WEIR__ACTION_UNKNOWN)
    text(w, remark->action);
  else
    w->to->text(w->to, weir_trace_action_name((weir_trace_action)e->action));
  if (e->action == WEIR_TRACE_OOM) {
    nothing(w);
    natural(w, e->address);
  } else {
    natural(w, e->address);
    nothing(w);
  }
  natural(w, e->size);
  integer(w, w->s->streams[e->stream]);
  if (e->time_us)
    integer(w, e->time_us);
  else
    nothing(w);
  pool(w, e->pool);
  text(w, remark->compile_context);
  text(w, remark->user_metadata);
  text(w, remark->phase);
  stack(w, e->stack);
  integer(w, levels->allocated);
  integer(w, levels->reserved);
}

static weir_status events(walk *w) {
  static const weir__export_column columns[] = {
      {"device", false},      {"event", false},       {"action", true},          {"address", false},
      {"device_free", false}, {"size", false},        {"stream", false},         {"time_us", false},
      {"pool_first", false},  {"pool_second", false}, {"compile_context", true}, {"user_metadata", true},
      {"phase", true},        {"stack", false},       {"allocated", false},      {"reserved", false}};
  size_t done = 0;
  BEGIN(w, WEIR__EXPORT_EVENTS, columns);
  for (size_t d = 0; d < w->s->device_count; d++) {
    weir__levels levels = {0};
    if (!wants(w, (int)d))
      continue;
    TRY(weir__levels_begin(w->s, (int)d, &levels));
    for (size_t i = 0; i < w->s->devices[d].event_count; i++) {
      const weir__recording_entry *e = &w->s->devices[d].events[i];
      weir__levels_move(&levels, e);
      event(w, (int)d, i, e, &levels);
      TRY(w->to->row(w->to));
      if (++done % WEIR__STEP_EVENTS == 0 && w->step)
        w->step(w->step_context, done, w->s->event_count);
    }
  }
  return WEIR_OK;
}

static weir_status stacks(walk *w) {
  static const weir__export_column columns[] = {{"stack", false}, {"depth", false}, {"frame", false}};
  BEGIN(w, WEIR__EXPORT_STACKS, columns);
  for (size_t i = 1; i < w->s->stack_count; i++)
    for (size_t k = 0; k < w->s->stacks[i].count; k++) {
      natural(w, i);
      natural(w, k);
      natural(w, w->s->stack_frames[w->s->stacks[i].first + k]);
      TRY(w->to->row(w->to));
    }
  return WEIR_OK;
}

static weir_status frames(walk *w) {
  static const weir__export_column columns[] = {{"frame", false}, {"name", true}, {"filename", true}, {"line", false}};
  BEGIN(w, WEIR__EXPORT_FRAMES, columns);
  for (size_t i = 0; i < w->s->frame_count; i++) {
    natural(w, i);
    text(w, w->s->frames[i].name);
    text(w, w->s->frames[i].filename);
    integer(w, w->s->frames[i].line);
    TRY(w->to->row(w->to));
  }
  return WEIR_OK;
}

static weir_status annotations(walk *w) {
  static const weir__export_column columns[] = {
      {"annotation", false}, {"device", false}, {"stage", true}, {"name", true}, {"time_us", false}};
  BEGIN(w, WEIR__EXPORT_ANNOTATIONS, columns);
  for (size_t i = 0; i < w->s->annotation_count; i++) {
    const weir__recording_annotation *a = &w->s->annotations[i];
    if (a->device >= 0 && !wants(w, a->device))
      continue;
    natural(w, i);
    if (a->device >= 0)
      integer(w, a->device);
    else
      nothing(w);
    text(w, a->stage);
    text(w, a->name);
    integer(w, a->time_us);
    TRY(w->to->row(w->to));
  }
  return WEIR_OK;
}

static weir_status settings(walk *w) {
  static const weir__export_column columns[] = {{"setting", false}, {"key", true}, {"part", true}, {"value", true}};
  BEGIN(w, WEIR__EXPORT_SETTINGS, columns);
  for (size_t i = 0; i < w->s->setting_count; i++) {
    const weir__recording_setting *s = &w->s->settings[i];
    char value[64];
    natural(w, i);
    w->to->text(w->to, s->key);
    if (s->sub)
      w->to->text(w->to, s->sub);
    else
      nothing(w);
    if (s->kind == WEIR__SETTING_FLOAT)
      snprintf(value, sizeof value, "%.17g", s->real);
    else
      snprintf(value, sizeof value, "%lld", (long long)s->integer);
    if (s->kind == WEIR__SETTING_BOOL)
      w->to->text(w->to, s->integer ? "True" : "False");
    else
      w->to->text(w->to, s->kind == WEIR__SETTING_TEXT ? s->text : value);
    TRY(w->to->row(w->to));
  }
  return WEIR_OK;
}

/* ---- Work ---- */

/* The annotation that begins the innermost open range of a thread, or of a name and device, + 1. */
typedef struct open_range {
  uint64_t key;
  size_t first;
} open_range;

/* Sets ends[i] to the annotation that ends the range which annotation i begins, + 1. */
static bool match_ranges(const walk *w, size_t *ends) {
  const weir__recording *s = w->s;
  size_t *outer = calloc(s->annotation_count + 1, sizeof *outer); /* the range that i is inside of, by key */
  weir__hash_map open = {0};
  bool has_memory = outer;
  for (size_t i = 0; i < s->annotation_count && has_memory; i++) {
    const weir__recording_annotation *a = &s->annotations[i];
    const char *stage = s->strings.items[a->stage].text;
    bool begins = !strcmp(stage, "START");
    if (!begins && strcmp(stage, "END") != 0)
      continue;
    uint64_t thread = weir__export_thread_of(s, a);
    open_range *range = weir__hash_map_put(
        &open, sizeof *range, thread ? thread << 1 | 1 : (uint64_t)a->name << 32 | (uint64_t)(a->device + 2) << 1);
    has_memory = range;
    if (has_memory && begins) {
      outer[i] = range->first;
      range->first = i + 1;
    } else if (has_memory && range->first) {
      ends[range->first - 1] = i + 1;
      range->first = outer[range->first - 1];
    }
  }
  weir__hash_map_clear(&open);
  free(outer);
  return has_memory;
}

static weir_status ranges(walk *w, const size_t *ends) {
  for (size_t i = 0; i < w->s->annotation_count; i++) {
    const weir__recording_annotation *a = &w->s->annotations[i];
    uint64_t thread = weir__export_thread_of(w->s, a);
    if (strcmp(w->s->strings.items[a->stage].text, "START") != 0 || (a->device >= 0 && !wants(w, a->device)))
      continue;
    natural(w, w->s->work_count + i);
    if (a->device >= 0)
      integer(w, a->device);
    else
      nothing(w);
    nothing(w);
    if (thread)
      natural(w, thread);
    else
      nothing(w);
    w->to->text(w->to, "range");
    text(w, a->name);
    natural(w, (uint64_t)a->time_us * 1000);
    if (ends[i])
      natural(w, ((uint64_t)w->s->annotations[ends[i] - 1].time_us - (uint64_t)a->time_us) * 1000);
    else
      nothing(w); /* still open at the end */
    nothing(w);
    TRY(w->to->row(w->to));
  }
  return WEIR_OK;
}

static weir_status work(walk *w) {
  static const weir__export_column columns[] = {{"work", false},     {"device", false},      {"stream", false},
                                                {"thread", false},   {"kind", true},         {"name", true},
                                                {"start_ns", false}, {"duration_ns", false}, {"bytes", false}};
  BEGIN(w, WEIR__EXPORT_WORK, columns);
  for (size_t i = 0; i < w->s->work_count; i++) {
    const weir__recording_work *item = &w->s->works[i];
    if (!wants(w, item->annotation.device))
      continue;
    natural(w, i);
    integer(w, item->annotation.device);
    natural(w, item->stream);
    nothing(w);
    text(w, item->kind);
    text(w, item->annotation.name);
    integer(w, item->start_ns);
    natural(w, item->duration_ns);
    if (item->bytes)
      natural(w, item->bytes);
    else
      nothing(w);
    TRY(w->to->row(w->to));
  }
  size_t *ends = calloc(w->s->annotation_count + 1, sizeof *ends);
  weir_status status = ends && match_ranges(w, ends) ? WEIR_OK : WEIR_ERROR_HOST_OUT_OF_MEMORY;
  if (status)
    weir__fail(status, "out of host memory for the ranges");
  else
    status = ranges(w, ends);
  free(ends);
  return status;
}

weir_status weir__export_rows(const weir__recording *recording, int device, weir__export_table table, weir__step step,
                              void *step_context, weir__rows *to) {
  static weir_status (*const tables[])(walk *) = {
      [WEIR__EXPORT_SEGMENTS] = segments, [WEIR__EXPORT_BLOCKS] = blocks, [WEIR__EXPORT_EVENTS] = events,
      [WEIR__EXPORT_STACKS] = stacks,     [WEIR__EXPORT_FRAMES] = frames, [WEIR__EXPORT_ANNOTATIONS] = annotations,
      [WEIR__EXPORT_SETTINGS] = settings, [WEIR__EXPORT_WORK] = work};
  walk w = {.s = recording, .device = device, .step = step, .step_context = step_context, .to = to};
  weir_status status = tables[table](&w);
  weir_status ended = to->end(to); /* also after an error, to release resources */
  return status ? status : ended;
}

/* ---- CSV ---- */

typedef struct csv {
  weir__rows rows;
  FILE *file;
  bool is_first; /* value of the line */
} csv;

static void csv_place(csv *c) {
  if (!c->is_first)
    putc_unlocked(',', c->file);
  c->is_first = false;
}

static void csv_text(weir__rows *to, const char *value) {
  csv *c = (csv *)to;
  csv_place(c);
  if (*value && !strpbrk(value, ",\"\r\n")) {
    fputs(value, c->file);
    return;
  }
  putc_unlocked('"', c->file); /* empty texts are quoted too: an empty field means not recorded */
  for (; *value; value++) {
    if (*value == '"')
      putc_unlocked('"', c->file);
    putc_unlocked(*value, c->file);
  }
  putc_unlocked('"', c->file);
}

static void csv_natural(weir__rows *to, uint64_t value) {
  csv_place((csv *)to);
  fprintf(((csv *)to)->file, "%llu", (unsigned long long)value);
}

static void csv_integer(weir__rows *to, int64_t value) {
  csv_place((csv *)to);
  fprintf(((csv *)to)->file, "%lld", (long long)value);
}

static void csv_nothing(weir__rows *to) { csv_place((csv *)to); }

static weir_status csv_row(weir__rows *to) {
  csv *c = (csv *)to;
  fputs("\r\n", c->file);
  c->is_first = true;
  if (!ferror(c->file))
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_SYSTEM, "the file was not written whole: %s", strerror(errno));
}

static weir_status csv_begin(weir__rows *to, weir__export_table table, const weir__export_column *columns,
                             size_t count) {
  (void)table;
  for (size_t i = 0; i < count; i++)
    csv_text(to, columns[i].name);
  return csv_row(to);
}

static weir_status csv_end(weir__rows *to) {
  (void)to;
  return WEIR_OK;
}

weir_status weir__export_csv(const weir__recording *recording, int device, weir__export_table table, weir__step step,
                             void *step_context, FILE *file) {
  csv c = {.rows = {.begin = csv_begin,
                    .integer = csv_integer,
                    .natural = csv_natural,
                    .text = csv_text,
                    .nothing = csv_nothing,
                    .row = csv_row,
                    .end = csv_end},
           .file = file,
           .is_first = true};
  return weir__export_rows(recording, device, table, step, step_context, &c.rows);
}
