/*
 * weir.CUDAGraph.
 */
#include <stddef.h>
#include <string.h>

#include "pyweir.h"

/* ---- Pool ids ---- */

PyObject *pyweir_pool_id_wrap(weir_pool_id id) {
  return Py_BuildValue("(KK)", (unsigned long long)id.first, (unsigned long long)id.second);
}

int pyweir_parse_pool_id(PyObject *object, weir_pool_id *id) {
  if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) {
    pyweir_type_error("a pool id as a tuple of two ints", object);
    return -1;
  }
  unsigned long long numbers[2];
  for (int i = 0; i < 2; i++) {
    numbers[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(object, i));
    if (numbers[i] == (unsigned long long)-1 && PyErr_Occurred())
      return -1;
  }
  *id = (weir_pool_id){numbers[0], numbers[1]};
  return 0;
}

/* ---- The class ---- */

typedef struct graph_object {
  PyObject_HEAD weir_graph *it;
  PyObject *weak; /* weak references */
  bool is_kept;
} graph_object;

static weir_graph *graph_of(PyObject *self) { return ((graph_object *)self)->it; }

static PyObject *graph_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"keep_graph", NULL};
  weir_graph *graph;
  int is_kept = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|p:CUDAGraph", names, &is_kept))
    return NULL;
  if (pyweir_ensure_init() != 0 || pyweir_check(weir_graph_create(&graph)) != 0)
    return NULL;
  graph_object *self = (graph_object *)type->tp_alloc(type, 0);
  if (!self || (is_kept && pyweir_check(weir_graph_keep(graph)) != 0)) {
    Py_XDECREF(self);
    weir_graph_destroy(graph);
    return NULL;
  }
  self->it = graph;
  self->is_kept = is_kept;
  return (PyObject *)self;
}

static void graph_dealloc(PyObject *object) {
  graph_object *self = (graph_object *)object;
  if (self->weak)
    PyObject_ClearWeakRefs(object);
  if (self->it) {
    /* No status is returned here, so warnings go to stderr. */
    Py_BEGIN_ALLOW_THREADS weir_graph_destroy(self->it);
    Py_END_ALLOW_THREADS
  }
  Py_TYPE(object)->tp_free(object);
}

static int parse_mode(const char *text, weir_capture_mode *mode) {
  static const struct {
    const char *name;
    weir_capture_mode mode;
  } modes[] = {
      {"global", WEIR_CAPTURE_GLOBAL}, {"thread_local", WEIR_CAPTURE_THREAD_LOCAL}, {"relaxed", WEIR_CAPTURE_RELAXED}};
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    if (strcmp(text, modes[i].name) == 0) {
      *mode = modes[i].mode;
      return 0;
    }
  }
  PyErr_Format(PyExc_ValueError, "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got %s",
               text);
  return -1;
}

static PyObject *graph_capture_begin(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"pool", "capture_error_mode", NULL};
  PyObject *pool_argument = Py_None;
  const char *mode_text = "global";
  weir_pool_id pool = {0, 0};
  weir_capture_mode mode;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|Os:capture_begin", names, &pool_argument, &mode_text))
    return NULL;
  if (pool_argument != Py_None && pyweir_parse_pool_id(pool_argument, &pool) != 0)
    return NULL;
  weir_status status;
  if (parse_mode(mode_text, &mode) != 0 || pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_graph_begin_capture(graph_of(self), pool, mode));
  return pyweir_none(status);
}

PYWEIR_CALL_ONLY(graph_capture_end, weir_graph_end_capture(graph_of(self)))
PYWEIR_CALL_ONLY(graph_replay, weir_graph_replay(graph_of(self)))
PYWEIR_CALL_ONLY(graph_reset, weir_graph_reset(graph_of(self)))

