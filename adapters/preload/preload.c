/*
 * Serves the driver's memory calls of an unchanged program with Weir's allocator.
 *
 * The calls are intercepted at the driver. NVIDIA's runtime makes them for cudaMalloc and similar calls, so its own
 * rules (contexts on demand, last errors) still apply, and a program with a statically linked runtime is served too.
 *
 * The stream that memory belongs to:
 * - Memory of cuMemAlloc belongs to no stream: the program may use it on any stream at once. It is allocated on a
 *   stream that nothing else uses (NO_STREAM), and is freed there only when the device has finished with it: cuMemFree
 *   waits for the device, as the driver's does.
 * - Memory of cuMemAllocAsync belongs to its stream, and is reused there in the stream's order.
 * - The default stream of each thread has one handle for all threads. Its memory is allocated on NO_STREAM.
 * - Memory that is freed in another stream than its own waits for that stream, by an event.
 *
 * The driver serves memory of a stream that is captured (it becomes a node of the graph), of contexts other than the
 * primary one, and of pools that are shared with processes or devices.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "created.h"
#include "real.h"
#include "weir/weir.h"

/* The driver takes both for the legacy stream; for Weir they are two streams. */
#define NO_STREAM ((weir_cu_stream)NULL)
#define LEGACY WEIR_CU_STREAM_LEGACY
#define PER_THREAD WEIR_CU_STREAM_PER_THREAD

/* The driver's cuMemAllocPitch rounds rows up to a multiple of this, which textures need. */
enum { PITCH = 512 };

enum { MAX_DEVICES = 64 };

/* A device that is served. Each has an allocator of its own, because a reset ends that of one device. */
typedef struct served {
  _Atomic(weir_cu_context) primary;    /* NULL while it is not served; set under lock, cleared under use_lock */
  _Atomic(weir_allocator *) allocator; /* the same; set before primary */
  uint64_t limit;                      /* bytes that the program may use; written before primary */

  /* Streams that began a capture, or are about to; the allocator was notified of each. */
  const void **origins; /* this and the next are guarded by origins_lock */
  size_t origin_room;
  pthread_mutex_t origins_lock;
  atomic_int captures; /* the number of them; changes under origins_lock */
  atomic_int waiting;  /* frees that wait for the device, or are checking whether they may */
} served;

static served devices[MAX_DEVICES];
static atomic_int device_count; /* an upper bound for the devices that were ever served */

/* Held for reading while an allocator is used, and for writing to remove it. Of its holders, only an allocation that is
 * short of memory may wait for a device. */
static pthread_rwlock_t use_lock = PTHREAD_RWLOCK_INITIALIZER;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the beginning of service */
static weir_driver *driver;                              /* the real one; written under the lock, before has_driver */
static atomic_bool has_driver;   /* the driver may be used; false in a forked child, where it does not work */
static bool has_tried;           /* to open the driver; guarded by lock */
static atomic_bool has_streams;  /* memory of a stream was allocated */
static pthread_key_t thread_key; /* set in threads that captured their own default stream; created before has_driver */

/* Pools that the program created or shared. Default pools are listed only if they are shared. */
typedef struct pool {
  weir_cu_mempool handle;
  int device; /* DRIVERS: its memory is not served */
} pool;
enum { DRIVERS = -1 };
static pool *pools; /* this and the next two are guarded by pools_lock */
static size_t pool_count, pool_room;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool has_driver_pools; /* one of them is not served, so cuMemAllocAsync has to check */

/* ---- Messages and codes ---- */

static void __attribute__((format(printf, 2, 3))) say(weir_log_level level, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  weir_log_message(level, text);
}

static weir_cu_result result_of(weir_status status) {
  switch (status) {
  case WEIR_OK:
    return WEIR_CU_SUCCESS;
  case WEIR_ERROR_OUT_OF_MEMORY: {
    /* A device that has failed has no memory either; its own error is clearer. */
    size_t free_bytes, total_bytes;
    weir_cu_result result = driver->MemGetInfo(driver, &free_bytes, &total_bytes);
    say(WEIR_LOG_INFO, "%s", weir_last_error());
    return result ? result : WEIR_CU_OUT_OF_MEMORY;
  }
  case WEIR_ERROR_HOST_OUT_OF_MEMORY:
    return WEIR_CU_OUT_OF_MEMORY;
  case WEIR_ERROR_INVALID_ARGUMENT:
    return WEIR_CU_INVALID_VALUE;
  default:
    return weir_last_driver_result() ? weir_last_driver_result() : WEIR_CU_UNKNOWN;
  }
}

/* ---- Devices ---- */

/* Locks may be held by a thread that is not in the child. A process that was not served can still be. */
static void after_fork_in_child(void) {
  atomic_store(&has_driver, false);
  pthread_mutex_init(&lock, NULL);
  pthread_rwlock_init(&use_lock, NULL);
  preload_created_after_fork();
}

