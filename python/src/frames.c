/*
 * Python stacks for the history, which python/frames walks: enabling them, and functions for tests and benchmarks.
 */
#include "../frames/frames.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory.h"

/* ---- On and off ---- */

static PyObject *end_frames(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_frames_end();
  Py_RETURN_NONE;
}

/* Turns them off before the interpreter ends and destroys the states of threads that still run. */
static int end_at_exit(void) {
  static PyMethodDef end = {"_end_frames", end_frames, METH_NOARGS, "Turns Python frames in stacks off."};
  static bool is_registered;
  if (is_registered)
    return 0;
  PyObject *atexit = PyImport_ImportModule("atexit"), *function = atexit ? PyCFunction_New(&end, NULL) : NULL;
  PyObject *result = function ? PyObject_CallMethod(atexit, "register", "O", function) : NULL;
  is_registered = result != NULL;
  Py_XDECREF(result);
  Py_XDECREF(function);
  Py_XDECREF(atexit);
  return is_registered ? 0 : -1;
}

int pyweir_frames_use(bool on) {
  if (!on)
    weir_frames_end();
  else if (!weir_frames_are_on()) {
    if (end_at_exit() != 0)
      return -1;
    weir_frames_begin();
  }
  return 0;
}

bool pyweir_frames_wanted(void) {
  const char *folder = getenv("WEIR_RECORD"), *stacks = getenv("WEIR_RECORD_STACKS"), *guard = getenv("WEIR_GUARD");
  if (guard && (!strcmp(guard, "1") || !strcmp(guard, "light") || !strcmp(guard, "full")))
    return !(stacks && !strcmp(stacks, "none"));
  return folder && *folder && stacks && *stacks && strcmp(stacks, "none") != 0;
}

/* ---- For tests and the benchmark ---- */

enum { ROOM = 256 };

static PyObject *gather_frames(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_stack_frame frames[ROOM];
  bool were_on = weir_frames_are_on();
  if (pyweir_frames_use(true) != 0)
    return NULL;
  size_t count = weir_frames_gather(NULL, frames, ROOM);
  if (!were_on)
    weir_frames_end();
  return PyLong_FromSize_t(count);
}

static long parse_repeats(PyObject *object) {
  long repeats = PyLong_AsLong(object);
  if (repeats <= 0 && !PyErr_Occurred())
    PyErr_SetString(PyExc_ValueError, "the number of repeats must be positive");
  return repeats;
}

static PyObject *ns_each(const struct timespec *begin, const struct timespec *end, long repeats) {
  double spent = (double)(end->tv_sec - begin->tv_sec) * 1e9 + (double)(end->tv_nsec - begin->tv_nsec);
  return PyFloat_FromDouble(spent / (double)repeats);
}

/* The time to walk a stack, in nanoseconds, without the cost of a call from Python. */
static PyObject *time_frames(PyObject *module, PyObject *repeat_object) {
  (void)module;
  weir_stack_frame frames[ROOM];
  struct timespec begin, end;
  long repeats = parse_repeats(repeat_object);
  if (repeats <= 0)
    return NULL;
  bool were_on = weir_frames_are_on();
  if (pyweir_frames_use(true) != 0)
    return NULL;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < repeats; i++)
    weir_frames_gather(NULL, frames, ROOM);
  clock_gettime(CLOCK_MONOTONIC, &end);
  if (!were_on)
    weir_frames_end();
  return ns_each(&begin, &end, repeats);
}

/* The same for an allocation of 512 bytes and its free, including their recording. */
static PyObject *time_pairs(PyObject *module, PyObject *repeat_object) {
  (void)module;
  struct timespec begin, end;
  long repeats = parse_repeats(repeat_object);
  weir_allocator *allocator = repeats > 0 ? pyweir_need_allocator() : NULL;
  if (!allocator)
    return NULL;
  weir_status status = WEIR_OK;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < repeats && status == WEIR_OK; i++) {
    void *pointer;
    status = weir_allocator_alloc(allocator, 0, 512, NULL, &pointer);
    if (status == WEIR_OK)
      status = weir_allocator_free(allocator, pointer);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return status == WEIR_OK ? ns_each(&begin, &end, repeats) : pyweir_raise(status);
}

/* ---- Stacks on request ---- */

static PyObject *capture_stack(PyObject *module, PyObject *args) {
  (void)module;
  int python, native;
  if (!PyArg_ParseTuple(args, "pp:_capture_stack", &python, &native))
    return NULL;
  bool were_on = weir_frames_are_on();
  if (python && pyweir_frames_use(true) != 0)
    return NULL;
  uint32_t stack = 0;
  /* With the GIL: the frames are those of this thread, and the walk of the stack runs no Python code. */
  weir_status status = weir_stack_capture(native ? WEIR_STACKS_ALL : WEIR_STACKS_LANGUAGE, &stack);
  if (python && !were_on)
    weir_frames_end();
  return pyweir_check(status) == 0 ? PyLong_FromUnsignedLong(stack) : NULL;
}

typedef struct resolved {
  PyObject *frames;
  bool python, native;
} resolved;

static int add_frame(void *context, const char *function, const char *file, int line, int is_native) {
  resolved *out = context;
  if (!(is_native ? out->native : out->python))
    return 0;
  PyObject *frame = Py_BuildValue("{s:N,s:N,s:i}", "name", PyUnicode_DecodeFSDefault(function), "filename",
                                  PyUnicode_DecodeFSDefault(file), "line", line);
  int failed = !frame || PyList_Append(out->frames, frame) != 0;
  Py_XDECREF(frame);
  return failed;
}

static PyObject *resolve_stack(PyObject *module, PyObject *args) {
  (void)module;
  unsigned stack;
  int python, native;
  if (!PyArg_ParseTuple(args, "Ipp:_resolve_stack", &stack, &python, &native))
    return NULL;
  resolved out = {PyList_New(0), python, native};
  if (!out.frames)
    return NULL;
  weir_status status = weir_stack_visit(stack, add_frame, &out);
  if (PyErr_Occurred() || pyweir_check(status) != 0)
    Py_CLEAR(out.frames);
  return out.frames;
}

/* A folder whose frames stacks do not begin with. */
static PyObject *leave_out_folder(PyObject *module, PyObject *folder) {
  (void)module;
  static char *kept;
  const char *text = PyUnicode_AsUTF8(folder);
  char *copy = text ? strdup(text) : NULL;
  if (!copy)
    return text ? PyErr_NoMemory() : NULL;
  weir_frames_leave_out(copy);
  free(kept);
  kept = copy;
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_leave_out_folder", leave_out_folder, METH_O, "Leaves out innermost frames of files in a folder."},
    {"_capture_stack", capture_stack, METH_VARARGS, "(python, native): the number of the calling thread's stack."},
    {"_resolve_stack", resolve_stack, METH_VARARGS,
     "(stack, python, native): the frames of a stack as dicts with name, filename and line, innermost first."},
    {"_gather_frames", gather_frames, METH_NOARGS, "Returns the number of Python frames of the calling thread."},
    {"_time_frames", time_frames, METH_O, "(repeats): nanoseconds to walk the calling thread's stack."},
    {"_time_pairs", time_pairs, METH_O, "(repeats): nanoseconds of an allocation and its free, called from C."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_frames(PyObject *module) { return PyModule_AddFunctions(module, functions); }
