/*
 * The process's allocator: its statistics, limits and settings.
 */
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Written once, with the GIL, when the runtime starts. It is never destroyed, since buffers may outlive all else. */
static weir_allocator *allocator;
static const weir_driver *memory_driver;
static const weir_backend *chosen_backend; /* NULL for the default; guarded by the GIL */

weir_allocator *pyweir_allocator(void) { return allocator; }

bool pyweir_driver_can(uint64_t capability) { return memory_driver && (memory_driver->capabilities & capability) != 0; }

int pyweir_set_backend(const weir_backend *backend) {
  if (allocator) {
    PyErr_SetString(PyExc_RuntimeError, "Can't swap an already initialized allocator");
    return -1;
  }
  chosen_backend = backend;
  return 0;
}

static weir_status make_with_backend(weir_driver *driver, weir_allocator **made) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.backend = chosen_backend;
  weir_status status = weir_allocator_create(driver, &options, made);
  if (status != WEIR_OK)
    return status;
  status = weir_graph_use_allocator(*made);
  if (status != WEIR_OK)
    weir_allocator_destroy(*made);
  return status;
}

/* Returns the process default, unless the program chose a back end. */
static weir_status make_allocator(weir_allocator **made) {
  weir_driver *driver;
  weir_status status = weir_get_driver(&driver);
  if (status == WEIR_OK)
    status = chosen_backend ? make_with_backend(driver, made) : weir_default_allocator(made);
  if (status == WEIR_OK)
    memory_driver = driver;
  return status;
}

int pyweir_memory_start(void) {
  if (allocator)
    return 0;
  weir_allocator *made = NULL;
  weir_status status;
  if (pyweir_frames_wanted() && pyweir_frames_use(true) != 0)
    return -1;
  PYWEIR_CALL(status, make_allocator(&made));
  if (status == WEIR_OK)
    allocator = made;
  weir_history_info info = {.size = sizeof info};
  if (!made || weir_history_get_info(made, 0, &info) != WEIR_OK || info.context == WEIR_CONTEXT_NONE)
    pyweir_frames_use(false); /* there is no recording */
  return pyweir_check(status);
}

weir_allocator *pyweir_need_allocator(void) { return pyweir_ensure_init() == 0 ? allocator : NULL; }

/* ---- Arguments ---- */

int pyweir_parse_bytes(PyObject *object, size_t *bytes) {
  PyObject *number = PyNumber_Index(object);
  if (!number)
    return -1;
  size_t value = PyLong_AsSize_t(number);
  if (value == (size_t)-1 && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError)) {
    PyErr_Clear();
    PyErr_Format(PyExc_ValueError, "Invalid memory size: %S", number);
  }
  Py_DECREF(number);
  if (PyErr_Occurred())
    return -1;
  *bytes = value;
  return 0;
}

int pyweir_parse_address(PyObject *object, void **address) {
  if (!PyLong_Check(object)) {
    pyweir_type_error("an address as an int", object);
    return -1;
  }
  unsigned long long value = PyLong_AsUnsignedLongLong(object);
  if (value == (unsigned long long)-1 && PyErr_Occurred())
    return -1;
  *address = (void *)(uintptr_t)value;
  return 0;
}

/* The id of a stream that is not from a pool is its address. */
weir_status pyweir_raw_stream(weir_stream stream, weir_cu_stream *raw) {
  if (stream.id & 1)
    return weir_stream_raw(stream, raw);
  *raw = (weir_cu_stream)(uintptr_t)stream.id;
  return WEIR_OK;
}

weir_status pyweir_current_stream(int device, weir_stream *stream, weir_cu_stream *raw) {
  weir_status status = weir_stream_get_current(device, stream);
  return status == WEIR_OK ? pyweir_raw_stream(*stream, raw) : status;
}

/* ---- Statistics ---- */

/* One counter: the offset of its value in weir_allocator_stats, its flat name, and up to three words of the name. */
typedef struct counter {
  size_t offset;
  PyObject *name;
  PyObject *words[3]; /* unused ones are NULL */
} counter;

static counter *counters;                        /* created at the import, sorted by name */
static size_t counter_count, first_behind_pools; /* the first counter whose name sorts after those of pools */
static PyObject *flat_shape;                     /* a dict with all names; a copy of it need not grow */
static PyObject *by_pools;
static PyObject *kind_words[WEIR_STAT_KINDS], *metric_words[4];

