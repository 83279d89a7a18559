/*
 * Collectives: communicators of NCCL, and arrays of several devices. weir.nccl and weir.comm are built on these
 * functions.
 */
#include "array.h"
#include "weir/compute/comm.h"
#include "weir/compute/nccl.h"

/* How long a communicator that the program just drops waits for other ranks, in seconds: they may have failed as well,
 * and the program may be ending. */
static const double patience_s = 1;

/* ---- Signals ---- */

static _Thread_local bool is_deallocating; /* no exception can be raised */

/* Called every 100 ms by a call that waits for other ranks: handles signals, such as Ctrl-C. An exception of a handler
 * stays set, and the communicator is aborted. */
static int handle_signals(void *context) {
  (void)context;
  if (is_deallocating)
    return 0;
  PyGILState_STATE state = PyGILState_Ensure();
  int result = PyErr_CheckSignals();
  PyGILState_Release(state);
  return result;
}

static void init_options(weir_nccl_options *options) {
  weir_nccl_options_init(options);
  options->destroy_timeout_s = patience_s;
  options->interrupt = handle_signals;
}

/* The exception of a signal handler goes before the error of the call that it ended. */
static PyObject *none_or_error(weir_status status) { return PyErr_Occurred() ? NULL : pyweir->none(status); }

/* ---- Communicators ---- */

/* A thread may destroy it while others make calls without the GIL: the last of them ends it. */
typedef struct communicator {
  PyObject_HEAD weir_nccl_comm *it; /* NULL once it was destroyed */
  weir_nccl_comm *ending;           /* destroyed while calls were under way */
  int calls;                        /* under way without the GIL */
} communicator;

static PyTypeObject communicator_type;

static weir_nccl_comm *comm_of(PyObject *object) {
  if (!PyObject_TypeCheck(object, &communicator_type)) {
    pyweir->type_error("a weir.nccl.Communicator", object);
    return NULL;
  }
  weir_nccl_comm *comm = ((communicator *)object)->it;
  if (!comm)
    PyErr_SetString(PyExc_RuntimeError, "the communicator has been destroyed");
  return comm;
}

static PyObject *wrap(weir_nccl_comm *comm) {
  communicator *made = PyObject_New(communicator, &communicator_type);
  if (!made) {
    weir_nccl_destroy(comm);
    return NULL;
  }
  made->it = comm;
  made->ending = NULL;
  made->calls = 0;
  return (PyObject *)made;
}

/* Destroys it: if `waits`, up to the time limit for the work of the rank. */
static void destroy_comm(weir_nccl_comm *comm, bool waits) {
  PyThreadState *saved = pyweir->begin_call();
  if (waits)
    (void)weir_nccl_finalize(comm); /* an error is no reason not to destroy it */
  weir_nccl_destroy(comm);
  pyweir->end_call(saved);
}

static PyThreadState *begin_use(PyObject *object) {
  ((communicator *)object)->calls++;
  return pyweir->begin_call();
}

static void end_use(PyObject *object, PyThreadState *saved) {
  communicator *self = (communicator *)object;
  pyweir->end_call(saved);
  weir_nccl_comm *ending = self->ending;
  if (--self->calls || !ending)
    return;
  self->ending = NULL;
  destroy_comm(ending, true);
}

#define USE(object, status, call)                                                                                      \
  do {                                                                                                                 \
    PyThreadState *saved_ = begin_use(object);                                                                         \
    (status) = (call);                                                                                                 \
    end_use((object), saved_);                                                                                         \
  } while (0)

static void communicator_dealloc(PyObject *object) {
  weir_nccl_comm *comm = ((communicator *)object)->it;
  is_deallocating = true;
  if (comm && !weir_is_in_bad_fork())
    destroy_comm(comm, false);
  is_deallocating = false;
  PyObject_Free(object);
}

static PyObject *destroy(PyObject *self, PyObject *unused) {
  (void)unused;
  communicator *mine = (communicator *)self;
  weir_nccl_comm *comm = mine->it;
  mine->it = NULL;
  if (comm && mine->calls)
    mine->ending = comm;
  else if (comm)
    destroy_comm(comm, true);
  return none_or_error(WEIR_OK);
}

