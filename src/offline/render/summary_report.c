#include "offline/render/summary_report.h"

#include <stdlib.h>

#include "offline/analyse/describe.h"

typedef struct context {
  weir__report *r;
  const weir__recording *recording;
  const weir__recording_device *device;
  int number; /* of the device */
  const weir__summary *s;
  const weir__summary_classes *m;
  const char *graph;
} context;

/* ---- The history of a device ---- */

static void add_actions(const context *c) {
  const weir__summary *s = c->s;
  WEIR__ROWS(c->r, JSON_OBJECT("actions"));
  for (int i = 0; i <= WEIR__ACTION_UNKNOWN; i++)
    if (s->actions[i])
      WEIR__ROWS(c->r, JSON_NATURAL(weir_trace_action_name((weir_trace_action)i), s->actions[i]));
  WEIR__ROWS(c->r, JSON_CLOSE, JSON_NATURAL("_allocations", s->actions[WEIR_TRACE_ALLOC]),
             JSON_NATURAL("_frees", s->actions[WEIR_TRACE_FREE_REQUESTED]),
             JSON_NATURAL("_made", s->actions[WEIR_TRACE_SEGMENT_ALLOC] + s->actions[WEIR_TRACE_SEGMENT_MAP]),
             JSON_NATURAL("_released", s->actions[WEIR_TRACE_SEGMENT_FREE] + s->actions[WEIR_TRACE_SEGMENT_UNMAP]),
             JSON_INTEGER("first_us", s->first_us), JSON_INTEGER("last_us", s->last_us),
             ROW_US(s->first_us != 0, "_span", weir__time_between(s->first_us, s->last_us)));
  if (!c->device->event_count)
    return;
  weir__say(c->r, s->first_us ? "    entries   {events} in {_span}: "
                              : "    entries   {events} in a time that was not "
                                "recorded: ");
  weir__say(c->r, "{_allocations allocation}, {_frees free}, {_made segment} allocated and {_released} released");
  weir__say(c->r, s->streams > 1 ? ", on {streams stream}\n" : "\n");
}

/* The ring has overwritten the oldest entries. A checkpoint, if there is one, has the state that they left. */
static void say_dropped(const context *c) {
  weir__say(c->r, c->device->dropped
                      ? "    history   the last entries: the ring was full, and {dropped} older ones were "
                        "overwritten; WEIR_RECORD_MB makes it larger\n"
                      : "    history   its beginning is missing: recording began late\n");
  weir__say(c->r, c->s->is_unknown
                      ? "              the state before them is not known: the file has no checkpoint of it\n"
                      : "              before them {live_before} was in use and {reserved_before} reserved; the peaks "
                        "until then were {peak_before.allocated} allocated and {peak_before.reserved} reserved\n");
}

static void say_completeness(const context *c) {
  static const char *const sentences[] = {
      [WEIR__HISTORY_NONE] = "    history   " WEIR__NO_HISTORY,
      [WEIR__HISTORY_COMPLETE] = "    history   complete: everything that is freed or left was allocated in it\n",
      [WEIR__HISTORY_WRAPPED] =
          "    history   its beginning is missing: it has {events} entries, which suggests a ring "
          "of that size that was full\n",
      [WEIR__HISTORY_LATE] = "    history   its beginning is missing: recording began late, or the ring was full\n"};
  if (c->s->is_unknown || (c->device->start && c->s->completeness > WEIR__HISTORY_COMPLETE)) {
    say_dropped(c);
    return;
  }
  weir__say(c->r, sentences[c->s->completeness]);
  if (c->s->completeness > WEIR__HISTORY_COMPLETE)
    weir__say(c->r, "              before it {live_before} was in use and {reserved_before} reserved; {unknown_frees "
                    "free} of memory from before\n");
}

/* "entry 17, 1.20 s after the first, in forward". */
static void say_when(const context *c, const char *key, size_t event) {
  char phase[WEIR__DESCRIBE_TEXT];
  const int64_t time = c->device->events[event].time_us;
  bool has_time = time && c->s->first_us;
  WEIR__ROWS(c->r, JSON_OBJECT("_when"), ROW_US(has_time, "after", weir__time_between(c->s->first_us, time)),
             JSON_TEXT("phase", weir__describe_phase(c->recording, c->number, time, phase)));
  weir__say_of(c->r, key, "entry {$}");
  if (has_time)
    weir__say(c->r, ", {after} after the first");
  if (*phase)
    weir__say(c->r, ", {phase}");
  WEIR__ROWS(c->r, JSON_CLOSE);
}