static void end_thread(void *own);

/* The recording says how much the program has beside Weir. use_lock is held. */
static void record_created(int device, uint64_t bytes) {
  weir_allocator *allocator = atomic_load(&devices[device].allocator);
  if (allocator)
    weir_outside_memory_record(allocator, device, bytes);
}

static void prepare(void) {
  preload_created_report(record_created);
  pthread_atfork(NULL, NULL, after_fork_in_child);
  pthread_key_create(&thread_key, end_thread);
  for (int i = 0; i < MAX_DEVICES; i++)
    pthread_mutex_init(&devices[i].origins_lock, NULL);
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
    driver = opened;
    atomic_store(&has_driver, true);
  } else {
    say(WEIR_LOG_ERROR, "preload: the program runs without Weir: %s",
        status ? weir_last_error() : weir_cu_result_string(result));
    weir_driver_close(opened);
  }
  pthread_mutex_unlock(&lock);
}

/* Opens the driver at the first call. */
static bool is_open(void) {
  if (!atomic_load_explicit(&has_driver, memory_order_acquire))
    open_driver();
  return atomic_load_explicit(&has_driver, memory_order_acquire);
}

/* The device of a context. */
static bool ordinal_of(weir_cu_context context, weir_cu_device *device) {
  weir_cu_context previous;
  if (driver->CtxGetCurrent(driver, &previous))
    return false;
  bool moves = previous != context;
  if (moves && driver->CtxSetCurrent(driver, context))
    return false;
  bool known = !driver->CtxGetDevice(driver, device) && *device >= 0 && *device < MAX_DEVICES;
  if (moves)
    driver->CtxSetCurrent(driver, previous);
  return known;
}

/* Checks that there is a primary context before it retains it, because that would create one. On success it is
 * retained. */