static int split_name(const char *name, PyObject *words[3]) {
  for (int i = 0; i < 3 && name; i++) {
    const char *dot = strchr(name, '.');
    PyObject *word = PyUnicode_FromStringAndSize(name, dot ? dot - name : (Py_ssize_t)strlen(name));
    if (!word)
      return -1;
    PyUnicode_InternInPlace(&word);
    words[i] = word;
    name = dot ? dot + 1 : NULL;
  }
  return 0;
}

/* Finds the offset of each value by asking the library for the values of a struct that holds its own offsets. */
static int find_counters(void) {
  weir_allocator_stats stats = {.size = sizeof stats};
  int64_t *places = (int64_t *)(void *)((char *)&stats + sizeof stats.size);
  size_t count = (sizeof stats - sizeof stats.size) / sizeof *places;
  for (size_t i = 0; i < count; i++)
    places[i] = (int64_t)(sizeof stats.size + i * sizeof *places);
  while (weir_stats_name(counter_count))
    counter_count++;
  counters = calloc(counter_count, sizeof *counters);
  flat_shape = PyDict_New();
  if (!counters || !flat_shape)
    return -1;
  for (size_t i = 0; i < counter_count; i++) {
    const char *name = weir_stats_name(i);
    int64_t place = 0;
    counters[i].name = PyUnicode_InternFromString(name);
    if (!counters[i].name || split_name(name, counters[i].words) != 0 ||
        pyweir_check(weir_stats_value(&stats, name, &place)) != 0 ||
        PyDict_SetItem(flat_shape, counters[i].name, Py_None) != 0)
      return -1;
    counters[i].offset = (size_t)place;
    if (strcmp(name, "reserved_bytes_by_private_pools") < 0)
      first_behind_pools = i + 1;
  }
  return 0;
}

static PyObject *number_at(const weir_allocator_stats *stats, const counter *c) {
  int64_t value;
  memcpy(&value, (const char *)stats + c->offset, sizeof value);
  return PyLong_FromLongLong(value);
}

static int put(PyObject *dict, PyObject *key, PyObject *value) {
  int result = value ? PyDict_SetItem(dict, key, value) : -1;
  Py_XDECREF(value);
  return result;
}

/* The statistics of private pools. */
typedef struct pool_stats {
  weir_pool_id id;
  weir_stat reserved[WEIR_STAT_KINDS];
} pool_stats;

typedef struct device_stats {
  weir_allocator_stats all;
  pool_stats *pools; /* freed by the caller */
  size_t pool_count;
} device_stats;

/* Without the GIL. */
static weir_status read_pools(int device, device_stats *stats) {
  size_t count = 0;
  weir_status status = weir_allocator_pools(allocator, device, 0, NULL, 0, &count);
  if (status != WEIR_OK || !count)
    return status;
  weir_pool_id *ids = malloc(count * sizeof *ids);
  size_t room = count;
  stats->pools = calloc(count, sizeof *stats->pools);
  status = ids && stats->pools ? weir_allocator_pools(allocator, device, 0, ids, room, &count)
                               : WEIR_ERROR_HOST_OUT_OF_MEMORY;
  for (size_t i = 0; status == WEIR_OK && i < count && i < room; i++) {
    pool_stats *pool = &stats->pools[stats->pool_count];
    pool->id = ids[i];
    /* A pool that was destroyed in the meantime is left out. */
    if (weir_pool_reserved_bytes(allocator, device, ids[i], pool->reserved) == WEIR_OK)
      stats->pool_count++;
  }
  free(ids);
  return status;
}

static weir_status read_stats(int device, device_stats *stats) {
  stats->all.size = sizeof stats->all;
  weir_status status = weir_allocator_get_stats(allocator, device, &stats->all);
  return status == WEIR_OK ? read_pools(device, stats) : status;
}

static int64_t metric_of(const weir_stat *stat, int metric) {
  const int64_t values[] = {stat->current, stat->peak, stat->allocated, stat->freed};
  return values[metric];
}

