/*
 * Private pools: objects, scopes and checkpoints.
 */
#include "memory.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- _MemPool ---- */

typedef struct pool_object {
  PyObject_HEAD weir_pool_id id;
  int device;
  bool is_held;
  PyObject *allocator; /* the source of its segments, or NULL */
  PyObject *weak;      /* list of weak references */
} pool_object;

/* Without the GIL. */
static weir_status create_pool(int device, weir_pool_id id, weir_pool_options options, pyweir_functions *functions) {
  if (functions) {
    options.alloc = pyweir_functions_alloc;
    options.free = pyweir_functions_free;
    options.context = functions;
    options.destroy = pyweir_functions_drop;
  }
  return weir_pool_create(pyweir_allocator(), device, id, &options);
}

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"allocator", "is_user_created", "use_on_oom", "no_split", "moving_pages", NULL};
  PyObject *allocator = Py_None;
  weir_pool_options options;
  int is_user_created = 1, device;
  weir_pool_options_init(&options);
  pyweir_functions *functions = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|Opppp:_MemPool", names, &allocator, &is_user_created,
                                   &options.use_on_oom, &options.no_split, &options.moving_pages))
    return NULL;
  if (pyweir_need_device(Py_None, &device) != 0)
    return NULL;
  if (allocator != Py_None && pyweir_functions_of(allocator, &functions) != 0)
    return NULL;
  pool_object *self = (pool_object *)type->tp_alloc(type, 0);
  if (!self)
    goto drop_functions;
  self->id = weir_graph_pool_handle();
  self->device = device;
  weir_status status;
  PYWEIR_CALL(status, create_pool(device, self->id, options, functions));
  self->is_held = status == WEIR_OK;
  if (status == WEIR_OK)
    functions = NULL; /* the pool owns them now */
  if (pyweir_check(status) != 0)
    goto release_self;
  if (allocator != Py_None) {
    Py_INCREF(allocator);
    self->allocator = allocator;
  }
  return (PyObject *)self;

release_self:
  Py_DECREF(self);
drop_functions:
  if (functions)
    pyweir_functions_drop(functions);
  return NULL;
}

/* Subclasses may have their own __init__; __new__ has already read the arguments. */
static int pool_init(PyObject *self, PyObject *args, PyObject *keywords) {
  (void)self, (void)args, (void)keywords;
  return 0;
}

static weir_status release_and_empty(int device, weir_pool_id id) {
  weir_allocator *allocator = pyweir_allocator();
  weir_status status = weir_pool_set_use_on_oom(allocator, device, id, 0);
  if (status == WEIR_OK)
    status = weir_pool_release(allocator, device, id);
  return status == WEIR_OK ? weir_allocator_empty_pool(allocator, id) : status;
}

static void pool_dealloc(PyObject *object) {
  pool_object *self = (pool_object *)object;
  if (self->weak)
    PyObject_ClearWeakRefs(object);
  if (self->is_held && !weir_is_in_bad_fork()) {
    weir_status status;
    PYWEIR_CALL(status, release_and_empty(self->device, self->id));
    pyweir_write_unraisable(status);
  }
  Py_XDECREF(self->allocator);
  Py_TYPE(object)->tp_free(object);
}

PYWEIR_GETTER(pool_id, pyweir_pool_id_wrap(((pool_object *)self)->id))
PYWEIR_GETTER(pool_device, PyLong_FromLong(((pool_object *)self)->device))

static PyObject *pool_allocator(PyObject *self, void *unused) {
  (void)unused;
  PyObject *allocator = ((pool_object *)self)->allocator;
  if (!allocator)
    Py_RETURN_NONE;
  Py_INCREF(allocator);
  return allocator;
}

static PyObject *use_count_of(int device, weir_pool_id id) {
  int count = 0;
  weir_status status;
  PYWEIR_CALL(status, weir_pool_use_count(pyweir_allocator(), device, id, &count));
  return pyweir_check(status) == 0 ? PyLong_FromLong(count) : NULL;
}

PYWEIR_NO_ARGUMENTS(pool_use_count, use_count_of(((pool_object *)self)->device, ((pool_object *)self)->id))