static bool is_primary(weir_cu_context context, weir_cu_device device) {
  unsigned flags;
  int is_active;
  weir_cu_context primary;
  if (driver->DevicePrimaryCtxGetState(driver, device, &flags, &is_active) || !is_active ||
      driver->DevicePrimaryCtxRetain(driver, &primary, device))
    return false;
  if (primary == context)
    return true;
  driver->DevicePrimaryCtxRelease(driver, device);
  return false;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The lowest of WEIR_MEMORY_LIMIT, WEIR_MEMORY_FRACTION and the allocator's own settings. */
static uint64_t limit_of(weir_allocator *allocator, int device, uint64_t total) {
  uint64_t limit = total;
  double fraction = 1;
  if (!weir_allocator_get_fraction(allocator, device, &fraction))
    limit = least(limit, (uint64_t)(fraction * (double)total));

  const char *text = getenv("WEIR_MEMORY_LIMIT");
  uint64_t bytes;
  if (text && *text && !weir_bytes_parse(text, &bytes))
    limit = least(limit, bytes);
  else if (text && *text)
    say(WEIR_LOG_ERROR, "ignoring WEIR_MEMORY_LIMIT=%s: expected a size such as 8GiB", text);

  text = getenv("WEIR_MEMORY_FRACTION");
  char *end;
  fraction = text && *text ? strtod(text, &end) : 1;
  if (text && *text && (*end || !(fraction >= 0 && fraction <= 1)))
    say(WEIR_LOG_ERROR, "ignoring WEIR_MEMORY_FRACTION=%s: expected a number from 0 to 1", text);
  else
    limit = least(limit, (uint64_t)(fraction * (double)total));
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
  weir_status status = weir_allocator_create(driver, &options, &allocator);
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
    say(WEIR_LOG_ERROR, "preload: the program runs without Weir: %s",
        status ? weir_last_error() : "WEIR_ALLOC_CONF: backend:native is the only one that can be preloaded");
  was_said = true;
  if (!status)
    weir_allocator_destroy(allocator);
  return NULL;
}

/* The lock is held. */
static bool begin_to_serve(served *at, weir_cu_context primary, int device) {
  size_t total;
  if (driver->DeviceTotalMem(driver, &total, device))
    return false;
  weir_allocator *allocator = make_allocator();
  if (!allocator)
    return false;
  at->limit = limit_of(allocator, device, total);
  if (at->limit < total)
    weir_allocator_set_limit(allocator, device, at->limit);
  atomic_store(&at->allocator, allocator);
  atomic_store(&at->primary, primary);
  if (device >= atomic_load(&device_count))
    atomic_store(&device_count, device + 1);
  preload_created_repeat(device);
  return true;
}

static served *begin_context(weir_cu_context context) {
  weir_cu_device device;
  served *at = NULL;
  pthread_mutex_lock(&lock);
  if (ordinal_of(context, &device) && is_primary(context, device)) {
    at = &devices[device];
    /* Another thread may have been first. */
    if (atomic_load(&at->primary) == context || !begin_to_serve(at, context, device))
      driver->DevicePrimaryCtxRelease(driver, device);
    if (atomic_load(&at->primary) != context)
      at = NULL;
  }
  pthread_mutex_unlock(&lock);
  return at;
}

static void leave(void) { pthread_rwlock_unlock(&use_lock); }

/* This and the next functions find a device that is served. Unless they return NULL, its allocator stays until
 * leave(). */

/* The device of a context. The driver is open. */
static served *served_context(weir_cu_context context) {
  served *at = NULL;
  pthread_rwlock_rdlock(&use_lock);
  int count = atomic_load_explicit(&device_count, memory_order_acquire);
  for (int i = 0; i < count && context && !at; i++)
    if (atomic_load_explicit(&devices[i].primary, memory_order_acquire) == context)
      at = &devices[i];
  if (!at && context)
    at = begin_context(context);
  /* With caching off everything goes to the driver. */
  int is_caching = 0;
  if (at && !weir_allocator_is_caching(atomic_load(&at->allocator), &is_caching) && is_caching)
    return at;
  leave();
  return NULL;
}

static served *served_current(void) {
  weir_cu_context current;
  return is_open() && !driver->CtxGetCurrent(driver, &current) ? served_context(current) : NULL;
}

/* The device whose memory this is, allocated or cached, or NULL if it is not Weir's. Cached memory counts: a pointer
 * that the program frees twice must not reach the driver, which may know it as the beginning of a segment. */
static served *owner_of(weir_cu_deviceptr pointer) {
  if (!pointer || !atomic_load_explicit(&has_driver, memory_order_acquire))
    return NULL;
  pthread_rwlock_rdlock(&use_lock);
  int count = atomic_load_explicit(&device_count, memory_order_acquire);
  for (int i = 0; i < count; i++) {
    weir_allocator *allocator = atomic_load_explicit(&devices[i].allocator, memory_order_acquire);
    int owns = 0;
    if (allocator && !weir_allocator_owns(allocator, (const void *)(uintptr_t)pointer, &owns) && owns)
      return &devices[i];
  }
  leave();
  return NULL;
}

static int ordinal(const served *at) { return (int)(at - devices); }

/* ---- Streams ---- */

static weir_cu_stream named(weir_cu_stream stream, weir_cu_stream default_stream) {
  return stream ? stream : default_stream;
}

static bool context_of(weir_cu_stream stream, weir_cu_context *context) {
  return !(stream == LEGACY || stream == PER_THREAD ? driver->CtxGetCurrent(driver, context)
                                                    : driver->StreamGetCtx(driver, stream, context));
}

/* The device of a stream. */
static served *served_stream(weir_cu_stream stream) {
  weir_cu_context context;
  return is_open() && context_of(stream, &context) ? served_context(context) : NULL;
}

static bool is_captured(weir_cu_stream stream) {
  int status;
  return driver->StreamIsCapturing(driver, stream, &status) || status != WEIR_CU_CAPTURE_STATUS_NONE;
}

/* Allows the thread what captures of other threads forbid, until restore. */
static weir_cu_result relax(int *mode) {
  *mode = WEIR_CU_CAPTURE_RELAXED;
  return driver->ThreadExchangeStreamCaptureMode(driver, mode);
}

static void restore(int mode) { driver->ThreadExchangeStreamCaptureMode(driver, &mode); }

/* ---- Captures in progress ---- */

/* The key of a capture: its first stream. The per-thread stream has one handle for all threads, and a key of its own
 * here. */
static const void *origin_of(weir_cu_stream stream) {
  static _Thread_local char own;
  if (stream != PER_THREAD)
    return stream;
  pthread_setspecific(thread_key, &own);
  return &own;
}

/* The index of an origin, or the number of origins if it is not there. */
static int find_origin(const served *at, const void *origin) {
  int i = 0, count = atomic_load(&at->captures);
  while (i < count && at->origins[i] != origin)
    i++;
  return i;
}

/* Returns false without host memory. *is_new becomes true if it was not there. */
static bool add_capture(served *at, const void *origin, bool *is_new) {
  pthread_mutex_lock(&at->origins_lock);
  int count = atomic_load(&at->captures);
  bool has_room = (size_t)count < at->origin_room;
  *is_new = find_origin(at, origin) == count;
  if (*is_new && !has_room) {
    size_t room = count ? 2 * (size_t)count : 8;
    const void **grown = realloc(at->origins, room * sizeof *grown);
    if (grown) {
      at->origins = grown;
      at->origin_room = room;
      has_room = true;
    }
  }
  if (*is_new && has_room) {
    at->origins[count] = origin;
    atomic_store(&at->captures, count + 1);
    weir_allocator_begin_capture(atomic_load(&at->allocator), ordinal(at));
  }
  pthread_mutex_unlock(&at->origins_lock);
  return !*is_new || has_room;
}

/* The capture is over, if there was one. */
static void remove_capture(served *at, const void *origin) {
  pthread_mutex_lock(&at->origins_lock);
  int i = find_origin(at, origin), count = atomic_load(&at->captures);
  if (i < count) {
    at->origins[i] = at->origins[count - 1];
    atomic_store(&at->captures, count - 1);
    weir_allocator_end_capture(atomic_load(&at->allocator), ordinal(at));
  }
  pthread_mutex_unlock(&at->origins_lock);
}

/* The stream is destroyed, or about to be, and its capture with it. */
static void forget_origin(const void *origin) {
  pthread_rwlock_rdlock(&use_lock);
  for (int i = 0; i < atomic_load(&device_count); i++)
    if (atomic_load(&devices[i].captures))
      remove_capture(&devices[i], origin);
  leave();
}

static void end_thread(void *own) {
  if (atomic_load(&has_driver))
    forget_origin(own);
}

/* A free that starts to wait for the device after the capture has begun would invalidate it. From now on none does. A
 * free that has already decided to wait gets the time to enter the driver, where it may stay. */
static void let_frees_in(const served *at) {
  enum { STEP_US = 100, MAX_US = 10000 };
  for (int us = 0; us < MAX_US && atomic_load(&at->waiting); us += STEP_US)
    usleep(STEP_US);
}

/* ---- Freeing ---- */

/* Waits for all work of the device. Captures of other devices do not matter, whatever the mode of the thread. */
static weir_cu_result synchronize(const served *at) {
  weir_cu_context previous, primary = atomic_load(&at->primary);
  int mode;
  weir_cu_result result = driver->CtxGetCurrent(driver, &previous);
  if (!result && previous != primary)
    result = driver->CtxSetCurrent(driver, primary);
  if (result)
    return result;
  result = relax(&mode);
  if (!result) {
    result = driver->CtxSynchronize(driver);
    restore(mode);
  }
  if (previous != primary)
    driver->CtxSetCurrent(driver, previous);
  return result;
}

/* The same, unless the device has a capture, which it would invalidate: then returns false. */
static bool wait_for_device(served *at, weir_cu_result *result) {
  atomic_fetch_add(&at->waiting, 1);
  bool may = !atomic_load(&at->captures);
  if (may)
    *result = synchronize(at);
  atomic_fetch_sub(&at->waiting, 1);
  return may && (*result != WEIR_CU_STREAM_CAPTURE_UNSUPPORTED || !atomic_load(&at->captures));
}

/* Records another stream for the memory. The allocator cannot wait for it now, so it keeps the memory until there is no
 * capture, and then waits for the whole device (streams_may_end). Returns false if the capture is over. */
static bool free_after_captures(served *at, void *memory, weir_cu_result *result) {
  pthread_mutex_lock(&at->origins_lock);
  bool is_captured = atomic_load(&at->captures);
  if (is_captured) {
    weir_allocator *allocator = atomic_load(&at->allocator);
    weir_status status = weir_allocator_record_stream(allocator, memory, LEGACY);
    if (!status) /* one of the two is not its own */
      status = weir_allocator_record_stream(allocator, memory, NO_STREAM);
    *result = result_of(status ? status : weir_allocator_free(allocator, memory));
  }
  pthread_mutex_unlock(&at->origins_lock);
  return is_captured;
}

/* The device is looked up again after the wait, because a reset of another device does not wait for its work. */
weir_cu_result cuMemFree_v2(weir_cu_deviceptr pointer) {
  weir_cu_result result = WEIR_CU_SUCCESS;
  void *memory = (void *)(uintptr_t)pointer;
  bool has_waited;
  served *at = owner_of(pointer);
  if (!at)
    return REAL(cuMemFree_v2, pointer);
  do {
    leave();
    has_waited = wait_for_device(at, &result);
    if (has_waited && result)
      return result;
    if (!(at = owner_of(pointer)))
      return WEIR_CU_INVALID_VALUE;
  } while (!has_waited && !free_after_captures(at, memory, &result));
  if (has_waited)
    result = result_of(weir_allocator_free(atomic_load(&at->allocator), memory));
  leave();
  return result;
}

static weir_cu_result free_async(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  weir_cu_context context;
  weir_cu_result result;
  weir_status status = WEIR_OK;
  void *memory = (void *)(uintptr_t)pointer;
  served *at = owner_of(pointer);
  if (!at)
    return REAL(cuMemFreeAsync, pointer, stream);
  bool is_elsewhere = !context_of(stream, &context) || context != atomic_load(&at->primary);
  if (is_captured(stream)) { /* only memory of the graph can be freed in it */
    leave();
    return WEIR_CU_INVALID_VALUE;
  }
  if (is_elsewhere) { /* no event of this device can be recorded there */
    leave();
    if ((result = driver->StreamSynchronize(driver, stream)))
      return result;
    if (!(at = owner_of(pointer)))
      return WEIR_CU_INVALID_VALUE;
  } else
    status = weir_allocator_record_stream(atomic_load(&at->allocator), memory, stream);
  result = result_of(status ? status : weir_allocator_free(atomic_load(&at->allocator), memory));
  leave();
  return result;
}

weir_cu_result cuMemFreeAsync(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  return free_async(pointer, named(stream, LEGACY));
}

weir_cu_result cuMemFreeAsync_ptsz(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  return free_async(pointer, named(stream, PER_THREAD));
}

/* ---- Allocating ---- */

/* Returns all cached memory to the driver; false if no device is served. The allocator of a device leaves out what a
 * capture forbids; on other devices it is allowed, whatever the mode of the thread. */
static bool make_room(void) {
  bool is_any = false;
  int mode;
  if (!atomic_load(&has_driver) || relax(&mode))
    return false;
  pthread_rwlock_rdlock(&use_lock);
  for (int i = 0; i < atomic_load(&device_count); i++) {
    weir_allocator *allocator = atomic_load(&devices[i].allocator);
    if (allocator && !weir_allocator_empty_cache(allocator))
      is_any = true;
  }
  leave();
  restore(mode);
  return is_any;
}

/* Makes a driver call that allocates, and repeats it if Weir has returned cached memory. */
#define REAL_WITH_ROOM(result, symbol, ...)                                                                            \
  do {                                                                                                                 \
    result = REAL(symbol, __VA_ARGS__);                                                                                \
    if (result == WEIR_CU_OUT_OF_MEMORY && make_room())                                                                \
      result = REAL(symbol, __VA_ARGS__);                                                                              \
  } while (0)

/* Also leaves the device. */
static weir_cu_result serve(served *at, weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  void *memory;
  weir_status status = weir_allocator_alloc(atomic_load(&at->allocator), ordinal(at), bytes, stream, &memory);
  weir_cu_result result = result_of(status);
  leave();
  if (!status)
    *pointer = (uintptr_t)memory;
  return result;
}

weir_cu_result cuMemAlloc_v2(weir_cu_deviceptr *pointer, size_t bytes) {
  weir_cu_result result;
  served *at = pointer && bytes ? served_current() : NULL;
  if (at)
    return serve(at, pointer, bytes, NO_STREAM);
  REAL_WITH_ROOM(result, cuMemAlloc_v2, pointer, bytes);
  return result;
}

weir_cu_result cuMemAllocPitch_v2(weir_cu_deviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                  unsigned element) {
  weir_cu_result result;
  size_t bytes, row = (width + PITCH - 1) / PITCH * PITCH;
  bool is_plain = pointer && pitch && width && height && (element == 4 || element == 8 || element == 16) &&
                  row >= width && !__builtin_mul_overflow(row, height, &bytes);
  served *at = is_plain ? served_current() : NULL;
  if (at) {
    result = serve(at, pointer, bytes, NO_STREAM);
    if (!result)
      *pitch = row;
    return result;
  }
  REAL_WITH_ROOM(result, cuMemAllocPitch_v2, pointer, pitch, width, height, element);
  return result;
}

static weir_cu_result serve_stream(served *at, weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  atomic_store_explicit(&has_streams, true, memory_order_release);
  return serve(at, pointer, bytes, stream == PER_THREAD ? NO_STREAM : stream);
}

/* The device that memory of a pool is served from, or DRIVERS. */
static int device_of_pool(weir_cu_mempool handle, int device) {
  weir_cu_mempool usual = NULL;
  int found = DRIVERS - 1;
  pthread_mutex_lock(&pools_lock);
  for (size_t i = 0; i < pool_count && found < DRIVERS; i++)
    if (pools[i].handle == handle)
      found = pools[i].device;
  pthread_mutex_unlock(&pools_lock);
  if (found >= DRIVERS)
    return found;
  return driver->DeviceGetDefaultMemPool && !driver->DeviceGetDefaultMemPool(driver, &usual, device) && usual == handle
             ? device
             : DRIVERS;
}

/* Whether the driver serves memory of the current pool of a device. */
static bool uses_driver_pool(int device) {
  weir_cu_mempool now;
  return atomic_load_explicit(&has_driver_pools, memory_order_relaxed) && driver->DeviceGetMemPool &&
         !driver->DeviceGetMemPool(driver, &now, device) && device_of_pool(now, device) == DRIVERS;
}

static weir_cu_result alloc_async(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  weir_cu_result result;
  served *at = pointer && bytes ? served_stream(stream) : NULL;
  if (at && !is_captured(stream) && !uses_driver_pool(ordinal(at)))
    return serve_stream(at, pointer, bytes, stream);
  if (at)
    leave();
  REAL_WITH_ROOM(result, cuMemAllocAsync, pointer, bytes, stream);
  return result;
}

weir_cu_result cuMemAllocAsync(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  return alloc_async(pointer, bytes, named(stream, LEGACY));
}

weir_cu_result cuMemAllocAsync_ptsz(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  return alloc_async(pointer, bytes, named(stream, PER_THREAD));
}

static weir_cu_result alloc_from_pool(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_mempool handle,
                                      weir_cu_stream stream) {
  weir_cu_result result;
  served *at = pointer && bytes ? served_stream(stream) : NULL;
  if (at && !is_captured(stream) && device_of_pool(handle, ordinal(at)) == ordinal(at))
    return serve_stream(at, pointer, bytes, stream);
  if (at)
    leave();
  REAL_WITH_ROOM(result, cuMemAllocFromPoolAsync, pointer, bytes, handle, stream);
  return result;
}

weir_cu_result cuMemAllocFromPoolAsync(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_mempool handle,
                                       weir_cu_stream stream) {
  return alloc_from_pool(pointer, bytes, handle, named(stream, LEGACY));
}

weir_cu_result cuMemAllocFromPoolAsync_ptsz(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_mempool handle,
                                            weir_cu_stream stream) {
  return alloc_from_pool(pointer, bytes, handle, named(stream, PER_THREAD));
}

weir_cu_result cuMemCreate(weir_cu_mem_handle *handle, size_t bytes, const weir_cu_mem_prop *prop,
                           unsigned long long flags) {
  weir_cu_result result;
  REAL_WITH_ROOM(result, cuMemCreate, handle, bytes, prop, flags);
  if (result || prop->location.type != WEIR_CU_LOCATION_DEVICE)
    return result;
  served *at = served_current(); /* so that a program that allocates in no other way is recorded */
  if (!at)
    pthread_rwlock_rdlock(&use_lock);
  preload_created_add(*handle, prop->location.id, bytes);
  leave();
  return result;
}

weir_cu_result cuMemRelease(weir_cu_mem_handle handle) {
  pthread_rwlock_rdlock(&use_lock);
  preload_created_release(handle);
  leave();
  return REAL(cuMemRelease, handle);
}

weir_cu_result cuMemRetainAllocationHandle(weir_cu_mem_handle *handle, void *address) {
  weir_cu_result result = REAL(cuMemRetainAllocationHandle, handle, address);
  if (!result)
    preload_created_retain(*handle, (uintptr_t)address);
  return result;
}

weir_cu_result cuMemMap(weir_cu_deviceptr pointer, size_t bytes, size_t offset, weir_cu_mem_handle handle,
                        unsigned long long flags) {
  weir_cu_result result = REAL(cuMemMap, pointer, bytes, offset, handle, flags);
  if (!result)
    preload_created_map(pointer, bytes, handle);
  return result;
}

weir_cu_result cuMemUnmap(weir_cu_deviceptr pointer, size_t bytes) {
  weir_cu_result result = REAL(cuMemUnmap, pointer, bytes);
  if (result)
    return result;
  pthread_rwlock_rdlock(&use_lock);
  preload_created_unmap(pointer, bytes);
  leave();
  return result;
}

weir_cu_result cuMemAllocManaged(weir_cu_deviceptr *pointer, size_t bytes, unsigned flags) {
  weir_cu_result result;
  REAL_WITH_ROOM(result, cuMemAllocManaged, pointer, bytes, flags);
  return result;
}

weir_cu_result cuArrayCreate_v2(void **array, const void *description) {
  weir_cu_result result;
  REAL_WITH_ROOM(result, cuArrayCreate_v2, array, description);
  return result;
}

weir_cu_result cuArray3DCreate_v2(void **array, const void *description) {
  weir_cu_result result;
  REAL_WITH_ROOM(result, cuArray3DCreate_v2, array, description);
  return result;
}

weir_cu_result cuMipmappedArrayCreate(void **array, const void *description, unsigned levels) {
  weir_cu_result result;
  REAL_WITH_ROOM(result, cuMipmappedArrayCreate, array, description, levels);
  return result;
}

/* Bytes of the device that no large request could get: those in use, and the unused rest of fixed segments in use. Free
 * blocks of expandable segments do not count as splits. */
static bool held_bytes(served *at, uint64_t *reserved, uint64_t *held) {
  weir_allocator *allocator = atomic_load(&at->allocator);
  weir_allocator_stats stats = {.size = sizeof stats};
  if (weir_allocator_get_stats(allocator, ordinal(at), &stats))
    return false;
  *reserved = (uint64_t)stats.reserved_bytes[WEIR_STAT_ALL].current;
  *held = (uint64_t)(stats.active_bytes[WEIR_STAT_ALL].current + stats.inactive_split_bytes[WEIR_STAT_ALL].current);
  *held = least(*held, *reserved);
  return true;
}

/* Reports what the program could still get: the memory of the driver, and what Weir could return, within the limit. */
weir_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  uint64_t reserved, held;
  served *at = free_bytes && total_bytes ? served_current() : NULL;
  weir_cu_result result = REAL(cuMemGetInfo_v2, free_bytes, total_bytes);
  if (!at)
    return result;
  if (!result && held_bytes(at, &reserved, &held)) {
    *free_bytes = least(*free_bytes + reserved - held, at->limit - least(at->limit, held));
    *total_bytes = least(*total_bytes, at->limit);
  }
  leave();
  return result;
}

