/*
 * Tags: names on private pools, and their sleep. The package refers to a tag by its device and its name.
 */
#include "memory.h"

#include "weir/tag.h"

/* Parses (device, name), and finds or creates the tag. */
static int parse_tag(PyObject *args, const char *format, weir_tag **tag) {
  PyObject *device_object;
  const char *name;
  int device;
  if (!PyArg_ParseTuple(args, format, &device_object, &name) || pyweir_need_device(device_object, &device) != 0)
    return -1;
  weir_status status;
  PYWEIR_CALL(status, weir_tag_open(pyweir_allocator(), device, name, tag));
  return pyweir_check(status);
}

static PyObject *begin(PyObject *module, PyObject *args) {
  (void)module;
  weir_tag *tag;
  if (parse_tag(args, "Os:_tag_begin", &tag) != 0)
    return NULL;
  return pyweir_none(weir_tag_begin(tag));
}

static PyObject *end(PyObject *module, PyObject *args) {
  (void)module;
  weir_tag *tag;
  if (parse_tag(args, "Os:_tag_end", &tag) != 0)
    return NULL;
  return pyweir_none(weir_tag_end(tag));
}

static PyObject *fall_asleep(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *device_object;
  const char *name;
  int device, keeps;
  weir_tag *tag = NULL;
  weir_status status;
  if (!PyArg_ParseTuple(args, "Osp:_tag_sleep", &device_object, &name, &keeps) ||
      pyweir_need_device(device_object, &device) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tag_open(pyweir_allocator(), device, name, &tag));
  if (status == WEIR_OK)
    PYWEIR_CALL(status, weir_tag_sleep(tag, keeps ? WEIR_TAG_KEEP : WEIR_TAG_DISCARD, NULL));
  return pyweir_none(status);
}

static PyObject *wake(PyObject *module, PyObject *args) {
  (void)module;
  weir_tag *tag;
  weir_status status;
  if (parse_tag(args, "Os:_tag_wake", &tag) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tag_wake(tag, NULL));
  return pyweir_none(status);
}

static PyObject *prepare(PyObject *module, PyObject *args) {
  (void)module;
  weir_tag *tag;
  weir_status status;
  if (parse_tag(args, "Os:_tag_prepare", &tag) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tag_prepare(tag));
  return pyweir_none(status);
}

static PyObject *info(PyObject *module, PyObject *args) {
  (void)module;
  weir_tag *tag;
  weir_tag_info of;
  weir_status status;
  weir_tag_info_init(&of);
  if (parse_tag(args, "Os:_tag_info", &tag) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tag_get_info(tag, &of));
  if (pyweir_check(status) != 0)
    return NULL;
  PyObject *pool = pyweir_pool_id_wrap(of.pool);
  if (!pool)
    return NULL;
  return Py_BuildValue("{s:s,s:N,s:n,s:K,s:K,s:K,s:K,s:K,s:K}", "state", weir_tag_state_name(of.state), "pool", pool,
                       "pools", (Py_ssize_t)of.pools, "reserved_bytes", (unsigned long long)of.reserved_bytes,
                       "allocated_bytes", (unsigned long long)of.allocated_bytes, "asleep_bytes",
                       (unsigned long long)of.asleep_bytes, "kept_bytes", (unsigned long long)of.kept_bytes,
                       "copied_bytes", (unsigned long long)of.copied_bytes, "pinned_bytes",
                       (unsigned long long)of.pinned_bytes);
}

static PyObject *names(PyObject *module, PyObject *device_object) {
  (void)module;
  enum { MANY = 1024 };
  weir_tag *tags[MANY];
  size_t count = 0;
  int device;
  weir_status status;
  if (pyweir_need_device(device_object, &device) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_allocator_tags(pyweir_allocator(), device, tags, MANY, &count));
  if (pyweir_check(status) != 0)
    return NULL;
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && i < count && i < MANY; i++) {
    weir_tag_info of;
    weir_tag_info_init(&of);
    PYWEIR_CALL(status, weir_tag_get_info(tags[i], &of));
    PyObject *name = pyweir_check(status) == 0 ? PyUnicode_FromString(of.name) : NULL;
    if (!name || PyList_Append(list, name) != 0)
      Py_CLEAR(list);
    Py_XDECREF(name);
  }
  return list;
}

static PyMethodDef functions[] = {
    {"_tag_begin", begin, METH_VARARGS, "(device, name): allocations of this thread have the tag from here on."},
    {"_tag_end", end, METH_VARARGS, "(device, name): ends that."},
    {"_tag_sleep", fall_asleep, METH_VARARGS, "(device, name, keep)"},
    {"_tag_wake", wake, METH_VARARGS, "(device, name)"},
    {"_tag_prepare", prepare, METH_VARARGS, "(device, name): pins host memory ahead."},
    {"_tag_info", info, METH_VARARGS, "(device, name): what the tag holds."},
    {"_tag_names", names, METH_O, "(device): the names of its tags."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_tag(PyObject *module) { return PyModule_AddFunctions(module, functions); }
