#include "offline/analyse/describe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"

static const char *text_of(const weir__recording *recording, uint32_t id) {
  return id < recording->strings.count ? recording->strings.items[id].text : "";
}

/* Copies as much of a text as there is room for, without control characters. */
static const char *escaped(const char *text, char *out, size_t size) {
  weir__escape_text(text, strlen(text), out, size);
  return out;
}

bool weir__lies_in_library(const char *file) {
  static const char *const places[] = {"/site-packages/", "/dist-packages/", "/torch/", "/lib/python", "<frozen "};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    if (strstr(file, places[i]))
      return true;
  return false;
}

static bool is_python(const char *file) {
  size_t length = strlen(file);
  return (length > 3 && strcmp(file + length - 3, ".py") == 0) || strncmp(file, "<ipython", 8) == 0;
}

/* A file of the Python package weir. A project in a folder of that name has others below it. */
static bool is_in_package(const char *file) {
  const char *name = strrchr(file, '/');
  size_t folder = name ? (size_t)(name - file) : 0;
  static const char *const ends[] = {"/weir", "/weir/backends"};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    size_t length = strlen(ends[i]);
    if (folder >= length && memcmp(file + folder - length, ends[i], length) == 0)
      return is_python(file);
  }
  return false;
}

/* Weir's own code, native or in Python. */
static bool is_weir(const char *file) {
  return strstr(file, "libweir") || strstr(file, "/_weir.") || is_in_package(file);
}

/* How far a frame is from the program's own code, by its file. */
typedef enum distance { OWN, OTHER_LIBRARY, FRAMEWORK } distance;

/* What the name of a file says. Names have many frames, and looking for words in them takes long, so
 * weir__describe_alike() keeps it for each string. */
typedef struct place {
  bool is_known, is_python, is_named, is_weir;
  unsigned char distance;      /* if all frames are native, or it is a file of Python */
  unsigned char beside_python; /* if it is native, and other frames of the stack are Python's */
} place;

static place place_of(const char *file) {
  place p = {.is_known = true, .is_python = is_python(file), .is_named = *file != 0, .is_weir = is_weir(file)};
  bool in_library = weir__lies_in_library(file), is_unknown = !*file || strcmp(file, "??") == 0;
  if (is_unknown || p.is_weir || strstr(file, "/torch/") || strstr(file, "<frozen "))
    p.distance = FRAMEWORK;
  else
    p.distance = !in_library ? OWN : strstr(file, "-packages/") ? OTHER_LIBRARY : FRAMEWORK;
  /* Native code belongs to the interpreter and to extensions then. */
  p.beside_python = !p.is_python && *file != '<' && !in_library ? FRAMEWORK : p.distance;
  return p;
}

static place place_of_frame(const weir__recording *recording, uint32_t frame, place *places) {
  uint32_t name = recording->frames[frame].filename;
  if (!places || name >= recording->strings.count)
    return place_of(text_of(recording, name));
  if (!places[name].is_known)
    places[name] = place_of(text_of(recording, name));
  return places[name];
}

#define NO_FRAME UINT32_MAX

/* The frames that describe a stack: the innermost one, and the innermost of the program's own code, or else of a
 * library other than PyTorch. Native frames are skipped if there are Python frames, and Weir's own always. */
typedef struct shown {
  uint32_t inner, own;
} shown;

/* `places` are those of the strings, or NULL. */
static shown frames_of(const weir__recording *recording, uint32_t stack, place *places) {
  const weir__recording_stack *s = &recording->stacks[stack < recording->stack_count ? stack : 0];
  shown found = {NO_FRAME, NO_FRAME};
  if (!s->count) /* a recording without frames has no array of them */
    return found;
  const uint32_t *frames = recording->stack_frames + s->first;
  distance closest = FRAMEWORK;
  bool has_python = false;
  for (size_t i = 0; i < s->count && !has_python; i++)
    has_python = place_of_frame(recording, frames[i], places).is_python;
  for (size_t i = 0; i < s->count; i++) {
    place p = place_of_frame(recording, frames[i], places);
    distance d = has_python ? p.beside_python : p.distance;
    if (found.inner == NO_FRAME && !p.is_weir && (has_python ? p.is_python : p.is_named))
      found.inner = frames[i];
    if (d < closest) {
      closest = d;
      found.own = frames[i];
    }
  }
  if (found.inner == NO_FRAME)
    found.inner = frames[0];
  if (found.own == found.inner)
    found.own = NO_FRAME;
  return found;
}