/* ---- Pools ---- */

static void set_pool(weir_cu_mempool handle, int device) {
  size_t i = 0;
  if (device == DRIVERS)
    atomic_store(&has_driver_pools, true);
  pthread_mutex_lock(&pools_lock);
  while (i < pool_count && pools[i].handle != handle)
    i++;
  if (i == pool_room) {
    size_t room = i ? 2 * i : 16;
    pool *grown = realloc(pools, room * sizeof *grown);
    if (grown) {
      pools = grown;
      pool_room = room;
    }
  }
  if (i < pool_room) {
    pools[i] = (pool){handle, device};
    if (i == pool_count)
      pool_count++;
  }
  pthread_mutex_unlock(&pools_lock);
}

/* Plain memory of a device, without special properties. */
static bool is_plain(const weir_cu_mempool_props *props) {
  return props->type == WEIR_CU_ALLOCATION_PINNED && props->handle_types == WEIR_CU_HANDLE_NONE &&
         props->location.type == WEIR_CU_LOCATION_DEVICE && !props->max_size && !props->usage;
}

weir_cu_result cuMemPoolCreate(weir_cu_mempool *handle, const weir_cu_mempool_props *props) {
  weir_cu_result result = REAL(cuMemPoolCreate, handle, props);
  if (!result)
    set_pool(*handle, is_plain(props) ? props->location.id : DRIVERS);
  return result;
}

