/*
 * Pictures of snapshots: weir/offline.h for Python.
 */
#include "weir/offline.h"

#include <string.h>

#include "pyweir.h"

#define X(name, text) text,
static const char *const kinds[] = {WEIR_OFFLINE_PLOT_MAP(X) NULL};
static const char *const groups[] = {WEIR_OFFLINE_GROUP_MAP(X) NULL};
static const char *const moments[] = {WEIR_OFFLINE_MOMENT_MAP(X) NULL};
#undef X

/* The number of a name. -1 with a ValueError if there is no such name. */
static int find(const char *const *names, const char *what, const char *text) {
  for (int i = 0; names[i]; i++)
    if (strcmp(names[i], text) == 0)
      return i;
  PyErr_Format(PyExc_ValueError, "there is no %s '%s'", what, text);
  return -1;
}

typedef struct picture {
  char *svg;
  size_t length;
} picture;

static weir_status draw(const Py_buffer *pickle, const weir_offline_plot_options *options, picture *picture) {
  weir_offline_recording *recording;
  weir_offline_load_options load;
  weir_offline_load_options_init(&load);
  load.name = "the snapshot";
  weir_status status = weir_offline_recording_load_memory(pickle->buf, (size_t)pickle->len, &load, &recording);
  if (status)
    return status;
  FILE *file = open_memstream(&picture->svg, &picture->length);
  status =
      file ? weir_offline_recording_plot(recording, options, weir_write_file, file) : WEIR_ERROR_HOST_OUT_OF_MEMORY;
  if (file && fclose(file) != 0 && !status)
    status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
  weir_offline_recording_destroy(recording);
  return status;
}

static PyObject *plot(PyObject *module, PyObject *args, PyObject *keywords) {
  static char *names[] = {"pickle", "kind", "by", "at", "event", "device", "width", "height", "dark", "title", NULL};
  const char *kind = "memory", *by = "auto", *at = "auto", *title = NULL;
  unsigned long long event = 0;
  int device = -1, width = 0, height = 0, dark = 0;
  Py_buffer pickle;
  (void)module;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "y*|$sssKiiipz:_plot", names, &pickle, &kind, &by, &at, &event,
                                   &device, &width, &height, &dark, &title))
    return NULL;
  int kind_number = find(kinds, "kind", kind), by_number = kind_number < 0 ? -1 : find(groups, "group", by),
      at_number = by_number < 0 ? -1 : find(moments, "moment", at);
  PyObject *result = NULL;
  if (at_number >= 0) {
    weir_offline_plot_options options;
    picture picture = {0};
    weir_status status;
    weir_offline_plot_options_init(&options);
    options.kind = (weir_offline_plot)kind_number;
    options.by = (weir_offline_group)by_number;
    options.at = (weir_offline_moment)at_number;
    options.event = event;
    options.device = device;
    options.width = width;
    options.height = height;
    options.is_dark = dark;
    options.title = title;
    PYWEIR_CALL(status, draw(&pickle, &options, &picture));
    if (pyweir_check(status) == 0)
      result = PyUnicode_DecodeUTF8(picture.svg, (Py_ssize_t)picture.length, NULL);
    free(picture.svg);
  }
  PyBuffer_Release(&pickle);
  return result;
}

static PyMethodDef functions[] = {
    {"_plot", PYWEIR_KEYWORDS(plot), "(pickle of a snapshot, *, kind, by, at, event, device, ...): an SVG document."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_offline(PyObject *module) { return PyModule_AddFunctions(module, functions); }
