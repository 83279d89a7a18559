/*
 * The driver's memory calls of a program that knows nothing of Weir, served by Weir's allocator.
 *
 * The calls are caught at the driver's level. NVIDIA's runtime makes them for the program's cudaMalloc and its kin, so that its
 * own rules (contexts on demand, last errors) are its own, and a program with the runtime inside is served as well.
 *
 * Which stream memory belongs to
 * - cuMemAlloc's belongs to none: the program may use it on any at once. It is kept apart, under a stream that nothing else
 *   uses (SHELF), and goes back there only when the device is done with it: cuMemFree waits for the device, as the driver's does.
 * - cuMemAllocAsync's belongs to its stream, and is used again there in the stream's order.
 * - The default stream of each thread has one handle for all threads. Memory for it comes from the shelf.
 * - Memory that is freed in another stream than its own waits for that stream by an event.
 *
 * What stays the driver's: memory of a stream that is captured (it becomes a node of the graph), of contexts that are not the
 * device's primary one, and of pools that are shared with processes or devices.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/heap.h"
#include "real.h"
#include "weir/weir.h"

/* For the driver both are the legacy stream, for Weir they are two. */
#define SHELF ((weir_cu_stream)NULL)
#define LEGACY WEIR_CU_STREAM_LEGACY
#define PER_THREAD WEIR_CU_STREAM_PER_THREAD

/* The driver's own cuMemAllocPitch has rows of such a multiple: what textures need. */
enum { PITCH = 512 };

enum { MOST_DEVICES = 64 };

/* A device that is served. Each has an allocator of its own: a reset ends that of one device. */
typedef struct served {
  _Atomic(weir_cu_context) primary;    /* NULL while it is not served; written under the lock */
  _Atomic(weir_allocator *) allocator; /* written before primary, under the lock */
  uint64_t limit;                      /* bytes that the program may have; written before primary */
} served;

static served devices[MOST_DEVICES];
static atomic_int device_count; /* of those above that were ever served: they are below this */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static weir_driver *driver;     /* the real one; written under the lock, before has_driver */
static atomic_bool has_driver;  /* the driver may be used: not in the child of a fork, where none works */
static bool has_tried;          /* to open the driver; guarded by the lock */
static atomic_bool has_streams; /* memory of a stream was handed out */
static atomic_int captures;     /* that are under way; grows with the next locked for writing */

/* Held for reading while a free waits for the device: that would break a capture that begins meanwhile. */
static pthread_rwlock_t capture_lock = PTHREAD_RWLOCK_INITIALIZER;

/* Pools that the program made or shared; the default ones are not here as long as nothing is special about them. */
typedef struct pool {
  weir_cu_mempool handle;
  int device; /* DRIVERS: its memory is not served */
} pool;
enum { DRIVERS = -1 };
static pool *pools; /* this and the next two are guarded by pools_lock */
static size_t pool_count, pool_room;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool has_driver_pools; /* one of them is not served, so that cuMemAllocAsync has to look */

/* Memory that was freed during a capture: the device cannot be waited for then. */
static weir_cu_deviceptr *put_off; /* this and the next are guarded by put_off_lock */
static size_t put_off_room;
static atomic_size_t put_off_count; /* the same; read without it to see whether there are any */
static pthread_mutex_t put_off_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- Codes ---- */