static PyObject *graph_instantiate(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_status status;
  if (!((graph_object *)self)->is_kept)
    return PyErr_Format(PyExc_RuntimeError, "instantiate() is intended to be called by the user only when "
                                            "keep_graph=true");
  PYWEIR_CALL(status, weir_graph_instantiate(graph_of(self)));
  return pyweir_none(status);
}

/* Around the hooks that see the captured graph of a CUDAGraph without keep_graph. */
PYWEIR_CALL_ONLY(graph_keep, weir_graph_keep(graph_of(self)))
PYWEIR_CALL_ONLY(graph_finish, weir_graph_finish(graph_of(self)))

static PyObject *graph_raw(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_cu_graph kept = NULL;
  weir_status status = weir_graph_raw(graph_of(self), &kept, NULL);
  if (!kept && !((graph_object *)self)->is_kept)
    return PyErr_Format(PyExc_RuntimeError, "You cannot access the raw cudaGraph_t instance unless CUDAGraph was "
                                            "initialized with keep_graph=true");
  return pyweir_check(status) == 0 ? PyLong_FromVoidPtr(kept) : NULL;
}

static PyObject *graph_raw_exec(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_cu_graph_exec exec = NULL;
  if (pyweir_check(weir_graph_raw(graph_of(self), NULL, &exec)) != 0)
    return NULL;
  return exec ? PyLong_FromVoidPtr(exec)
              : PyErr_Format(PyExc_RuntimeError,
                             "You cannot access the raw cudaGraphExec_t instance until instantiate() has been called");
}

static PyObject *graph_pool(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_pool_id pool;
  weir_status status;
  PYWEIR_CALL(status, weir_graph_pool(graph_of(self), &pool));
  return pyweir_check(status) == 0 ? pyweir_pool_id_wrap(pool) : NULL;
}

static PyObject *graph_node_count(PyObject *self, PyObject *unused) {
  (void)unused;
  size_t count;
  weir_status status;
  PYWEIR_CALL(status, weir_graph_node_count(graph_of(self), &count));
  return pyweir_check(status) == 0 ? PyLong_FromSize_t(count) : NULL;
}

PYWEIR_CALL_ONLY(graph_enable_debug_mode, weir_graph_enable_debug(graph_of(self)))

static PyObject *graph_debug_dump(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"debug_path", NULL};
  PyObject *path;
  weir_status status;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&:debug_dump", names, PyUnicode_FSConverter, &path))
    return NULL;
  PYWEIR_CALL(status, weir_graph_debug_dump(graph_of(self), PyBytes_AS_STRING(path)));
  Py_DECREF(path);
  return pyweir_none(status);
}

static PyObject *graph_register_generator_state(PyObject *self, PyObject *object) {
  if (!PyObject_HasAttrString(object, "_register_with_graph"))
    return PyErr_Format(PyExc_TypeError, "expected a Generator, but got %.100s", Py_TYPE(object)->tp_name);
  return PyObject_CallMethod(object, "_register_with_graph", "O", self);
}

PYWEIR_NO_ARGUMENTS(graph_reduce,
                    PyErr_Format(PyExc_TypeError, "cannot pickle a %.100s: a graph belongs to its process",
                                 Py_TYPE(self)->tp_name))

