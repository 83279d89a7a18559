/*
 * The history: recording, snapshots as Python objects, and callbacks.
 */
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Recording ---- */

static int pick(const char *text, const char *const *names, int count, const char *expected) {
  for (int i = 0; i < count; i++)
    if ((!text && !names[i]) || (text && names[i] && strcmp(text, names[i]) == 0))
      return i;
  PyErr_SetString(PyExc_ValueError, expected);
  return -1;
}

/* Converts a sequence of action names to a bit mask. */
static int parse_actions(PyObject *object, unsigned *bits) {
  *bits = 0;
  if (object == Py_None)
    return 0;
  PyObject *list = PySequence_Fast(object, "skip_actions must be a list of names");
  if (!list)
    return -1;
  int result = 0;
  for (Py_ssize_t i = 0; result == 0 && i < PySequence_Fast_GET_SIZE(list); i++) {
    PyObject *item = PySequence_Fast_GET_ITEM(list, i);
    const char *name = PyUnicode_Check(item) ? PyUnicode_AsUTF8(item) : NULL;
    unsigned bit;
    if (!name) {
      if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "skip_actions must be a list of names");
      result = -1;
    } else if (weir_history_action(name, &bit) != WEIR_OK) {
      PyErr_Format(PyExc_ValueError, "Unknown TraceEntry action: %U", item);
      result = -1;
    } else
      *bits |= bit;
  }
  Py_DECREF(list);
  return result;
}

/* Parses an int of any size; one that is too large means no limit. */
static int parse_entries(PyObject *object, size_t *entries) {
  PyObject *number = PyNumber_Index(object);
  if (!number)
    return -1;
  int overflow;
  long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  Py_DECREF(number);
  if (value == -1 && PyErr_Occurred())
    return -1;
  if (overflow < 0 || (!overflow && value < 0)) {
    PyErr_SetString(PyExc_ValueError, "max_entries must not be negative");
    return -1;
  }
  *entries = overflow || value >= PY_SSIZE_T_MAX ? SIZE_MAX : value ? (size_t)value : 1;
  return 0;
}

/* Whether memory_annotation() records its blocks. Python code queries this. */
static bool record_annotations;

static PyObject *record(weir_history_options *options, bool annotations) {
  weir_allocator *allocator = pyweir_need_allocator();
  if (!allocator)
    return NULL;
  bool stacks = options->mode != WEIR_HISTORY_OFF && options->context != WEIR_CONTEXT_NONE;
  weir_status status;
  if (stacks && pyweir_frames_use(true) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_history_record(allocator, options));
  if (!stacks)
    pyweir_frames_use(false);
  if (status == WEIR_OK)
    record_annotations = annotations && options->mode != WEIR_HISTORY_OFF;
  return pyweir_none(status);
}

static PyObject *record_history(PyObject *module, PyObject *args, PyObject *keywords) {
  (void)module;
  static char *names[] = {"enabled",         "context",     "stacks",       "max_entries", "clear_history",
                          "compile_context", "annotations", "skip_actions", NULL};
  static const char *const modes[] = {NULL, "state", "all"};
  static const char *const contexts[] = {NULL, "state", "alloc", "all"};
  static const char *const stack_kinds[] = {"python", "all"};
  const char *enabled = "all", *context = "all", *stacks = "all";
  PyObject *max_entries = NULL, *skip = Py_None;
  int clear = 0, compile_context = 0, annotations = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|zzsOpppO:_cuda_record_memory_history", names, &enabled, &context,
                                   &stacks, &max_entries, &clear, &compile_context, &annotations, &skip))
    return NULL;
  int mode = pick(enabled, modes, 3, "expected state to be 'state', 'all', or None");
  int kept = mode < 0 ? -1 : pick(context, contexts, 4, "expected context to be 'state', 'alloc', 'all', or None");
  int kind = kept < 0 ? -1 : pick(stacks, stack_kinds, 2, "expected stacks to be 'python', or 'all'");
  weir_history_options options;
  weir_history_options_init(&options);
  options.max_entries = SIZE_MAX;
  if (kind < 0 || parse_actions(skip, &options.skip) != 0 ||
      (max_entries && parse_entries(max_entries, &options.max_entries) != 0))
    return NULL;
  options.mode = (weir_history_mode)mode;
  options.context = (weir_history_context)kept;
  options.stacks = kind ? WEIR_STACKS_ALL : WEIR_STACKS_LANGUAGE;
  options.clear = clear;
  if (options.mode != WEIR_HISTORY_ALL)
    options.max_entries = 1;
  return record(&options, annotations);
}