/* Compares as text, the order of the flat names. */
static int by_id_text(const void *a, const void *b) {
  char x[48], y[48];
  const weir_pool_id p = ((const pool_stats *)a)->id, q = ((const pool_stats *)b)->id;
  snprintf(x, sizeof x, "%llu_%llu", (unsigned long long)p.first, (unsigned long long)p.second);
  snprintf(y, sizeof y, "%llu_%llu", (unsigned long long)q.first, (unsigned long long)q.second);
  return strcmp(x, y);
}

static int add_flat_pool(PyObject *dict, const pool_stats *pool) {
  static const struct {
    const char *name;
    int kind;
  } kinds[] = {{"all", WEIR_STAT_ALL}, {"large_pool", WEIR_STAT_LARGE_POOL}, {"small_pool", WEIR_STAT_SMALL_POOL}};
  for (int i = 0; i < WEIR_STAT_KINDS; i++) {
    const weir_stat *stat = &pool->reserved[kinds[i].kind];
    const struct {
      const char *name;
      int64_t value;
    } metrics[] = {
        {"allocated", stat->allocated}, {"current", stat->current}, {"freed", stat->freed}, {"peak", stat->peak}};
    for (int m = 0; m < 4; m++) {
      PyObject *name = PyUnicode_FromFormat("%U.%llu_%llu.%s.%s", by_pools, (unsigned long long)pool->id.first,
                                            (unsigned long long)pool->id.second, kinds[i].name, metrics[m].name);
      int result = name ? put(dict, name, PyLong_FromLongLong(metrics[m].value)) : -1;
      Py_XDECREF(name);
      if (result != 0)
        return -1;
    }
  }
  return 0;
}

static int add_flat_pools(PyObject *dict, const device_stats *stats) {
  qsort(stats->pools, stats->pool_count, sizeof *stats->pools, by_id_text);
  for (size_t i = 0; i < stats->pool_count; i++)
    if (add_flat_pool(dict, &stats->pools[i]) != 0)
      return -1;
  return 0;
}

/* In the order of the names. Those of pools come in between, so a dict with pools is built from empty. */
static PyObject *flat_dict(const device_stats *stats) {
  PyObject *dict = stats->pool_count ? PyDict_New() : PyDict_Copy(flat_shape);
  if (!dict)
    return NULL;
  for (size_t i = 0; i < counter_count; i++) {
    if (i == first_behind_pools && stats->pool_count && add_flat_pools(dict, stats) != 0)
      goto release_dict;
    if (put(dict, counters[i].name, number_at(&stats->all, &counters[i])) != 0)
      goto release_dict;
  }
  return dict;

release_dict:
  Py_DECREF(dict);
  return NULL;
}

/* Returns the dict at a key of `dict`, and creates it if it does not exist. Borrowed. */
static PyObject *inner_dict(PyObject *dict, PyObject *key) {
  PyObject *inner = PyDict_GetItemWithError(dict, key);
  if (inner || PyErr_Occurred())
    return inner;
  return put(dict, key, PyDict_New()) == 0 ? PyDict_GetItemWithError(dict, key) : NULL;
}

static int add_nested_pools(PyObject *dict, const device_stats *stats) {
  PyObject *pools = inner_dict(dict, by_pools);
  for (size_t i = 0; pools && i < stats->pool_count; i++) {
    PyObject *id = pyweir_pool_id_wrap(stats->pools[i].id);
    PyObject *pool = id ? inner_dict(pools, id) : NULL;
    Py_XDECREF(id);
    for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
      PyObject *metrics = pool ? inner_dict(pool, kind_words[kind]) : NULL;
      for (int metric = 0; metric < 4; metric++)
        if (!metrics || put(metrics, metric_words[metric],
                            PyLong_FromLongLong(metric_of(&stats->pools[i].reserved[kind], metric))) != 0)
          return -1;
    }
  }
  return pools ? 0 : -1;
}

static PyObject *nested_dict(const device_stats *stats) {
  PyObject *dict = PyDict_New();
  if (!dict)
    return NULL;
  for (size_t i = 0; i < counter_count; i++) {
    const counter *c = &counters[i];
    PyObject *place = dict;
    int depth = 0;
    for (; place && depth < 2 && c->words[depth + 1]; depth++)
      place = inner_dict(place, c->words[depth]);
    if (!place || put(place, c->words[depth], number_at(&stats->all, c)) != 0)
      goto release_dict;
  }
  if (add_nested_pools(dict, stats) != 0)
    goto release_dict;
  return dict;

release_dict:
  Py_DECREF(dict);
  return NULL;
}