#define SIMPLE_METHOD(name, function)                                                                                  \
  static PyObject *name(PyObject *self, PyObject *unused) {                                                            \
    (void)unused;                                                                                                      \
    weir_nccl_comm *comm = comm_of(self);                                                                              \
    weir_status status;                                                                                                \
    if (!comm)                                                                                                         \
      return NULL;                                                                                                     \
    USE(self, status, function(comm));                                                                                 \
    return none_or_error(status);                                                                                      \
  }
SIMPLE_METHOD(finalize, weir_nccl_finalize)
SIMPLE_METHOD(abort_comm, weir_nccl_abort)
SIMPLE_METHOD(check, weir_nccl_async_error)
SIMPLE_METHOD(suspend, weir_nccl_suspend)
SIMPLE_METHOD(resume, weir_nccl_resume)

static PyObject *synchronize(PyObject *self, PyObject *args) {
  PyObject *object = Py_None;
  weir_nccl_comm *comm = comm_of(self);
  weir_stream stream;
  int device;
  weir_status status;
  if (!comm || !PyArg_ParseTuple(args, "|O:synchronize", &object) || pyweir->check(weir_nccl_device(comm, &device)) ||
      pyweir->parse_stream(object, device, &stream) || !(comm = comm_of(self)))
    return NULL;
  USE(self, status, weir_nccl_synchronize(comm, stream));
  return none_or_error(status);
}

static PyObject *memory(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_nccl_comm *comm = comm_of(self);
  weir_nccl_memory m;
  weir_status status;
  if (!comm)
    return NULL;
  weir_nccl_memory_init(&m);
  USE(self, status, weir_nccl_get_memory(comm, &m));
  if (pyweir->check(status) != 0)
    return NULL;
  return Py_BuildValue("{s:K,s:K,s:K,s:N,s:N}", "device_bytes", (unsigned long long)m.device_bytes, "host_bytes",
                       (unsigned long long)m.host_bytes, "suspendable_bytes", (unsigned long long)m.suspendable_bytes,
                       "is_suspended", PyBool_FromLong(m.is_suspended), "is_exact", PyBool_FromLong(m.is_exact));
}

#define NUMBER(name, function)                                                                                         \
  static PyObject *name(PyObject *self, void *unused) {                                                                \
    (void)unused;                                                                                                      \
    weir_nccl_comm *comm = comm_of(self);                                                                              \
    int number;                                                                                                        \
    return comm && pyweir->check(function(comm, &number)) == 0 ? PyLong_FromLong(number) : NULL;                       \
  }
NUMBER(get_ranks, weir_nccl_count)
NUMBER(get_rank, weir_nccl_rank)
NUMBER(get_device, weir_nccl_device)

static PyObject *get_raw(PyObject *self, void *unused) {
  (void)unused;
  weir_nccl_comm *comm = comm_of(self);
  return comm ? PyLong_FromVoidPtr(weir_nccl_raw(comm)) : NULL;
}

static PyObject *communicator_repr(PyObject *self) {
  weir_nccl_comm *comm = ((communicator *)self)->it;
  int rank, ranks, device;
  if (!comm || weir_nccl_rank(comm, &rank) || weir_nccl_count(comm, &ranks) || weir_nccl_device(comm, &device))
    return PyUnicode_FromString("<weir.nccl.Communicator: destroyed>");
  return PyUnicode_FromFormat("<weir.nccl.Communicator: rank %d of %d, cuda:%d>", rank, ranks, device);
}