static PyObject *record_history_legacy(PyObject *module, PyObject *args, PyObject *keywords) {
  (void)module;
  static char *names[] = {"enabled",
                          "record_context",
                          "trace_alloc_max_entries",
                          "trace_alloc_record_context",
                          "record_context_cpp",
                          "clear_history",
                          "compile_context",
                          "annotations",
                          "skip_actions",
                          NULL};
  int enabled, record_context = 1, trace_context = 0, native = 0, clear = 0, compile_context = 0, annotations = 0;
  PyObject *max_entries = NULL, *skip = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "p|pOpppppO:_cuda_record_memory_history_legacy", names, &enabled,
                                   &record_context, &max_entries, &trace_context, &native, &clear, &compile_context,
                                   &annotations, &skip))
    return NULL;
  weir_history_options options;
  weir_history_options_init(&options);
  options.max_entries = 1;
  if (parse_actions(skip, &options.skip) != 0 || (max_entries && parse_entries(max_entries, &options.max_entries) != 0))
    return NULL;
  options.mode = enabled ? WEIR_HISTORY_ALL : WEIR_HISTORY_OFF;
  options.context = !enabled         ? WEIR_CONTEXT_NONE
                    : trace_context  ? WEIR_CONTEXT_ALL
                    : record_context ? WEIR_CONTEXT_STATE
                                     : WEIR_CONTEXT_NONE;
  options.stacks = native ? WEIR_STACKS_ALL : WEIR_STACKS_LANGUAGE;
  options.clear = clear;
  return record(&options, annotations);
}

static PyObject *is_history_enabled(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  int is_on = 0;
  if (pyweir_started)
    weir_history_is_on(pyweir_allocator(), &is_on);
  return PyBool_FromLong(is_on);
}

static PyObject *history_info(PyObject *module, PyObject *device) {
  (void)module;
  int number;
  weir_history_info info = {.size = sizeof info};
  if (pyweir_need_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_history_get_info(pyweir_allocator(), number, &info));
  if (pyweir_check(status) != 0)
    return NULL;
  return Py_BuildValue("{sKsKsKsKsK}", "kept", (unsigned long long)info.kept, "dropped",
                       (unsigned long long)info.dropped, "annotations", (unsigned long long)info.annotations,
                       "annotations_dropped", (unsigned long long)info.annotations_dropped, "lost",
                       (unsigned long long)info.lost);
}

/* ---- Snapshots ---- */

/* Pinned memory is in it while the history is recorded, as in PyTorch. `host` may be NULL. Called without the GIL. */
static weir_status take_snapshot(const weir_snapshot_options *options, weir_host_allocator *host,
                                 weir_snapshot **snapshot) {
  int is_on = 0;
  weir_status status = weir_snapshot_take(pyweir_allocator(), options, snapshot);
  if (status != WEIR_OK || !host || weir_history_is_on(pyweir_allocator(), &is_on) != WEIR_OK || !is_on)
    return status;
  status = weir_snapshot_add_host(*snapshot, host);
  if (status != WEIR_OK)
    weir_snapshot_destroy(*snapshot);
  return status;
}

/* Returns a snapshot in memory with the contents of the file. Called without the GIL; the caller frees the bytes. */
static weir_status pickle_snapshot(const weir_snapshot_options *options, weir_host_allocator *host, char **bytes,
                                   size_t *length) {
  weir_snapshot *snapshot;
  weir_status status = take_snapshot(options, host, &snapshot);
  if (status != WEIR_OK)
    return status;
  FILE *file = open_memstream(bytes, length);
  if (!file) {
    status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
    goto destroy_snapshot;
  }
  status = weir_snapshot_write(snapshot, WEIR_SNAPSHOT_PICKLE, weir_write_file, file);
  if (fclose(file) != 0 && status == WEIR_OK)
    status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
  if (status != WEIR_OK) {
    free(*bytes);
    *bytes = NULL;
  }

destroy_snapshot:
  weir_snapshot_destroy(snapshot);
  return status;
}