/* Returns {} before the start. */
static PyObject *stats_as(PyObject *device, PyObject *(*make)(const device_stats *)) {
  if (!pyweir_started)
    return PyDict_New();
  device_stats stats = {.pool_count = 0};
  int number;
  if (pyweir_parse_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, read_stats(number, &stats));
  PyObject *result = pyweir_check(status) == 0 ? make(&stats) : NULL;
  free(stats.pools);
  return result;
}

/* Parses the one optional argument of a function; None if it is missing. -1 with an exception set. */
static int one_optional(const char *function, PyObject *const *args, Py_ssize_t count, PyObject **argument) {
  if (count > 1) {
    PyErr_Format(PyExc_TypeError, "%s takes at most one argument (%zd given)", function, count);
    return -1;
  }
  *argument = count ? args[0] : Py_None;
  return 0;
}

static PyObject *memory_stats_flat(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  PyObject *device;
  return one_optional("memory_stats", args, count, &device) == 0 ? stats_as(device, flat_dict) : NULL;
}

static PyObject *memory_stats(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  PyObject *device;
  return one_optional("memory_stats_as_nested_dict", args, count, &device) == 0 ? stats_as(device, nested_dict) : NULL;
}

/* Returns a single counter; 0 before the start. */
static PyObject *memory_stat(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  if (count != 2) {
    PyErr_SetString(PyExc_TypeError, "_memory_stat takes a device and a name");
    return NULL;
  }
  const char *name = PyUnicode_AsUTF8(args[1]);
  if (!name)
    return NULL;
  if (!pyweir_started)
    return PyLong_FromLong(0);
  int device;
  int64_t value = 0;
  weir_allocator_stats stats = {.size = sizeof stats};
  if (pyweir_parse_device(args[0], &device) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_get_stats(allocator, device, &stats));
  if (status == WEIR_OK)
    status = weir_stats_value(&stats, name, &value);
  return pyweir_check(status) == 0 ? PyLong_FromLongLong(value) : NULL;
}

static PyObject *call_with_device(PyObject *device, weir_status (*call)(weir_allocator *, int)) {
  int number;
  if (pyweir_need_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, call(allocator, number));
  return pyweir_none(status);
}

static PyObject *reset_peak(PyObject *module, PyObject *device) {
  (void)module;
  return call_with_device(device, weir_allocator_reset_peak_stats);
}

static PyObject *reset_accumulated(PyObject *module, PyObject *device) {
  (void)module;
  return call_with_device(device, weir_allocator_reset_accumulated_stats);
}

/* ---- Texts ---- */

typedef weir_status (*text_call)(int device, int form, char *text, size_t size, size_t *length);

static weir_status summary_text(int device, int form, char *text, size_t size, size_t *length) {
  return weir_allocator_summary(allocator, device, (weir_summary_form)form, text, size, length);
}

static weir_status processes_text(int device, int form, char *text, size_t size, size_t *length) {
  (void)form;
  return weir_allocator_processes(allocator, device, text, size, length);
}

/* Repeats the call with more space until the text fits. */
static PyObject *text_of(text_call call, int device, int form) {
  size_t size = 8192, length = 0;
  char *text = NULL;
  for (;;) {
    char *larger = PyMem_RawRealloc(text, size);
    weir_status status;
    if (!larger) {
      PyMem_RawFree(text);
      return PyErr_NoMemory();
    }
    text = larger;
    PYWEIR_CALL(status, call(device, form, text, size, &length));
    if (pyweir_check(status) != 0) {
      PyMem_RawFree(text);
      return NULL;
    }
    if (length < size)
      break;
    size = length + 1;
  }
  PyObject *result = PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace");
  PyMem_RawFree(text);
  return result;
}

static PyObject *memory_summary(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *device;
  int abbreviated, number;
  if (!PyArg_ParseTuple(args, "Op:memory_summary", &device, &abbreviated) || pyweir_need_device(device, &number) != 0)
    return NULL;
  return text_of(summary_text, number, abbreviated ? WEIR_SUMMARY_ABBREVIATED : WEIR_SUMMARY_FULL);
}

