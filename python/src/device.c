/*
 * Devices: their number, the current one, their properties and their utilization.
 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pyweir.h"

/* ---- Device: a device as a value ---- */

enum { HOST = -1, CURRENT = -2 };

typedef struct device_object {
  PyObject_HEAD int index; /* or HOST, or CURRENT: the device that is current when it is used */
} device_object;

static PyTypeObject device_type;

PyObject *pyweir_device_wrap(int device) {
  device_object *self = PyObject_New(device_object, &device_type);
  if (self)
    self->index = device;
  return (PyObject *)self;
}

/* Parses an index from 0 to INT_MAX. Rejects bool, which Python treats as an integer. */
static int index_of(PyObject *object, int *device) {
  long number = PyLong_AsLong(object);
  if (number == -1 && PyErr_Occurred())
    return -1;
  if (number < 0 || number > INT_MAX) {
    PyErr_Format(PyExc_ValueError, "invalid device index %ld: expected 0 or greater", number);
    return -1;
  }
  *device = (int)number;
  return 0;
}

/* Parses "cuda" (*device is -1) or "cuda:1". */
static int device_of_text(PyObject *object, int *device) {
  const char *text = PyUnicode_AsUTF8(object);
  if (!text)
    return -1;
  /* The syntax is PyTorch's: letters, and optionally an index without leading zeros. */
  size_t letters = strspn(text, "abcdefghijklmnopqrstuvwxyz");
  const char *number = text[letters] == ':' ? text + letters + 1 : NULL;
  bool well_formed = letters > 0 && (number || !text[letters]);
  if (number)
    well_formed = well_formed && *number && strlen(number) <= 4 && strspn(number, "0123456789") == strlen(number) &&
                  !(*number == '0' && number[1]);
  if (!well_formed) {
    PyErr_Format(PyExc_RuntimeError, "Invalid device string: '%U' (expected \"cuda\" or \"cuda:1\")", object);
    return -1;
  }
  if (letters != 4 || strncmp(text, "cuda", 4) != 0) {
    PyErr_Format(PyExc_ValueError, "Expected a cuda device, but got: %U", object);
    return -1;
  }
  *device = number ? atoi(number) : -1;
  return 0;
}

/* Parses a weir.device, or an object with a type and an index. *device is -1 if the index is None. */
static int device_of_object(PyObject *object, int *device) {
  PyObject *index = PyObject_GetAttrString(object, "idx");
  if (index && PyLong_Check(index)) {
    long number = PyLong_AsLong(index);
    *device = number < 0 || number > INT_MAX ? -1 : (int)number;
    Py_DECREF(index);
    return PyErr_Occurred() ? -1 : 0;
  }
  Py_CLEAR(index);
  PyErr_Clear();
  PyObject *type = PyObject_GetAttrString(object, "type");
  int result = -1;
  if (type)
    index = PyObject_GetAttrString(object, "index");
  if (!index || !PyUnicode_Check(type)) {
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_AttributeError))
      pyweir_type_error("a device (an index, \"cuda:1\", or an object with type and index)", object);
  } else if (PyUnicode_CompareWithASCIIString(type, "cuda") != 0) {
    PyErr_Format(PyExc_ValueError, "Expected a cuda device, but got: %S", object);
  } else if (index == Py_None) {
    *device = -1;
    result = 0;
  } else {
    result = index_of(index, device);
  }
  Py_XDECREF(type);
  Py_XDECREF(index);
  return result;
}

/* Like pyweir_parse_device, except that the current device is returned as -1, so that nothing needs to be started. */
static int parse_any(PyObject *object, int *device) {
  if (object == Py_None) {
    *device = -1;
    return 0;
  }
  if (PyLong_Check(object) && !PyBool_Check(object))
    return index_of(object, device);
  if (Py_IS_TYPE(object, &device_type)) {
    int index = ((device_object *)object)->index;
    if (index != HOST) {
      *device = index == CURRENT ? -1 : index;
      return 0;
    }
    PyErr_SetString(PyExc_ValueError, "Expected a cuda device, but got: cpu");
    return -1;
  }
  if (PyUnicode_Check(object))
    return device_of_text(object, device);
  if (PyIndex_Check(object) && !PyBool_Check(object)) {
    PyObject *number = PyNumber_Index(object);
    int result = number ? index_of(number, device) : -1;
    Py_XDECREF(number);
    return result;
  }
  return device_of_object(object, device);
}

