/*
 * weir.Stream, and the current stream.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "pyweir.h"

typedef struct stream_object {
  PyObject_HEAD weir_stream it;
  PyObject *weak; /* weak references */
} stream_object;

static PyTypeObject stream_type;

bool pyweir_stream_check(PyObject *object) { return PyObject_TypeCheck(object, &stream_type); }

weir_stream pyweir_stream_get(PyObject *object) { return ((stream_object *)object)->it; }

static PyObject *make(PyTypeObject *type, weir_stream stream) {
  stream_object *self = (stream_object *)type->tp_alloc(type, 0);
  if (self)
    self->it = stream;
  return (PyObject *)self;
}

PyObject *pyweir_stream_wrap(weir_stream stream) { return make(&stream_type, stream); }

/* ---- Arguments ---- */

/* The address of another library's stream, from its attribute or from NVIDIA's protocol. */
static int address_of(PyObject *object, void **address) {
  PyObject *number = NULL;
  if (PyIndex_Check(object) && !PyBool_Check(object)) {
    number = PyNumber_Index(object);
  } else {
    number = PyObject_GetAttrString(object, "cuda_stream");
    if (!number && PyErr_ExceptionMatches(PyExc_AttributeError)) {
      PyErr_Clear();
      PyObject *method = PyObject_GetAttrString(object, "__cuda_stream__");
      if (!method && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        pyweir_type_error("a stream (a weir.Stream, the address of a CUstream, or an object with cuda_stream or "
                          "__cuda_stream__)",
                          object);
      }
      /* An attribute in some libraries, a method in others. */
      PyObject *pair = method && PyCallable_Check(method) ? PyObject_CallNoArgs(method) : Py_XNewRef(method);
      Py_XDECREF(method);
      if (pair) {
        number = PySequence_GetItem(pair, 1);
        Py_DECREF(pair);
      }
    }
  }
  if (!number)
    return -1;
  *address = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return !*address && PyErr_Occurred() ? -1 : 0;
}

int pyweir_parse_stream(PyObject *object, int device, weir_stream *stream) {
  if (object == Py_None)
    return pyweir_check(weir_stream_get_current(device, stream));
  if (pyweir_stream_check(object)) {
    *stream = pyweir_stream_get(object);
    if (device >= 0 && stream->device != device) {
      PyErr_Format(PyExc_ValueError, "the stream belongs to device cuda:%d, but cuda:%d was requested", stream->device,
                   device);
      return -1;
    }
    return 0;
  }
  void *raw;
  if (address_of(object, &raw) != 0)
    return -1;
  return pyweir_check(weir_stream_external(device, raw, stream));
}

/* ---- The class ---- */

static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"device", "priority", "stream_id", "device_index", "device_type", "stream_ptr", NULL};
  PyObject *device_argument = Py_None;
  PyObject *pointer = NULL;
  int priority = 0;
  long long id = -1, index = -1, kind = -1;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|Oi$LLLO:Stream", names, &device_argument, &priority, &id, &index,
                                   &kind, &pointer))
    return NULL;
  if (pyweir_ensure_init() != 0)
    return NULL;

  int device;
  weir_stream stream;
  weir_status status;
  if (pointer) {
    void *raw;
    if (pyweir_parse_device(device_argument, &device) != 0 || address_of(pointer, &raw) != 0)
      return NULL;
    status = weir_stream_external(device, raw, &stream);
  } else if (kind != -1) {
    status = weir_stream_unpack(id, index, kind, &stream);
  } else {
    if (pyweir_parse_device(device_argument, &device) != 0)
      return NULL;
    PYWEIR_CALL(status, weir_stream_create(device, priority, &stream));
  }
  if (pyweir_check(status) != 0)
    return NULL;
  return make(type, stream);
}

static void stream_dealloc(PyObject *self) {
  if (((stream_object *)self)->weak)
    PyObject_ClearWeakRefs(self);
  Py_TYPE(self)->tp_free(self);
}

/* The address as a number, 0 for the default stream. */
static int raw_of(PyObject *self, weir_cu_stream *raw) {
  weir_status status;
  PYWEIR_CALL(status, weir_stream_raw(pyweir_stream_get(self), raw));
  return pyweir_check(status);
}

static PyObject *stream_get_raw(PyObject *self, void *closure) {
  (void)closure;
  weir_cu_stream raw;
  return raw_of(self, &raw) == 0 ? PyLong_FromVoidPtr(raw) : NULL;
}

