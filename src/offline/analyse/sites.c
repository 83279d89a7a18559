#include "offline/analyse/sites.h"

#include <string.h>

static const char *text_of(const weir__recording *recording, uint32_t id) {
  return id < recording->strings.count ? recording->strings.items[id].text : "";
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
  static const char *const ends[] = {"/weir", "/weir/_C", "/weir/accelerator", "/weir/backends", "/weir/compute"};
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

static weir__file_place place_of(const char *file) {
  weir__file_place p = {
      .is_known = true, .is_python = is_python(file), .is_named = *file != 0, .is_weir = is_weir(file)};
  bool in_library = weir__lies_in_library(file), is_unknown = !*file || strcmp(file, "??") == 0;
  if (is_unknown || p.is_weir || strstr(file, "/torch/") || strstr(file, "<frozen "))
    p.distance = FRAMEWORK;
  else
    p.distance = !in_library ? OWN : strstr(file, "-packages/") ? OTHER_LIBRARY : FRAMEWORK;
  /* Native code belongs to the interpreter and to extensions then. */
  p.beside_python = !p.is_python && *file != '<' && !in_library ? FRAMEWORK : p.distance;
  return p;
}

static weir__file_place place_of_frame(const weir__recording *recording, uint32_t frame, weir__file_place *places) {
  uint32_t name = recording->frames[frame].filename;
  if (!places || name >= recording->strings.count)
    return place_of(text_of(recording, name));
  if (!places[name].is_known)
    places[name] = place_of(text_of(recording, name));
  return places[name];
}

weir__site weir__site_of(const weir__recording *recording, uint32_t stack, weir__file_place *places) {
  const weir__recording_stack *s = &recording->stacks[stack < recording->stack_count ? stack : 0];
  weir__site found = {WEIR__NO_FRAME, WEIR__NO_FRAME};
  if (!s->count) /* a recording without frames has no array of them */
    return found;
  const uint32_t *frames = recording->stack_frames + s->first;
  distance closest = FRAMEWORK;
  bool has_python = false;
  for (size_t i = 0; i < s->count && !has_python; i++)
    has_python = place_of_frame(recording, frames[i], places).is_python;
  for (size_t i = 0; i < s->count; i++) {
    weir__file_place p = place_of_frame(recording, frames[i], places);
    distance d = has_python ? p.beside_python : p.distance;
    if (found.inner == WEIR__NO_FRAME && !p.is_weir && (has_python ? p.is_python : p.is_named))
      found.inner = frames[i];
    if (d < closest) {
      closest = d;
      found.own = frames[i];
    }
  }
  if (found.inner == WEIR__NO_FRAME)
    found.inner = frames[0];
  if (found.own == found.inner)
    found.own = WEIR__NO_FRAME;
  return found;
}
