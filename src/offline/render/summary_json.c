#include "offline/render/summary_json.h"

#include "offline/analyse/describe.h"
#include "offline/render/parts_json.h"

static void json_holders(weir__sink *sink, const weir__recording *recording, const char *key,
                         const weir__holder *holders, size_t count) {
  char text[WEIR__DESCRIBE_TEXT];
  WEIR__JSON(sink, JSON_LIST(key));
  for (size_t i = 0; i < count; i++) {
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_NATURAL("bytes", holders[i].bytes),
               JSON_NATURAL("count", holders[i].count));
    if (holders[i].size)
      WEIR__JSON(sink, JSON_NATURAL("size", holders[i].size));
    else
      WEIR__JSON(sink, JSON_TEXT("stack", weir__describe_stack(recording, holders[i].stack, text)));
    WEIR__JSON(sink, JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE);
}

static void json_peaks(weir__sink *sink, const weir__recording_device *device, const weir__summary *s) {
  bool is_known = !s->is_unknown;
  WEIR__JSON(sink, JSON_NATURAL_IF(is_known, "unknown_segments", s->unknown_segments),
             JSON_NATURAL_IF(is_known, "live_before", s->live_before),
             JSON_NATURAL_IF(is_known, "reserved_before", s->reserved_before),
             JSON_NATURAL_IF(is_known, "peak_live", s->live.bytes),
             JSON_NATURAL_IF(is_known, "peak_live_event", s->live.event),
             JSON_NATURAL_IF(is_known, "peak_reserved", s->reserved.bytes),
             JSON_NATURAL_IF(is_known, "peak_reserved_event", s->reserved.event));
  if (device->start)
    WEIR__JSON(sink, JSON_OBJECT("peak_before"), JSON_NATURAL("allocated", device->peak_allocated),
               JSON_NATURAL("reserved", device->peak_reserved), JSON_CLOSE);
  if (s->actions[WEIR_TRACE_OOM]) {
    WEIR__JSON(sink, JSON_OBJECT("first_oom"), JSON_NATURAL("event", s->first_oom),
               JSON_NATURAL("size", device->events[s->first_oom].size), JSON_CLOSE);
  } else
    WEIR__JSON(sink, JSON_NULL("first_oom"));
}

static void json_classes(weir__sink *sink, const weir__summary *s, const weir__summary_classes *m) {
  if (!m->has_classes || s->is_unknown) {
    WEIR__JSON(sink, JSON_NULL("classes_at_peak"));
    return;
  }
  WEIR__JSON(sink, JSON_OBJECT("classes_at_peak"));
  for (int i = 0; i < WEIR__CLASSES; i++)
    WEIR__JSON(sink, JSON_NATURAL(weir__class_name((weir__class)i), m->classes[i]));
  WEIR__JSON(sink, JSON_CLOSE);
}

static void json_device(weir__sink *sink, const weir__recording *recording, int number, const weir__summary *s,
                        const weir__summary_classes *m) {
  const weir__recording_device *device = &recording->devices[number];
  bool has_blocks = !s->is_end_told && !recording->is_events_only, has_end = s->is_end_told || has_blocks;
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_INTEGER("device", number), JSON_NATURAL("events", device->event_count),
             JSON_OBJECT("actions"));
  for (int i = 0; i <= WEIR__ACTION_UNKNOWN; i++)
    if (s->actions[i])
      WEIR__JSON(sink, JSON_NATURAL(weir_trace_action_name((weir_trace_action)i), s->actions[i]));
  WEIR__JSON(sink, JSON_CLOSE, JSON_INTEGER("first_us", s->first_us), JSON_INTEGER("last_us", s->last_us),
             JSON_TEXT("history", weir__completeness_name(s->completeness)),
             JSON_NATURAL("unknown_frees", s->unknown_frees), JSON_NATURAL("dropped", device->dropped));
  json_peaks(sink, device, s);
  weir__outside_json(sink, "outside", device);
  WEIR__JSON(sink, JSON_BOOL("has_stacks", s->has_stacks), JSON_NATURAL("streams", s->streams),
             JSON_NATURAL("large_segments", s->large_segments), JSON_NATURAL("small_segments", s->small_segments),
             JSON_NATURAL("private_segments", s->private), JSON_NATURAL_IF(has_end, "end_reserved", s->end_reserved),
             JSON_NATURAL_IF(has_blocks, "end_allocated", s->end_allocated),
             JSON_NATURAL_IF(has_blocks, "end_active", s->end_active),
             JSON_NATURAL_IF(has_end, "end_requested", s->end_requested));
  json_holders(sink, recording, "holders_at_peak", s->holders, s->is_unknown ? 0 : s->holder_count);
  json_holders(sink, recording, "holders_at_end", s->at_end, s->at_end_count);
  json_classes(sink, s, m);
  WEIR__JSON(sink, JSON_NATURAL("training_steps", m->steps), JSON_CLOSE);
}

void weir__summary_json(weir__sink *sink, const char *name, const weir__recording *recording,
                        const weir__summary *devices, const weir__summary_classes *classes) {
  WEIR__JSON(sink, JSON_TEXT("file", name), JSON_TEXT("settings", recording->conf), JSON_LIST("devices"));
  for (size_t i = 0; i < recording->device_count; i++)
    json_device(sink, recording, (int)i, &devices[i], &classes[i]);
  WEIR__JSON(sink, JSON_CLOSE);
  if (recording->has_host) {
    const weir__summary_host sums = weir__summarize_host(&recording->host);
    WEIR__JSON(sink, JSON_OBJECT("host"), JSON_NATURAL("segments", recording->host.segment_count),
               JSON_NATURAL("reserved", sums.reserved), JSON_NATURAL("active", sums.active),
               JSON_NATURAL("events", recording->host.event_count), JSON_CLOSE);
  } else
    WEIR__JSON(sink, JSON_NULL("host"));
  WEIR__JSON(sink, JSON_LIST("not_understood"));
  for (size_t i = 0; i < recording->ignored_count; i++)
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("where", recording->ignored[i].where),
               JSON_TEXT("key", recording->ignored[i].key), JSON_NATURAL("count", recording->ignored[i].count),
               JSON_CLOSE);
  WEIR__JSON(sink, JSON_CLOSE);
}