weir_cu_result cuMemPoolSetAccess(weir_cu_mempool handle, const weir_cu_mem_access *access, size_t count) {
  weir_cu_result result = REAL(cuMemPoolSetAccess, handle, access, count);
  if (!result)
    set_pool(handle, DRIVERS);
  return result;
}

/* Removed first, because another thread may get the same handle for a new pool. */
weir_cu_result cuMemPoolDestroy(weir_cu_mempool handle) {
  if (is_open()) {
    pthread_mutex_lock(&pools_lock);
    for (size_t i = 0; i < pool_count; i++)
      if (pools[i].handle == handle)
        pools[i--] = pools[--pool_count];
    pthread_mutex_unlock(&pools_lock);
  }
  return REAL(cuMemPoolDestroy, handle);
}

/* ---- Other devices and processes ---- */

weir_cu_result cuCtxEnablePeerAccess(weir_cu_context peer, unsigned flags) {
  weir_cu_result result = REAL(cuCtxEnablePeerAccess, peer, flags);
  if (result && result != WEIR_CU_PEER_ACCESS_ALREADY_ENABLED)
    return result;
  served *here = served_current();
  if (here)
    leave();
  served *there = here ? served_context(peer) : NULL;
  if (there && here != there)
    weir_allocator_enable_peer_access(atomic_load(&there->allocator), ordinal(there), ordinal(here));
  if (there)
    leave();
  return result;
}

