#include "offline/describe.h"

#include <stdio.h>
#include <string.h>

static const char *text_of(const weir__snapshot *snapshot, uint32_t id) {
  return id < snapshot->strings.count ? snapshot->strings.items[id].text : "";
}

bool weir__lies_in_library(const char *file) {
  static const char *const places[] = {"/site-packages/", "/dist-packages/", "/torch/", "/lib/python", "<frozen "};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    if (strstr(file, places[i]))
      return true;
  return false;
}

/* What its user did not write, as far as one knows. */
static bool is_library(const char *file) { return weir__lies_in_library(file) || !*file || strcmp(file, "??") == 0; }

static int put_frame(const weir__snapshot *snapshot, uint32_t frame, const char *before, char *text, size_t size) {
  const weir__snapshot_frame *f = &snapshot->frames[frame];
  const char *file = text_of(snapshot, f->filename), *slash = strrchr(file, '/');
  return snprintf(text, size, "%s%.48s (%.40s:%lld)", before, text_of(snapshot, f->name), slash ? slash + 1 : file,
                  (long long)f->line);
}

const char *weir__describe_stack(const weir__snapshot *snapshot, uint32_t stack, char text[WEIR__DESCRIBE_TEXT]) {
  const weir__snapshot_stack *s = &snapshot->stacks[stack < snapshot->stack_count ? stack : 0];
  *text = 0;
  if (!s->count)
    return text;
  const uint32_t *frames = snapshot->stack_frames + s->first;
  size_t own = 0;
  while (own < s->count && is_library(text_of(snapshot, snapshot->frames[frames[own]].filename)))
    own++;
  int length = put_frame(snapshot, frames[0], "", text, WEIR__DESCRIBE_TEXT);
  if (own > 0 && own < s->count && length > 0 && length < WEIR__DESCRIBE_TEXT)
    put_frame(snapshot, frames[own], ", from ", text + length, WEIR__DESCRIBE_TEXT - (size_t)length);
  return text;
}

const char *weir__describe_phase(const weir__snapshot *snapshot, int device, int64_t time_us,
                                 char text[WEIR__DESCRIBE_TEXT]) {
  enum { DEEPEST = 32 };
  const weir__snapshot_annotation *open[DEEPEST], *last = NULL;
  size_t depth = 0;
  *text = 0;
  if (!time_us)
    return text;
  for (size_t i = 0; i < snapshot->annotation_count; i++) {
    const weir__snapshot_annotation *a = &snapshot->annotations[i];
    if (a->time_us > time_us || (a->device >= 0 && a->device != device))
      continue;
    if (strcmp(text_of(snapshot, a->stage), "START") == 0) {
      if (depth < DEEPEST)
        open[depth++] = a;
    } else {
      for (size_t k = depth; k-- > 0;)
        if (open[k]->name == a->name) {
          depth = k;
          break;
        }
      last = a;
    }
  }
  if (depth)
    snprintf(text, WEIR__DESCRIBE_TEXT, "in %.80s", text_of(snapshot, open[depth - 1]->name));
  else if (last)
    snprintf(text, WEIR__DESCRIBE_TEXT, "after %.80s", text_of(snapshot, last->name));
  return text;
}

const char *weir__describe_span(int64_t microseconds, char text[32]) {
  double us = (double)microseconds;
  if (us < 1e3)
    snprintf(text, 32, "%.0f us", us);
  else if (us < 1e6)
    snprintf(text, 32, "%.1f ms", us / 1e3);
  else if (us < 120e6)
    snprintf(text, 32, "%.2f s", us / 1e6);
  else if (us < 7200e6)
    snprintf(text, 32, "%.0f min", us / 60e6);
  else
    snprintf(text, 32, "%.1f h", us / 3600e6);
  return text;
}

const char *weir__describe_stream(const weir__snapshot *snapshot, uint16_t stream, char text[48]) {
  int64_t handle = stream < snapshot->stream_count ? snapshot->streams[stream] : 0;
  if (handle)
    snprintf(text, 48, "stream 0x%llx", (unsigned long long)handle);
  else
    snprintf(text, 48, "the default stream");
  return text;
}