/* Lets ctypes pass a Stream as a pointer. */
static PyObject *stream_as_parameter(PyObject *self, void *closure) {
  (void)closure;
  weir_cu_stream raw;
  if (raw_of(self, &raw) != 0)
    return NULL;
  PyObject *ctypes = PyImport_ImportModule("ctypes");
  PyObject *number = PyLong_FromVoidPtr(raw);
  PyObject *result = ctypes && number ? PyObject_CallMethod(ctypes, "c_void_p", "O", number) : NULL;
  Py_XDECREF(number);
  Py_XDECREF(ctypes);
  return result;
}

static PyObject *stream_get_device(PyObject *self, void *closure) {
  (void)closure;
  return pyweir_device_wrap(pyweir_stream_get(self).device);
}

static PyObject *stream_get_priority(PyObject *self, void *closure) {
  (void)closure;
  int priority;
  weir_status status;
  PYWEIR_CALL(status, weir_stream_priority(pyweir_stream_get(self), &priority));
  return pyweir_check(status) == 0 ? PyLong_FromLong(priority) : NULL;
}

static PyObject *stream_query(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_status status;
  PYWEIR_CALL(status, weir_stream_query(pyweir_stream_get(self)));
  if (status == WEIR_ERROR_NOT_READY)
    Py_RETURN_FALSE;
  return pyweir_check(status) == 0 ? Py_NewRef(Py_True) : NULL;
}

PYWEIR_CALL_ONLY(stream_synchronize, weir_stream_synchronize(pyweir_stream_get(self)))

static PyObject *stream_wait_event(PyObject *self, PyObject *event) {
  if (pyweir_event_wait(event, pyweir_stream_get(self)) != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *stream_wait_stream(PyObject *self, PyObject *other) {
  weir_status status;
  if (!pyweir_stream_check(other))
    return pyweir_type_error("a weir.Stream", other);
  PYWEIR_CALL(status, weir_stream_wait_stream(pyweir_stream_get(self), pyweir_stream_get(other)));
  return pyweir_none(status);
}

static PyObject *stream_record_event(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"event", NULL};
  PyObject *event = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:record_event", names, &event))
    return NULL;
  event = event == Py_None ? pyweir_event_new() : Py_NewRef(event);
  if (!event || pyweir_event_record(event, pyweir_stream_get(self)) != 0) {
    Py_XDECREF(event);
    return NULL;
  }
  return event;
}

static PyObject *stream_priority_range(PyObject *unused, PyObject *none) {
  (void)unused, (void)none;
  int least, greatest;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_stream_priority_range(&least, &greatest));
  return pyweir_check(status) == 0 ? Py_BuildValue("(ii)", least, greatest) : NULL;
}

/* The protocol of cuda.core and others: the version of the protocol, and the address. */
static PyObject *stream_protocol(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_cu_stream raw;
  if (raw_of(self, &raw) != 0)
    return NULL;
  return Py_BuildValue("(iN)", 0, PyLong_FromVoidPtr(raw));
}

static PyObject *stream_spin(PyObject *self, PyObject *argument) {
  weir_status status;
  unsigned long long cycles = PyLong_AsUnsignedLongLong(argument);
  if (cycles == (unsigned long long)-1 && PyErr_Occurred())
    return NULL;
  PYWEIR_CALL(status, weir_stream_spin(pyweir_stream_get(self), cycles));
  return pyweir_none(status);
}

/* A function of the program and its arguments, for a host function. */
typedef struct host_call {
  PyObject *function, *args, *keywords;
  bool is_captured; /* a graph may run it any number of times */
} host_call;

static void end_host_call(host_call *call) {
  Py_XDECREF(call->function);
  Py_XDECREF(call->args);
  Py_XDECREF(call->keywords);
  PyMem_RawFree(call);
}

/* On a thread of the driver. */
static void run_host_call(void *data) {
  host_call *call = data;
  if (!Py_IsInitialized())
    return;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *result = PyObject_Call(call->function, call->args, call->keywords);
  if (!result)
    PyErr_WriteUnraisable(call->function);
  Py_XDECREF(result);
  if (!call->is_captured)
    end_host_call(call);
  PyGILState_Release(gil);
}