static PyMethodDef communicator_methods[] = {
    {"destroy", destroy, METH_NOARGS, "Waits for the work of this rank, and ends it."},
    {"finalize", finalize, METH_NOARGS, "Waits for the work of this rank."},
    {"abort", abort_comm, METH_NOARGS, "Ends the work that is under way; the communicators of all ranks fail."},
    {"check", check, METH_NOARGS, "Raises the error of the communicator, if it has one."},
    {"synchronize", synchronize, METH_VARARGS, "Waits for a stream, up to the time limit, and raises its error."},
    {"memory", memory, METH_NOARGS, "Memory of the communicator, as a dict."},
    {"suspend", suspend, METH_NOARGS, "Frees memory of an idle communicator."},
    {"resume", resume, METH_NOARGS, "Takes back what suspend freed."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef communicator_values[] = {
    {"ranks", get_ranks, NULL, "The number of ranks.", NULL},
    {"rank", get_rank, NULL, "The number of this rank.", NULL},
    {"device", get_device, NULL, "The device of this rank.", NULL},
    {"raw", get_raw, NULL, "NCCL's own handle, or 0 on the software device.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject communicator_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir._weir._Communicator",
    .tp_basicsize = sizeof(communicator),
    .tp_dealloc = communicator_dealloc,
    .tp_repr = communicator_repr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A rank of a communicator (weir.nccl).",
    .tp_methods = communicator_methods,
    .tp_getset = communicator_values,
};

/* ---- Functions of NCCL ---- */

static PyObject *nccl_version(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  int version;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_nccl_version(&version));
  return pyweir->check(status) == 0 ? PyLong_FromLong(version) : NULL;
}

static PyObject *nccl_unique_id(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_nccl_unique_id id;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_nccl_get_unique_id(&id));
  return pyweir->check(status) == 0 ? PyBytes_FromStringAndSize(id.bytes, sizeof id.bytes) : NULL;
}

static PyObject *nccl_init_rank(PyObject *module, PyObject *args) {
  (void)module;
  int ranks, rank;
  const char *bytes;
  Py_ssize_t length;
  weir_nccl_options options;
  weir_nccl_unique_id id;
  weir_nccl_comm *comm;
  weir_status status;
  init_options(&options);
  if (!PyArg_ParseTuple(args, "iy#id:_nccl_init_rank", &ranks, &bytes, &length, &rank, &options.timeout_s) ||
      pyweir_ensure_init() != 0)
    return NULL;
  if (length != (Py_ssize_t)sizeof id) {
    PyErr_Format(PyExc_RuntimeError, "invalid unique_id (expected %zu bytes, got %zd)", sizeof id, length);
    return NULL;
  }
  memcpy(&id, bytes, sizeof id);
  PYWEIR_CALL(status, weir_nccl_init_rank(&id, ranks, rank, &options, &comm));
  return !PyErr_Occurred() && pyweir->check(status) == 0 ? wrap(comm) : NULL;
}

static PyObject *nccl_init_all(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *list;
  weir_nccl_options options;
  int devices[WEIR_MAX_DEVICES];
  weir_nccl_comm *comms[WEIR_MAX_DEVICES];
  weir_status status;
  init_options(&options);
  if (!PyArg_ParseTuple(args, "O!d:_nccl_init_all", &PyList_Type, &list, &options.timeout_s) ||
      pyweir_ensure_init() != 0)
    return NULL;
  Py_ssize_t count = PyList_GET_SIZE(list);
  if (count > WEIR_MAX_DEVICES)
    return PyErr_Format(PyExc_ValueError, "%zd devices; there are at most %d", count, WEIR_MAX_DEVICES);
  for (Py_ssize_t i = 0; i < count; i++)
    if (pyweir->parse_int(PyList_GET_ITEM(list, i), &devices[i]) != 0)
      return NULL;
  PYWEIR_CALL(status, weir_nccl_init_all((int)count, devices, &options, comms));
  if (PyErr_Occurred() || pyweir->check(status) != 0)
    return NULL;
  PyObject *result = PyList_New(count);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *one = wrap(comms[i]);
    if (result && one)
      PyList_SET_ITEM(result, i, one);
    else
      Py_CLEAR(result);
  }
  return result;
}

PYWEIR_NO_ARGUMENTS(nccl_group_start, pyweir->none(weir_nccl_group_start()))