static void add_peaks(const context *c) {
  const weir__summary *s = c->s;
  bool is_known = !s->is_unknown;
  WEIR__ROWS(c->r, JSON_NATURAL_IF(is_known, "unknown_segments", s->unknown_segments),
             ROW_BYTES_IF(is_known, "live_before", s->live_before),
             ROW_BYTES_IF(is_known, "reserved_before", s->reserved_before),
             ROW_BYTES_IF(is_known, "peak_live", s->live.bytes),
             JSON_NATURAL_IF(is_known, "peak_live_event", s->live.event),
             ROW_BYTES_IF(is_known, "peak_reserved", s->reserved.bytes),
             JSON_NATURAL_IF(is_known, "peak_reserved_event", s->reserved.event));
  if (c->device->start)
    WEIR__ROWS(c->r, JSON_OBJECT("peak_before"), ROW_BYTES("allocated", c->device->peak_allocated),
               ROW_BYTES("reserved", c->device->peak_reserved), JSON_CLOSE);
  if (!s->actions[WEIR_TRACE_OOM]) {
    WEIR__ROWS(c->r, JSON_NULL("first_oom"));
    return;
  }
  WEIR__ROWS(c->r, JSON_OBJECT("first_oom"), JSON_NATURAL("event", s->first_oom),
             ROW_BYTES("size", c->device->events[s->first_oom].size),
             JSON_NATURAL("_count", s->actions[WEIR_TRACE_OOM]));
  weir__say(c->r, "    *out of memory*  {_count time}, the first at ");
  say_when(c, "event", s->first_oom);
  weir__say(c->r, ": a request of {size}\n");
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* ---- What memory was for ---- */

static void add_holders(const context *c, const char *key, const weir__holder *holders, size_t count, bool is_said) {
  char text[WEIR__DESCRIBE_TEXT];
  WEIR__ROWS(c->r, JSON_LIST(key));
  for (size_t i = 0; i < count; i++) {
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), ROW_BYTES("bytes", holders[i].bytes), JSON_NATURAL("count", holders[i].count));
    if (holders[i].size)
      WEIR__ROWS(c->r, ROW_BYTES("size", holders[i].size));
    else
      WEIR__ROWS(c->r, JSON_TEXT("stack", weir__describe_stack(c->recording, holders[i].stack, text)));
    if (is_said)
      weir__holder_say(c->r, "      ", &holders[i], "stack");
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* The largest first; "unknown" last. */
static void say_classes(const context *c) {
  bool is_done[WEIR__CLASSES] = {[WEIR__CLASS_UNKNOWN] = true};
  const char *separator = "";
  weir__say(c->r, "    of these  ");
  for (int i = 0; i < WEIR__CLASSES; i++) {
    int next = WEIR__CLASS_UNKNOWN;
    for (int k = 0; k < WEIR__CLASSES; k++)
      if (!is_done[k] && (next == WEIR__CLASS_UNKNOWN || c->m->classes[k] > c->m->classes[next]))
        next = k;
    is_done[next] = true;
    if (!c->m->classes[next])
      continue;
    weir__say(c->r, separator);
    weir__say_of(c->r, weir__class_name((weir__class)next), "{classes_at_peak.$} ");
    weir__say(c->r, weir__class_name((weir__class)next));
    separator = ", ";
  }
  weir__say(c->r, "\n");
}

static void add_classes(const context *c) {
  if (!c->m->has_classes || c->s->is_unknown) {
    WEIR__ROWS(c->r, JSON_NULL("classes_at_peak"));
    return;
  }
  WEIR__ROWS(c->r, JSON_OBJECT("classes_at_peak"));
  for (int i = 0; i < WEIR__CLASSES; i++)
    WEIR__ROWS(c->r, ROW_BYTES(weir__class_name((weir__class)i), c->m->classes[i]));
  WEIR__ROWS(c->r, JSON_CLOSE);
}

/* A recording without tags has no such key. */
static void add_tags(const context *c) {
  weir__summary_tag *tags;
  size_t count;
  if (weir__summarize_tags(c->recording, c->number, c->s, &tags, &count) || !count)
    return;
  weir__say(c->r, "    tags\n");
  WEIR__ROWS(c->r, JSON_LIST("tags"));
  for (size_t i = 0; i < count; i++) {
    WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_TEXT("name", tags[i].name), ROW_BYTES("at_peak", tags[i].at_peak),
               ROW_BYTES("peak", tags[i].peak), ROW_BYTES("at_end", tags[i].at_end));
    weir__say(c->r, "      {at_peak}  {name}, at most {peak}, {at_end} at the end\n");
    WEIR__ROWS(c->r, JSON_CLOSE);
  }
  WEIR__ROWS(c->r, JSON_CLOSE);
  free(tags);
}