static PyObject *stream_launch_host(PyObject *self, PyObject *args, PyObject *keywords) {
  if (PyTuple_GET_SIZE(args) < 1)
    return PyErr_Format(PyExc_TypeError, "launch_host() takes a function, and arguments for it");
  PyObject *function = PyTuple_GET_ITEM(args, 0);
  if (!PyCallable_Check(function))
    return pyweir_type_error("a function", function);
  weir_stream stream = pyweir_stream_get(self);
  weir_status status;
  int capturing;
  PYWEIR_CALL(status, weir_stream_is_capturing(stream, &capturing));
  if (pyweir_check(status) != 0)
    return NULL;
  host_call *call = PyMem_RawCalloc(1, sizeof *call);
  if (!call)
    return PyErr_NoMemory();
  call->function = Py_NewRef(function);
  call->args = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
  call->keywords = Py_XNewRef(keywords);
  call->is_captured = capturing;
  if (!call->args) {
    end_host_call(call);
    return NULL;
  }
  PYWEIR_CALL(status, weir_stream_host_function(stream, run_host_call, call));
  if (status) { /* otherwise it is the host function's, which may have run already */
    end_host_call(call);
    return pyweir_none(status);
  }
  Py_RETURN_NONE;
}

static PyObject *stream_is_capturing(PyObject *self, PyObject *unused) {
  (void)unused;
  int capturing;
  weir_status status;
  PYWEIR_CALL(status, weir_stream_is_capturing(pyweir_stream_get(self), &capturing));
  return pyweir_check(status) == 0 ? PyBool_FromLong(capturing) : NULL;
}

/* The streams that a thread's `with stream:` blocks replaced, innermost first. Blocks end in reverse order. */
typedef struct entered {
  struct entered *outer;
  weir_stream_scope scope;
} entered;
static _Thread_local entered *innermost;

static PyObject *stream_enter(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  entered *block = malloc(sizeof *block);
  if (!block)
    return PyErr_NoMemory();
  PYWEIR_CALL(status, weir_stream_scope_enter(pyweir_stream_get(self), &block->scope));
  if (pyweir_check(status) != 0) {
    free(block);
    return NULL;
  }
  block->outer = innermost;
  innermost = block;
  return Py_NewRef(self);
}

static PyObject *stream_exit(PyObject *self, PyObject *args) {
  (void)self, (void)args;
  weir_status status;
  entered *block = innermost;
  if (!block)
    return PyErr_Format(PyExc_RuntimeError, "this thread has not entered a `with` block of a stream");
  innermost = block->outer;
  PYWEIR_CALL(status, weir_stream_scope_leave(&block->scope));
  free(block);
  return pyweir_none(status);
}

/* A stream is a queue of this process, and means nothing to another one. */
PYWEIR_NO_ARGUMENTS(
    stream_reduce,
    PyErr_Format(PyExc_TypeError,
                 "cannot pickle a %.100s: a stream belongs to its process. An Event created with interprocess=True "
                 "can be sent to another",
                 Py_TYPE(self)->tp_name))

static PyObject *stream_repr(PyObject *self) {
  weir_cu_stream raw;
  if (raw_of(self, &raw) != 0)
    return NULL;
  char text[80];
  snprintf(text, sizeof text, "<weir.Stream device=cuda:%d cuda_stream=0x%zx>", pyweir_stream_get(self).device,
           (size_t)raw);
  return PyUnicode_FromString(text);
}

static Py_hash_t stream_hash(PyObject *self) {
  Py_hash_t hash = (Py_hash_t)weir_stream_hash(pyweir_stream_get(self));
  return hash == -1 ? -2 : hash;
}

static PyObject *stream_compare(PyObject *a, PyObject *b, int operation) {
  if (!pyweir_stream_check(b) || (operation != Py_EQ && operation != Py_NE))
    Py_RETURN_NOTIMPLEMENTED;
  int equal = weir_stream_equal(pyweir_stream_get(a), pyweir_stream_get(b));
  return PyBool_FromLong(equal == (operation == Py_EQ));
}

