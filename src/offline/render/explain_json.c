#include "offline/render/explain_json.h"

#include <string.h>

#include "offline/analyse/describe.h"
#include "offline/analyse/moment.h"
#include "offline/render/report_parts.h"
#include "record/entry.h"

typedef struct report {
  weir__sink *sink;
  const weir__recording *recording;
  const weir__recording_device *device;
  const weir__explanation *x;
} report;

static void json_stack(const report *f, uint32_t stack) {
  const weir__recording *s = f->recording;
  WEIR__JSON(f->sink, JSON_LIST("stack"));
  for (size_t i = 0; stack < s->stack_count && i < s->stacks[stack].count; i++) {
    const weir__recording_frame *frame = &s->frames[s->stack_frames[s->stacks[stack].first + i]];
    WEIR__JSON(f->sink, JSON_OBJECT(NULL), JSON_TEXT("name", s->strings.items[frame->name].text),
               JSON_TEXT("filename", s->strings.items[frame->filename].text), JSON_INTEGER("line", frame->line),
               JSON_CLOSE);
  }
  WEIR__JSON(f->sink, JSON_CLOSE);
}

static void json_request(const report *f) {
  const weir__explanation *x = f->x;
  if (!x->has_request) {
    WEIR__JSON(f->sink, JSON_NULL("request"));
    return;
  }
  WEIR__JSON(f->sink, JSON_OBJECT("request"), JSON_NATURAL("bytes", x->request), JSON_NATURAL("rounded", x->rounded),
             JSON_NATURAL("wanted", x->wanted), JSON_INTEGER("stream", f->recording->streams[x->stream]),
             JSON_BOOL("private", x->is_private), JSON_NATURAL("device_free", x->device_free));
  json_stack(f, x->stack);
  WEIR__JSON(f->sink, JSON_CLOSE);
}

/* null if not known or not found. */
static void json_missing(const report *f) {
  const weir__explanation *x = f->x;
  if (x->has_missing)
    WEIR__JSON(f->sink, JSON_OBJECT("missing"), JSON_NATURAL("least", x->missing_min),
               JSON_NATURAL("most", x->missing_max), JSON_CLOSE);
  else
    WEIR__JSON(f->sink, JSON_NULL("missing"));
  WEIR__JSON(f->sink, JSON_NATURAL_IF(x->fit_request != 0, "enough_for_request", x->fit_request),
             JSON_NATURAL_IF(x->fit_recording != 0, "enough_for_recording", x->fit_recording));
}

static void json_pinning_block(const report *f, const weir__explained_block *b) {
  int64_t time = b->event == SIZE_MAX ? 0 : f->device->events[b->event].time_us;
  WEIR__JSON(f->sink, JSON_OBJECT(NULL), JSON_NATURAL("address", b->address), JSON_NATURAL("size", b->size),
             JSON_NATURAL("requested", b->requested), JSON_NATURAL_IF(b->event != SIZE_MAX, "event", b->event));
  if (time && f->x->time_us)
    WEIR__JSON(f->sink, JSON_INTEGER("age_us", weir__time_between(time, f->x->time_us)));
  else
    WEIR__JSON(f->sink, JSON_NULL("age_us"));
  json_stack(f, b->stack);
  WEIR__JSON(f->sink, JSON_CLOSE);
}

static void json_pins(const report *f) {
  const weir__explanation *x = f->x;
  WEIR__JSON(f->sink, JSON_OBJECT("pins"), JSON_TEXT("kind", x->pins_serve ? "could serve" : "could go back"),
             JSON_LIST("segments"));
  for (size_t i = 0; i < x->pin_count; i++) {
    const weir__pin *p = &x->pins[i];
    WEIR__JSON(f->sink, JSON_OBJECT(NULL), JSON_NATURAL("address", p->segment), JSON_NATURAL("size", p->bytes),
               JSON_NATURAL("free", p->free), JSON_NATURAL("pinned", p->pinned), JSON_NATURAL("count", p->count),
               JSON_LIST("blocks"));
    for (size_t k = 0; k < p->block_count; k++)
      json_pinning_block(f, &p->blocks[k]);
    WEIR__JSON(f->sink, JSON_CLOSE, JSON_CLOSE);
  }
  WEIR__JSON(f->sink, JSON_CLOSE, JSON_CLOSE);
}