static void say_end(const context *c) {
  if (c->s->is_end_told) {
    weir__say(c->r, "    at end    {end_requested} in use, as requested, of {end_reserved} reserved: computed from the "
                    "entries");
    weir__say(c->r, c->recording->was_killed ? "; the process was killed, or still runs\n" : "\n");
  } else if (c->recording->is_events_only)
    weir__say(c->r, "    at end    not known: the file has no list of segments\n");
  else {
    weir__say(c->r, "    at end    {end_active} in use of {end_reserved} reserved, in {large_segments} large and "
                    "{small_segments} small segments");
    weir__say(c->r, c->s->private ? ", some in private pools\n" : "\n");
  }
}

static void add_uses(const context *c) {
  const weir__summary *s = c->s;
  bool has_peak = !s->is_unknown && c->device->event_count;
  if (s->is_unknown)
    weir__say(c->r, "    peak      not known\n    at end    not known\n");
  if (has_peak) {
    weir__say(c->r, "    peak      {peak_live} in use: ");
    say_when(c, "peak_live_event", s->live.event);
    weir__say(c->r, "\n");
    if (c->m->has_classes)
      say_classes(c);
  }
  add_holders(c, "holders_at_peak", s->holders, s->is_unknown ? 0 : s->holder_count, has_peak);
  if (has_peak)
    add_tags(c);
  if (has_peak) {
    weir__say(c->r, "    peak      {peak_reserved} reserved: ");
    say_when(c, "peak_reserved_event", s->reserved.event);
    weir__say(c->r, "\n");
    if (c->graph)
      weir__say(c->r, "{_graph}");
  }
  if (!s->is_unknown)
    say_end(c);
  add_holders(c, "holders_at_end", s->at_end, s->at_end_count,
              !s->is_unknown && (s->is_end_told || !c->recording->is_events_only));
  add_classes(c);
}

/* ---- The whole ---- */

static bool is_used(const weir__recording_device *device) {
  return device->event_count || device->segment_count || device->peak_outside;
}

static void add_device(const context *c) {
  const weir__summary *s = c->s;
  bool has_blocks = !s->is_end_told && !c->recording->is_events_only, has_end = s->is_end_told || has_blocks;
  c->r->is_silent = !is_used(c->device);
  WEIR__ROWS(c->r, JSON_OBJECT(NULL), JSON_INTEGER("device", c->number),
             JSON_NATURAL("events", c->device->event_count));
  weir__say(c->r, "  *device {device}*\n");
  add_actions(c);
  WEIR__ROWS(c->r, JSON_TEXT("history", weir__completeness_name(s->completeness)),
             JSON_NATURAL("unknown_frees", s->unknown_frees), JSON_NATURAL("dropped", c->device->dropped));
  say_completeness(c);
  weir__outside_say(c->r, "    beside    ", c->device);
  add_peaks(c);
  weir__outside_rows(c->r, c->device);
  WEIR__ROWS(c->r, JSON_BOOL("has_stacks", s->has_stacks), JSON_NATURAL("streams", s->streams),
             JSON_NATURAL("large_segments", s->large_segments), JSON_NATURAL("small_segments", s->small_segments),
             JSON_NATURAL("private_segments", s->private), ROW_BYTES_IF(has_end, "end_reserved", s->end_reserved),
             ROW_BYTES_IF(has_blocks, "end_allocated", s->end_allocated),
             ROW_BYTES_IF(has_blocks, "end_active", s->end_active),
             ROW_BYTES_IF(has_end, "end_requested", s->end_requested), ROW_TEXT("_graph", c->graph, WEIR__UNIT_PLAIN));
  add_uses(c);
  WEIR__ROWS(c->r, JSON_NATURAL("training_steps", c->m->steps), JSON_CLOSE);
  c->r->is_silent = false;
}