static int parse_unsigned(PyObject *object, uint64_t *value) {
  if (!PyLong_Check(object)) {
    PyErr_SetString(PyExc_TypeError, "mempool_id elements must be integers");
    return -1;
  }
  *value = PyLong_AsUnsignedLongLong(object);
  return *value == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

/* Accepts None, a pool id, or a pool id followed by include_traces. */
static int parse_what(PyObject *what, weir_snapshot_options *options) {
  weir_snapshot_options_init(options);
  if (what == Py_None)
    return 0;
  if (!PyTuple_Check(what)) {
    PyErr_SetString(PyExc_TypeError, "Expected tuple or None");
    return -1;
  }
  Py_ssize_t size = PyTuple_GET_SIZE(what);
  if (size != 2 && size != 3) {
    PyErr_SetString(PyExc_TypeError, "Expected tuple of size 2 or 3");
    return -1;
  }
  if (parse_unsigned(PyTuple_GET_ITEM(what, 0), &options->pool.first) != 0 ||
      parse_unsigned(PyTuple_GET_ITEM(what, 1), &options->pool.second) != 0)
    return -1;
  if (size == 3) {
    PyObject *traces = PyTuple_GET_ITEM(what, 2);
    if (!PyBool_Check(traces)) {
      PyErr_SetString(PyExc_TypeError, "include_traces must be a boolean");
      return -1;
    }
    options->traces = traces == Py_True;
  }
  return 0;
}

static PyObject *loads; /* pickle.loads; NULL until it is first needed */

static PyObject *bytes_to_objects(const char *bytes, size_t length) {
  if (!loads) {
    PyObject *pickle = PyImport_ImportModule("pickle");
    loads = pickle ? PyObject_GetAttrString(pickle, "loads") : NULL;
    Py_XDECREF(pickle);
    if (!loads)
      return NULL;
  }
  PyObject *view = PyMemoryView_FromMemory((char *)bytes, (Py_ssize_t)length, PyBUF_READ);
  PyObject *result = view ? PyObject_CallOneArg(loads, view) : NULL;
  Py_XDECREF(view);
  return result;
}

static PyObject *memory_snapshot(PyObject *module, PyObject *what) {
  (void)module;
  weir_snapshot_options options;
  char *bytes = NULL;
  size_t length = 0;
  if (parse_what(what, &options) != 0 || !pyweir_need_allocator())
    return NULL;
  weir_status status;
  weir_host_allocator *host = pyweir_host();
  PYWEIR_CALL(status, pickle_snapshot(&options, host, &bytes, &length));
  PyObject *result = pyweir_check(status) == 0 ? bytes_to_objects(bytes, length) : NULL;
  free(bytes);
  return result;
}

static PyObject *pickled_snapshot(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  char *bytes = NULL;
  size_t length = 0;
  if (!pyweir_need_allocator())
    return NULL;
  weir_status status;
  weir_host_allocator *host = pyweir_host();
  PYWEIR_CALL(status, pickle_snapshot(NULL, host, &bytes, &length));
  PyObject *result = pyweir_check(status) == 0 ? PyBytes_FromStringAndSize(bytes, (Py_ssize_t)length) : NULL;
  free(bytes);
  return result;
}

static weir_status save_snapshot(weir_host_allocator *host, const char *path, weir_snapshot_format format) {
  weir_snapshot *snapshot;
  weir_status status = take_snapshot(NULL, host, &snapshot);
  if (status != WEIR_OK)
    return status;
  status = weir_snapshot_save(snapshot, format, path);
  weir_snapshot_destroy(snapshot);
  return status;
}

static PyObject *dump_snapshot(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *path;
  int json;
  if (!PyArg_ParseTuple(args, "O&p:_dump_snapshot", PyUnicode_FSConverter, &path, &json))
    return NULL;
  PyObject *result = NULL;
  if (pyweir_need_allocator()) {
    weir_status status;
    weir_snapshot_format format = json ? WEIR_SNAPSHOT_JSON : WEIR_SNAPSHOT_PICKLE;
    weir_host_allocator *host = pyweir_host();
    PYWEIR_CALL(status, save_snapshot(host, PyBytes_AS_STRING(path), format));
    result = pyweir_none(status);
  }
  Py_DECREF(path);
  return result;
}

/* ---- Metadata, phases and annotations ---- */

static PyObject *set_metadata(PyObject *module, PyObject *text) {
  (void)module;
  if (!PyUnicode_Check(text))
    return pyweir_type_error("metadata as a str", text);
  const char *utf8 = PyUnicode_AsUTF8(text);
  if (!utf8)
    return NULL;
  weir_history_exchange_metadata(weir_history_text(utf8));
  Py_RETURN_NONE;
}

static uint32_t metadata(void) {
  uint32_t text = weir_history_exchange_metadata(0);
  weir_history_exchange_metadata(text);
  return text;
}

PYWEIR_NO_ARGUMENTS(get_metadata, PyUnicode_FromString(weir_history_text_of(metadata())))

static PyObject *mark(PyObject *module, PyObject *args) {
  (void)module;
  const char *text;
  PyObject *device = Py_None;
  int number;
  if (!PyArg_ParseTuple(args, "s|O:_mark_memory_history", &text, &device) || pyweir_need_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_history_mark(pyweir_allocator(), number, text));
  return pyweir_none(status);
}

/* Of a Buffer, or of the address of an allocation. */
static PyObject *annotate_memory(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *object;
  const char *text;
  void *pointer;
  weir_status status;
  if (!PyArg_ParseTuple(args, "Os:_cuda_annotateMemory", &object, &text))
    return NULL;
  if (PYWEIR_IS_BUFFER(object))
    pointer = pyweir_buffer_root((pyweir_buffer *)object)->pointer;
  else if (pyweir_parse_address(object, &pointer) != 0)
    return NULL;
  if (!pyweir_need_allocator())
    return NULL;
  PYWEIR_CALL(status, weir_history_mark_pointer(pyweir_allocator(), pointer, text));
  return pyweir_none(status);
}

/* The texts of a dict of str to str, and the objects that own them. */
enum { MAX_PAIRS = 64 };
typedef struct pairs {
  PyObject *objects[2 * MAX_PAIRS]; /* strong references */
  const char *texts[2 * MAX_PAIRS];
  size_t count; /* of texts */
} pairs;

static void drop_pairs(pairs *p) {
  for (size_t i = 0; i < p->count; i++)
    Py_DECREF(p->objects[i]);
}

static int add_text(pairs *p, PyObject *object) {
  const char *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : NULL;
  if (!text) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "an annotation must be a dict of str to str");
    return -1;
  }
  Py_INCREF(object);
  p->objects[p->count] = object;
  p->texts[p->count++] = text;
  return 0;
}

