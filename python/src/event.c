/*
 * weir.Event.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "pyweir.h"

typedef struct event_object {
  PyObject_HEAD weir_event *it;
  unsigned flags; /* WEIR_EVENT_* */
  int device;     /* that was given, or -1: of `device` until the event is recorded */
  PyObject *weak; /* weak references */
} event_object;

static PyTypeObject event_type;

weir_event *pyweir_event_get(PyObject *object) {
  if (PyObject_TypeCheck(object, &event_type))
    return ((event_object *)object)->it;
  pyweir_type_error("a weir.Event", object);
  return NULL;
}

/* Takes ownership of the event, also on failure. */
static PyObject *make(PyTypeObject *type, weir_event *event, unsigned flags) {
  event_object *self = (event_object *)type->tp_alloc(type, 0);
  if (!self) {
    weir_event_destroy(event);
    return NULL;
  }
  self->it = event;
  self->flags = flags;
  self->device = -1;
  return (PyObject *)self;
}

static PyObject *create(PyTypeObject *type, unsigned flags) {
  weir_event *event;
  if (pyweir_check(weir_event_create(flags, &event)) != 0)
    return NULL;
  return make(type, event, flags);
}

PyObject *pyweir_event_new(void) { return create(&event_type, 0); }

int pyweir_event_record(PyObject *object, weir_stream stream) {
  weir_status status;
  weir_event *event = pyweir_event_get(object);
  if (!event)
    return -1;
  PYWEIR_CALL(status, weir_event_record(event, stream));
  return pyweir_check(status);
}

int pyweir_event_wait(PyObject *object, weir_stream stream) {
  weir_status status;
  weir_event *event = pyweir_event_get(object);
  if (!event)
    return -1;
  PYWEIR_CALL(status, weir_event_wait(event, stream));
  return pyweir_check(status);
}

/* As torch.cuda.Event(enable_timing, blocking, interprocess, external), and as torch.Event(device, *, enable_timing,
 * blocking, interprocess). */
static PyObject *event_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"enable_timing", "blocking", "interprocess", "external", NULL};
  static char *names_of_device[] = {"device", "enable_timing", "blocking", "interprocess", NULL};
  int timing = 0, blocking = 0, interprocess = 0, external = 0, index = -1;
  PyObject *device = NULL, *first = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
  bool has_device =
      first ? !PyBool_Check(first) && !PyLong_Check(first) : keywords && PyMapping_HasKeyString(keywords, "device");
  if (has_device ? !PyArg_ParseTupleAndKeywords(args, keywords, "O|$ppp:Event", names_of_device, &device, &timing,
                                                &blocking, &interprocess)
                 : !PyArg_ParseTupleAndKeywords(args, keywords, "|pppp:Event", names, &timing, &blocking, &interprocess,
                                                &external))
    return NULL;
  if (device ? pyweir_need_device(device, &index) != 0 : pyweir_ensure_init() != 0)
    return NULL;
  PyObject *event =
      create(type, (timing ? WEIR_EVENT_TIMING : 0u) | (blocking ? WEIR_EVENT_BLOCKING : 0u) |
                       (interprocess ? WEIR_EVENT_INTERPROCESS : 0u) | (external ? WEIR_EVENT_EXTERNAL : 0u));
  if (event)
    ((event_object *)event)->device = index;
  return event;
}

static void event_dealloc(PyObject *object) {
  event_object *self = (event_object *)object;
  if (self->weak)
    PyObject_ClearWeakRefs(object);
  if (self->it) {
    /* No status is returned here, so warnings go to stderr. */
    Py_BEGIN_ALLOW_THREADS weir_event_destroy(self->it);
    Py_END_ALLOW_THREADS
  }
  Py_TYPE(object)->tp_free(object);
}

