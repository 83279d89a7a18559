#include "offline/render/leaks_report.h"

#include "offline/analyse/describe.h"

/* How many rows of each kind JSON has. */
enum { LISTED = 50 };

typedef struct context {
  weir__report *r;
  const weir__recording *recording;
  const weir__leaks *l;
  size_t list; /* how many rows of each kind the text has */
} context;

/* ---- What grew ---- */

static void say_leak(const context *c, const weir__leak *leak) {
  weir__say(c->r, "      {bytes_per_step:11} a {_unit}  {title}: {blocks block}, {bytes}");
  if (leak->every > 1.5 && !leak->is_joint)
    weir__say(c->r, ", every {every:.1} {_unit}s");
  weir__say(c->r, ", from {_unit} {first_step} to {last_step}");
  weir__say(c->r, leak->stream ? ", on {stream}\n" : "\n");
}

static void say_growing(const context *c, const weir__leak *leak) {
  static const char *const why[] = {"", "", "stopped growing, as a cache that is full",
                                    "slows down, as a cache that fills",
                                    "grows because each block is replaced by a larger one, as a key/value cache does"};
  weir__say(c->r, "      {bytes:11}  {title}: ");
  weir__say(c->r, why[leak->kind]);
  weir__say(c->r, " ({_unit} {first_step} to {last_step})\n");
}

static void add_leak(const context *c, size_t i, const weir__leak *leak, bool is_growing) {
  static const char *const why[] = {NULL, NULL, "stopped", "slowing", "replaced"};
  bool has_blocks = !is_growing && i < c->list;
  char title[192], stream[48];
  WEIR__ROWS(c->r, JSON_OBJECT(weir__item_key(i, LISTED)), JSON_NATURAL("stack", leak->stack),
             JSON_TEXT("title", weir__describe_blocks(c->recording, leak->stack, leak->size, title)),
             JSON_NATURAL_IF(leak->size != 0, "size", leak->size),
             JSON_TEXT("stream", weir__describe_stream(c->recording, leak->stream, stream)),
             ROW_BYTES("bytes", leak->bytes), JSON_NATURAL("blocks", leak->count),
             ROW_REAL(true, "bytes_per_step", leak->bytes_per_step, 1, WEIR__UNIT_BYTES),
             JSON_REAL("blocks_per_step", leak->count_per_step, 3), JSON_INTEGER("first_step", leak->first_step),
             JSON_INTEGER("last_step", leak->last_step), JSON_REAL("every", leak->every, 2),
             JSON_BOOL("joint", leak->is_joint), JSON_TEXT("why", why[leak->kind]), JSON_LIST("examples"));
  if (i < c->list)
    (is_growing ? say_growing : say_leak)(c, leak);
  for (size_t k = 0; k < leak->example_count; k++) {
    const weir__leak_block *b = &leak->examples[k];
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), ROW_ADDRESS("address", b->address), ROW_BYTES("size", b->size),
               JSON_NATURAL("entry", b->entry), JSON_INTEGER("step", b->step));
    if (has_blocks && k < 2)
      weir__say(c->r, "                  {address}, {size}, since entry {entry}\n");
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_NATURAL("example_total", leak->count), JSON_NATURAL("_more", leak->count - 2));
  if (has_blocks && leak->count > 2 && leak->example_count)
    weir__say(c->r, "                  and {_more} more\n");
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_leaks(const context *c) {
  const weir__leaks *l = c->l;
  WEIR__ROWS(c->r, JSON_NATURAL("leak_total", l->leak_count), JSON_LIST("leaks"));
  for (size_t i = 0; i < l->leak_count && (i < LISTED || i < c->list); i++)
    add_leak(c, i, &l->leaks[i], false);
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_NATURAL("_more_leaks", l->leak_count - c->list));
  if (l->leak_count > c->list)
    weir__say(c->r, "      and {_more_leaks} more; --list N shows more\n");
}