static int take_pairs(PyObject *dict, pairs *p) {
  PyObject *key, *value;
  if (PyDict_GET_SIZE(dict) > MAX_PAIRS) {
    PyErr_Format(PyExc_ValueError, "an annotation can have at most %d pairs", MAX_PAIRS);
    return -1;
  }
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);)
    if (add_text(p, key) != 0 || add_text(p, value) != 0) {
      drop_pairs(p);
      return -1;
    }
  return 0;
}

static PyObject *annotate(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *dict, *device = Py_None;
  pairs p;
  int number;
  p.count = 0;
  if (!PyArg_ParseTuple(args, "O!|O:_record_annotation", &PyDict_Type, &dict, &device) ||
      pyweir_need_device(device, &number) != 0 || take_pairs(dict, &p) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_history_annotate(pyweir_allocator(), number, p.texts, p.count / 2));
  drop_pairs(&p);
  return pyweir_none(status);
}

PYWEIR_NO_ARGUMENTS(wants_annotations, PyBool_FromLong(record_annotations))

static PyObject *enter_text(PyObject *name, uint32_t (*enter)(const char *)) {
  if (!PyUnicode_Check(name))
    return pyweir_type_error("a name as a str", name);
  const char *text = PyUnicode_AsUTF8(name);
  return text ? PyLong_FromUnsignedLong(enter(text)) : NULL;
}

static PyObject *leave_text(PyObject *before, void (*leave)(uint32_t)) {
  unsigned long number = PyLong_AsUnsignedLong(before);
  if (number == (unsigned long)-1 && PyErr_Occurred())
    return NULL;
  leave((uint32_t)number);
  Py_RETURN_NONE;
}