/* The stream argument of a method; the current stream if there is none. */
static int stream_argument(PyObject *args, PyObject *keywords, const char *format, weir_stream *stream) {
  static char *names[] = {"stream", NULL};
  PyObject *argument = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, format, names, &argument))
    return -1;
  return pyweir_ensure_init() != 0 ? -1 : pyweir_parse_stream(argument, -1, stream);
}

static PyObject *event_record(PyObject *self, PyObject *args, PyObject *keywords) {
  weir_stream stream;
  if (stream_argument(args, keywords, "|O:record", &stream) != 0 || pyweir_event_record(self, stream) != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *event_wait(PyObject *self, PyObject *args, PyObject *keywords) {
  weir_stream stream;
  if (stream_argument(args, keywords, "|O:wait", &stream) != 0 || pyweir_event_wait(self, stream) != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *event_query(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_status status;
  PYWEIR_CALL(status, weir_event_query(((event_object *)self)->it));
  if (status == WEIR_ERROR_NOT_READY)
    Py_RETURN_FALSE;
  return pyweir_check(status) == 0 ? Py_NewRef(Py_True) : NULL;
}

PYWEIR_CALL_ONLY(event_synchronize, weir_event_synchronize(((event_object *)self)->it))

static PyObject *event_elapsed(PyObject *self, PyObject *other) {
  double milliseconds;
  weir_status status;
  weir_event *end = pyweir_event_get(other);
  if (!end)
    return NULL;
  PYWEIR_CALL(status, weir_event_elapsed(((event_object *)self)->it, end, &milliseconds));
  return pyweir_check(status) == 0 ? PyFloat_FromDouble(milliseconds) : NULL;
}

static PyObject *event_ipc_handle(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_cu_ipc_event_handle handle;
  weir_status status;
  PYWEIR_CALL(status, weir_event_ipc_handle(((event_object *)self)->it, &handle));
  if (pyweir_check(status) != 0)
    return NULL;
  return PyBytes_FromStringAndSize(handle.reserved, sizeof handle.reserved);
}

static PyObject *event_from_ipc_handle(PyObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"device", "handle", NULL};
  PyObject *device_argument;
  const char *bytes;
  Py_ssize_t length;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "Oy#:from_ipc_handle", names, &device_argument, &bytes, &length))
    return NULL;
  weir_cu_ipc_event_handle handle;
  if ((size_t)length != sizeof handle.reserved)
    return PyErr_Format(PyExc_ValueError, "from_ipc_handle(): expected a handle of %zu bytes, got %zd",
                        sizeof handle.reserved, length);
  memcpy(handle.reserved, bytes, sizeof handle.reserved);
  int device;
  if (pyweir_ensure_init() != 0 || pyweir_parse_device(device_argument, &device) != 0)
    return NULL;
  weir_event *event;
  weir_status status;
  PYWEIR_CALL(status, weir_event_from_ipc_handle(device, &handle, &event));
  if (pyweir_check(status) != 0)
    return NULL;
  return make((PyTypeObject *)type, event, WEIR_EVENT_INTERPROCESS);
}

static PyObject *event_get_device(PyObject *object, void *closure) {
  (void)closure;
  event_object *self = (event_object *)object;
  int device = -1;
  weir_event_device(self->it, &device);
  if (device < 0)
    device = self->device;
  if (device < 0)
    Py_RETURN_NONE;
  return pyweir_device_wrap(device);
}

static weir_cu_event raw_of(PyObject *event) {
  weir_cu_event raw = NULL;
  weir_event_raw(((event_object *)event)->it, &raw);
  return raw;
}

static PyObject *event_get_raw(PyObject *self, void *closure) {
  (void)closure;
  return PyLong_FromVoidPtr(raw_of(self));
}

static PyObject *event_as_parameter(PyObject *self, void *closure) {
  (void)closure;
  PyObject *ctypes = PyImport_ImportModule("ctypes");
  PyObject *number = event_get_raw(self, NULL);
  PyObject *result = ctypes && number ? PyObject_CallMethod(ctypes, "c_void_p", "O", number) : NULL;
  Py_XDECREF(number);
  Py_XDECREF(ctypes);
  return result;
}

/* An interprocess event is pickled as its handle: the other process gets an event that refers to this one. */
static PyObject *event_reduce(PyObject *self, PyObject *unused) {
  if (!(((event_object *)self)->flags & WEIR_EVENT_INTERPROCESS))
    return PyErr_Format(PyExc_TypeError, "cannot pickle a %.100s that was not created with interprocess=True",
                        Py_TYPE(self)->tp_name);
  PyObject *handle = event_ipc_handle(self, unused);
  PyObject *rebuild = handle ? PyObject_GetAttrString((PyObject *)Py_TYPE(self), "from_ipc_handle") : NULL;
  if (!rebuild) {
    Py_XDECREF(handle);
    return NULL;
  }
  int device = -1;
  weir_event_device(((event_object *)self)->it, &device);
  return Py_BuildValue("N(iN)", rebuild, device, handle);
}

static PyObject *event_repr(PyObject *self) {
  weir_cu_event raw = raw_of(self);
  if (!raw)
    return PyUnicode_FromString("<weir.Event uninitialized>");
  char text[40];
  snprintf(text, sizeof text, "<weir.Event 0x%zx>", (size_t)raw);
  return PyUnicode_FromString(text);
}

static PyGetSetDef event_getters[] = {
    {"device", event_get_device, NULL, "The device of the event; None until it is first recorded, unless it was given.",
     NULL},
    {"cuda_event", event_get_raw, NULL, "The address of the CUevent; 0 until it is first recorded.", NULL},
    {"event_id", event_get_raw, NULL, "The same.", NULL},
    {"_as_parameter_", event_as_parameter, NULL, "The value that ctypes passes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef event_methods[] = {
    {"record", PYWEIR_KEYWORDS(event_record),
     "record($self, stream=None)\n--\n\nRecords the event in a stream; None for the current stream."},
    {"wait", PYWEIR_KEYWORDS(event_wait),
     "wait($self, stream=None)\n--\n\nMakes later work of a stream wait for the event; None for the current stream."},
    {"query", event_query, METH_NOARGS, "query($self)\n--\n\nWhether the work before the event has completed."},
    {"synchronize", event_synchronize, METH_NOARGS,
     "synchronize($self)\n--\n\nWaits until the work before the event has completed."},
    {"elapsed_time", event_elapsed, METH_O,
     "elapsed_time($self, end_event)\n--\n\n"
     "Returns the milliseconds between this event and another. Both must have been created with\n"
     "enable_timing=True, been recorded, and have completed."},
    {"ipc_handle", event_ipc_handle, METH_NOARGS,
     "ipc_handle($self)\n--\n\nReturns a handle, as bytes, for from_ipc_handle() in another process."},
    {"from_ipc_handle", (PyCFunction)(void (*)(void))event_from_ipc_handle, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "from_ipc_handle($type, device, handle)\n--\n\nOpens the event of a handle from another process's ipc_handle()."},
    {"__reduce__", event_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject event_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.Event",
    .tp_doc =
        PyDoc_STR("Event(enable_timing=False, blocking=False, interprocess=False, external=False)\n--\n\n"
                  "A CUDA event: a marker in a stream, to wait for or to measure time.\n\n"
                  "enable_timing: allows elapsed_time().\n"
                  "blocking: makes synchronize() sleep instead of spinning.\n"
                  "interprocess: allows sharing with other processes; excludes enable_timing.\n"
                  "external: in a capture, makes record() and wait() nodes of the graph, which each replay runs."),
    .tp_basicsize = sizeof(event_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = event_new,
    .tp_dealloc = event_dealloc,
    .tp_weaklistoffset = offsetof(event_object, weak),
    .tp_repr = event_repr,
    .tp_getset = event_getters,
    .tp_methods = event_methods,
};

int pyweir_add_event(PyObject *module) { return pyweir_add_type(module, &event_type); }