/* Returns None if the management library is not available. */
static PyObject *processes(PyObject *module, PyObject *device) {
  (void)module;
  int number;
  if (pyweir_need_device(device, &number) != 0)
    return NULL;
  PyObject *text = text_of(processes_text, number, 0);
  if (!text && PyErr_ExceptionMatches(PyExc_NotImplementedError)) {
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  return text;
}

static PyObject *memory_info(PyObject *module, PyObject *device) {
  (void)module;
  int number;
  size_t available = 0, total = 0;
  if (pyweir_need_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_device_memory_info(number, &available, &total));
  return pyweir_check(status) == 0 ? Py_BuildValue("KK", (unsigned long long)available, (unsigned long long)total)
                                   : NULL;
}

/* ---- Limits and settings ---- */

static PyObject *set_fraction(PyObject *module, PyObject *args) {
  (void)module;
  double fraction;
  PyObject *device;
  int number;
  if (!PyArg_ParseTuple(args, "dO:_cuda_setMemoryFraction", &fraction, &device) ||
      pyweir_need_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_set_fraction(allocator, number, fraction));
  return pyweir_none(status);
}

static PyObject *get_fraction(PyObject *module, PyObject *device) {
  (void)module;
  int number;
  double fraction = 0;
  if (pyweir_need_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_get_fraction(allocator, number, &fraction));
  return pyweir_check(status) == 0 ? PyFloat_FromDouble(fraction) : NULL;
}

/* None removes the limit. */
static PyObject *set_limit(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *limit, *device;
  size_t bytes = SIZE_MAX;
  int number;
  if (!PyArg_ParseTuple(args, "OO:_set_memory_limit", &limit, &device) ||
      (limit != Py_None && pyweir_parse_bytes(limit, &bytes) != 0) || pyweir_need_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_set_limit(allocator, number, bytes));
  return pyweir_none(status);
}

/* Whether a value or a bracket is missing at the end, so that another key would change the error. */
static bool is_incomplete(const char *conf, char last) {
  const char *open = strrchr(conf, '['), *close = strrchr(conf, ']');
  return last == ':' || (open && (!close || close < open));
}

/* As PyTorch 2.11 does it: some settings begin from their defaults in every call, and the others keep their values.
 * Returns the text with these defaults, to be freed with PyMem_RawFree, or NULL. */
static char *with_defaults(const char *conf) {
  static const char *const keys[] = {"max_split_size_mb", "max_non_split_rounding_mb", "garbage_collection_threshold",
                                     "roundup_power2_divisions"};
  size_t length = strlen(conf), size = length + 256;
  char *text = PyMem_RawMalloc(size), last = ',';
  if (!text)
    return NULL;
  memcpy(text, conf, length + 1);
  for (size_t i = 0; i < length; i++)
    last = conf[i] == ' ' ? last : conf[i];
  for (size_t i = 0; i < sizeof keys / sizeof *keys && !is_incomplete(conf, last); i++)
    if (!strstr(conf, keys[i])) {
      length += (size_t)snprintf(text + length, size - length, "%s%s:default", last == ',' ? "" : ",", keys[i]);
      last = 't';
    }
  return text;
}

static weir_status configure_all(const char *conf) {
  weir_status status = weir_allocator_configure(allocator, conf);
  return status == WEIR_OK ? pyweir_host_configure(conf) : status;
}

static PyObject *configure(PyObject *module, PyObject *conf) {
  (void)module;
  if (!PyUnicode_Check(conf))
    return pyweir_type_error("settings as a str such as 'expandable_segments:True'", conf);
  const char *given = PyUnicode_AsUTF8(conf);
  if (!given || !pyweir_need_allocator())
    return NULL;
  char *text = with_defaults(given);
  if (!text)
    return PyErr_NoMemory();
  weir_status status;
  PYWEIR_CALL(status, configure_all(text));
  PyMem_RawFree(text);
  return pyweir_none(status);
}

static weir_status settings_text(int device, int form, char *text, size_t size, size_t *length) {
  (void)device, (void)form;
  return weir_allocator_settings(allocator, text, size, length);
}

static weir_status backend_text(int device, int form, char *text, size_t size, size_t *length) {
  (void)device, (void)form;
  return weir_allocator_backend(allocator, text, size, length);
}

PYWEIR_NO_ARGUMENTS(settings, pyweir_need_allocator() ? text_of(settings_text, 0, 0) : NULL)
PYWEIR_NO_ARGUMENTS(backend_name, pyweir_need_allocator() ? text_of(backend_text, 0, 0) : NULL)

static PyObject *empty_cache(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  if (!pyweir_started)
    Py_RETURN_NONE;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_empty_cache(allocator));
  return pyweir_none(status);
}

