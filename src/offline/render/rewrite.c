#include "offline/render/rewrite.h"

/* A recording as inspect/write_snapshot.h wants it. */
typedef struct recording_view {
  const weir__recording *s;
  int device; /* -1 for all */
} recording_view;

static const weir__recording *recording_of(const void *source) { return ((const recording_view *)source)->s; }

static bool is_wanted(const void *source, int device) {
  int only = ((const recording_view *)source)->device;
  return only < 0 || only == device;
}

static const char *text(const void *source, uint32_t number) {
  return recording_of(source)->strings.items[number].text;
}

static weir_pool_id pool(const void *source, uint32_t number) {
  const int64_t *id = recording_of(source)->pools[number].id;
  return (weir_pool_id){(uint64_t)id[0], (uint64_t)id[1]};
}

/* Pinned host memory belongs to no device: it is left out where only one is written. */
static size_t segment_count(const void *source, int device) {
  const weir__recording *s = recording_of(source);
  if (device == WEIR__VIEW_HOST)
    return is_wanted(source, device) ? s->host.segment_count : 0;
  return s->segment_count;
}

static const weir__recording_segment *segment_at(const void *source, int device, size_t index) {
  const weir__recording *s = recording_of(source);
  return device == WEIR__VIEW_HOST ? &s->host.segments[index] : &s->segments[index];
}

static bool segment(const void *source, int device, size_t index, weir_snapshot_segment *to, int64_t *stream) {
  const weir__recording_segment *s = segment_at(source, device, index);
  *to = (weir_snapshot_segment){.size = sizeof *to,
                                .address = s->address,
                                .bytes = s->size,
                                .allocated = s->allocated,
                                .active = s->active,
                                .requested = s->requested,
                                .block_count = s->block_count,
                                .pool = pool(source, s->pool),
                                .device = s->device,
                                .stack = s->stack,
                                .is_large = s->is_large,
                                .is_expandable = s->is_expandable};
  *stream = recording_of(source)->streams[s->stream];
  return is_wanted(source, s->device);
}

static void block(const void *source, int device, size_t segment, size_t index, weir_snapshot_block *to) {
  const weir__recording_block *b = &segment_at(source, device, segment)->blocks[index];
  *to = (weir_snapshot_block){sizeof *to, b->address, b->size, b->requested, b->stack, b->state};
}

static const weir__recording_device *device_at(const void *source, int device) {
  const weir__recording *s = recording_of(source);
  return device == WEIR__VIEW_HOST ? &s->host : &s->devices[device];
}

static size_t entry_count(const void *source, int device) {
  return is_wanted(source, device) ? device_at(source, device)->event_count : 0;
}

static void entry(const void *source, int device, size_t index, weir__view_entry *to) {
  const weir__recording *s = recording_of(source);
  const weir__recording_entry *e = &device_at(source, device)->events[index];
  const weir__recording_remark *remark = &s->remarks[e->remark];
  *to = (weir__view_entry){.address = e->address,
                           .bytes = e->size,
                           .stream = s->streams[e->stream],
                           .time_us = e->time_us,
                           .stack = e->stack,
                           .pool = e->pool == WEIR__RECORDING_NO_POOL ? WEIR__VIEW_NONE : e->pool,
                           .compile_context = remark->compile_context,
                           .user_metadata = remark->user_metadata,
                           .phase = remark->phase,
                           .action_text = e->action == WEIR__ACTION_UNKNOWN ? remark->action : WEIR__VIEW_NONE,
                           .action = e->action,
                           .reason = weir__reason_name((weir__reason)e->reason),
                           .has_time = e->time_us != 0,
                           .phase_begins = e->phase_begins};
}

static bool annotation(const void *source, size_t index, weir__view_annotation *to) {
  const weir__recording *s = recording_of(source);
  const weir__recording_annotation *a =
      index < s->annotation_count ? &s->annotations[index] : &s->works[index - s->annotation_count].annotation;
  const weir__text_pair *pairs = a->pair_count ? &s->pairs[a->first_pair] : NULL;
  *to = (weir__view_annotation){pairs, a->pair_count, a->stage, a->name, a->device, a->time_us};
  return a->device < 0 || is_wanted(source, a->device);
}

static bool frames(void *source, uint32_t stack, weir__snapshot_writer *writer) {
  const weir__recording *s = recording_of(source);
  for (size_t i = 0; i < s->stacks[stack].count; i++) {
    uint32_t number = s->stack_frames[s->stacks[stack].first + i];
    const weir__recording_frame *f = &s->frames[number];
    weir__write_frame(writer, number, f->name, f->filename, f->line);
  }
  return true;
}

weir_status weir__rewrite(const weir__recording *recording, int device, const weir__sink_format *format,
                          weir__step step, void *step_context, FILE *file) {
  recording_view source = {recording, device};
  const weir__snapshot_view view = {.source = &source,
                                    .device_count = recording->device_count,
                                    .annotation_count = recording->annotation_count + recording->work_count,
                                    .settings = recording->settings,
                                    .setting_count = recording->setting_count,
                                    .has_history = recording->has_history,
                                    .has_host = recording->has_host,
                                    .has_signed_pools = true,
                                    .text = text,
                                    .pool = pool,
                                    .segment_count = segment_count,
                                    .segment = segment,
                                    .block = block,
                                    .entry_count = entry_count,
                                    .entry = entry,
                                    .annotation = annotation,
                                    .frames = frames,
                                    .step = step,
                                    .step_context = step_context,
                                    .step_count = recording->event_count};
  return weir__write_view(NULL, &view, format, weir_write_file, file);
}