/* A group submits nothing if one of its calls has failed, and a call without a communicator does. */
static PyObject *nccl_group_fail(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  (void)weir_nccl_send(NULL, 0, WEIR_INT8, 0, NULL, (weir_stream){0});
  Py_RETURN_NONE;
}

static PyObject *nccl_group_end(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_status status;
  PYWEIR_CALL(status, weir_nccl_group_end());
  return !PyErr_Occurred() && pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* (kind, send, recv, count, dtype, op, peer, comm, stream): addresses, a weir.dtype, and root or peer. */
static PyObject *nccl_call(PyObject *module, PyObject *args) {
  (void)module;
  const char *kind;
  unsigned long long send, recv;
  Py_ssize_t count;
  PyObject *type, *comm_object, *stream_object;
  int op, peer, device;
  weir_dtype dtype;
  weir_stream stream;
  if (!PyArg_ParseTuple(args, "sKKnOiiOO:_nccl_call", &kind, &send, &recv, &count, &type, &op, &peer, &comm_object,
                        &stream_object))
    return NULL;
  weir_nccl_comm *comm = comm_of(comm_object);
  if (!comm || pyweir_parse_dtype(type, &dtype) != 0 || pyweir->check(weir_nccl_device(comm, &device)) != 0 ||
      pyweir->parse_stream(stream_object, device, &stream) != 0 || !(comm = comm_of(comm_object)))
    return NULL;
  const void *from = (const void *)(uintptr_t)send;
  void *to = (void *)(uintptr_t)recv;
  size_t n = (size_t)count;
  weir_nccl_op o = (weir_nccl_op)op;
  weir_status status = WEIR_ERROR_INVALID_ARGUMENT;
  PyThreadState *saved = begin_use(comm_object);
  if (!strcmp(kind, "all_reduce"))
    status = weir_nccl_all_reduce(from, to, n, dtype, o, comm, stream);
  else if (!strcmp(kind, "reduce"))
    status = weir_nccl_reduce(from, to, n, dtype, o, peer, comm, stream);
  else if (!strcmp(kind, "broadcast"))
    status = weir_nccl_broadcast(from, to, n, dtype, peer, comm, stream);
  else if (!strcmp(kind, "all_gather"))
    status = weir_nccl_all_gather(from, to, n, dtype, comm, stream);
  else if (!strcmp(kind, "reduce_scatter"))
    status = weir_nccl_reduce_scatter(from, to, n, dtype, o, comm, stream);
  else if (!strcmp(kind, "send"))
    status = weir_nccl_send(from, n, dtype, peer, comm, stream);
  else if (!strcmp(kind, "recv"))
    status = weir_nccl_recv(to, n, dtype, peer, comm, stream);
  end_use(comm_object, saved);
  return !PyErr_Occurred() && pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* ---- Arrays of several devices ---- */

/* Copies of the structs of a list of arrays, without references: the list keeps them. NULL with an exception set, or
 * for an empty list, in which case *count is 0. */
static weir_array *arrays_of(PyObject *list, Py_ssize_t *count) {
  *count = -1;
  if (!PyList_Check(list)) {
    pyweir->type_error("a list of arrays", list);
    return NULL;
  }
  Py_ssize_t size = PyList_GET_SIZE(list);
  weir_array *arrays = PyMem_Calloc((size_t)size + 1, sizeof *arrays);
  if (!arrays) {
    PyErr_NoMemory();
    return NULL;
  }
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject *item = PyList_GET_ITEM(list, i);
    if (!PYWEIR_IS_ARRAY(item)) {
      PyErr_Format(PyExc_TypeError, "expected Tensor at %zd (got %s)", i, Py_TYPE(item)->tp_name);
      PyMem_Free(arrays);
      return NULL;
    }
    arrays[i] = *pyweir_array_of(item);
  }
  *count = size;
  return arrays;
}

/* The same for arrays that are written. */
static weir_array *outputs_of(PyObject *list, Py_ssize_t *count) {
  weir_array *arrays = arrays_of(list, count);
  for (Py_ssize_t i = 0; arrays && i < *count; i++)
    if (pyweir_array_check_writable(PyList_GET_ITEM(list, i)) != 0) {
      PyMem_Free(arrays);
      return NULL;
    }
  return arrays;
}

/* A result that shares its memory with a read-only source is read-only as well. `source` is an array, or a list of
 * them. */
static PyObject *with_flag(PyObject *result, PyObject *source) {
  if (!result)
    return NULL;
  bool is_list = PyList_Check(source);
  for (Py_ssize_t i = 0; i < (is_list ? PyList_GET_SIZE(source) : 1); i++) {
    PyObject *one = is_list ? PyList_GET_ITEM(source, i) : source;
    if (PYWEIR_IS_ARRAY(one) && ((pyweir_array *)one)->is_readonly &&
        pyweir_array_of(one)->storage == pyweir_array_of(result)->storage)
      ((pyweir_array *)result)->is_readonly = true;
  }
  return result;
}

static int *ints_of(PyObject *list, Py_ssize_t *count) {
  if (!PyList_Check(list)) {
    pyweir->type_error("a list of devices", list);
    return NULL;
  }
  *count = PyList_GET_SIZE(list);
  int *numbers = PyMem_Calloc((size_t)*count + 1, sizeof *numbers);
  if (!numbers)
    PyErr_NoMemory();
  for (Py_ssize_t i = 0; numbers && i < *count; i++)
    if (pyweir->parse_int(PyList_GET_ITEM(list, i), &numbers[i]) != 0) {
      PyMem_Free(numbers);
      return NULL;
    }
  return numbers;
}

/* A tuple of arrays, which takes over `results` and frees their list. They were made of `source`. */
static PyObject *tuple_of(weir_status status, weir_array *results, Py_ssize_t count, PyObject *source) {
  PyObject *tuple = pyweir_array_check(status) == 0 ? PyTuple_New(count) : NULL;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *one = tuple ? with_flag(pyweir_array_wrap(&results[i]), source) : NULL;
    if (!tuple && status == WEIR_OK)
      pyweir_array_release(&results[i]);
    if (tuple && one)
      PyTuple_SET_ITEM(tuple, i, one);
    else
      Py_CLEAR(tuple);
  }
  PyMem_Free(results);
  return tuple;
}

