#include "offline/render/leaks_json.h"

#include "offline/analyse/describe.h"
#include "offline/render/parts_json.h"

enum { LISTED = 50 };

static void write_leak(weir__sink *sink, const weir__recording *recording, const weir__leak *l) {
  static const char *const why[] = {NULL, NULL, "stopped", "slowing", "replaced"};
  char title[192], stream[48];
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_NATURAL("stack", l->stack),
             JSON_TEXT("title", weir__describe_blocks(recording, l->stack, l->size, title)),
             JSON_NATURAL_IF(l->size != 0, "size", l->size),
             JSON_TEXT("stream", weir__describe_stream(recording, l->stream, stream)), JSON_NATURAL("bytes", l->bytes),
             JSON_NATURAL("blocks", l->count), JSON_REAL("bytes_per_step", l->bytes_per_step, 1),
             JSON_REAL("blocks_per_step", l->count_per_step, 3), JSON_INTEGER("first_step", l->first_step),
             JSON_INTEGER("last_step", l->last_step), JSON_REAL("every", l->every, 2), JSON_BOOL("joint", l->is_joint),
             JSON_TEXT("why", why[l->kind]), JSON_LIST("examples"));
  for (size_t i = 0; i < l->example_count; i++)
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_NATURAL("address", l->examples[i].address),
               JSON_NATURAL("size", l->examples[i].size), JSON_NATURAL("entry", l->examples[i].entry),
               JSON_INTEGER("step", l->examples[i].step), JSON_CLOSE);
  WEIR__JSON(sink, JSON_CLOSE, JSON_NATURAL("example_total", l->count), JSON_CLOSE);
}

static void write_limit(weir__sink *sink, const weir__leaks *l) {
  static const char *const names[] = {"not known", "never", "exact", "range"};
  bool is_known = l->runs_out == WEIR__RUNS_OUT_EXACT || l->runs_out == WEIR__RUNS_OUT_RANGE;
  bool has_time = is_known && l->step_us > 0;
  WEIR__JSON(sink, JSON_OBJECT("limit"), JSON_NATURAL_IF(l->limit != 0, "bytes", l->limit),
             JSON_BOOL("is_device", l->limit_is_device), JSON_NATURAL("reserved", l->reserved),
             JSON_TEXT("runs_out", names[l->runs_out]), JSON_NATURAL_IF(is_known, "steps_least", l->steps_least),
             JSON_NATURAL_IF(is_known, "steps_most", l->steps_most),
             JSON_REAL_IF(has_time, "seconds_least", (double)l->steps_least * l->step_us / 1e6, 3),
             JSON_REAL_IF(has_time, "seconds_most", (double)l->steps_most * l->step_us / 1e6, 3), JSON_CLOSE);
}

static void write_levels(weir__sink *sink, const weir__leaks *l) {
  size_t every = 1 + l->steps.count / (WEIR__STEPS_LISTED + 1);
  WEIR__JSON(sink, JSON_NATURAL("levels_every", every), JSON_LIST("levels"));
  for (size_t i = 0; l->leak_count && i < l->steps.count; i += every)
    WEIR__JSON(sink, JSON_NATURAL(NULL, l->levels[i]));
  WEIR__JSON(sink, JSON_CLOSE);
}

void weir__leaks_json(weir__sink *sink, const char *key, const weir__recording *recording, const char *file,
                      const weir__leaks *l) {
  static const char *const verdicts[] = {"none", "leak", "unknown"};
  char text[192];
  WEIR__JSON(sink, JSON_OBJECT(key), JSON_TEXT("file", file), JSON_INTEGER("device", l->device));
  weir__steps_json(sink, "steps", &l->steps);
  WEIR__JSON(sink, JSON_TEXT("verdict", verdicts[l->verdict]), JSON_TEXT("reason", *l->reason ? l->reason : NULL),
             JSON_REAL("bytes_per_step", l->bytes_per_step, 1), JSON_REAL("blocks_per_step", l->count_per_step, 3),
             JSON_NATURAL("bytes", l->bytes), JSON_NATURAL("blocks", l->count),
             JSON_NATURAL_IF(l->leak_count > 0, "first_step", l->first_step),
             JSON_REAL_IF(l->step_us > 0, "step_seconds", l->step_us / 1e6, 6));
  write_limit(sink, l);
  write_levels(sink, l);
  WEIR__JSON(sink, JSON_NATURAL("leak_total", l->leak_count), JSON_LIST("leaks"));
  for (size_t i = 0; i < l->leak_count && i < LISTED; i++)
    write_leak(sink, recording, &l->leaks[i]);
  WEIR__JSON(sink, JSON_CLOSE, JSON_NATURAL("growing_total", l->growing_count), JSON_LIST("growing"));
  for (size_t i = 0; i < l->growing_count && i < LISTED; i++)
    write_leak(sink, recording, &l->growing[i]);
  WEIR__JSON(sink, JSON_CLOSE, JSON_LIST("outlive_phase"));
  for (size_t i = 0; i < l->outliving_count; i++) {
    const weir__outliving *o = &l->outliving[i];
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("phase", recording->strings.items[o->phase].text),
               JSON_NATURAL("stack", o->stack),
               JSON_TEXT("title", weir__describe_blocks(recording, o->stack, o->size, text)),
               JSON_NATURAL_IF(o->size != 0, "size", o->size), JSON_NATURAL("bytes", o->bytes),
               JSON_NATURAL("blocks", o->count), JSON_INTEGER("steps", o->steps), JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE, JSON_LIST("idle_streams"));
  for (size_t i = 0; i < l->idle_count; i++) {
    const weir__idle_stream *s = &l->idle[i];
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("stream", weir__describe_stream(recording, s->stream, text)),
               JSON_NATURAL("reserved", s->reserved), JSON_NATURAL("in_use", s->in_use),
               JSON_NATURAL("free", s->reserved - s->in_use), JSON_NATURAL("last_entry", s->last_entry),
               JSON_NATURAL_IF(s->idle_steps >= 0, "idle_steps", s->idle_steps),
               JSON_REAL("idle_share", s->idle_share, 3), JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
}