static PyMethodDef graph_methods[] = {
    {"capture_begin", PYWEIR_KEYWORDS(graph_capture_begin),
     "capture_begin($self, pool=None, capture_error_mode='global')\n--\n\n"
     "Starts to capture the work submitted to the current stream, which must not be the default stream.\n"
     "Prefer weir.graph.\n\n"
     "pool: the id of a memory pool to share, from graph_pool_handle() or from pool() of another graph.\n"
     "capture_error_mode: forbids unsafe calls during the capture: \"global\" from all threads, \"thread_local\" from\n"
     "    this thread, \"relaxed\" from none."},
    {"capture_end", graph_capture_end, METH_NOARGS,
     "capture_end($self)\n--\n\nEnds the capture. Must be called on the stream on which it began."},
    {"replay", graph_replay, METH_NOARGS, "replay($self)\n--\n\nLaunches the graph on the current stream."},
    {"reset", graph_reset, METH_NOARGS,
     "reset($self)\n--\n\nDiscards the captured work, so that the object can capture again."},
    {"instantiate", graph_instantiate, METH_NOARGS,
     "instantiate($self)\n--\n\n"
     "Makes what replay() launches of a graph that was created with keep_graph=True; again after the graph was "
     "changed."},
    {"raw_cuda_graph", graph_raw, METH_NOARGS,
     "raw_cuda_graph($self)\n--\n\nReturns the CUgraph, of a graph that was created with keep_graph=True."},
    {"raw_cuda_graph_exec", graph_raw_exec, METH_NOARGS,
     "raw_cuda_graph_exec($self)\n--\n\nReturns the CUgraphExec that replay() launches."},
    {"pool", graph_pool, METH_NOARGS, "pool($self)\n--\n\nReturns the id of its memory pool, to share."},
    {"node_count", graph_node_count, METH_NOARGS, "node_count($self)\n--\n\nReturns the number of captured nodes."},
    {"enable_debug_mode", graph_enable_debug_mode, METH_NOARGS,
     "enable_debug_mode($self)\n--\n\nKeeps the information for debug_dump(). Must be called before the capture."},
    {"debug_dump", PYWEIR_KEYWORDS(graph_debug_dump),
     "debug_dump($self, debug_path)\n--\n\nWrites the captured graph to a file in the DOT format. Works once."},
    {"register_generator_state", graph_register_generator_state, METH_O,
     "register_generator_state($self, generator, /)\n--\n\n"
     "Lets the capture use a generator beside the default one. Each replay advances it. Must be called before the\n"
     "capture."},
    {"_keep", graph_keep, METH_NOARGS, NULL},
    {"_finish", graph_finish, METH_NOARGS, NULL},
    {"__reduce__", graph_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject graph_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.CUDAGraph",
    .tp_doc = PyDoc_STR("CUDAGraph(keep_graph=False)\n--\n\n"
                        "A CUDA graph: work captured once from a stream, and launched many times.\n\n"
                        "keep_graph: keeps what was captured after capture_end(), which then leaves its instantiation "
                        "to\n    instantiate() or the first replay()."),
    .tp_basicsize = sizeof(graph_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = graph_new,
    .tp_dealloc = graph_dealloc,
    .tp_weaklistoffset = offsetof(graph_object, weak),
    .tp_methods = graph_methods,
};

weir_graph *pyweir_graph_get(PyObject *object) {
  if (PyObject_TypeCheck(object, &graph_type))
    return graph_of(object);
  pyweir_type_error("a weir.CUDAGraph", object);
  return NULL;
}

/* ---- Functions ---- */

PYWEIR_NO_ARGUMENTS(pool_handle, pyweir_pool_id_wrap(weir_graph_pool_handle()))

static PyObject *is_capturing(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  int capturing;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_current_stream_is_capturing(&capturing));
  return pyweir_check(status) == 0 ? PyBool_FromLong(capturing) : NULL;
}

static PyObject *capture_id(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_stream stream;
  unsigned long long id = 0;
  weir_status status;
  if (pyweir_ensure_init() != 0 || pyweir_parse_stream(Py_None, -1, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_stream_capture_id(stream, &id));
  return pyweir_check(status) == 0 ? PyLong_FromUnsignedLongLong(id) : NULL;
}

static PyMethodDef methods[] = {
    {"_capture_id", capture_id, METH_NOARGS, NULL},
    {"_graph_pool_handle", pool_handle, METH_NOARGS, NULL},
    {"_is_current_stream_capturing", is_capturing, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_graph(PyObject *module) {
  return pyweir_add_type(module, &graph_type) != 0 ? -1 : PyModule_AddFunctions(module, methods);
}
