#include <stdlib.h>

#include "offline/analyse/describe.h"
#include "offline/render/view_parts.h"

/* The stacks that something in the view refers to, numbered in the order of the first reference. */

/* Frames of all stacks that are written. Those of further stacks are left out: they have a title only. */
enum { MAX_FRAMES = 2000000 };

uint32_t weir__view_stack(weir__view *view, uint32_t stack) {
  if (stack >= view->recording->stack_count)
    stack = 0;
  if (!view->stack_number[stack]) {
    view->stack_list[view->stack_count++] = stack;
    view->stack_number[stack] = (uint32_t)view->stack_count;
  }
  return view->stack_number[stack] - 1;
}

static const char *text_of(const weir__recording *recording, uint32_t string) {
  return string < recording->strings.count ? recording->strings.items[string].text : "";
}

/* Numbers the frames in the order of their first use, and writes the lists of them. */
static void write_lists(const weir__view *view, weir__sink *out, uint32_t *number, uint32_t *frames, size_t *count) {
  const weir__recording *recording = view->recording;
  size_t written = 0;
  WEIR__JSON(out, JSON_LIST("stacks"));
  for (size_t i = 0; i < view->stack_count; i++) {
    const weir__recording_stack *s = &recording->stacks[view->stack_list[i]];
    WEIR__JSON(out, JSON_LIST(NULL));
    for (size_t k = 0; k < s->count && written < MAX_FRAMES; k++, written++) {
      uint32_t frame = recording->stack_frames[s->first + k];
      if (!number[frame]) {
        frames[(*count)++] = frame;
        number[frame] = (uint32_t)*count;
      }
      WEIR__JSON(out, JSON_NATURAL(NULL, number[frame] - 1));
    }
    WEIR__JSON(out, JSON_CLOSE);
  }
  WEIR__JSON(out, JSON_CLOSE);
}

static void write_frames(const weir__view *view, weir__sink *out, const uint32_t *frames, size_t count) {
  const weir__recording *recording = view->recording;
  WEIR__JSON(out, JSON_LIST("frames"));
  for (size_t i = 0; i < count; i++) {
    const weir__recording_frame *f = &recording->frames[frames[i]];
    WEIR__JSON(out, JSON_LIST(NULL), JSON_TEXT(NULL, text_of(recording, f->name)),
               JSON_TEXT(NULL, text_of(recording, f->filename)), JSON_INTEGER(NULL, f->line), JSON_CLOSE);
  }
  WEIR__JSON(out, JSON_CLOSE);
}

static void write_titles(const weir__view *view, weir__sink *out) {
  char text[WEIR__DESCRIBE_TEXT];
  WEIR__JSON(out, JSON_LIST("titles"));
  for (size_t i = 0; i < view->stack_count; i++) {
    weir__describe_stack(view->recording, view->stack_list[i], text);
    WEIR__JSON(out, JSON_TEXT(NULL, *text ? text : "no stack recorded"));
  }
  WEIR__JSON(out, JSON_CLOSE);
}

weir_status weir__view_write_stacks(weir__view *view) {
  const weir__recording *recording = view->recording;
  char *text = NULL;
  size_t size = 0, frame_count = 0;
  uint32_t *number = calloc(recording->frame_count + 1, sizeof *number);
  uint32_t *frames = malloc((recording->frame_count + 1) * sizeof *frames);
  weir__sink *out = malloc(sizeof *out);
  FILE *file = number && frames && out ? open_memstream(&text, &size) : NULL;
  weir_status status = file ? WEIR_OK : weir__view_no_memory();
  if (file) {
    weir__sink_begin(out, &weir__json_format, weir_write_file, file);
    WEIR__JSON(out, JSON_OBJECT(NULL));
    write_lists(view, out, number, frames, &frame_count);
    write_frames(view, out, frames, frame_count);
    write_titles(view, out);
    WEIR__JSON(out, JSON_CLOSE);
    status = weir__sink_end(out, NULL);
    if (fclose(file) && !status)
      status = weir__view_no_memory();
  }
  if (!status) {
    WEIR__JSON(view->index, JSON_OBJECT("stacks"), JSON_NATURAL("count", view->stack_count));
    status = weir__view_add_chunk(view, "k", 0, text, size);
    WEIR__JSON(view->index, JSON_CLOSE);
  }
  free(text);
  free(out);
  free(frames);
  free(number);
  return status;
}