/* Whether the driver can share the memory that begins here. Memory that is not allocated can be the beginning of a
 * segment: libraries pass the base of cuMemGetAddressRange. */
static bool is_segment(served *at, weir_cu_deviceptr pointer) {
  void *base, *wanted = (void *)(uintptr_t)pointer;
  weir_cu_deviceptr start;
  size_t bytes;
  weir_status status = weir_allocator_base(atomic_load(&at->allocator), wanted, &base, &bytes);
  if (status == WEIR_ERROR_INVALID_ARGUMENT)
    return !driver->MemGetAddressRange(driver, &start, &bytes, pointer) && start == pointer;
  return !status && base == wanted;
}

/* A handle is for a whole segment, and opening it gives the beginning of the segment, which is wrong for a pointer
 * inside. */
weir_cu_result cuIpcGetMemHandle(weir_cu_ipc_mem_handle *handle, weir_cu_deviceptr pointer) {
  served *at = owner_of(pointer);
  bool can_be_shared = !at || is_segment(at, pointer);
  if (at)
    leave();
  if (can_be_shared)
    return REAL(cuIpcGetMemHandle, handle, pointer);
  say(WEIR_LOG_WARN,
      "preload: memory at %p cannot be shared with another process, because it is a part of a larger segment; set "
      "WEIR_NO_MEMORY_CACHING=1 to give each allocation a segment of its own",
      (void *)(uintptr_t)pointer);
  return WEIR_CU_NOT_SUPPORTED;
}

