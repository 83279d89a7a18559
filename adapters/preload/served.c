/*
 * Beginning and ending to serve a device: with the first use of its primary context, and with a reset.
 */
#include "served.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "captures.h"
#include "created.h"
#include "real.h"

preload_served preload_devices[PRELOAD_MAX_DEVICES];
atomic_int preload_device_count;
pthread_rwlock_t preload_use_lock = PTHREAD_RWLOCK_INITIALIZER;
weir_driver *preload_driver; /* written under the lock, before preload_has_driver */
atomic_bool preload_has_driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the beginning of service */
static bool has_tried;                                   /* to open the driver; guarded by lock */

void preload_say(weir_log_level level, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  weir_log_message(level, text);
}

/* ---- Devices ---- */

/* Locks may be held by a thread that is not in the child. A process that was not served can still be. */
static void after_fork_in_child(void) {
  atomic_store(&preload_has_driver, false);
  pthread_mutex_init(&lock, NULL);
  pthread_rwlock_init(&preload_use_lock, NULL);
  preload_created_after_fork();
}

/* The recording says how much the program has beside Weir. preload_use_lock is held. */
static void record_created(int device, uint64_t bytes) {
  weir_allocator *allocator = atomic_load(&preload_devices[device].allocator);
  if (allocator)
    weir_outside_memory_record(allocator, device, bytes);
}

static void prepare(void) {
  preload_created_report(record_created);
  pthread_atfork(NULL, NULL, after_fork_in_child);
  preload_captures_prepare();
}

static void open_driver(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_mutex_lock(&lock);
  if (has_tried) {
    pthread_mutex_unlock(&lock);
    return;
  }
  has_tried = true;
  pthread_once(&once, prepare);
  weir_driver *opened = NULL;
  preload_finds_real = true;
  weir_status status = weir_driver_open("cuda", &opened);
  preload_finds_real = false;
  weir_cu_result result = status ? WEIR_CU_UNKNOWN : opened->Init(opened, 0);
  if (!result) {
    preload_driver = opened;
    atomic_store(&preload_has_driver, true);
  } else {
    preload_say(WEIR_LOG_ERROR, "preload: the program runs without Weir: %s",
                status ? weir_last_error() : weir_cu_result_string(result));
    weir_driver_close(opened);
  }
  pthread_mutex_unlock(&lock);
}

bool preload_is_open(void) {
  if (!atomic_load_explicit(&preload_has_driver, memory_order_acquire))
    open_driver();
  return atomic_load_explicit(&preload_has_driver, memory_order_acquire);
}

/* The device of a context. */
static bool ordinal_of(weir_cu_context context, weir_cu_device *device) {
  weir_cu_context previous;
  if (preload_driver->CtxGetCurrent(preload_driver, &previous))
    return false;
  bool moves = previous != context;
  if (moves && preload_driver->CtxSetCurrent(preload_driver, context))
    return false;
  bool known = !preload_driver->CtxGetDevice(preload_driver, device) && *device >= 0 && *device < PRELOAD_MAX_DEVICES;
  if (moves)
    preload_driver->CtxSetCurrent(preload_driver, previous);
  return known;
}

/* Checks that there is a primary context before it retains it, because that would create one. On success it is
 * retained. */
static bool is_primary(weir_cu_context context, weir_cu_device device) {
  unsigned flags;
  int is_active;
  weir_cu_context primary;
  if (preload_driver->DevicePrimaryCtxGetState(preload_driver, device, &flags, &is_active) || !is_active ||
      preload_driver->DevicePrimaryCtxRetain(preload_driver, &primary, device))
    return false;
  if (primary == context)
    return true;
  preload_driver->DevicePrimaryCtxRelease(preload_driver, device);
  return false;
}

/* The lowest of WEIR_MEMORY_LIMIT, WEIR_MEMORY_FRACTION and the allocator's own settings. */
static uint64_t limit_of(weir_allocator *allocator, int device, uint64_t total) {
  uint64_t limit = total;
  double fraction = 1;
  if (!weir_allocator_get_fraction(allocator, device, &fraction))
    limit = preload_least(limit, (uint64_t)(fraction * (double)total));

  const char *text = getenv("WEIR_MEMORY_LIMIT");
  uint64_t bytes;
  if (text && *text && !weir_bytes_parse(text, &bytes))
    limit = preload_least(limit, bytes);
  else if (text && *text)
    preload_say(WEIR_LOG_ERROR, "ignoring WEIR_MEMORY_LIMIT=%s: expected a size such as 8GiB", text);

  text = getenv("WEIR_MEMORY_FRACTION");
  char *end;
  fraction = text && *text ? strtod(text, &end) : 1;
  if (text && *text && (*end || !(fraction >= 0 && fraction <= 1)))
    preload_say(WEIR_LOG_ERROR, "ignoring WEIR_MEMORY_FRACTION=%s: expected a number from 0 to 1", text);
  else
    limit = preload_least(limit, (uint64_t)(fraction * (double)total));
  return limit;
}

/* Reads only Weir's own variables: PyTorch's are for the PyTorch in the program. Returns NULL on failure, with a
 * message the first time. */