/* None is no limit. */
static int parse_limit(PyObject *object, uint64_t *bytes) {
  *bytes = UINT64_MAX;
  if (object == Py_None)
    return 0;
  *bytes = PyLong_AsUnsignedLongLong(object);
  return *bytes == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

static PyObject *pool_set_limits(PyObject *object, PyObject *args, PyObject *keywords) {
  static char *names[] = {"hard", "soft", NULL};
  const pool_object *self = (pool_object *)object;
  PyObject *limits[2] = {Py_None, Py_None};
  uint64_t hard, soft;
  weir_status status;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OO:set_limits", names, &limits[0], &limits[1]) ||
      parse_limit(limits[0], &hard) != 0 || parse_limit(limits[1], &soft) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_pool_set_limits(pyweir_allocator(), self->device, self->id, soft, hard));
  return pyweir_none(status);
}

static PyObject *reserved_bytes_of(int device, weir_pool_id id) {
  weir_stat stats[WEIR_STAT_KINDS] = {0};
  weir_status status;
  PYWEIR_CALL(status, weir_pool_reserved_bytes(pyweir_allocator(), device, id, stats));
  if (pyweir_check(status) != 0)
    return NULL;
  const weir_stat *all = &stats[WEIR_STAT_ALL];
  return Py_BuildValue("{sLsLsLsL}", "current", (long long)all->current, "peak", (long long)all->peak, "allocated",
                       (long long)all->allocated, "freed", (long long)all->freed);
}

PYWEIR_NO_ARGUMENTS(pool_reserved_bytes, reserved_bytes_of(((pool_object *)self)->device, ((pool_object *)self)->id))