static PyObject *enter_phase(PyObject *module, PyObject *name) {
  (void)module;
  return enter_text(name, weir_history_enter_phase);
}

static PyObject *leave_phase(PyObject *module, PyObject *before) {
  (void)module;
  return leave_text(before, weir_history_leave_phase);
}

static PyObject *enter_compile(PyObject *module, PyObject *name) {
  (void)module;
  return enter_text(name, weir_history_enter_compile);
}

static PyObject *leave_compile(PyObject *module, PyObject *before) {
  (void)module;
  return leave_text(before, weir_history_leave_compile);
}

/* ---- Callbacks ---- */

/* A list of callbacks. Tuples are replaced, never changed, so one can be iterated over while it is replaced. */
typedef struct listeners {
  PyObject *tuple;   /* of callables, or NULL; guarded by the GIL */
  bool is_attached;  /* to the allocator; guarded by the GIL */
  _Atomic int count; /* of the tuple; while it is 0, no thread takes the GIL */
} listeners;

static listeners trackers, observers;

static int add_listener(listeners *l, PyObject *callable) {
  Py_ssize_t count = l->tuple ? PyTuple_GET_SIZE(l->tuple) : 0;
  PyObject *larger = PyTuple_New(count + 1);
  if (!larger)
    return -1;
  for (Py_ssize_t i = 0; i <= count; i++) {
    PyObject *item = i < count ? PyTuple_GET_ITEM(l->tuple, i) : callable;
    Py_INCREF(item);
    PyTuple_SET_ITEM(larger, i, item);
  }
  Py_XSETREF(l->tuple, larger);
  l->count = (int)count + 1;
  return 0;
}

/* Raises ValueError if the callback is not attached. */
static int remove_listener(listeners *l, PyObject *callable) {
  Py_ssize_t count = l->tuple ? PyTuple_GET_SIZE(l->tuple) : 0, found = -1;
  for (Py_ssize_t i = 0; i < count && found < 0; i++) {
    int equal = PyObject_RichCompareBool(PyTuple_GET_ITEM(l->tuple, i), callable, Py_EQ);
    if (equal < 0)
      return -1;
    if (equal)
      found = i;
  }
  if (found < 0) {
    PyErr_SetString(PyExc_ValueError, "the callback is not attached");
    return -1;
  }
  PyObject *smaller = PyTuple_New(count - 1);
  if (!smaller)
    return -1;
  for (Py_ssize_t i = 0, n = 0; i < count; i++)
    if (i != found) {
      PyObject *item = PyTuple_GET_ITEM(l->tuple, i);
      Py_INCREF(item);
      PyTuple_SET_ITEM(smaller, n++, item);
    }
  Py_SETREF(l->tuple, smaller);
  l->count = (int)count - 1;
  return 0;
}

/* Takes the GIL, on any thread, and calls all callbacks. Their exceptions are printed and ignored. An exception that is
 * already set is preserved. */
static void notify_all(listeners *l, PyObject *(*make_arguments)(const void *), const void *what) {
  if (!l->count || !Py_IsInitialized())
    return;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject *all = l->tuple;
  Py_XINCREF(all);
  PyObject *arguments = all ? make_arguments(what) : NULL;
  if (all && !arguments)
    PyErr_WriteUnraisable(all);
  for (Py_ssize_t i = 0; arguments && i < PyTuple_GET_SIZE(all); i++) {
    PyObject *result = PyObject_Call(PyTuple_GET_ITEM(all, i), arguments, NULL);
    if (!result)
      PyErr_WriteUnraisable(PyTuple_GET_ITEM(all, i));
    Py_XDECREF(result);
  }
  Py_XDECREF(arguments);
  Py_XDECREF(all);
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
}

static PyObject *tracker_arguments(const void *what) {
  const weir_trace_entry *e = what;
  return Py_BuildValue("(siKKK(KK))", weir_trace_action_name(e->action), e->device, (unsigned long long)e->address,
                       (unsigned long long)e->bytes, (unsigned long long)(uintptr_t)e->stream,
                       (unsigned long long)e->pool.first, (unsigned long long)e->pool.second);
}