static void add_settings(weir__report *r, const weir__recording *recording) {
  size_t changes = 0;
  for (size_t i = 0; i < recording->change_count; i++)
    changes += recording->changes[i].event > 0;
  WEIR__ROWS(r, JSON_TEXT("settings", recording->conf), JSON_NATURAL("_changes", changes));
  weir__say(r, recording->conf && *recording->conf ? "  settings    {settings}\n"
               : recording->setting_count          ? "  settings    the defaults\n"
                                                   : "  settings    not recorded\n");
  if (changes)
    weir__say(r, "              these are the last: settings or limits changed {_changes time} during the recording\n");
}

/* Pinned host memory, if the file has any. */
static void add_host(weir__report *r, const weir__recording *recording) {
  const weir__recording_device *host = &recording->host;
  const weir__summary_host sums = weir__summarize_host(host);
  if (!recording->has_host) {
    WEIR__ROWS(r, JSON_NULL("host"));
    return;
  }
  WEIR__ROWS(r, JSON_OBJECT("host"), JSON_NATURAL("segments", host->segment_count),
             ROW_BYTES("reserved", sums.reserved), ROW_BYTES("active", sums.active),
             JSON_NATURAL("events", host->event_count), JSON_CLOSE);
}

static void add_unknown_keys(weir__report *r, const weir__recording *recording) {
  WEIR__ROWS(r, JSON_LIST("not_understood"));
  for (size_t i = 0; i < recording->ignored_count; i++) {
    WEIR__ROWS(r, JSON_OBJECT(NULL), JSON_TEXT("where", recording->ignored[i].where),
               JSON_TEXT("key", recording->ignored[i].key), JSON_NATURAL("count", recording->ignored[i].count));
    weir__say(r, "  unknown key '{key}' of {where}, {count time}\n");
    WEIR__ROWS(r, JSON_CLOSE);
  }
  WEIR__ROWS(r, JSON_CLOSE);
}

void weir__summary_report(weir__report *r, const char *file, const weir__recording *recording,
                          const weir__summary *devices, const weir__summary_classes *classes, char *const *graphs) {
  size_t events = 0, used = 0;
  bool has_stacks = false;
  for (size_t i = 0; i < recording->device_count; i++) {
    const weir__recording_device *d = &recording->devices[i];
    events += d->event_count;
    used += is_used(d);
    has_stacks |= is_used(d) && devices[i].has_stacks;
  }
  weir__report_begin(r);
  WEIR__ROWS(r, ROW_FILE("file", file), JSON_NATURAL("_used", used), JSON_NATURAL("_events", events),
             JSON_NATURAL("_segments", recording->segment_count));
  weir__say(r, "*{file}*: {_used device}, {_events entry}");
  weir__say(r, recording->is_events_only ? ", recorded with WEIR_RECORD\n" : ", {_segments segment}\n");
  add_settings(r, recording);
  if (recording->host.segment_count || recording->host.event_count)
    weir__say(r, "  pinned host memory  {host.active} in use of {host.reserved}, in {host.segments segment}; "
                 "{host.events entry}\n");
  WEIR__ROWS(r, JSON_LIST("devices"));
  for (size_t i = 0; i < recording->device_count; i++)
    add_device(
        &(context){r, recording, &recording->devices[i], (int)i, &devices[i], &classes[i], graphs ? graphs[i] : NULL});
  WEIR__ROWS(r, JSON_CLOSE);
  if (used && !has_stacks) {
    weir__say(r, "  no stacks were recorded, so allocations are grouped by size: ");
    weir__say(r, weir__stacks_option(recording));
    weir__say(r, " records them\n");
  }
  add_host(r, recording);
  add_unknown_keys(r, recording);
  if (events) {
    weir__say(r, "  next: ");
    weir__say_command(r, "explain", "", file);
  } else if (used) {
    weir__say(r, "  next: ");
    weir__say(r, weir__record_advice);
  } else
    weir__say(r, "  nothing was recorded: the work must run between torch.cuda.memory._record_memory_history() and "
                 "_dump_snapshot()\n");
}