static PyMethodDef pool_methods[] = {
    {"set_limits", PYWEIR_KEYWORDS(pool_set_limits),
     "set_limits($self, hard=None, soft=None)\n--\n\n"
     "Limits the bytes that the pool may hold from the driver; None is no limit. Beyond the hard limit a request "
     "raises\n"
     "OutOfMemoryError, beyond the soft one cached memory of the pool is given back."},
    {"reserved_bytes", pool_reserved_bytes, METH_NOARGS,
     "reserved_bytes($self, /)\n--\n\n"
     "Returns the bytes that the pool holds from the driver: \"current\", \"peak\", \"allocated\" and \"freed\"."},
    {"use_count", pool_use_count, METH_NOARGS, "use_count($self, /)\n--\n\nReturns the number of uses of the pool."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pool_attributes[] = {
    {"id", pool_id, NULL, "The id of the pool, a tuple of two ints.", NULL},
    {"device", pool_device, NULL, "The index of the device that was current when the pool was created.", NULL},
    {"allocator", pool_allocator, NULL, "The source of its segments; None for the driver.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject pool_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir._weir._MemPool",
    .tp_doc = "The base class of MemPool.",
    .tp_basicsize = sizeof(pool_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = pool_new,
    .tp_init = pool_init,
    .tp_dealloc = pool_dealloc,
    .tp_methods = pool_methods,
    .tp_getset = pool_attributes,
    .tp_weaklistoffset = offsetof(pool_object, weak),
};

/* ---- Scopes ---- */

static int parse_pool(PyObject *args, const char *format, int *device, weir_pool_id *id) {
  PyObject *device_object, *id_object;
  return PyArg_ParseTuple(args, format, &device_object, &id_object) && pyweir_parse_pool_id(id_object, id) == 0 &&
                 pyweir_need_device(device_object, device) == 0
             ? 0
             : -1;
}

static int every_stream(void *context, weir_cu_stream stream) {
  (void)context, (void)stream;
  return 1;
}

/* The context is the raw stream. */
static int that_stream(void *context, weir_cu_stream stream) { return context == (void *)stream; }

static PyObject *begin(int device, weir_pool_id id, weir_pool_filter_fn filter, void *context) {
  weir_status status;
  PYWEIR_CALL(status, weir_pool_begin(pyweir_allocator(), device, id, filter, context));
  return pyweir_none(status);
}

static PyObject *begin_all(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  weir_pool_id id;
  return parse_pool(args, "OO:_cuda_beginAllocateToPool", &device, &id) == 0 ? begin(device, id, every_stream, NULL)
                                                                             : NULL;
}

static PyObject *begin_thread(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  weir_pool_id id;
  return parse_pool(args, "OO:_cuda_beginAllocateCurrentThreadToPool", &device, &id) == 0
             ? begin(device, id, NULL, NULL)
             : NULL;
}

static PyObject *begin_stream(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  weir_pool_id id;
  weir_stream stream;
  weir_cu_stream raw;
  if (parse_pool(args, "OO:_cuda_beginAllocateCurrentStreamToPool", &device, &id) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, pyweir_current_stream(device, &stream, &raw));
  return pyweir_check(status) == 0 ? begin(device, id, that_stream, raw) : NULL;
}

static PyObject *end(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  weir_pool_id id;
  if (parse_pool(args, "OO:_cuda_endAllocateToPool", &device, &id) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_pool_end(pyweir_allocator(), device, id));
  return pyweir_none(status);
}

static PyObject *release(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  weir_pool_id id;
  if (parse_pool(args, "OO:_cuda_releasePool", &device, &id) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_pool_release(pyweir_allocator(), device, id));
  return pyweir_none(status);
}

static PyObject *use_count(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  weir_pool_id id;
  return parse_pool(args, "OO:_pool_use_count", &device, &id) == 0 ? use_count_of(device, id) : NULL;
}

static PyObject *empty_pool(PyObject *module, PyObject *id_object) {
  (void)module;
  weir_pool_id id;
  if (pyweir_parse_pool_id(id_object, &id) != 0 || !pyweir_need_allocator())
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_empty_pool(pyweir_allocator(), id));
  return pyweir_none(status);
}

/* ---- Live allocations ---- */

/* Returns the addresses of a collection of ints, malloc'd, or NULL with an exception set. */
static void **parse_addresses(PyObject *object, size_t *count) {
  PyObject *list = PySequence_List(object);
  if (!list)
    return NULL;
  Py_ssize_t size = PyList_GET_SIZE(list);
  void **addresses = malloc(((size_t)size + 1) * sizeof *addresses);
  if (!addresses)
    PyErr_NoMemory();
  for (Py_ssize_t i = 0; addresses && i < size; i++) {
    if (pyweir_parse_address(PyList_GET_ITEM(list, i), &addresses[i]) != 0) {
      free(addresses);
      addresses = NULL;
    }
  }
  *count = (size_t)size;
  Py_DECREF(list);
  return addresses;
}

static PyObject *check_live(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *device_object, *id_object, *addresses_object;
  int device, equal = 0;
  weir_pool_id id;
  size_t count;
  if (!PyArg_ParseTuple(args, "OOO:_cuda_checkPoolLiveAllocations", &device_object, &id_object, &addresses_object) ||
      pyweir_parse_pool_id(id_object, &id) != 0 || pyweir_need_device(device_object, &device) != 0)
    return NULL;
  void **addresses = parse_addresses(addresses_object, &count);
  if (!addresses)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_pool_has_exactly(pyweir_allocator(), device, id, addresses, count, &equal));
  free(addresses);
  return pyweir_check(status) == 0 ? PyBool_FromLong(equal) : NULL;
}

/* ---- Checkpoints ---- */

typedef struct checkpoint_object {
  PyObject_HEAD weir_checkpoint *it;
} checkpoint_object;

static void checkpoint_dealloc(PyObject *object) {
  weir_checkpoint_destroy(((checkpoint_object *)object)->it);
  Py_TYPE(object)->tp_free(object);
}

static PyTypeObject checkpoint_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir._weir._cuda_CUDAAllocator_AllocatorState",
    .tp_doc = "The state of a pool at one moment: its blocks, and which of them were allocated.",
    .tp_basicsize = sizeof(checkpoint_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = checkpoint_dealloc,
};

static PyObject *get_checkpoint(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  weir_pool_id id;
  weir_checkpoint *checkpoint = NULL;
  if (parse_pool(args, "OO:_cuda_getCheckpointState", &device, &id) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_pool_checkpoint(pyweir_allocator(), device, id, &checkpoint));
  if (pyweir_check(status) != 0)
    return NULL;
  checkpoint_object *self = PyObject_New(checkpoint_object, &checkpoint_type);
  if (!self) {
    weir_checkpoint_destroy(checkpoint);
    return NULL;
  }
  self->it = checkpoint;
  return (PyObject *)self;
}

/* What may own memory: a Buffer, or a storage of compute, which has these methods:
 * data_ptr(), _is_owner(), and _set_owned(bool). */
static bool may_own(PyObject *object) {
  return PYWEIR_IS_BUFFER(object) || PyObject_HasAttrString(object, "_set_owned");
}

/* Converts a sequence to a list in which every item may own memory. A new reference. */
static PyObject *parse_owners(PyObject *object) {
  PyObject *list = PySequence_List(object);
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list); i++)
    if (!may_own(PyList_GET_ITEM(list, i))) {
      pyweir_type_error("a weir.Buffer", PyList_GET_ITEM(list, i));
      Py_CLEAR(list);
    }
  return list;
}