static PyObject *comm_broadcast(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *array, *list;
  Py_ssize_t count = 0;
  if (!PyArg_ParseTuple(args, "O!O:_comm_broadcast", &pyweir_array_type, &array, &list) || pyweir_ensure_init() != 0)
    return NULL;
  int *devices = ints_of(list, &count);
  weir_array *results = devices ? PyMem_Calloc((size_t)count + 1, sizeof *results) : NULL;
  if (!results) {
    PyMem_Free(devices);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
  }
  weir_status status;
  PYWEIR_CALL(status, weir_comm_broadcast(pyweir_array_of(array), devices, (int)count, results));
  PyMem_Free(devices);
  return tuple_of(status, results, count, array);
}

/* broadcast_out(array, outs), scatter_out(array, outs, dim, streams). */
static PyObject *comm_broadcast_out(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *array, *list;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "O!O:_comm_broadcast_out", &pyweir_array_type, &array, &list))
    return NULL;
  weir_array *outs = outputs_of(list, &count);
  if (!outs)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_comm_broadcast_out(pyweir_array_of(array), outs, (int)count));
  PyMem_Free(outs);
  return pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *comm_broadcast_coalesced(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *list, *device_list;
  Py_ssize_t limit, count, device_count = 0;
  if (!PyArg_ParseTuple(args, "OOn:_comm_broadcast_coalesced", &list, &device_list, &limit) ||
      pyweir_ensure_init() != 0)
    return NULL;
  weir_array *arrays = arrays_of(list, &count);
  int *devices = arrays ? ints_of(device_list, &device_count) : NULL;
  weir_array *results = devices ? PyMem_Calloc((size_t)(count * device_count) + 1, sizeof *results) : NULL;
  if (!results) {
    PyMem_Free(arrays);
    PyMem_Free(devices);
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
  }
  weir_status status;
  PYWEIR_CALL(status, weir_comm_broadcast_coalesced(arrays, (int)count, devices, (int)device_count,
                                                    limit > 0 ? (size_t)limit : 0, results));
  PyMem_Free(arrays);
  PyMem_Free(devices);
  return tuple_of(status, results, count * device_count, list);
}

