/*
 * Pinned host memory.
 */
#include "memory.h"

/* Created at the first use, and never destroyed. Written with the GIL. */
static weir_host_allocator *host;

static weir_status make_host(weir_host_allocator **made) {
  weir_driver *driver;
  weir_status status = weir_get_driver(&driver);
  return status == WEIR_OK ? weir_host_allocator_create(driver, NULL, made) : status;
}

weir_host_allocator *pyweir_host(void) { return host; }

weir_host_allocator *pyweir_need_host(void) {
  if (pyweir_ensure_init() != 0)
    return NULL;
  if (host)
    return host;
  weir_host_allocator *made = NULL;
  weir_status status;
  PYWEIR_CALL(status, make_host(&made));
  if (pyweir_check(status) != 0)
    return NULL;
  /* Another thread may have created it while the GIL was released. */
  if (host)
    weir_host_allocator_destroy(made);
  else
    host = made;
  return host;
}

weir_status pyweir_host_free(void *pointer) { return weir_host_free(host, pointer); }

weir_status pyweir_host_record(void *pointer, weir_stream stream) {
  weir_cu_stream raw;
  weir_status status = pyweir_raw_stream(stream, &raw);
  return status == WEIR_OK ? weir_host_record_stream(host, pointer, stream.device, raw) : status;
}

weir_status pyweir_host_configure(const char *conf) { return host ? weir_host_configure(host, conf) : WEIR_OK; }

static PyObject *host_empty(PyObject *module, PyObject *object) {
  (void)module;
  size_t bytes;
  void *pointer = NULL;
  if (pyweir_parse_bytes(object, &bytes) != 0 || !pyweir_need_host())
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_host_alloc(host, bytes, &pointer));
  if (pyweir_check(status) != 0)
    return NULL;
  pyweir_buffer *buffer = pyweir_buffer_new(pointer, bytes, (weir_stream){0});
  if (!buffer) {
    PYWEIR_CALL(status, weir_host_free(host, pointer));
    return NULL;
  }
  buffer->owner = PYWEIR_OWNS_HOST;
  buffer->is_host = true;
  return (PyObject *)buffer;
}

static PyObject *stat_dict(const weir_stat *s) {
  return Py_BuildValue("{sLsLsLsL}", "current", (long long)s->current, "peak", (long long)s->peak, "allocated",
                       (long long)s->allocated, "freed", (long long)s->freed);
}

static PyObject *time_dict(const weir_host_time *t) {
  return Py_BuildValue("{sLsLsLsLsL}", "total", (long long)t->total, "max", (long long)t->max, "min", (long long)t->min,
                       "count", (long long)t->count, "avg", t->count ? (long long)(t->total / t->count) : 0);
}

/* Returns {} before the start. */
static PyObject *host_stats(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_host_stats stats = {.size = sizeof stats};
  if (!pyweir_started)
    return PyDict_New();
  if (!pyweir_need_host())
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_host_get_stats(host, &stats));
  if (pyweir_check(status) != 0)
    return NULL;
  return Py_BuildValue("{sLsLsNsNsNsNsNsN}", "num_host_alloc", (long long)stats.num_host_alloc, "num_host_free",
                       (long long)stats.num_host_free, "allocations", stat_dict(&stats.allocations), "active_requests",
                       stat_dict(&stats.active_requests), "allocated_bytes", stat_dict(&stats.allocated_bytes),
                       "active_bytes", stat_dict(&stats.active_bytes), "host_alloc_time",
                       time_dict(&stats.host_alloc_time), "host_free_time", time_dict(&stats.host_free_time));
}

static PyObject *call_host(weir_status (*call)(weir_host_allocator *)) {
  if (!pyweir_need_host())
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, call(host));
  return pyweir_none(status);
}

PYWEIR_NO_ARGUMENTS(reset_peak, call_host(weir_host_reset_peak_stats))
PYWEIR_NO_ARGUMENTS(reset_accumulated, call_host(weir_host_reset_accumulated_stats))

static PyObject *empty_cache(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  if (!pyweir_started || !host)
    Py_RETURN_NONE;
  return call_host(weir_host_empty_cache);
}

PYWEIR_NO_ARGUMENTS(allocator_address, pyweir_need_host() ? PyLong_FromVoidPtr(host) : NULL)

static PyMethodDef functions[] = {
    {"host_empty", host_empty, METH_O,
     "host_empty(nbytes, /)\n--\n\n"
     "Allocates pinned host memory, with undefined contents, and returns a Buffer. Devices access this memory\n"
     "directly, so copies can run without waiting. Python and NumPy access it through the buffer protocol."},
    {"_cuda_hostMemoryStats", host_stats, METH_NOARGS, "Returns the statistics of pinned memory as nested dicts."},
    {"_cuda_resetPeakHostMemoryStats", reset_peak, METH_NOARGS, "Resets the peaks to the current values."},
    {"_cuda_resetAccumulatedHostMemoryStats", reset_accumulated, METH_NOARGS, "Resets the totals to 0."},
    {"_cuda_cudaHostAllocator", allocator_address, METH_NOARGS, "The address of the weir_host_allocator."},
    {"_host_emptyCache", empty_cache, METH_NOARGS, "Releases cached pinned memory."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_host(PyObject *module) { return PyModule_AddFunctions(module, functions); }