static weir_cu_result result_of(weir_status status) {
  switch (status) {
  case WEIR_OK:
    return WEIR_CU_SUCCESS;
  case WEIR_ERROR_OUT_OF_MEMORY: {
    /* A device that has failed has no memory either, and says so more clearly. */
    size_t free_bytes, total_bytes;
    weir_cu_result result = driver->MemGetInfo(driver, &free_bytes, &total_bytes);
    weir__log(WEIR_LOG_INFO, "%s", weir_last_error());
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

/* Locks may be held by a thread that is not in the child. A process that was not served may be yet. */
static void after_fork_in_child(void) {
  atomic_store(&has_driver, false);
  pthread_mutex_init(&lock, NULL);
  pthread_rwlock_init(&capture_lock, NULL);
}

static void watch_fork(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static void open_driver(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_mutex_lock(&lock);
  if (has_tried) {
    pthread_mutex_unlock(&lock);
    return;
  }
  has_tried = true;
  pthread_once(&once, watch_fork);
  weir_driver *opened = NULL;
  preload_finds_real = true;
  weir_status status = weir_driver_open("cuda", &opened);
  preload_finds_real = false;
  weir_cu_result result = status ? WEIR_CU_UNKNOWN : opened->Init(opened, 0);
  if (!result) {
    driver = opened;
    atomic_store(&has_driver, true);
  } else {
    weir__log(WEIR_LOG_ERROR, "preload: the program runs without Weir: %s",
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
  bool known = !driver->CtxGetDevice(driver, device) && *device >= 0 && *device < MOST_DEVICES;
  if (moves)
    driver->CtxSetCurrent(driver, previous);
  return known;
}

/* Looks whether there is one before it asks for it: that would make it. On success it is retained. */
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

/* What WEIR_MEMORY_LIMIT, WEIR_MEMORY_FRACTION and the allocator's own settings allow, whichever is least. */
static uint64_t limit_of(weir_allocator *allocator, int device, uint64_t total) {
  uint64_t limit = total;
  double fraction = 1;
  if (!weir_allocator_get_fraction(allocator, device, &fraction))
    limit = least(limit, (uint64_t)(fraction * (double)total));

  const char *text = getenv("WEIR_MEMORY_LIMIT");
  unsigned long long bytes;
  if (text && *text && weir__parse_bytes(text, &bytes))
    limit = least(limit, bytes);
  else if (text && *text)
    weir__log(WEIR_LOG_ERROR, "WEIR_MEMORY_LIMIT=%s is no size, and does not count: expected bytes, as 8GiB", text);

  text = getenv("WEIR_MEMORY_FRACTION");
  char *end;
  fraction = text && *text ? strtod(text, &end) : 1;
  if (text && *text && (*end || !(fraction >= 0 && fraction <= 1)))
    weir__log(WEIR_LOG_ERROR,
              "WEIR_MEMORY_FRACTION=%s is no part of the device's memory, and does not count: expected 0 to 1", text);
  else
    limit = least(limit, (uint64_t)(fraction * (double)total));
  return limit;
}

/* From Weir's own variables: PyTorch's are for the PyTorch in the program. NULL, and said once: there is none. */
static weir_allocator *make_allocator(void) {
  static bool was_said; /* guarded by the lock, which is held */
  const char *conf = getenv("WEIR_ALLOC_CONF"), *uncached = getenv("WEIR_NO_MEMORY_CACHING");
  weir_allocator *allocator;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf ? conf : "";
  weir_status status = weir_allocator_create(driver, &options, &allocator);
  bool is_native = !status && strcmp(weir_allocator_backend(allocator), "native") == 0;
  if (is_native) {
    weir_allocator_set_caching(allocator, !uncached || strcmp(uncached, "1") != 0);
    return allocator;
  }
  if (!was_said)
    weir__log(WEIR_LOG_ERROR, "preload: the program runs without Weir: %s",
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

/* The device of a context, if it is one that is served. The driver is open. */
static served *served_context(weir_cu_context context) {
  served *at = NULL;
  int count = atomic_load_explicit(&device_count, memory_order_acquire);
  for (int i = 0; i < count && context && !at; i++)
    if (atomic_load_explicit(&devices[i].primary, memory_order_acquire) == context)
      at = &devices[i];
  if (!at && context)
    at = begin_context(context);
  /* Without the cache everything is the driver's, as the driver has it. */
  return at && weir_allocator_is_caching(atomic_load(&at->allocator)) ? at : NULL;
}

static served *served_current(void) {
  weir_cu_context current;
  return is_open() && !driver->CtxGetCurrent(driver, &current) ? served_context(current) : NULL;
}

/* The device whose memory this is, live or not; NULL: the pointer is none of Weir's. The public calls tell only live memory,
 * and what the program frees twice must not reach the driver, which may know it as the beginning of a segment. */
static served *owner_of(weir_cu_deviceptr pointer) {
  int count = atomic_load_explicit(&device_count, memory_order_acquire);
  if (!pointer || !atomic_load_explicit(&has_driver, memory_order_acquire))
    return NULL;
  for (int i = 0; i < count; i++) {
    weir_allocator *allocator = atomic_load_explicit(&devices[i].allocator, memory_order_acquire);
    if (allocator && weir__page_map_find(allocator->pages, pointer))
      return &devices[i];
  }
  return NULL;
}

static int ordinal(const served *at) { return (int)(at - devices); }

/* ---- Streams ---- */

static weir_cu_stream named(weir_cu_stream stream, weir_cu_stream default_stream) {
  return stream ? stream : default_stream;
}

/* The device of a stream. */
static served *served_stream(weir_cu_stream stream) {
  weir_cu_context context;
  if (!is_open())
    return NULL;
  if (stream == LEGACY || stream == PER_THREAD)
    return served_current();
  return driver->StreamGetCtx(driver, stream, &context) ? NULL : served_context(context);
}

static bool is_captured(weir_cu_stream stream) {
  int status;
  return driver->StreamIsCapturing(driver, stream, &status) || status != WEIR_CU_CAPTURE_STATUS_NONE;
}

/* ---- Freeing ---- */

static weir_cu_result wait_for_device(served *at) {
  weir_cu_context previous, primary = atomic_load(&at->primary);
  weir_cu_result result = driver->CtxGetCurrent(driver, &previous);
  if (!result && previous != primary)
    result = driver->CtxSetCurrent(driver, primary);
  if (result)
    return result;
  result = driver->CtxSynchronize(driver);
  if (previous != primary)
    driver->CtxSetCurrent(driver, previous);
  return result;
}

static weir_cu_result free_now(served *at, weir_cu_deviceptr pointer) {
  weir_cu_result result = wait_for_device(at);
  return result ? result : result_of(weir_allocator_free(atomic_load(&at->allocator), (void *)(uintptr_t)pointer));
}

/* Without host memory it is kept for good: better than used too early. */
static void free_later(weir_cu_deviceptr pointer) {
  pthread_mutex_lock(&put_off_lock);
  size_t count = atomic_load(&put_off_count);
  if (count == put_off_room) {
    size_t room = count ? 2 * count : 64;
    weir_cu_deviceptr *grown = realloc(put_off, room * sizeof *grown);
    if (grown) {
      put_off = grown;
      put_off_room = room;
    }
  }
  if (count < put_off_room) {
    put_off[count] = pointer;
    atomic_store(&put_off_count, count + 1);
  }
  pthread_mutex_unlock(&put_off_lock);
}

/* Whether the device may be waited for until done_waiting. */
static bool may_wait(void) {
  pthread_rwlock_rdlock(&capture_lock);
  if (!atomic_load(&captures))
    return true;
  pthread_rwlock_unlock(&capture_lock);
  return false;
}

static void done_waiting(void) { pthread_rwlock_unlock(&capture_lock); }

static void free_put_off(void) {
  if (!atomic_load(&put_off_count) || !may_wait())
    return;
  pthread_mutex_lock(&put_off_lock);
  for (size_t i = atomic_load(&put_off_count); i-- > 0; atomic_store(&put_off_count, i)) {
    served *at = owner_of(put_off[i]);
    if (at)
      free_now(at, put_off[i]);
  }
  pthread_mutex_unlock(&put_off_lock);
  done_waiting();
}

/* Memory of a device that ends is not to be freed any more. */
static void forget_put_off(const served *at) {
  pthread_mutex_lock(&put_off_lock);
  size_t count = atomic_load(&put_off_count), kept = 0;
  for (size_t i = 0; i < count; i++)
    if (owner_of(put_off[i]) != at)
      put_off[kept++] = put_off[i];
  atomic_store(&put_off_count, kept);
  pthread_mutex_unlock(&put_off_lock);
}

weir_cu_result cuMemFree_v2(weir_cu_deviceptr pointer) {
  weir_cu_result result = WEIR_CU_SUCCESS;
  served *at = owner_of(pointer);
  if (!at)
    return REAL(cuMemFree_v2, pointer);
  free_put_off();
  if (may_wait()) {
    result = free_now(at, pointer);
    done_waiting();
  } else
    free_later(pointer);
  return result;
}

static weir_cu_result free_async(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  served *at = owner_of(pointer);
  if (!at)
    return REAL(cuMemFreeAsync, pointer, stream);
  if (is_captured(stream)) /* only memory of the graph can be freed in it */
    return WEIR_CU_INVALID_VALUE;
  weir_allocator *allocator = atomic_load(&at->allocator);
  weir_status status = weir_allocator_record_stream(allocator, (void *)(uintptr_t)pointer, stream);
  return result_of(status ? status : weir_allocator_free(allocator, (void *)(uintptr_t)pointer));
}

weir_cu_result cuMemFreeAsync(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  return free_async(pointer, named(stream, LEGACY));
}

weir_cu_result cuMemFreeAsync_ptsz(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  return free_async(pointer, named(stream, PER_THREAD));
}

/* ---- Allocating ---- */

/* Gives all that is cached back to the driver; false: there was nobody to do so. */
static bool make_room(void) {
  bool is_any = false;
  free_put_off();
  int count = atomic_load(&has_driver) ? atomic_load(&device_count) : 0;
  for (int i = 0; i < count; i++) {
    weir_allocator *allocator = atomic_load(&devices[i].allocator);
    if (allocator && !weir_allocator_empty_cache(allocator))
      is_any = true;
  }
  return is_any;
}

/* A call of the driver's that allocates, and once more when Weir gave back what it had cached. */
#define REAL_WITH_ROOM(result, symbol, ...)                                                                            \
  do {                                                                                                                 \
    result = REAL(symbol, __VA_ARGS__);                                                                                \
    if (result == WEIR_CU_OUT_OF_MEMORY && make_room())                                                                \
      result = REAL(symbol, __VA_ARGS__);                                                                              \
  } while (0)

static weir_cu_result serve(served *at, weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  void *memory;
  free_put_off();
  weir_status status = weir_allocator_alloc(atomic_load(&at->allocator), ordinal(at), bytes, stream, &memory);
  if (!status)
    *pointer = (uintptr_t)memory;
  return result_of(status);
}

weir_cu_result cuMemAlloc_v2(weir_cu_deviceptr *pointer, size_t bytes) {
  weir_cu_result result;
  served *at = pointer && bytes ? served_current() : NULL;
  if (at)
    return serve(at, pointer, bytes, SHELF);
  REAL_WITH_ROOM(result, cuMemAlloc_v2, pointer, bytes);
  return result;
}

weir_cu_result cuMemAllocPitch_v2(weir_cu_deviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                  unsigned element) {
  weir_cu_result result;
  size_t bytes, row = weir__round_up(width, PITCH);
  bool is_plain = pointer && pitch && width && height && (element == 4 || element == 8 || element == 16) &&
                  row >= width && !__builtin_mul_overflow(row, height, &bytes);
  served *at = is_plain ? served_current() : NULL;
  if (at) {
    result = serve(at, pointer, bytes, SHELF);
    if (!result)
      *pitch = row;
    return result;
  }
  REAL_WITH_ROOM(result, cuMemAllocPitch_v2, pointer, pitch, width, height, element);
  return result;
}

static weir_cu_result serve_stream(served *at, weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  atomic_store_explicit(&has_streams, true, memory_order_release);
  return serve(at, pointer, bytes, stream == PER_THREAD ? SHELF : stream);
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

/* Whether memory of the pool that a device uses now is the driver's. */
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

/* What the program could still get: what the driver has, and what Weir has cached, within the limit. */
weir_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  served *at = free_bytes && total_bytes ? served_current() : NULL;
  weir_cu_result result = REAL(cuMemGetInfo_v2, free_bytes, total_bytes);
  weir_allocator_stats stats = {.size = sizeof stats};
  if (result || !at)
    return result;
  free_put_off();
  if (weir_allocator_get_stats(atomic_load(&at->allocator), ordinal(at), &stats))
    return result;
  uint64_t reserved = (uint64_t)stats.reserved_bytes[WEIR_STAT_ALL].current;
  uint64_t active = least((uint64_t)stats.active_bytes[WEIR_STAT_ALL].current, reserved);
  *free_bytes = least(*free_bytes + reserved - active, at->limit - least(at->limit, active));
  *total_bytes = least(*total_bytes, at->limit);
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

weir_cu_result cuMemPoolCreate(weir_cu_mempool *handle, const weir_cu_mempool_props *props) {
  weir_cu_result result = REAL(cuMemPoolCreate, handle, props);
  if (!result)
    set_pool(*handle, props->handle_types == WEIR_CU_HANDLE_NONE && props->location.type == WEIR_CU_LOCATION_DEVICE
                          ? props->location.id
                          : DRIVERS);
  return result;
}

weir_cu_result cuMemPoolSetAccess(weir_cu_mempool handle, const weir_cu_mem_access *access, size_t count) {
  weir_cu_result result = REAL(cuMemPoolSetAccess, handle, access, count);
  if (!result)
    set_pool(handle, DRIVERS);
  return result;
}

/* Forgotten first: another thread may get the same handle for a new one. */
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
  served *here = served_current(), *there = here ? served_context(peer) : NULL;
  if ((!result || result == WEIR_CU_PEER_ACCESS_ALREADY_ENABLED) && here && there && here != there)
    weir_allocator_enable_peer_access(atomic_load(&there->allocator), ordinal(there), ordinal(here));
  return result;
}

/* A handle is for a whole segment, and who opens it gets the segment's beginning. A pointer within would be taken for that. */
weir_cu_result cuIpcGetMemHandle(weir_cu_ipc_mem_handle *handle, weir_cu_deviceptr pointer) {
  served *at = owner_of(pointer);
  void *base = NULL, *wanted = (void *)(uintptr_t)pointer;
  size_t bytes;
  weir_status status = at ? weir_allocator_base(atomic_load(&at->allocator), wanted, &base, &bytes) : WEIR_OK;
  /* Memory that is not live can be the beginning of a segment, which cuMemGetAddressRange tells. */
  if (!at || status == WEIR_ERROR_INVALID_ARGUMENT || base == wanted)
    return REAL(cuIpcGetMemHandle, handle, pointer);
  weir__log(WEIR_LOG_WARN,
            "preload: memory at %p cannot be shared with another process, because it is a part of a larger piece; "
            "WEIR_NO_MEMORY_CACHING=1 gives each allocation its own",
            wanted);
  return WEIR_CU_NOT_SUPPORTED;
}

/* ---- Ends and captures ---- */

/* The next stream may get the same handle, and with it the memory of this one: its work is done by then. */
weir_cu_result cuStreamDestroy_v2(weir_cu_stream stream) {
  bool is_handle = stream && stream != LEGACY && stream != PER_THREAD;
  if (is_handle && atomic_load(&has_streams) && atomic_load(&has_driver)) {
    int status, mode = WEIR_CU_CAPTURE_RELAXED;
    bool is_known = !driver->StreamIsCapturing(driver, stream, &status);
    if (is_known && status == WEIR_CU_CAPTURE_STATUS_NONE && !driver->ThreadExchangeStreamCaptureMode(driver, &mode)) {
      driver->StreamSynchronize(driver, stream);
      driver->ThreadExchangeStreamCaptureMode(driver, &mode);
    }
  }
  return REAL(cuStreamDestroy_v2, stream);
}

/* begin is the driver's call. */
#define BEGIN_CAPTURE(result, begin)                                                                                   \
  do {                                                                                                                 \
    pthread_rwlock_wrlock(&capture_lock);                                                                              \
    result = begin;                                                                                                    \
    if (!result)                                                                                                       \
      atomic_fetch_add(&captures, 1);                                                                                  \
    pthread_rwlock_unlock(&capture_lock);                                                                              \
  } while (0)

static weir_cu_result begin_capture(weir_cu_stream stream, int mode) {
  weir_cu_result result;
  BEGIN_CAPTURE(result, REAL(cuStreamBeginCapture_v2, stream, mode));
  return result;
}

static weir_cu_result begin_capture_to_graph(weir_cu_stream stream, weir_cu_graph graph,
                                             const weir_cu_graph_node *nodes, const void *edges, size_t count,
                                             int mode) {
  weir_cu_result result;
  BEGIN_CAPTURE(result, REAL(cuStreamBeginCaptureToGraph, stream, graph, nodes, edges, count, mode));
  return result;
}

/* One that fails may have ended the capture all the same: the stream tells. */
static weir_cu_result end_capture(weir_cu_stream stream, weir_cu_graph *graph) {
  bool was = is_open() && is_captured(stream);
  weir_cu_result result = REAL(cuStreamEndCapture, stream, graph);
  if (was ? !is_captured(stream) : !result) {
    int count = atomic_load(&captures);
    while (count > 0 && !atomic_compare_exchange_weak(&captures, &count, count - 1)) {
    }
  }
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

/* All memory of the device goes. What Weir knows of it goes first, while the context is still there. */
static void end_device(weir_cu_device device) {
  if (device < 0 || device >= MOST_DEVICES || !atomic_load(&has_driver))
    return;
  served *at = &devices[device];
  forget_put_off(at);
  pthread_mutex_lock(&lock);
  weir_allocator *allocator = atomic_exchange(&at->allocator, NULL);
  if (allocator) {
    atomic_store(&at->primary, NULL);
    weir_allocator_destroy(allocator);
    driver->DevicePrimaryCtxRelease(driver, device);
  }
  pthread_mutex_unlock(&lock);
}

weir_cu_result cuDevicePrimaryCtxReset(weir_cu_device device) {
  end_device(device);
  return REAL(cuDevicePrimaryCtxReset, device);
}

weir_cu_result cuDevicePrimaryCtxReset_v2(weir_cu_device device) {
  end_device(device);
  return REAL(cuDevicePrimaryCtxReset_v2, device);
}