/* Streams for a number of parts: None, or a list whose entries may be None. */
typedef struct part_streams {
  weir_stream *streams;
  const weir_stream **pointers; /* NULL for the current ones */
} part_streams;

static void free_streams(part_streams *parts) {
  PyMem_Free(parts->streams);
  PyMem_Free(parts->pointers);
}

static int streams_of(PyObject *list, Py_ssize_t count, part_streams *parts) {
  parts->streams = PyMem_Calloc((size_t)count + 1, sizeof *parts->streams);
  parts->pointers = PyMem_Calloc((size_t)count + 1, sizeof *parts->pointers);
  if (!parts->streams || !parts->pointers) {
    PyErr_NoMemory();
    return -1;
  }
  for (Py_ssize_t i = 0; list != Py_None && i < PyList_GET_SIZE(list) && i < count; i++) {
    PyObject *item = PyList_GET_ITEM(list, i);
    if (item == Py_None)
      continue;
    if (pyweir->parse_stream(item, -1, &parts->streams[i]) != 0)
      return -1;
    parts->pointers[i] = &parts->streams[i];
  }
  return 0;
}

/* (array, devices, sizes of the parts or None, dim, streams). */
static PyObject *comm_scatter(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *array, *device_list, *size_list, *stream_list, *result = NULL;
  int dim, made = 0;
  Py_ssize_t count = 0;
  if (!PyArg_ParseTuple(args, "O!OOiO:_comm_scatter", &pyweir_array_type, &array, &device_list, &size_list, &dim,
                        &stream_list) ||
      pyweir_ensure_init() != 0)
    return NULL;
  part_streams streams = {NULL, NULL};
  int *devices = ints_of(device_list, &count);
  int64_t *sizes = devices ? PyMem_Calloc((size_t)count + 1, sizeof *sizes) : NULL;
  weir_array *results = sizes ? PyMem_Calloc((size_t)count + 1, sizeof *results) : NULL;
  bool is_good = results && streams_of(stream_list, count, &streams) == 0;
  for (Py_ssize_t i = 0; is_good && size_list != Py_None && i < count; i++)
    is_good = pyweir_parse_int64(PyList_GET_ITEM(size_list, i), &sizes[i]) == 0;
  if (is_good) {
    weir_status status;
    PYWEIR_CALL(status, weir_comm_scatter(pyweir_array_of(array), devices, (int)count,
                                          size_list == Py_None ? NULL : sizes, dim, streams.pointers, results, &made));
    result = tuple_of(status, results, made, array);
  } else {
    PyMem_Free(results);
    if (!PyErr_Occurred())
      PyErr_NoMemory();
  }
  free_streams(&streams);
  PyMem_Free(sizes);
  PyMem_Free(devices);
  return result;
}

static PyObject *comm_scatter_out(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *array, *list, *stream_list;
  int dim;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "O!OiO:_comm_scatter_out", &pyweir_array_type, &array, &list, &dim, &stream_list))
    return NULL;
  weir_array *outs = outputs_of(list, &count);
  part_streams streams = {NULL, NULL};
  weir_status status = WEIR_OK;
  bool is_good = outs && streams_of(stream_list, count, &streams) == 0;
  if (is_good)
    PYWEIR_CALL(status, weir_comm_scatter_out(pyweir_array_of(array), outs, (int)count, dim, streams.pointers));
  free_streams(&streams);
  PyMem_Free(outs);
  return is_good && pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* (arrays, dim, destination): -1 is the host. */