/* Returns 1 if the object owns memory of a device, 2 if other memory, 0 if none, and -1 with an exception set. */
static int is_owner(PyObject *object) {
  if (PYWEIR_IS_BUFFER(object)) {
    int owner = ((pyweir_buffer *)object)->owner;
    return owner == PYWEIR_OWNS_NOTHING ? 0 : owner == PYWEIR_OWNS_DEVICE ? 1 : 2;
  }
  PyObject *answer = PyObject_CallMethod(object, "_is_owner", NULL);
  int result = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  return result;
}

static int pointer_of(PyObject *object, void **pointer) {
  *pointer = NULL;
  if (PYWEIR_IS_BUFFER(object)) {
    *pointer = ((pyweir_buffer *)object)->pointer;
    return 0;
  }
  PyObject *address = PyObject_CallMethod(object, "data_ptr", NULL);
  if (address)
    *pointer = PyLong_AsVoidPtr(address);
  Py_XDECREF(address);
  return PyErr_Occurred() ? -1 : 0;
}

static int set_owned(PyObject *object, bool is_owned) {
  if (PYWEIR_IS_BUFFER(object)) {
    ((pyweir_buffer *)object)->owner = is_owned ? PYWEIR_OWNS_DEVICE : PYWEIR_OWNS_NOTHING;
    return 0;
  }
  PyObject *answer = PyObject_CallMethod(object, "_set_owned", "O", is_owned ? Py_True : Py_False);
  Py_XDECREF(answer);
  return answer ? 0 : -1;
}

static int by_address(const void *a, const void *b) {
  uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
  return (x > y) - (x < y);
}

static bool is_among(void *pointer, void *const *sorted, size_t count) {
  return bsearch(&pointer, sorted, count, sizeof *sorted, by_address) != NULL;
}

/* Whether all may take over memory that became live again. */
static int check_new_owners(PyObject *new_owners) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(new_owners); i++) {
    int owns = is_owner(PyList_GET_ITEM(new_owners, i));
    if (owns > 0)
      PyErr_SetString(PyExc_RuntimeError, "a Buffer or storage for restored memory must not own memory already");
    if (owns)
      return -1;
  }
  return 0;
}

/* Gives the owners of some of the memory the ownership, or takes it from them. */
static int set_all_owned(PyObject *owners, bool is_owned, void *const *sorted, size_t count) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(owners); i++) {
    PyObject *owner = PyList_GET_ITEM(owners, i);
    void *pointer;
    int owns = is_owner(owner);
    if (owns < 0 || pointer_of(owner, &pointer) != 0)
      return -1;
    if (pointer && owns == !is_owned && is_among(pointer, sorted, count) && set_owned(owner, is_owned) != 0)
      return -1;
  }
  return 0;
}

/* Owners of released memory lose it, and the given ones own the restored memory. */
static int update_owners(weir_checkpoint_delta *delta, PyObject *stale, PyObject *new_owners) {
  qsort(delta->freed, delta->freed_count, sizeof *delta->freed, by_address);
  qsort(delta->allocated, delta->allocated_count, sizeof *delta->allocated, by_address);
  size_t gone = 0;
  for (size_t i = 0; i < delta->freed_count; i++)
    gone += !is_among(delta->freed[i], delta->allocated, delta->allocated_count);
  if (set_all_owned(stale, false, delta->freed, delta->freed_count) != 0 ||
      set_all_owned(new_owners, true, delta->allocated, delta->allocated_count) != 0)
    return -1;
  if ((size_t)PyList_GET_SIZE(stale) >= gone)
    return 0;
  PyErr_SetString(PyExc_RuntimeError,
                  "Any stale tensors which are being manually freed must be passed to set checkpoint");
  return -1;
}