int pyweir_parse_device(PyObject *object, int *device) {
  int found;
  if (parse_any(object, &found) != 0)
    return -1;
  if (found < 0 && pyweir_check(weir_device_get_current(&found)) != 0)
    return -1;
  *device = found;
  return 0;
}

static PyObject *device_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"type", "index", NULL};
  PyObject *object;
  PyObject *index = NULL;
  int device;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O:Device", names, &object, &index))
    return NULL;
  if (index && (!PyUnicode_Check(object) || PyUnicode_CompareWithASCIIString(object, "cuda") != 0)) {
    PyErr_SetString(PyExc_ValueError, "Device(type, index): the type must be \"cuda\"");
    return NULL;
  }
  if (index && PyBool_Check(index)) {
    PyErr_SetString(PyExc_TypeError, "Device(type, index): the index must be an int");
    return NULL;
  }
  bool is_host = !index && ((PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, "cpu") == 0) ||
                            (Py_IS_TYPE(object, &device_type) && ((device_object *)object)->index == HOST));
  if (is_host)
    device = HOST;
  else if (index ? index_of(index, &device) != 0 : parse_any(object, &device) != 0)
    return NULL;
  else if (device < 0)
    device = CURRENT;
  device_object *self = (device_object *)type->tp_alloc(type, 0);
  if (self)
    self->index = device;
  return (PyObject *)self;
}

static PyObject *device_repr(PyObject *self) {
  int index = ((device_object *)self)->index;
  if (index < 0)
    return PyUnicode_FromString(index == HOST ? "device(type='cpu')" : "device(type='cuda')");
  return PyUnicode_FromFormat("device(type='cuda', index=%d)", index);
}

static PyObject *device_str(PyObject *self) {
  int index = ((device_object *)self)->index;
  if (index < 0)
    return PyUnicode_FromString(index == HOST ? "cpu" : "cuda");
  return PyUnicode_FromFormat("cuda:%d", index);
}

static Py_hash_t device_hash(PyObject *self) { return ((device_object *)self)->index - CURRENT; }

static PyObject *device_compare(PyObject *a, PyObject *b, int operation) {
  if (!Py_IS_TYPE(b, &device_type) || (operation != Py_EQ && operation != Py_NE))
    Py_RETURN_NOTIMPLEMENTED;
  bool equal = ((device_object *)a)->index == ((device_object *)b)->index;
  return PyBool_FromLong(equal == (operation == Py_EQ));
}

static PyObject *device_get_type(PyObject *self, void *closure) {
  (void)closure;
  return PyUnicode_InternFromString(((device_object *)self)->index == HOST ? "cpu" : "cuda");
}

static PyObject *device_get_index(PyObject *self, void *closure) {
  (void)closure;
  int index = ((device_object *)self)->index;
  return index < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(index);
}

static PyObject *device_reduce(PyObject *self, PyObject *unused) {
  (void)unused;
  int index = ((device_object *)self)->index;
  if (index < 0)
    return Py_BuildValue("O(s)", Py_TYPE(self), index == HOST ? "cpu" : "cuda");
  return Py_BuildValue("O(si)", Py_TYPE(self), "cuda", index);
}