/* ---- Ends and captures ---- */

/* The next stream may get the same handle, and with it the memory of this one, so the work must be done by then. */
static void finish_stream(weir_cu_stream stream) {
  int mode;
  if (is_captured(stream) || relax(&mode))
    return;
  driver->StreamSynchronize(driver, stream);
  restore(mode);
}

/* Its capture ends with it. The capture is removed first, because another thread may get the same handle for a new
 * stream. */
weir_cu_result cuStreamDestroy_v2(weir_cu_stream stream) {
  bool is_handle = stream && stream != LEGACY && stream != PER_THREAD;
  if (is_handle && atomic_load(&has_driver)) {
    if (atomic_load(&has_streams))
      finish_stream(stream);
    forget_origin(stream);
  }
  return REAL(cuStreamDestroy_v2, stream);
}

/* Prepares for a capture on a device. Returns NULL if the device is not served. */
static served *before_capture(weir_cu_stream stream, bool *is_new, weir_cu_result *result) {
  served *at = served_stream(stream);
  *result = WEIR_CU_SUCCESS;
  if (!at)
    return NULL;
  if (add_capture(at, origin_of(stream), is_new)) {
    let_frees_in(at);
    return at;
  }
  leave();
  *result = WEIR_CU_OUT_OF_MEMORY;
  return NULL;
}