static void json_trials(const report *f) {
  const weir__explanation *x = f->x;
  static const char *const remedies[] = {"wait", "empty_cache", "setting"};
  WEIR__JSON(f->sink, JSON_LIST("trials"));
  for (size_t i = 0; i < x->trial_count; i++) {
    const weir__trial *t = &x->trials[i];
    WEIR__JSON(f->sink, JSON_OBJECT(NULL), JSON_TEXT("remedy", remedies[t->remedy]), JSON_BOOL("works", t->works),
               JSON_NATURAL("reserved", t->reserved), JSON_NATURAL("reserved_most", t->reserved_most),
               JSON_NATURAL("failed_before", t->failed_before), JSON_NATURAL("orders", t->orders),
               JSON_NATURAL("orders_served", t->orders_served), JSON_BOOL("depends_on_limit", t->depends_on_limit));
    if (t->remedy == WEIR__REMEDY_SETTING) {
      WEIR__JSON(f->sink, JSON_TEXT("change", t->change), JSON_TEXT("conf", t->conf),
                 JSON_BOOL("weir_only", t->is_weir_only), JSON_BOOL("depends_on_streams", t->depends));
    } else if (t->remedy == WEIR__REMEDY_EMPTY)
      WEIR__JSON(f->sink, JSON_NATURAL("after_event", t->event));
    WEIR__JSON(f->sink, JSON_CLOSE);
  }
  WEIR__JSON(f->sink, JSON_CLOSE);
}

/* The keys are always the same, so that a program need not test for each. */
static void json_unknown(const report *f) {
  const weir__explanation *x = f->x;
  WEIR__JSON(f->sink, JSON_TEXT("unknown", x->difference), JSON_NULL("limit"), JSON_NULL("limit_max"),
             JSON_NULL("limit_is_inferred"), JSON_NULL("limit_is_recorded"), JSON_NULL("limit_is_device"),
             JSON_NULL("memory"), JSON_NULL("missing"), JSON_NULL("enough_for_request"),
             JSON_NULL("enough_for_recording"), JSON_NULL("reserved"), JSON_NULL("bytes"), JSON_NULL("labels"),
             JSON_NULL("largest_hole"), JSON_NULL("largest_elsewhere"), JSON_NULL("holes"), JSON_NULL("cause"),
             JSON_NULL("pins"), JSON_NULL("holders"), JSON_BOOL("proven", false), JSON_NATURAL("orders", 0),
             JSON_NATURAL("orders_served", 0), JSON_LIST("trials"), JSON_CLOSE);
}

static void json_holes(const report *f) {
  WEIR__JSON(f->sink, JSON_LIST("holes"));
  for (size_t i = 0; i < f->x->hole_count; i++) {
    const weir__hole *h = &f->x->holes[i];
    WEIR__JSON(f->sink, JSON_OBJECT(NULL), JSON_NATURAL("address", h->address), JSON_NATURAL("size", h->size),
               JSON_TEXT("use", weir__use_name(h->use)), JSON_CLOSE);
  }
  WEIR__JSON(f->sink, JSON_CLOSE);
}