static int put_frame(const weir__recording *recording, uint32_t frame, const char *before, char *text, size_t size) {
  const weir__recording_frame *f = &recording->frames[frame];
  const char *file = text_of(recording, f->filename), *slash = strrchr(file, '/');
  char name[49], base[41];
  return snprintf(text, size, "%s%s (%s:%lld)", before, escaped(text_of(recording, f->name), name, sizeof name),
                  escaped(slash ? slash + 1 : file, base, sizeof base), (long long)f->line);
}

static const char *put_frames(const weir__recording *recording, const shown *frames, char text[WEIR__DESCRIBE_TEXT]) {
  *text = 0;
  if (frames->inner == NO_FRAME)
    return text;
  int length = put_frame(recording, frames->inner, "", text, WEIR__DESCRIBE_TEXT);
  if (frames->own != NO_FRAME && length > 0 && length < WEIR__DESCRIBE_TEXT)
    put_frame(recording, frames->own, ", from ", text + length, WEIR__DESCRIBE_TEXT - (size_t)length);
  return text;
}

const char *weir__describe_stack(const weir__recording *recording, uint32_t stack, char text[WEIR__DESCRIBE_TEXT]) {
  shown frames = frames_of(recording, stack, NULL);
  return put_frames(recording, &frames, text);
}

/* ---- Stacks that are described alike ---- */

/* Stacks by the frames that describe them, and by their texts. */
typedef struct site {
  shown frames;
  uint32_t stack; /* + 1: the first such;  0 if it is empty */
} site;

static site *site_of(site *table, size_t room, const shown *frames) {
  size_t slot = (size_t)weir__hash_bytes(0, frames, sizeof *frames) & (room - 1);
  while (table[slot].stack && memcmp(&table[slot].frames, frames, sizeof *frames) != 0)
    slot = (slot + 1) & (room - 1);
  return &table[slot];
}

static site *look_of(const weir__recording *recording, site *table, size_t room, const shown *frames) {
  char text[WEIR__DESCRIBE_TEXT] = "", other[WEIR__DESCRIBE_TEXT];
  put_frames(recording, frames, text);
  size_t slot = (size_t)weir__hash_bytes(0, text, strlen(text)) & (room - 1);
  while (table[slot].stack && strcmp(put_frames(recording, &table[slot].frames, other), text) != 0)
    slot = (slot + 1) & (room - 1);
  return &table[slot];
}

weir_status weir__describe_alike(const weir__recording *recording, uint32_t **alike) {
  size_t room = 64;
  while (room < 2 * recording->stack_count)
    room *= 2;
  site *sites = calloc(2 * room, sizeof *sites), *looks = sites ? sites + room : NULL;
  place *places = calloc(recording->strings.count + 1, sizeof *places);
  uint32_t *result = malloc((recording->stack_count + 1) * sizeof *result);
  if (!sites || !places || !result) {
    free(sites);
    free(places);
    free(result);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu stacks", recording->stack_count);
  }
  result[0] = 0;
  for (size_t i = 0; i < recording->stack_count; i++) {
    shown frames = frames_of(recording, (uint32_t)i, places);
    site *known = site_of(sites, room, &frames);
    if (!known->stack) {
      site *look = look_of(recording, looks, room, &frames);
      if (!look->stack)
        *look = (site){frames, (uint32_t)i + 1};
      *known = (site){frames, look->stack};
    }
    result[i] = known->stack - 1;
  }
  free(sites);
  free(places);
  *alike = result;
  return WEIR_OK;
}

const char *weir__describe_phase(const weir__recording *recording, int device, int64_t time_us,
                                 char text[WEIR__DESCRIBE_TEXT]) {
  enum { DEEPEST = 32 };
  const weir__recording_annotation *open[DEEPEST], *last = NULL;
  size_t depth = 0;
  char name[81];
  *text = 0;
  if (!time_us)
    return text;
  for (size_t i = 0; i < recording->annotation_count; i++) {
    const weir__recording_annotation *a = &recording->annotations[i];
    if (a->time_us > time_us || (a->device >= 0 && a->device != device))
      continue;
    if (strcmp(text_of(recording, a->stage), "START") == 0) {
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
    snprintf(text, WEIR__DESCRIBE_TEXT, "in %s", escaped(text_of(recording, open[depth - 1]->name), name, sizeof name));
  else if (last)
    snprintf(text, WEIR__DESCRIBE_TEXT, "after %s", escaped(text_of(recording, last->name), name, sizeof name));
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

const char *weir__describe_stream(const weir__recording *recording, uint16_t stream, char text[48]) {
  int64_t handle = stream < recording->stream_count ? recording->streams[stream] : 0;
  if (handle)
    snprintf(text, 48, "stream 0x%llx", (unsigned long long)handle);
  else
    snprintf(text, 48, "the default stream");
  return text;
}
