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
#include <stdatomic.h>
#include <stdlib.h>

#include "captures.h"
#include "created.h"
#include "real.h"
#include "served.h"

/* The driver's cuMemAllocPitch rounds rows up to a multiple of this, which textures need. */
enum { PITCH = 512 };

static atomic_bool has_streams; /* memory of a stream was allocated */

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

static weir_cu_result result_of(weir_status status) {
  switch (status) {
  case WEIR_OK:
    return WEIR_CU_SUCCESS;
  case WEIR_ERROR_OUT_OF_MEMORY: {
    /* A device that has failed has no memory either; its own error is clearer. */
    size_t free_bytes, total_bytes;
    weir_cu_result result = preload_driver->MemGetInfo(preload_driver, &free_bytes, &total_bytes);
    preload_say(WEIR_LOG_INFO, "%s", weir_last_error());
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

/* ---- Freeing ---- */

/* Waits for all work of the device. Captures of other devices do not matter, whatever the mode of the thread. */
static weir_cu_result synchronize(const preload_served *at) {
  weir_cu_context previous, primary = atomic_load(&at->primary);
  int mode;
  weir_cu_result result = preload_driver->CtxGetCurrent(preload_driver, &previous);
  if (!result && previous != primary)
    result = preload_driver->CtxSetCurrent(preload_driver, primary);
  if (result)
    return result;
  result = preload_relax(&mode);
  if (!result) {
    result = preload_driver->CtxSynchronize(preload_driver);
    preload_restore(mode);
  }
  if (previous != primary)
    preload_driver->CtxSetCurrent(preload_driver, previous);
  return result;
}

/* The same, unless the device has a capture, which it would invalidate: then returns false. */
static bool wait_for_device(preload_served *at, weir_cu_result *result) {
  atomic_fetch_add(&at->waiting, 1);
  bool may = !atomic_load(&at->captures);
  if (may)
    *result = synchronize(at);
  atomic_fetch_sub(&at->waiting, 1);
  return may && (*result != WEIR_CU_STREAM_CAPTURE_UNSUPPORTED || !atomic_load(&at->captures));
}

/* Records another stream for the memory. The allocator cannot wait for it now, so it keeps the memory until there is no
 * capture, and then waits for the whole device (streams_may_end). Returns false if the capture is over. */
static bool free_after_captures(preload_served *at, void *memory, weir_cu_result *result) {
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
  preload_served *at = preload_owner_of(pointer);
  if (!at)
    return REAL(cuMemFree_v2, pointer);
  do {
    preload_leave();
    has_waited = wait_for_device(at, &result);
    if (has_waited && result)
      return result;
    if (!(at = preload_owner_of(pointer)))
      return WEIR_CU_INVALID_VALUE;
  } while (!has_waited && !free_after_captures(at, memory, &result));
  if (has_waited)
    result = result_of(weir_allocator_free(atomic_load(&at->allocator), memory));
  preload_leave();
  return result;
}

static weir_cu_result free_async(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  weir_cu_context context;
  weir_cu_result result;
  weir_status status = WEIR_OK;
  void *memory = (void *)(uintptr_t)pointer;
  preload_served *at = preload_owner_of(pointer);
  if (!at)
    return REAL(cuMemFreeAsync, pointer, stream);
  bool is_elsewhere = !preload_context_of(stream, &context) || context != atomic_load(&at->primary);
  if (preload_is_captured(stream)) { /* only memory of the graph can be freed in it */
    preload_leave();
    return WEIR_CU_INVALID_VALUE;
  }
  if (is_elsewhere) { /* no event of this device can be recorded there */
    preload_leave();
    if ((result = preload_driver->StreamSynchronize(preload_driver, stream)))
      return result;
    if (!(at = preload_owner_of(pointer)))
      return WEIR_CU_INVALID_VALUE;
  } else
    status = weir_allocator_record_stream(atomic_load(&at->allocator), memory, stream);
  result = result_of(status ? status : weir_allocator_free(atomic_load(&at->allocator), memory));
  preload_leave();
  return result;
}

weir_cu_result cuMemFreeAsync(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  return free_async(pointer, preload_named(stream, LEGACY));
}

weir_cu_result cuMemFreeAsync_ptsz(weir_cu_deviceptr pointer, weir_cu_stream stream) {
  return free_async(pointer, preload_named(stream, PER_THREAD));
}

/* ---- Allocating ---- */

/* Returns all cached memory to the driver; false if no device is served. The allocator of a device leaves out what a
 * capture forbids; on other devices it is allowed, whatever the mode of the thread. */
static bool make_room(void) {
  bool is_any = false;
  int mode;
  if (!atomic_load(&preload_has_driver) || preload_relax(&mode))
    return false;
  pthread_rwlock_rdlock(&preload_use_lock);
  for (int i = 0; i < atomic_load(&preload_device_count); i++) {
    weir_allocator *allocator = atomic_load(&preload_devices[i].allocator);
    if (allocator && !weir_allocator_empty_cache(allocator))
      is_any = true;
  }
  preload_leave();
  preload_restore(mode);
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
static weir_cu_result serve(preload_served *at, weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  void *memory;
  weir_status status = weir_allocator_alloc(atomic_load(&at->allocator), preload_ordinal(at), bytes, stream, &memory);
  weir_cu_result result = result_of(status);
  preload_leave();
  if (!status)
    *pointer = (uintptr_t)memory;
  return result;
}

weir_cu_result cuMemAlloc_v2(weir_cu_deviceptr *pointer, size_t bytes) {
  weir_cu_result result;
  preload_served *at = pointer && bytes ? preload_served_current() : NULL;
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
  preload_served *at = is_plain ? preload_served_current() : NULL;
  if (at) {
    result = serve(at, pointer, bytes, NO_STREAM);
    if (!result)
      *pitch = row;
    return result;
  }
  REAL_WITH_ROOM(result, cuMemAllocPitch_v2, pointer, pitch, width, height, element);
  return result;
}

static weir_cu_result serve_stream(preload_served *at, weir_cu_deviceptr *pointer, size_t bytes,
                                   weir_cu_stream stream) {
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
  return preload_driver->DeviceGetDefaultMemPool &&
                 !preload_driver->DeviceGetDefaultMemPool(preload_driver, &usual, device) && usual == handle
             ? device
             : DRIVERS;
}

/* Whether the driver serves memory of the current pool of a device. */
static bool uses_driver_pool(int device) {
  weir_cu_mempool now;
  return atomic_load_explicit(&has_driver_pools, memory_order_relaxed) && preload_driver->DeviceGetMemPool &&
         !preload_driver->DeviceGetMemPool(preload_driver, &now, device) && device_of_pool(now, device) == DRIVERS;
}

static weir_cu_result alloc_async(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  weir_cu_result result;
  preload_served *at = pointer && bytes ? preload_served_stream(stream) : NULL;
  if (at && !preload_is_captured(stream) && !uses_driver_pool(preload_ordinal(at)))
    return serve_stream(at, pointer, bytes, stream);
  if (at)
    preload_leave();
  REAL_WITH_ROOM(result, cuMemAllocAsync, pointer, bytes, stream);
  return result;
}

weir_cu_result cuMemAllocAsync(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  return alloc_async(pointer, bytes, preload_named(stream, LEGACY));
}

weir_cu_result cuMemAllocAsync_ptsz(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_stream stream) {
  return alloc_async(pointer, bytes, preload_named(stream, PER_THREAD));
}

static weir_cu_result alloc_from_pool(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_mempool handle,
                                      weir_cu_stream stream) {
  weir_cu_result result;
  preload_served *at = pointer && bytes ? preload_served_stream(stream) : NULL;
  if (at && !preload_is_captured(stream) && device_of_pool(handle, preload_ordinal(at)) == preload_ordinal(at))
    return serve_stream(at, pointer, bytes, stream);
  if (at)
    preload_leave();
  REAL_WITH_ROOM(result, cuMemAllocFromPoolAsync, pointer, bytes, handle, stream);
  return result;
}

weir_cu_result cuMemAllocFromPoolAsync(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_mempool handle,
                                       weir_cu_stream stream) {
  return alloc_from_pool(pointer, bytes, handle, preload_named(stream, LEGACY));
}

weir_cu_result cuMemAllocFromPoolAsync_ptsz(weir_cu_deviceptr *pointer, size_t bytes, weir_cu_mempool handle,
                                            weir_cu_stream stream) {
  return alloc_from_pool(pointer, bytes, handle, preload_named(stream, PER_THREAD));
}

weir_cu_result cuMemCreate(weir_cu_mem_handle *handle, size_t bytes, const weir_cu_mem_prop *prop,
                           unsigned long long flags) {
  weir_cu_result result;
  REAL_WITH_ROOM(result, cuMemCreate, handle, bytes, prop, flags);
  if (result || prop->location.type != WEIR_CU_LOCATION_DEVICE)
    return result;
  preload_served *at = preload_served_current(); /* so that a program that allocates in no other way is recorded */
  if (!at)
    pthread_rwlock_rdlock(&preload_use_lock);
  preload_created_add(*handle, prop->location.id, bytes);
  preload_leave();
  return result;
}

weir_cu_result cuMemRelease(weir_cu_mem_handle handle) {
  pthread_rwlock_rdlock(&preload_use_lock);
  preload_created_release(handle);
  preload_leave();
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
  pthread_rwlock_rdlock(&preload_use_lock);
  preload_created_unmap(pointer, bytes);
  preload_leave();
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
static bool held_bytes(preload_served *at, uint64_t *reserved, uint64_t *held) {
  weir_allocator *allocator = atomic_load(&at->allocator);
  weir_allocator_stats stats = {.size = sizeof stats};
  if (weir_allocator_get_stats(allocator, preload_ordinal(at), &stats))
    return false;
  *reserved = (uint64_t)stats.reserved_bytes[WEIR_STAT_ALL].current;
  *held = (uint64_t)(stats.active_bytes[WEIR_STAT_ALL].current + stats.inactive_split_bytes[WEIR_STAT_ALL].current);
  *held = preload_least(*held, *reserved);
  return true;
}

/* Reports what the program could still get: the memory of the driver, and what Weir could return, within the limit. */
weir_cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  uint64_t reserved, held;
  preload_served *at = free_bytes && total_bytes ? preload_served_current() : NULL;
  weir_cu_result result = REAL(cuMemGetInfo_v2, free_bytes, total_bytes);
  if (!at)
    return result;
  if (!result && held_bytes(at, &reserved, &held)) {
    *free_bytes = preload_least(*free_bytes + reserved - held, at->limit - preload_least(at->limit, held));
    *total_bytes = preload_least(*total_bytes, at->limit);
  }
  preload_leave();
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
  if (preload_is_open()) {
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
  preload_served *here = preload_served_current();
  if (here)
    preload_leave();
  preload_served *there = here ? preload_served_context(peer) : NULL;
  if (there && here != there)
    weir_allocator_enable_peer_access(atomic_load(&there->allocator), preload_ordinal(there), preload_ordinal(here));
  if (there)
    preload_leave();
  return result;
}

/* Whether the driver can share the memory that begins here. Memory that is not allocated can be the beginning of a
 * segment: libraries pass the base of cuMemGetAddressRange. */
static bool is_segment(preload_served *at, weir_cu_deviceptr pointer) {
  void *base, *wanted = (void *)(uintptr_t)pointer;
  weir_cu_deviceptr start;
  size_t bytes;
  weir_status status = weir_allocator_base(atomic_load(&at->allocator), wanted, &base, &bytes);
  if (status == WEIR_ERROR_INVALID_ARGUMENT)
    return !preload_driver->MemGetAddressRange(preload_driver, &start, &bytes, pointer) && start == pointer;
  return !status && base == wanted;
}

/* A handle is for a whole segment, and opening it gives the beginning of the segment, which is wrong for a pointer
 * inside. */
weir_cu_result cuIpcGetMemHandle(weir_cu_ipc_mem_handle *handle, weir_cu_deviceptr pointer) {
  preload_served *at = preload_owner_of(pointer);
  bool can_be_shared = !at || is_segment(at, pointer);
  if (at)
    preload_leave();
  if (can_be_shared)
    return REAL(cuIpcGetMemHandle, handle, pointer);
  preload_say(
      WEIR_LOG_WARN,
      "preload: memory at %p cannot be shared with another process, because it is a part of a larger segment; set "
      "WEIR_NO_MEMORY_CACHING=1 to give each allocation a segment of its own",
      (void *)(uintptr_t)pointer);
  return WEIR_CU_NOT_SUPPORTED;
}

/* ---- Ends ---- */

/* The next stream may get the same handle, and with it the memory of this one, so the work must be done by then. */
static void finish_stream(weir_cu_stream stream) {
  int mode;
  if (preload_is_captured(stream) || preload_relax(&mode))
    return;
  preload_driver->StreamSynchronize(preload_driver, stream);
  preload_restore(mode);
}

/* Its capture ends with it. The capture is removed first, because another thread may get the same handle for a new
 * stream. */
weir_cu_result cuStreamDestroy_v2(weir_cu_stream stream) {
  bool is_handle = stream && stream != LEGACY && stream != PER_THREAD;
  if (is_handle && atomic_load(&preload_has_driver)) {
    if (atomic_load(&has_streams))
      finish_stream(stream);
    preload_captures_forget(stream);
  }
  return REAL(cuStreamDestroy_v2, stream);
}