static PyObject *comm_gather(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *list;
  int dim, destination;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "Oii:_comm_gather", &list, &dim, &destination) || pyweir_ensure_init() != 0)
    return NULL;
  weir_array *arrays = arrays_of(list, &count), result = {0};
  if (!arrays)
    return NULL;
  weir_place place = destination < 0 ? weir_place_host() : weir_place_device(destination);
  weir_status status;
  PYWEIR_CALL(status, weir_comm_gather(arrays, (int)count, dim, place, &result));
  PyMem_Free(arrays);
  return pyweir_array_result(status, &result);
}

static PyObject *comm_gather_out(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *list, *out;
  int dim;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "OiO!:_comm_gather_out", &list, &dim, &pyweir_array_type, &out) ||
      pyweir_array_check_writable(out) != 0)
    return NULL;
  weir_array *arrays = arrays_of(list, &count);
  if (!arrays)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_comm_gather_out(arrays, (int)count, dim, pyweir_array_of(out)));
  PyMem_Free(arrays);
  return pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyObject *comm_reduce_add(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *list;
  int destination;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "Oi:_comm_reduce_add", &list, &destination))
    return NULL;
  weir_array *arrays = arrays_of(list, &count), result = {0};
  if (!arrays)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_comm_reduce_add(arrays, (int)count, destination, &result));
  PyMem_Free(arrays);
  return with_flag(pyweir_array_result(status, &result), list);
}

/* (arrays of all inputs in one list, number of inputs, destination, buffer size). */
static PyObject *comm_reduce_add_coalesced(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *list;
  int inputs, destination;
  Py_ssize_t limit, count;
  if (!PyArg_ParseTuple(args, "Oiin:_comm_reduce_add_coalesced", &list, &inputs, &destination, &limit))
    return NULL;
  weir_array *arrays = arrays_of(list, &count);
  if (!arrays)
    return NULL;
  Py_ssize_t each = inputs > 0 ? count / inputs : 0;
  weir_array *results = PyMem_Calloc((size_t)each + 1, sizeof *results);
  if (!results) {
    PyMem_Free(arrays);
    return PyErr_NoMemory();
  }
  weir_status status;
  PYWEIR_CALL(status, weir_comm_reduce_add_coalesced(arrays, inputs, (int)each, destination,
                                                     limit > 0 ? (size_t)limit : 0, results));
  PyMem_Free(arrays);
  return tuple_of(status, results, each, list);
}

static PyMethodDef methods[] = {
    {"_nccl_version", nccl_version, METH_NOARGS, NULL},
    {"_nccl_unique_id", nccl_unique_id, METH_NOARGS, NULL},
    {"_nccl_init_rank", nccl_init_rank, METH_VARARGS, NULL},
    {"_nccl_init_all", nccl_init_all, METH_VARARGS, NULL},
    {"_nccl_group_start", nccl_group_start, METH_NOARGS, NULL},
    {"_nccl_group_fail", nccl_group_fail, METH_NOARGS, NULL},
    {"_nccl_group_end", nccl_group_end, METH_NOARGS, NULL},
    {"_nccl_call", nccl_call, METH_VARARGS, NULL},
    {"_comm_broadcast", comm_broadcast, METH_VARARGS, NULL},
    {"_comm_broadcast_out", comm_broadcast_out, METH_VARARGS, NULL},
    {"_comm_broadcast_coalesced", comm_broadcast_coalesced, METH_VARARGS, NULL},
    {"_comm_scatter", comm_scatter, METH_VARARGS, NULL},
    {"_comm_scatter_out", comm_scatter_out, METH_VARARGS, NULL},
    {"_comm_gather", comm_gather, METH_VARARGS, NULL},
    {"_comm_gather_out", comm_gather_out, METH_VARARGS, NULL},
    {"_comm_reduce_add", comm_reduce_add, METH_VARARGS, NULL},
    {"_comm_reduce_add_coalesced", comm_reduce_add_coalesced, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_collectives(PyObject *module) {
  return pyweir->add_type(module, &communicator_type) != 0 ? -1 : PyModule_AddFunctions(module, methods);
}