/* result is that of the driver. A stream that was captured before is still captured. */
static void after_begin(served *at, weir_cu_stream stream, bool is_new, weir_cu_result result) {
  if (!at)
    return;
  if (result && is_new)
    remove_capture(at, origin_of(stream));
  leave();
}

static weir_cu_result begin_capture(weir_cu_stream stream, int mode) {
  bool is_new = false;
  weir_cu_result result;
  served *at = before_capture(stream, &is_new, &result);
  if (!result)
    result = REAL(cuStreamBeginCapture_v2, stream, mode);
  after_begin(at, stream, is_new, result);
  return result;
}

static weir_cu_result begin_capture_to_graph(weir_cu_stream stream, weir_cu_graph graph,
                                             const weir_cu_graph_node *nodes, const void *edges, size_t count,
                                             int mode) {
  bool is_new = false;
  weir_cu_result result;
  served *at = before_capture(stream, &is_new, &result);
  if (!result)
    result = REAL(cuStreamBeginCaptureToGraph, stream, graph, nodes, edges, count, mode);
  after_begin(at, stream, is_new, result);
  return result;
}

/* A call that fails may have ended the capture too: the state of the stream shows it. */
static weir_cu_result end_capture(weir_cu_stream stream, weir_cu_graph *graph) {
  served *at = served_stream(stream);
  weir_cu_result result = REAL(cuStreamEndCapture, stream, graph);
  if (!at)
    return result;
  if (!result || !is_captured(stream))
    remove_capture(at, origin_of(stream));
  leave();
  return result;
}

weir_cu_result cuStreamBeginCapture_v2(weir_cu_stream stream, int mode) {
  return begin_capture(named(stream, LEGACY), mode);
}

weir_cu_result cuStreamBeginCapture_v2_ptsz(weir_cu_stream stream, int mode) {
  return begin_capture(named(stream, PER_THREAD), mode);
}

weir_cu_result cuStreamBeginCaptureToGraph(weir_cu_stream stream, weir_cu_graph graph, const weir_cu_graph_node *nodes,
                                           const void *edges, size_t count, int mode) {
  return begin_capture_to_graph(named(stream, LEGACY), graph, nodes, edges, count, mode);
}

weir_cu_result cuStreamBeginCaptureToGraph_ptsz(weir_cu_stream stream, weir_cu_graph graph,
                                                const weir_cu_graph_node *nodes, const void *edges, size_t count,
                                                int mode) {
  return begin_capture_to_graph(named(stream, PER_THREAD), graph, nodes, edges, count, mode);
}

weir_cu_result cuStreamEndCapture(weir_cu_stream stream, weir_cu_graph *graph) {
  return end_capture(named(stream, LEGACY), graph);
}

weir_cu_result cuStreamEndCapture_ptsz(weir_cu_stream stream, weir_cu_graph *graph) {
  return end_capture(named(stream, PER_THREAD), graph);
}

/* Frees all memory of the device, and drops its captures, while the context still exists. */
static void end_device(weir_cu_device device) {
  if (device < 0 || device >= MAX_DEVICES || !atomic_load(&has_driver))
    return;
  served *at = &devices[device];
  pthread_rwlock_wrlock(&use_lock);
  weir_allocator *allocator = atomic_exchange(&at->allocator, NULL);
  atomic_store(&at->primary, NULL);
  atomic_store(&at->captures, 0);
  pthread_rwlock_unlock(&use_lock);
  if (!allocator)
    return;
  weir_allocator_destroy(allocator);
  driver->DevicePrimaryCtxRelease(driver, device);
}

weir_cu_result cuDevicePrimaryCtxReset(weir_cu_device device) {
  end_device(device);
  return REAL(cuDevicePrimaryCtxReset, device);
}

weir_cu_result cuDevicePrimaryCtxReset_v2(weir_cu_device device) {
  end_device(device);
  return REAL(cuDevicePrimaryCtxReset_v2, device);
}