static PyObject *set_checkpoint(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *device_object, *state, *stale_object, *heirs_object, *result = NULL;
  int device;
  weir_checkpoint_delta delta = {.size = sizeof delta};
  if (!PyArg_ParseTuple(args, "OO!OO:_cuda_setCheckpointPoolState", &device_object, &checkpoint_type, &state,
                        &stale_object, &heirs_object) ||
      pyweir_need_device(device_object, &device) != 0)
    return NULL;
  PyObject *stale = parse_owners(stale_object), *new_owners = parse_owners(heirs_object);
  if (stale && new_owners && check_new_owners(new_owners) == 0) {
    weir_status status;
    PYWEIR_CALL(status, weir_pool_restore(pyweir_allocator(), ((checkpoint_object *)state)->it, &delta));
    if (pyweir_check(status) == 0) {
      if (update_owners(&delta, stale, new_owners) == 0)
        result = Py_NewRef(Py_None);
      weir_checkpoint_delta_clear(&delta);
    }
  }
  Py_XDECREF(stale);
  Py_XDECREF(new_owners);
  return result;
}

/* ---- Ownership ---- */

static PyObject *has_standard_deleter(PyObject *module, PyObject *object) {
  (void)module;
  if (!PYWEIR_IS_BUFFER(object))
    return pyweir_type_error("a weir.Buffer", object);
  return PyBool_FromLong(((pyweir_buffer *)object)->owner == PYWEIR_OWNS_DEVICE);
}

/* Frees the memory, but leaves the address in the buffer. */
static PyObject *free_and_disown(PyObject *module, PyObject *object) {
  (void)module;
  if (!PYWEIR_IS_BUFFER(object) || ((pyweir_buffer *)object)->owner != PYWEIR_OWNS_DEVICE) {
    PyErr_SetString(PyExc_TypeError, "expected a weir.Buffer that owns device memory");
    return NULL;
  }
  pyweir_buffer *buffer = (pyweir_buffer *)object;
  buffer->owner = PYWEIR_OWNS_NOTHING;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_free(pyweir_allocator(), buffer->pointer));
  return pyweir_none(status);
}

static PyMethodDef functions[] = {
    {"_cuda_beginAllocateToPool", begin_all, METH_VARARGS, "(device, id): routes all allocations of the device to it."},
    {"_cuda_beginAllocateCurrentThreadToPool", begin_thread, METH_VARARGS, "(device, id): those of this thread."},
    {"_cuda_beginAllocateCurrentStreamToPool", begin_stream, METH_VARARGS, "(device, id): those on this stream."},
    {"_cuda_endAllocateToPool", end, METH_VARARGS, "(device, id)"},
    {"_cuda_endAllocateCurrentStreamToPool", end, METH_VARARGS, "(device, id)"},
    {"_cuda_releasePool", release, METH_VARARGS, "(device, id): releases one use of the pool."},
    {"_pool_use_count", use_count, METH_VARARGS, "(device, id): the number of uses of the pool."},
    {"_empty_pool", empty_pool, METH_O, "(id): releases its cached memory."},
    {"_cuda_checkPoolLiveAllocations", check_live, METH_VARARGS,
     "(device, id, addresses): whether exactly these are allocated."},
    {"_cuda_getCheckpointState", get_checkpoint, METH_VARARGS, "(device, id): a checkpoint of the pool."},
    {"_cuda_setCheckpointPoolState", set_checkpoint, METH_VARARGS,
     "(device, state, stale owners, owners of restored memory): Buffers and storages."},
    {"_has_Standard_Deleter", has_standard_deleter, METH_O, "(buffer): whether it frees its memory."},
    {"_free_And_Remove_DeleterFn", free_and_disown, METH_O, "(buffer): frees its memory, but keeps the address."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_pool(PyObject *module) {
  if (pyweir_add_type(module, &pool_type) != 0 || pyweir_add_type(module, &checkpoint_type) != 0)
    return -1;
  return PyModule_AddFunctions(module, functions);
}