static PyMemberDef stream_members[] = {
    {"stream_id", T_LONGLONG, offsetof(stream_object, it.id), READONLY, "The id of the stream on its device."},
    {"device_index", T_INT, offsetof(stream_object, it.device), READONLY, "The index of its device."},
    {"device_type", T_INT, offsetof(stream_object, it.device_type), READONLY, "The type of its device: 1 for a GPU."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef stream_getters[] = {
    {"cuda_stream", stream_get_raw, NULL, "The address of the CUstream; 0 for the default stream.", NULL},
    {"native_handle", stream_get_raw, NULL, "The same, as torch.Stream has it.", NULL},
    {"_as_parameter_", stream_as_parameter, NULL, "The value that ctypes passes.", NULL},
    {"device", stream_get_device, NULL, "The device of the stream.", NULL},
    {"priority", stream_get_priority, NULL, "The priority: 0, or negative for a higher priority.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef stream_methods[] = {
    {"query", stream_query, METH_NOARGS, "query($self)\n--\n\nWhether all work of the stream has completed."},
    {"synchronize", stream_synchronize, METH_NOARGS,
     "synchronize($self)\n--\n\nWaits until all work of the stream has completed."},
    {"wait_event", stream_wait_event, METH_O,
     "wait_event($self, event)\n--\n\nMakes later work of the stream wait for an event."},
    {"wait_stream", stream_wait_stream, METH_O,
     "wait_stream($self, stream)\n--\n\nMakes later work of this stream wait for the current work of another stream."},
    {"record_event", PYWEIR_KEYWORDS(stream_record_event),
     "record_event($self, event=None)\n--\n\nRecords an event, a new one if it is None, and returns it."},
    {"launch_host", PYWEIR_KEYWORDS(stream_launch_host),
     "launch_host($self, function, /, *args, **kwargs)\n--\n\n"
     "Calls function(*args, **kwargs) on another thread when the stream reaches this point. It must not use a device. "
     "An exception is reported by sys.unraisablehook. A function that is captured stays alive as long as the process."},
    {"is_capturing", stream_is_capturing, METH_NOARGS,
     "is_capturing($self)\n--\n\nWhether the stream is being captured into a graph."},
    {"priority_range", stream_priority_range, METH_NOARGS | METH_STATIC,
     "priority_range()\n--\n\nReturns the lowest and the highest priority, such as (0, -3)."},
    {"_spin", stream_spin, METH_O,
     "_spin($self, cycles)\n--\n\nKeeps the stream busy for a number of cycles of the device clock."},
    {"__cuda_stream__", stream_protocol, METH_NOARGS,
     "__cuda_stream__($self)\n--\n\nReturns (0, address), for other libraries."},
    {"__enter__", stream_enter, METH_NOARGS, "Makes the stream and its device current within a `with` block."},
    {"__exit__", stream_exit, METH_VARARGS, NULL},
    {"__reduce__", stream_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject stream_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.Stream",
    .tp_doc = PyDoc_STR(
        "Stream(device=None, priority=0, *, stream_id=None, device_index=None, device_type=None, "
        "stream_ptr=None)\n--\n\n"
        "A queue of work on a device. Work in one stream runs in order; work in different streams may overlap.\n\n"
        "device: the device; None for the current one.\n"
        "priority: negative for a higher priority; clamped to priority_range().\n"
        "stream_id, device_index, device_type: these attributes of an existing stream, to refer to it.\n"
        "stream_ptr: the address of a CUstream that was created elsewhere; see ExternalStream.\n\n"
        "Streams come from a pool of 32 per priority, and are never destroyed."),
    .tp_basicsize = sizeof(stream_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = stream_new,
    .tp_dealloc = stream_dealloc,
    .tp_weaklistoffset = offsetof(stream_object, weak),
    .tp_repr = stream_repr,
    .tp_hash = stream_hash,
    .tp_richcompare = stream_compare,
    .tp_members = stream_members,
    .tp_getset = stream_getters,
    .tp_methods = stream_methods,
};

/* ---- Functions ---- */

static PyObject *current_stream(PyObject *module, PyObject *argument) {
  (void)module;
  int device;
  weir_stream stream;
  if (pyweir_ensure_init() != 0 || pyweir_parse_device(argument, &device) != 0 ||
      pyweir_check(weir_stream_get_current(device, &stream)) != 0)
    return NULL;
  return pyweir_stream_wrap(stream);
}

static PyObject *default_stream(PyObject *module, PyObject *argument) {
  (void)module;
  int device;
  weir_stream stream;
  if (pyweir_ensure_init() != 0 || pyweir_parse_device(argument, &device) != 0 ||
      pyweir_check(weir_stream_default(device, &stream)) != 0)
    return NULL;
  return pyweir_stream_wrap(stream);
}

static PyObject *set_stream(PyObject *module, PyObject *argument) {
  (void)module;
  weir_status status;
  if (!pyweir_stream_check(argument))
    return pyweir_type_error("a weir.Stream or None", argument);
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_stream_set_current(pyweir_stream_get(argument)));
  return pyweir_none(status);
}

static PyMethodDef methods[] = {
    {"_current_stream", current_stream, METH_O, NULL},
    {"_default_stream", default_stream, METH_O, NULL},
    {"_set_stream", set_stream, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_stream(PyObject *module) {
  return pyweir_add_type(module, &stream_type) != 0 ? -1 : PyModule_AddFunctions(module, methods);
}