static weir_allocator *make_allocator(void) {
  static bool was_said; /* guarded by the lock, which is held */
  const char *conf = getenv("WEIR_ALLOC_CONF"), *uncached = getenv("WEIR_NO_MEMORY_CACHING");
  weir_allocator *allocator;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf ? conf : "";
  options.streams_may_end = 1;
  weir_status status = weir_allocator_create(preload_driver, &options, &allocator);
  char backend[32] = "";
  bool is_native =
      !status && !weir_allocator_backend(allocator, backend, sizeof backend, NULL) && strcmp(backend, "native") == 0;
  if (is_native) {
    weir_allocator_set_caching(allocator, !uncached || strcmp(uncached, "1") != 0);
    /* Weir serves no memory of captures here, and this setting would query streams that may be destroyed. */
    weir_allocator_configure(allocator, "graph_capture_record_stream_reuse:False");
    return allocator;
  }
  if (!was_said)
    preload_say(WEIR_LOG_ERROR, "preload: the program runs without Weir: %s",
                status ? weir_last_error() : "WEIR_ALLOC_CONF: backend:native is the only one that can be preloaded");
  was_said = true;
  if (!status)
    weir_allocator_destroy(allocator);
  return NULL;
}

/* The lock is held. */
static bool begin_to_serve(preload_served *at, weir_cu_context primary, int device) {
  size_t total;
  if (preload_driver->DeviceTotalMem(preload_driver, &total, device))
    return false;
  weir_allocator *allocator = make_allocator();
  if (!allocator)
    return false;
  at->limit = limit_of(allocator, device, total);
  if (at->limit < total)
    weir_allocator_set_limit(allocator, device, at->limit);
  atomic_store(&at->allocator, allocator);
  atomic_store(&at->primary, primary);
  if (device >= atomic_load(&preload_device_count))
    atomic_store(&preload_device_count, device + 1);
  preload_created_repeat(device);
  return true;
}

static preload_served *begin_context(weir_cu_context context) {
  weir_cu_device device;
  preload_served *at = NULL;
  pthread_mutex_lock(&lock);
  if (ordinal_of(context, &device) && is_primary(context, device)) {
    at = &preload_devices[device];
    /* Another thread may have been first. */
    if (atomic_load(&at->primary) == context || !begin_to_serve(at, context, device))
      preload_driver->DevicePrimaryCtxRelease(preload_driver, device);
    if (atomic_load(&at->primary) != context)
      at = NULL;
  }
  pthread_mutex_unlock(&lock);
  return at;
}

preload_served *preload_served_context(weir_cu_context context) {
  preload_served *at = NULL;
  pthread_rwlock_rdlock(&preload_use_lock);
  int count = atomic_load_explicit(&preload_device_count, memory_order_acquire);
  for (int i = 0; i < count && context && !at; i++)
    if (atomic_load_explicit(&preload_devices[i].primary, memory_order_acquire) == context)
      at = &preload_devices[i];
  if (!at && context)
    at = begin_context(context);
  /* With caching off everything goes to the driver. */
  int is_caching = 0;
  if (at && !weir_allocator_is_caching(atomic_load(&at->allocator), &is_caching) && is_caching)
    return at;
  preload_leave();
  return NULL;
}

preload_served *preload_served_current(void) {
  weir_cu_context current;
  return preload_is_open() && !preload_driver->CtxGetCurrent(preload_driver, &current) ? preload_served_context(current)
                                                                                       : NULL;
}

preload_served *preload_owner_of(weir_cu_deviceptr pointer) {
  if (!pointer || !atomic_load_explicit(&preload_has_driver, memory_order_acquire))
    return NULL;
  pthread_rwlock_rdlock(&preload_use_lock);
  int count = atomic_load_explicit(&preload_device_count, memory_order_acquire);
  for (int i = 0; i < count; i++) {
    weir_allocator *allocator = atomic_load_explicit(&preload_devices[i].allocator, memory_order_acquire);
    int owns = 0;
    if (allocator && !weir_allocator_owns(allocator, (const void *)(uintptr_t)pointer, &owns) && owns)
      return &preload_devices[i];
  }
  preload_leave();
  return NULL;
}

/* ---- Streams ---- */

bool preload_context_of(weir_cu_stream stream, weir_cu_context *context) {
  return !(stream == LEGACY || stream == PER_THREAD ? preload_driver->CtxGetCurrent(preload_driver, context)
                                                    : preload_driver->StreamGetCtx(preload_driver, stream, context));
}

preload_served *preload_served_stream(weir_cu_stream stream) {
  weir_cu_context context;
  return preload_is_open() && preload_context_of(stream, &context) ? preload_served_context(context) : NULL;
}

bool preload_is_captured(weir_cu_stream stream) {
  int status;
  return preload_driver->StreamIsCapturing(preload_driver, stream, &status) || status != WEIR_CU_CAPTURE_STATUS_NONE;
}

weir_cu_result preload_relax(int *mode) {
  *mode = WEIR_CU_CAPTURE_RELAXED;
  return preload_driver->ThreadExchangeStreamCaptureMode(preload_driver, mode);
}

void preload_restore(int mode) { preload_driver->ThreadExchangeStreamCaptureMode(preload_driver, &mode); }

/* ---- Ends ---- */

/* Frees all memory of the device, and drops its captures, while the context still exists. */
static void end_device(weir_cu_device device) {
  if (device < 0 || device >= PRELOAD_MAX_DEVICES || !atomic_load(&preload_has_driver))
    return;
  preload_served *at = &preload_devices[device];
  pthread_rwlock_wrlock(&preload_use_lock);
  weir_allocator *allocator = atomic_exchange(&at->allocator, NULL);
  atomic_store(&at->primary, NULL);
  atomic_store(&at->captures, 0);
  pthread_rwlock_unlock(&preload_use_lock);
  if (!allocator)
    return;
  weir_allocator_destroy(allocator);
  preload_driver->DevicePrimaryCtxRelease(preload_driver, device);
}

weir_cu_result cuDevicePrimaryCtxReset(weir_cu_device device) {
  end_device(device);
  return REAL(cuDevicePrimaryCtxReset, device);
}

weir_cu_result cuDevicePrimaryCtxReset_v2(weir_cu_device device) {
  end_device(device);
  return REAL(cuDevicePrimaryCtxReset_v2, device);
}