static void add_growing(const context *c) {
  const weir__leaks *l = c->l;
  WEIR__ROWS(c->r, JSON_NATURAL("growing_total", l->growing_count), JSON_LIST("growing"));
  if (l->growing_count)
    weir__say(c->r, "    no leak   {growing_total other} grew:\n");
  for (size_t i = 0; i < l->growing_count && (i < LISTED || i < c->list); i++)
    add_leak(c, i, &l->growing[i], true);
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* ---- When memory runs out ---- */

static void add_limit(const context *c) {
  static const char *const names[] = {"not known", "never", "exact", "range"};
  const weir__leaks *l = c->l;
  bool is_known = l->runs_out == WEIR__RUNS_OUT_EXACT || l->runs_out == WEIR__RUNS_OUT_RANGE;
  bool has_time = is_known && l->step_us > 0;
  const double seconds = l->step_us / 1e6;
  WEIR__ROWS(c->r, JSON_OBJECT("limit"), ROW_BYTES_IF(l->limit != 0, "bytes", l->limit),
             JSON_BOOL("is_device", l->limit_is_device), JSON_NATURAL("reserved", l->reserved),
             JSON_TEXT("runs_out", names[l->runs_out]), JSON_NATURAL_IF(is_known, "steps_least", l->steps_least),
             JSON_NATURAL_IF(is_known, "steps_most", l->steps_most),
             ROW_REAL(has_time, "seconds_least", (double)l->steps_least * seconds, 3, WEIR__UNIT_SECONDS),
             ROW_REAL(has_time, "seconds_most", (double)l->steps_most * seconds, 3, WEIR__UNIT_SECONDS), JSON_CLOSE);
}

static void say_end(const context *c) {
  const weir__leaks *l = c->l;
  if (l->verdict != WEIR__LEAKS_FOUND)
    return;
  if (l->runs_out == WEIR__RUNS_OUT_NOT_KNOWN) {
    weir__say(c->r, l->limit ? "    runs out  not known, since the state before the history is not known\n"
                             : "    runs out  not known, since the recording does not have the memory of the device; "
                               "--memory SIZE states it\n");
    return;
  }
  weir__say(c->r, "    runs out  in {limit.steps_least~limit.steps_most} {_unit}s");
  if (l->step_us > 0)
    weir__say(c->r, " ({limit.seconds_least~limit.seconds_most})");
  weir__say(c->r, l->limit_is_device ? ", at the device's memory of " : ", at a limit of ");
  weir__say(c->r, "{limit.bytes}\n");
}

/* ---- What else holds memory ---- */

static void add_outliving(const context *c) {
  char title[192];
  WEIR__ROWS(c->r, JSON_LIST("outlive_phase"));
  for (size_t i = 0; i < c->l->outliving_count; i++) {
    const weir__outliving *o = &c->l->outliving[i];
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("phase", c->recording->strings.items[o->phase].text),
               JSON_NATURAL("stack", o->stack),
               JSON_TEXT("title", weir__describe_blocks(c->recording, o->stack, o->size, title)),
               JSON_NATURAL_IF(o->size != 0, "size", o->size), ROW_BYTES("bytes", o->bytes),
               JSON_NATURAL("blocks", o->count), JSON_INTEGER("steps", o->steps));
    if (i < c->list) {
      weir__say(c->r, i ? "              " : "    phases    ");
      weir__say(c->r, "{bytes} in {blocks block} of phase '{phase}' outlived it by up to {steps} {_unit}s: {title}\n");
    }
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_idle(const context *c) {
  char stream[48];
  WEIR__ROWS(c->r, JSON_LIST("idle_streams"));
  for (size_t i = 0; i < c->l->idle_count; i++) {
    const weir__idle_stream *s = &c->l->idle[i];
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("stream", weir__describe_stream(c->recording, s->stream, stream)),
               ROW_BYTES("reserved", s->reserved), JSON_NATURAL("in_use", s->in_use),
               ROW_BYTES("free", s->reserved - s->in_use), JSON_NATURAL("last_entry", s->last_entry),
               JSON_NATURAL_IF(s->idle_steps >= 0, "idle_steps", s->idle_steps),
               JSON_REAL("idle_share", s->idle_share, 3));
    if (i < c->list) {
      weir__say(c->r, i ? "              " : "    streams   ");
      weir__say(c->r, "{stream} holds {reserved}, {free} of it free, and was last used at entry {last_entry}\n");
    }
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_NATURAL("_more_idle", c->l->idle_count - c->list));
  if (c->l->idle_count > c->list)
    weir__say(c->r, "              and {_more_idle} more idle streams\n");
}

/* ---- The whole ---- */

static void add_steps(const context *c) {
  const weir__leaks *l = c->l;
  weir__steps_rows(c->r, &l->steps);
  weir__say(c->r, "    steps     ");
  weir__steps_say(c->r, &l->steps);
  weir__say(c->r, !l->steps.warm_up       ? "\n"
                  : l->steps.warm_up == 1 ? "; the first is warm-up\n"
                                          : "; the first {steps.warm_up} are warm-up\n");
}

static void add_verdict(const context *c) {
  static const char *const verdicts[] = {"none", "leak", "unknown"};
  static const char *const sentences[] = {
      [WEIR__LEAKS_UNKNOWN] = "    leaks     not known: {reason}\n",
      [WEIR__LEAKS_NONE] = "    leaks     none found\n",
      [WEIR__LEAKS_FOUND] = "    *leaks*     {bytes_per_step} a {_unit} since {_unit} {first_step}: "};
  const weir__leaks *l = c->l;
  WEIR__ROWS(c->r, JSON_TEXT("verdict", verdicts[l->verdict]), JSON_TEXT("reason", *l->reason ? l->reason : NULL),
             ROW_REAL(true, "bytes_per_step", l->bytes_per_step, 1, WEIR__UNIT_BYTES),
             JSON_REAL("blocks_per_step", l->count_per_step, 3), ROW_BYTES("bytes", l->bytes),
             JSON_NATURAL("blocks", l->count), JSON_NATURAL_IF(l->leak_count > 0, "first_step", l->first_step),
             JSON_REAL_IF(l->step_us > 0, "step_seconds", l->step_us / 1e6, 6));
  weir__say(c->r, sentences[l->verdict]);
  if (l->verdict == WEIR__LEAKS_FOUND)
    weir__say(c->r, "{bytes} in {blocks block} that were not freed\n");
}

static void add_levels(const context *c) {
  const weir__leaks *l = c->l;
  size_t every = 1 + l->steps.count / (WEIR__STEPS_LISTED + 1);
  WEIR__ROWS(c->r, JSON_NATURAL("levels_every", every), JSON_LIST("levels"));
  for (size_t i = 0; l->leak_count && i < l->steps.count; i += every)
    WEIR__ROWS(c->r, JSON_NATURAL(NULL, l->levels[i]));
  WEIR__ROWS(c->r, JSON_CLOSE);
}

void weir__leaks_report(weir__report *r, const weir__recording *recording, const char *file, const weir__leaks *l,
                        size_t list) {
  const context of = {r, recording, l, list}, *c = &of;
  weir__report_begin(r);
  WEIR__ROWS(r, JSON_TEXT("_unit", weir__steps_unit(&l->steps)), JSON_TEXT("file", file),
             JSON_INTEGER("device", l->device));
  weir__say(r, "  *device {device}*\n");
  add_steps(c);
  add_verdict(c);
  add_limit(c);
  add_levels(c);
  add_leaks(c);
  say_end(c);
  add_growing(c);
  add_outliving(c);
  add_idle(c);
}