static PyGetSetDef device_getters[] = {
    {"type", device_get_type, NULL, "\"cuda\", or \"cpu\" for the host.", NULL},
    {"index", device_get_index, NULL, "The index of the device; None for the host, and for the current device.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef device_methods[] = {
    {"__reduce__", device_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject device_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.Device",
    .tp_doc = PyDoc_STR("Device(device)\nDevice('cuda', index)\n--\n\n"
                        "A device: its type is \"cuda\", and its index a number. str() returns \"cuda:0\".\n"
                        "Device('cuda') has no index: it is the device that is current when it is used.\n"
                        "Device('cpu') is the host, where arrays can be too."),
    .tp_basicsize = sizeof(device_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = device_new,
    .tp_repr = device_repr,
    .tp_str = device_str,
    .tp_hash = device_hash,
    .tp_richcompare = device_compare,
    .tp_getset = device_getters,
    .tp_methods = device_methods,
};

/* ---- The UUID of a device ---- */

typedef struct uuid_object {
  PyObject_HEAD unsigned char bytes[16];
} uuid_object;

static PyTypeObject uuid_type;

/* Parses the 32 hexadecimal digits of "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". Missing digits read as 0. */
static PyObject *uuid_new_of(const char *text) {
  uuid_object *self = PyObject_New(uuid_object, &uuid_type);
  if (!self)
    return NULL;
  memset(self->bytes, 0, sizeof self->bytes);
  for (int digit = 0; *text && digit < 32; text++) {
    static const char digits[] = "0123456789abcdef";
    const char *found = *text == '-' ? NULL : strchr(digits, *text | 0x20);
    if (found)
      self->bytes[digit / 2] |= (unsigned char)((found - digits) << (digit % 2 ? 0 : 4)), digit++;
  }
  return (PyObject *)self;
}

/* Returns a list of numbers, as torch.cuda does, not a bytes object. */
static PyObject *uuid_bytes(PyObject *self, void *closure) {
  (void)closure;
  PyObject *list = PyList_New(16);
  for (int i = 0; list && i < 16; i++) {
    PyObject *number = PyLong_FromLong(((uuid_object *)self)->bytes[i]);
    if (!number)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, i, number);
  }
  return list;
}

static PyObject *uuid_str(PyObject *self) {
  const unsigned char *b = ((uuid_object *)self)->bytes;
  char text[37];
  snprintf(text, sizeof text, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
           b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
  return PyUnicode_FromString(text);
}

static PyObject *uuid_repr(PyObject *self) { return PyUnicode_FromFormat("<weir._CUuuid %S>", self); }

static Py_hash_t uuid_hash(PyObject *self) {
  Py_hash_t hash;
  memcpy(&hash, ((uuid_object *)self)->bytes, sizeof hash);
  return hash == -1 ? -2 : hash;
}

static PyObject *uuid_compare(PyObject *a, PyObject *b, int operation) {
  if (!Py_IS_TYPE(b, &uuid_type) || (operation != Py_EQ && operation != Py_NE))
    Py_RETURN_NOTIMPLEMENTED;
  bool equal = memcmp(((uuid_object *)a)->bytes, ((uuid_object *)b)->bytes, 16) == 0;
  return PyBool_FromLong(equal == (operation == Py_EQ));
}

static PyGetSetDef uuid_getters[] = {
    {"bytes", uuid_bytes, NULL, "The 16 bytes as a list of numbers.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject uuid_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir._CUuuid",
    .tp_doc = PyDoc_STR("The UUID of a device. str() returns 32 hexadecimal digits in five groups."),
    .tp_basicsize = sizeof(uuid_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = uuid_repr,
    .tp_str = uuid_str,
    .tp_hash = uuid_hash,
    .tp_richcompare = uuid_compare,
    .tp_getset = uuid_getters,
};

/* ---- Properties ---- */

typedef struct properties_object {
  PyObject_HEAD weir_device_properties it;
  unsigned pci_domain, pci_bus, pci_device;
} properties_object;

static PyTypeObject properties_type;

static PyObject *properties_uuid(PyObject *self, void *closure) {
  (void)closure;
  return uuid_new_of(((properties_object *)self)->it.uuid);
}

static PyObject *properties_name(PyObject *self, void *closure) {
  (void)closure;
  return PyUnicode_FromString(((properties_object *)self)->it.name);
}

static PyObject *properties_bool(PyObject *self, void *offset) {
  return PyBool_FromLong(*(const int *)((const char *)self + (size_t)offset));
}

static PyObject *properties_repr(PyObject *object) {
  const properties_object *self = (const properties_object *)object;
  const weir_device_properties *it = &self->it;
  return PyUnicode_FromFormat("_CudaDeviceProperties(name='%s', major=%d, minor=%d, total_memory=%lluMB, "
                              "multi_processor_count=%d, uuid=%s, pci_bus_id=%u, pci_device_id=%u, pci_domain_id=%u, "
                              "L2_cache_size=%dMB)",
                              it->name, it->major, it->minor, it->total_memory >> 20, it->multiprocessor_count,
                              strncmp(it->uuid, "GPU-", 4) == 0 ? it->uuid + 4 : it->uuid, self->pci_bus,
                              self->pci_device, self->pci_domain, it->l2_cache_size >> 20);
}

/* Properties of the same device are equal. */
static PyObject *properties_compare(PyObject *a, PyObject *b, int op) {
  if ((op != Py_EQ && op != Py_NE) || Py_TYPE(b) != &properties_type)
    Py_RETURN_NOTIMPLEMENTED;
  bool are_equal = strcmp(((properties_object *)a)->it.uuid, ((properties_object *)b)->it.uuid) == 0;
  return PyBool_FromLong(are_equal == (op == Py_EQ));
}

static Py_hash_t properties_hash(PyObject *self) {
  PyObject *uuid = properties_uuid(self, NULL);
  Py_hash_t hash = uuid ? PyObject_Hash(uuid) : -1;
  Py_XDECREF(uuid);
  return hash;
}

#define FIELD(python, kind, field, doc)                                                                                \
  { python, kind, offsetof(properties_object, it.field), READONLY, doc }
static PyMemberDef properties_members[] = {
    FIELD("name", T_STRING_INPLACE, name, "The name of the device."),
    FIELD("major", T_INT, major, "The major version of the compute capability."),
    FIELD("minor", T_INT, minor, "The minor version of the compute capability."),
    FIELD("total_memory", T_ULONGLONG, total_memory, "Bytes."),
    FIELD("multi_processor_count", T_INT, multiprocessor_count, NULL),
    FIELD("max_threads_per_block", T_INT, max_threads_per_block, NULL),
    FIELD("max_threads_per_multi_processor", T_INT, max_threads_per_multiprocessor, NULL),
    FIELD("warp_size", T_INT, warp_size, NULL),
    FIELD("regs_per_multiprocessor", T_INT, regs_per_multiprocessor, NULL),
    FIELD("shared_memory_per_block", T_INT, shared_memory_per_block, "Bytes."),
    FIELD("shared_memory_per_block_optin", T_INT, shared_memory_per_block_optin, "Bytes."),
    FIELD("shared_memory_per_multiprocessor", T_INT, shared_memory_per_multiprocessor, "Bytes."),
    FIELD("L2_cache_size", T_INT, l2_cache_size, "Bytes."),
    FIELD("clock_rate", T_INT, clock_khz, "kHz."),
    {"pci_bus_id", T_UINT, offsetof(properties_object, pci_bus), READONLY, NULL},
    {"pci_device_id", T_UINT, offsetof(properties_object, pci_device), READONLY, NULL},
    {"pci_domain_id", T_UINT, offsetof(properties_object, pci_domain), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define FLAG(python, field, doc)                                                                                       \
  { python, properties_bool, NULL, doc, (void *)offsetof(properties_object, it.field) }
static PyGetSetDef properties_getters[] = {
    {"uuid", properties_uuid, NULL, "The UUID of the device, as str(uuid) or uuid.bytes.", NULL},
    {"gcnArchName", properties_name, NULL,
     "The name, as PyTorch has it on NVIDIA devices; on AMD devices this is the architecture.", NULL},
    FLAG("is_integrated", is_integrated, "Whether it shares memory with the host."),
    FLAG("is_multi_gpu_board", is_multi_gpu_board, NULL),
    FLAG("virtual_memory", virtual_memory, "Whether expandable segments are supported."),
    FLAG("memory_pools", memory_pools, "Whether stream-ordered memory pools are supported."),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject properties_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir._CudaDeviceProperties",
    .tp_doc = PyDoc_STR("The properties of a device. See get_device_properties()."),
    .tp_basicsize = sizeof(properties_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = properties_repr,
    .tp_richcompare = properties_compare,
    .tp_hash = properties_hash,
    .tp_members = properties_members,
    .tp_getset = properties_getters,
};

static PyObject *get_properties(PyObject *module, PyObject *argument) {
  (void)module;
  int device;
  if (pyweir_ensure_init() != 0 || pyweir_parse_device(argument, &device) != 0)
    return NULL;
  properties_object *self = PyObject_New(properties_object, &properties_type);
  if (!self)
    return NULL;
  weir_status status;
  weir_device_properties_init(&self->it);
  PYWEIR_CALL(status, weir_device_get_properties(device, &self->it));
  if (pyweir_check(status) != 0) {
    Py_DECREF(self);
    return NULL;
  }
  self->pci_domain = self->pci_bus = self->pci_device = 0;
  sscanf(self->it.pci_bus_id, "%x:%x:%x", &self->pci_domain, &self->pci_bus, &self->pci_device);
  return (PyObject *)self;
}

/* ---- Functions ---- */

int pyweir_need_device(PyObject *object, int *device) {
  return pyweir_ensure_init() == 0 ? pyweir_parse_device(object, device) : -1;
}

static PyObject *is_available(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  int available;
  PyThreadState *saved = pyweir_begin_call();
  available = weir_device_is_available();
  pyweir_end_call(saved);
  return PyBool_FromLong(available);
}

static PyObject *device_count(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  int count = 0;
  weir_status status;
  PYWEIR_CALL(status, weir_device_count(&count));
  return pyweir_check(status) == 0 ? PyLong_FromLong(count) : NULL;
}

static PyObject *current_device(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  int device;
  if (pyweir_need_device(Py_None, &device) != 0)
    return NULL;
  return PyLong_FromLong(device);
}

static PyObject *set_device(PyObject *module, PyObject *argument) {
  (void)module;
  int device;
  weir_status status;
  if (pyweir_need_device(argument, &device) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_device_set_current(device));
  return pyweir_none(status);
}

/* For device guards: a negative index changes nothing, and starts nothing. */
static PyObject *exchange_by(weir_status (*call)(int, int *), PyObject *argument) {
  int previous = -1;
  weir_status status = WEIR_OK;
  int device;
  if (pyweir_parse_int(argument, &device) != 0)
    return NULL;
  if (device >= 0) {
    if (pyweir_ensure_init() != 0)
      return NULL;
    PYWEIR_CALL(status, call(device, &previous));
  }
  return pyweir_check(status) == 0 ? PyLong_FromLong(previous) : NULL;
}

static PyObject *exchange(PyObject *module, PyObject *argument) {
  (void)module;
  return exchange_by(weir_device_exchange, argument);
}

static PyObject *maybe_exchange(PyObject *module, PyObject *argument) {
  (void)module;
  return exchange_by(weir_device_maybe_exchange, argument);
}

static PyObject *parse_device(PyObject *module, PyObject *argument) {
  (void)module;
  int device;
  return parse_any(argument, &device) == 0 ? PyLong_FromLong(device) : NULL;
}

static PyObject *synchronize(PyObject *module, PyObject *argument) {
  (void)module;
  int device;
  weir_status status;
  if (pyweir_need_device(argument, &device) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_device_synchronize(device));
  return pyweir_none(status);
}

static PyObject *memory_info(PyObject *module, PyObject *argument) {
  (void)module;
  int device;
  size_t free_bytes, total;
  weir_status status;
  if (pyweir_need_device(argument, &device) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_device_memory_info(device, &free_bytes, &total));
  if (pyweir_check(status) != 0)
    return NULL;
  return Py_BuildValue("(KK)", (unsigned long long)free_bytes, (unsigned long long)total);
}

static PyObject *can_access_peer(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  int device, peer, can;
  weir_status status;
  if (count != 2)
    return PyErr_Format(PyExc_TypeError, "expected two arguments, a device and its peer, got %zd", count);
  if (pyweir_need_device(args[0], &device) != 0 || pyweir_parse_device(args[1], &peer) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_device_can_access_peer(device, peer, &can));
  return pyweir_check(status) == 0 ? PyBool_FromLong(can) : NULL;
}

static PyObject *has_primary_context(PyObject *module, PyObject *argument) {
  (void)module;
  int device, has;
  weir_status status;
  if (index_of(argument, &device) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_device_has_primary_context(device, &has));
  return pyweir_check(status) == 0 ? PyBool_FromLong(has) : NULL;
}

static PyObject *set_sync_debug(PyObject *module, PyObject *argument) {
  (void)module;
  int mode;
  if (pyweir_parse_int(argument, &mode) != 0)
    return NULL;
  return pyweir_none(weir_set_sync_debug((weir_sync_debug)mode));
}

PYWEIR_NO_ARGUMENTS(get_sync_debug, PyLong_FromLong(weir_get_sync_debug()))

/* ---- Metrics ---- */

static PyObject *measure(weir_metric metric, PyObject *argument) {
  int device, value;
  weir_status status;
  if (pyweir_need_device(argument, &device) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_device_metric(device, metric, &value));
  return pyweir_check(status) == 0 ? PyLong_FromLong(value) : NULL;
}

#define METRIC(name, metric)                                                                                           \
  static PyObject *name(PyObject *module, PyObject *argument) {                                                        \
    (void)module;                                                                                                      \
    return measure(WEIR_METRIC_##metric, argument);                                                                    \
  }
METRIC(utilization, UTILIZATION)
METRIC(memory_usage, MEMORY_USAGE)
METRIC(temperature, TEMPERATURE)
METRIC(power_draw, POWER_DRAW)
METRIC(clock_rate, CLOCK_RATE)
#undef METRIC

/* The CUDA version of the newest entry of the driver table. */
static PyObject *compiled_version(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  static const int versions[] = {
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) since,
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) since,
#include "weir/driver_entries.h"
  };
  int newest = 0;
  for (size_t i = 0; i < sizeof versions / sizeof *versions; i++)
    newest = versions[i] > newest ? versions[i] : newest;
  return PyLong_FromLong(newest);
}

static PyMethodDef methods[] = {
    {"_cuda_getCompiledVersion", compiled_version, METH_NOARGS, "The CUDA version that this was written for: 12040."},
    {"_is_available", is_available, METH_NOARGS, NULL},
    {"_device_count", device_count, METH_NOARGS, NULL},
    {"_current_device", current_device, METH_NOARGS, NULL},
    {"_set_device", set_device, METH_O, NULL},
    {"_exchange_device", exchange, METH_O, NULL},
    {"_maybe_exchange_device", maybe_exchange, METH_O, NULL},
    {"_parse_device", parse_device, METH_O, "Returns a device's index, -1 for the current one. Starts nothing."},
    {"_synchronize", synchronize, METH_O, NULL},
    {"_memory_info", memory_info, METH_O, NULL},
    {"_get_device_properties", get_properties, METH_O, NULL},
    {"_can_access_peer", PYWEIR_FAST(can_access_peer), NULL},
    {"_has_primary_context", has_primary_context, METH_O, NULL},
    {"_set_sync_debug_mode", set_sync_debug, METH_O, NULL},
    {"_get_sync_debug_mode", get_sync_debug, METH_NOARGS, NULL},
    {"_utilization", utilization, METH_O, NULL},
    {"_memory_usage", memory_usage, METH_O, NULL},
    {"_temperature", temperature, METH_O, NULL},
    {"_power_draw", power_draw, METH_O, NULL},
    {"_clock_rate", clock_rate, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_device(PyObject *module) {
  if (pyweir_add_type(module, &device_type) != 0 || pyweir_add_type(module, &uuid_type) != 0 ||
      pyweir_add_type(module, &properties_type) != 0)
    return -1;
  return PyModule_AddFunctions(module, methods);
}