static PyObject *enable_caching(PyObject *module, PyObject *on) {
  (void)module;
  int value = PyObject_IsTrue(on);
  if (value < 0 || !pyweir_need_allocator())
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_set_caching(allocator, value));
  return pyweir_none(status);
}

static PyObject *is_caching(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  int is_caching = 0;
  if (!pyweir_need_allocator() || pyweir_check(weir_allocator_is_caching(allocator, &is_caching)) != 0)
    return NULL;
  return PyBool_FromLong(is_caching);
}

static PyObject *largest_block(PyObject *module, PyObject *device) {
  (void)module;
  int number;
  size_t bytes = 0;
  if (pyweir_need_device(device, &number) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_largest_block(allocator, number, &bytes));
  return pyweir_check(status) == 0 ? PyLong_FromSize_t(bytes) : NULL;
}

/* ---- Raw addresses ---- */

static weir_status allocate(weir_stream stream, size_t bytes, void **pointer) {
  weir_cu_stream raw;
  weir_status status = pyweir_raw_stream(stream, &raw);
  return status == WEIR_OK ? weir_allocator_alloc(allocator, stream.device, bytes, raw, pointer) : status;
}

/* (bytes, stream, device): allocates on the device for the stream, which may be None. */
static PyObject *raw_alloc(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *bytes_object, *stream_object, *device_object = Py_None;
  size_t bytes;
  int device;
  weir_stream stream;
  void *pointer = NULL;
  if (!PyArg_ParseTuple(args, "OO|O:_cuda_cudaCachingAllocator_raw_alloc", &bytes_object, &stream_object,
                        &device_object) ||
      pyweir_parse_bytes(bytes_object, &bytes) != 0 || pyweir_need_device(device_object, &device) != 0 ||
      pyweir_parse_stream(stream_object, device, &stream) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, allocate(stream, bytes, &pointer));
  return pyweir_check(status) == 0 ? PyLong_FromVoidPtr(pointer) : NULL;
}

static PyObject *raw_delete(PyObject *module, PyObject *object) {
  (void)module;
  void *pointer;
  if (pyweir_parse_address(object, &pointer) != 0 || !pyweir_need_allocator())
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_free(allocator, pointer));
  return pyweir_none(status);
}

static PyObject *raw_record_stream(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *pointer_object, *stream_object;
  void *pointer;
  weir_stream stream;
  weir_cu_stream raw;
  if (!PyArg_ParseTuple(args, "OO:_record_stream", &pointer_object, &stream_object) ||
      pyweir_parse_address(pointer_object, &pointer) != 0 || !pyweir_need_allocator() ||
      pyweir_parse_stream(stream_object, -1, &stream) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, pyweir_raw_stream(stream, &raw));
  if (status == WEIR_OK)
    PYWEIR_CALL(status, weir_allocator_record_stream(allocator, pointer, raw));
  return pyweir_none(status);
}

/* Takes a Buffer or an address. A view stands for the whole allocation. */
static PyObject *fix_pages(PyObject *module, PyObject *object) {
  (void)module;
  void *pointer;
  if (PYWEIR_IS_BUFFER(object)) {
    pyweir_buffer *buffer = (pyweir_buffer *)object, *root = pyweir_buffer_root(buffer);
    if (pyweir_buffer_check(buffer) != 0)
      return NULL;
    if (root->owner != PYWEIR_OWNS_DEVICE) {
      PyErr_SetString(PyExc_ValueError, "fix_pages() needs device memory that Weir allocated");
      return NULL;
    }
    if (!root->pointer)
      Py_RETURN_NONE;
    pointer = root->pointer;
  } else if (pyweir_parse_address(object, &pointer) != 0 || !pyweir_need_allocator()) {
    return NULL;
  }
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_fix_pages(allocator, pointer));
  return pyweir_none(status);
}