static void track(void *context, const weir_trace_entry *entry) { notify_all(context, tracker_arguments, entry); }

static PyObject *oom_arguments(const void *what) {
  const weir_shortage *shortage = what;
  return Py_BuildValue("(iKKK)", shortage->device, (unsigned long long)shortage->wanted,
                       (unsigned long long)shortage->limit, (unsigned long long)shortage->device_free);
}

static void observe(void *context, const weir_shortage *shortage) { notify_all(context, oom_arguments, shortage); }

static int check_callable(PyObject *object) {
  if (PyCallable_Check(object))
    return 0;
  pyweir_type_error("a callable", object);
  return -1;
}

static PyObject *attach_listener(listeners *to, const weir_observer *observer, PyObject *callable) {
  if (check_callable(callable) != 0 || !pyweir_need_allocator())
    return NULL;
  if (!to->is_attached) {
    weir_status status;
    PYWEIR_CALL(status, weir_allocator_attach(pyweir_allocator(), observer));
    if (pyweir_check(status) != 0)
      return NULL;
    to->is_attached = true;
  }
  if (add_listener(to, callable) != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *attach_tracker(PyObject *module, PyObject *callable) {
  const weir_observer observer = {.size = sizeof observer, .context = &trackers, .entry = track};
  (void)module;
  return attach_listener(&trackers, &observer, callable);
}

static PyObject *detach_tracker(PyObject *module, PyObject *callable) {
  (void)module;
  if (remove_listener(&trackers, callable) != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *attach_observer(PyObject *module, PyObject *callable) {
  const weir_observer observer = {.size = sizeof observer, .context = &observers, .out_of_memory = observe};
  (void)module;
  return attach_listener(&observers, &observer, callable);
}

static PyObject *detach_observer(PyObject *module, PyObject *callable) {
  (void)module;
  if (remove_listener(&observers, callable) != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_cuda_record_memory_history", PYWEIR_KEYWORDS(record_history), "Starts, changes or stops recording."},
    {"_cuda_record_memory_history_legacy", PYWEIR_KEYWORDS(record_history_legacy),
     "The same with the arguments of the older interface."},
    {"_cuda_isHistoryEnabled", is_history_enabled, METH_NOARGS, "Whether the history is recorded."},
    {"_history_info", history_info, METH_O, "(device): the number of history entries kept and dropped."},
    {"_cuda_memorySnapshot", memory_snapshot, METH_O, "(None, or pool id and include_traces): a snapshot as a dict."},
    {"_memory_snapshot_pickled", pickled_snapshot, METH_NOARGS, "Returns a snapshot as the bytes of a pickle."},
    {"_dump_snapshot", dump_snapshot, METH_VARARGS, "(path, as_json): writes a snapshot to a file."},
    {"_cuda_setMemoryMetadata", set_metadata, METH_O, "(text)"},
    {"_cuda_getMemoryMetadata", get_metadata, METH_NOARGS, "Returns the metadata that was set last."},
    {"_cuda_annotateMemory", annotate_memory, METH_VARARGS, "(address or Buffer, text): adds an entry about it."},
    {"_mark_memory_history", mark, METH_VARARGS, "(text, device=None): adds a history entry with a text."},
    {"_record_annotation", annotate, METH_VARARGS, "(dict, device=None): adds an annotation with the time."},
    {"_wants_annotations", wants_annotations, METH_NOARGS, "Whether annotations of blocks are to be recorded."},
    {"_enter_phase", enter_phase, METH_O, "(name): returns the argument for _leave_phase."},
    {"_leave_phase", leave_phase, METH_O, "(before)"},
    {"_enter_compile_context", enter_compile, METH_O, "(name): returns the argument for _leave_compile_context."},
    {"_leave_compile_context", leave_compile, METH_O, "(before)"},
    {"_attach_tracker", attach_tracker, METH_O, "(callable): adds a callback for all actions."},
    {"_detach_tracker", detach_tracker, METH_O, "(callable)"},
    {"_cuda_attach_out_of_memory_observer", attach_observer, METH_O, "(callable): adds an out-of-memory callback."},
    {"_detach_out_of_memory_observer", detach_observer, METH_O, "(callable)"},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_history(PyObject *module) { return PyModule_AddFunctions(module, functions); }