static void json_cause(const report *f) {
  const weir__explanation *x = f->x;
  WEIR__JSON(f->sink, JSON_NATURAL_IF(x->limit != UINT64_MAX, "limit", x->limit),
             JSON_NATURAL_IF(x->limit_max != UINT64_MAX, "limit_max", x->limit_max),
             JSON_BOOL("limit_is_inferred", x->limit_is_inferred), JSON_BOOL("limit_is_recorded", x->limit_is_recorded),
             JSON_BOOL("limit_is_device", x->limit_is_device), JSON_NATURAL_IF(x->memory != 0, "memory", x->memory));
  if (f->device->peak_outside)
    WEIR__JSON(f->sink, JSON_OBJECT("outside"), JSON_NATURAL("end", f->device->outside),
               JSON_NATURAL("peak", f->device->peak_outside), JSON_CLOSE);
  json_missing(f);
  WEIR__JSON(f->sink, JSON_NATURAL_IF(x->reserved != UINT64_MAX, "reserved", x->reserved), JSON_OBJECT("bytes"));
  for (int i = 0; i < WEIR__USES; i++)
    WEIR__JSON(f->sink, JSON_NATURAL(weir__use_name((weir__byte_use)i), x->bytes[i]));
  WEIR__JSON(f->sink, JSON_CLOSE, JSON_OBJECT("labels"));
  for (int i = 0; i < WEIR__USES; i++)
    WEIR__JSON(f->sink,
               JSON_TEXT(weir__use_name((weir__byte_use)i), weir__use_text((weir__byte_use)i, x->has_request)));
  WEIR__JSON(f->sink, JSON_CLOSE, JSON_NATURAL("largest_hole", x->largest_hole),
             JSON_NATURAL("largest_elsewhere", x->largest_elsewhere));
  json_holes(f);
  WEIR__JSON(f->sink, JSON_TEXT("cause", weir_offline_cause_name(x->cause)));
  json_pins(f);
  WEIR__JSON(f->sink, JSON_LIST("holders"));
  for (size_t i = 0; i < x->holder_count; i++) {
    WEIR__JSON(f->sink, JSON_OBJECT(NULL), JSON_NATURAL("bytes", x->holders[i].bytes),
               JSON_NATURAL("count", x->holders[i].count), JSON_NATURAL("size", x->holders[i].size));
    json_stack(f, x->holders[i].stack);
    WEIR__JSON(f->sink, JSON_CLOSE);
  }
  WEIR__JSON(f->sink, JSON_CLOSE, JSON_BOOL("proven", x->is_proven), JSON_NATURAL("orders", x->orders),
             JSON_NATURAL("orders_served", x->orders_served));
  json_trials(f);
}

/* What guard mode found while the job ran. */
static void json_guard(const report *f) {
  static const char *const keys[] = {"block", "offset", "requested", "text"};
  const weir__recording *s = f->recording;
  WEIR__JSON(f->sink, JSON_LIST("guard"));
  for (size_t i = 0; i < s->annotation_count; i++) {
    const weir__recording_annotation *a = &s->annotations[i];
    if (strcmp(s->strings.items[a->stage].text, WEIR__STAGE_GUARD) != 0)
      continue;
    WEIR__JSON(f->sink, JSON_OBJECT(NULL), JSON_TEXT("kind", s->strings.items[a->name].text),
               JSON_INTEGER("device", a->device));
    for (size_t k = 0; k < WEIR_COUNT_OF(keys); k++)
      WEIR__JSON(f->sink, JSON_TEXT(keys[k], weir__recording_pair_of(s, a, keys[k])));
    WEIR__JSON(f->sink, JSON_CLOSE);
  }
  WEIR__JSON(f->sink, JSON_CLOSE);
}

static void json_growth(const report *f) {
  const weir__growth *g = &f->x->growth;
  char title[192];
  if (!g->is_found) {
    WEIR__JSON(f->sink, JSON_NULL("growth"));
    return;
  }
  WEIR__JSON(f->sink, JSON_OBJECT("growth"), JSON_BOOL("is_cause", g->is_cause), JSON_NATURAL("bytes", g->bytes),
             JSON_NATURAL("blocks", g->count), JSON_REAL("bytes_per_step", g->bytes_per_step, 1),
             JSON_INTEGER("first_step", g->first_step), JSON_NATURAL("steps", g->steps),
             JSON_NATURAL("stacks", g->stacks),
             JSON_TEXT("title", weir__describe_blocks(f->recording, g->stack, g->size, title)), JSON_CLOSE);
}

void weir__explain_json(weir__sink *sink, const char *name, const weir__recording *recording,
                        const weir__explanation *x) {
  const report report = {sink, recording, &recording->devices[x->device], x}, *f = &report;
  WEIR__JSON(f->sink, JSON_TEXT("file", name), JSON_INTEGER("device", x->device),
             JSON_TEXT("moment", weir__moment_name(x->moment)), JSON_NATURAL("event", x->event),
             JSON_NATURAL("events", x->event_count), JSON_INTEGER("time_us", x->time_us),
             JSON_TEXT("history", weir__completeness_name(x->completeness)),
             JSON_NATURAL("differences", x->differences), JSON_BOOL("from_file", x->is_from_file));
  json_guard(f);
  json_request(f);
  if (x->is_unknown)
    json_unknown(f);
  else
    json_cause(f);
  json_growth(f);
}