/* Returns (base, bytes) of the segment that contains an address. */
static PyObject *base_allocation(PyObject *module, PyObject *object) {
  (void)module;
  void *pointer, *base = NULL;
  size_t bytes = 0;
  if (pyweir_parse_address(object, &pointer) != 0 || !pyweir_need_allocator())
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_allocator_base(allocator, pointer, &base, &bytes));
  return pyweir_check(status) == 0 ? Py_BuildValue("KK", (unsigned long long)(uintptr_t)base, (unsigned long long)bytes)
                                   : NULL;
}

/* The number of the stack that allocated the memory at an address; 0 if there is none, or no such memory. */
static PyObject *stack_of(PyObject *module, PyObject *object) {
  (void)module;
  void *pointer;
  weir_pointer_info info;
  weir_pointer_info_init(&info);
  if (pyweir_parse_address(object, &pointer) != 0 || !pyweir_need_allocator())
    return NULL;
  return PyLong_FromUnsignedLong(weir_allocator_describe(allocator, pointer, &info) ? 0 : info.stack);
}

PYWEIR_NO_ARGUMENTS(driver, pyweir_ensure_init() == 0 ? PyUnicode_FromString(memory_driver->name) : NULL)

static PyMethodDef functions[] = {
    {"_memory_stats_flat", PYWEIR_FAST(memory_stats_flat), "(device): the statistics by flat name, sorted."},
    {"_cuda_memoryStats", PYWEIR_FAST(memory_stats), "(device): the statistics as nested dicts."},
    {"_memory_stat", PYWEIR_FAST(memory_stat), "(device, name): one counter."},
    {"_cuda_resetPeakMemoryStats", reset_peak, METH_O, "(device)"},
    {"_cuda_resetAccumulatedMemoryStats", reset_accumulated, METH_O, "(device)"},
    {"_memory_summary", memory_summary, METH_VARARGS, "(device, abbreviated): the table as text."},
    {"_gpu_processes", processes, METH_O, "(device): a text; None if the management library is not available."},
    {"_mem_get_info", memory_info, METH_O, "(device): the free and the total bytes."},
    {"_cuda_setMemoryFraction", set_fraction, METH_VARARGS, "(fraction, device)"},
    {"_cuda_getMemoryFraction", get_fraction, METH_O, "(device)"},
    {"_set_memory_limit", set_limit, METH_VARARGS, "(bytes or None, device)"},
    {"_cuda_cudaCachingAllocator_set_allocator_settings", configure, METH_O, "(settings)"},
    {"_allocator_settings", settings, METH_NOARGS, "Returns the settings that differ from their defaults."},
    {"_cuda_getAllocatorBackend", backend_name, METH_NOARGS, "Returns the name of the back end."},
    {"_cuda_emptyCache", empty_cache, METH_NOARGS, "Releases cached memory."},
    {"_cuda_cudaCachingAllocator_enable", enable_caching, METH_O, "(on)"},
    {"_is_caching", is_caching, METH_NOARGS, "Whether freed memory is cached."},
    {"_largest_block", largest_block, METH_O, "(device): the size of the largest free block."},
    {"_cuda_cudaCachingAllocator_raw_alloc", raw_alloc, METH_VARARGS, "(bytes, stream, device=None): an address."},
    {"_cuda_cudaCachingAllocator_raw_delete", raw_delete, METH_O, "(address)"},
    {"_record_stream", raw_record_stream, METH_VARARGS, "(address, stream)"},
    {"_fix_pages", fix_pages, METH_O, "(buffer or address)"},
    {"_base_allocation", base_allocation, METH_O, "(address): the address and size of its segment."},
    {"_stack_of", stack_of, METH_O, "(address): the number of the stack that allocated it, or 0."},
    {"_driver_name", driver, METH_NOARGS, "'cuda' or 'soft'."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_memory(PyObject *module) {
  static const char *const kinds[] = {"all", "small_pool", "large_pool"};
  static const char *const metrics[] = {"current", "peak", "allocated", "freed"};
  by_pools = PyUnicode_InternFromString("reserved_bytes_by_private_pools");
  for (int i = 0; i < WEIR_STAT_KINDS; i++)
    kind_words[i] = PyUnicode_InternFromString(kinds[i]);
  for (int i = 0; i < 4; i++)
    metric_words[i] = PyUnicode_InternFromString(metrics[i]);
  if (find_counters() != 0) {
    if (!PyErr_Occurred())
      PyErr_NoMemory();
    return -1;
  }
  return PyModule_AddFunctions(module, functions);
}
