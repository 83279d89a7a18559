/*
 * Devices, contexts, and the current device of each thread.
 */
#include "weir/device.h"

#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "driver/context.h"
#include "runtime/runtime.h"
#include "weir/runtime.h"

static _Thread_local weir__thread this_thread;

weir__thread *weir__thread_state(void) {
  unsigned epoch = weir__epoch;
  if (this_thread.epoch != epoch) {
    this_thread = (weir__thread){
        .epoch = epoch, .context_is_stale = this_thread.epoch != 0, .is_starting = this_thread.is_starting};
  }
  return &this_thread;
}

weir_status weir__no_such_device(const char *caller, int device, int count) {
  if (count == 0)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: there is no device %d; there are no devices", caller, device);
  if (count == 1)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: there is no device %d; valid: 0", caller, device);
  return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: there is no device %d; valid: 0 to %d", caller, device, count - 1);
}

weir_status weir__resolve_device(const char *caller, int device, int *resolved) {
  weir_status status = weir__start(caller);
  if (status)
    return status;
  if (device < -1 || device >= weir__rt.device_count)
    return weir__no_such_device(caller, device, weir__rt.device_count);
  *resolved = device == -1 ? weir__thread_state()->device : device;
  return WEIR_OK;
}

/* ---- Contexts ---- */

void weir__device_init(weir__device *device, weir_cu_device handle) {
  memset(device, 0, sizeof *device);
  device->handle = handle;
  weir__mutex_init(&device->lock);
}

/* Failures are ignored: what cannot be freed here ends with the context or the process. */
void weir__device_end(weir__device *device) {
  weir_driver *driver = weir__rt.driver;
  if (device->context) {
    driver->CtxSetCurrent(driver, device->context);
    driver->CtxSynchronize(driver);
    if (device->spin_module)
      driver->ModuleUnload(driver, device->spin_module);
    for (int p = 0; p < WEIR__PRIORITIES; p++)
      for (int i = 0; i < WEIR_STREAMS_PER_POOL; i++)
        if (device->streams[p][i])
          driver->StreamDestroy(driver, device->streams[p][i]);
    driver->CtxSetCurrent(driver, NULL);
    driver->DevicePrimaryCtxRelease(driver, device->handle);
  }
  weir__mutex_destroy(&device->lock);
}

weir_status weir__device_context(const char *caller, int device, weir_cu_context *context) {
  weir__device *d = &weir__rt.devices[device];
  weir_driver *driver = weir__rt.driver;
  weir_status status = WEIR_OK;
  weir_cu_context made = d->context;
  if (!made) {
    weir__mutex_lock(&d->lock);
    made = d->context;
    if (!made) {
      status = WEIR__CALL_FOR(caller, driver, DevicePrimaryCtxRetain(driver, &made, d->handle));
      if (!status)
        d->context = made;
    }
    weir__mutex_unlock(&d->lock);
  }
  if (!status)
    *context = made;
  return status;
}

/* A context of an earlier runtime is dropped first: it may be destroyed, and the new one may have the same handle. */
static weir_cu_result enter_context(weir_cu_context context, weir_cu_context *previous) {
  weir_driver *driver = weir__rt.driver;
  weir__thread *thread = weir__thread_state();
  if (thread->context_is_stale) {
    weir_cu_result result = driver->CtxSetCurrent(driver, NULL);
    if (result)
      return result;
    thread->context_is_stale = false;
  }
  return weir__context_enter(driver, context, previous);
}

weir_status weir__enter_device(const char *caller, int device, weir__guard *guard) {
  weir_cu_context context;
  weir_status status = weir__device_context(caller, device, &context);
  if (status)
    return status;
  *guard = (weir__guard){.device = device};
  weir_cu_result result = enter_context(context, &guard->previous);
  return weir__driver_status(weir__rt.driver, result, caller, "cuCtxSetCurrent(driver, context)");
}

weir_status weir__resolve_and_enter(const char *caller, int device, weir__guard *guard) {
  weir_status status = weir__resolve_device(caller, device, &device);
  return status ? status : weir__enter_device(caller, device, guard);
}

bool weir__try_enter_device(int device, weir__guard *guard) {
  weir_cu_context context = weir__rt.devices[device].context;
  *guard = (weir__guard){.device = device};
  return context && !enter_context(context, &guard->previous);
}

void weir__leave_device(const weir__guard *guard) {
  weir_driver *driver = weir__rt.driver;
  int current = weir__thread_state()->device;
  if (guard->device == current)
    return;
  weir_cu_context context = guard->previous ? guard->previous : weir__rt.devices[current].context;
  /* A failure does no harm: every call enters the context that it needs. */
  if (driver->CtxSetCurrent(driver, context))
    weir__log(WEIR_LOG_DEBUG, "the context of device %d could not be made current again", current);
}

/* ---- The current device ---- */

weir_status weir__set_device(const char *caller, int device, bool make_context) {
  weir__device *d = &weir__rt.devices[device];
  weir_driver *driver = weir__rt.driver;
  if (!make_context && !d->context) {
    unsigned flags;
    int active;
    weir_status status = WEIR__CALL_FOR(caller, driver, DevicePrimaryCtxGetState(driver, d->handle, &flags, &active));
    if (status)
      return status;
    make_context = active; /* other code created the context: share it */
  }
  if (make_context || d->context) {
    weir__guard guard;
    weir_status status = weir__enter_device(caller, device, &guard);
    if (status)
      return status;
  }
  weir__thread_state()->device = device;
  return WEIR_OK;
}

weir_status weir_device_get_current(int *device) {
  WEIR__CHECK_ARGUMENT(device);
  return weir__resolve_device(__func__, -1, device);
}

weir_status weir__check_device(const char *caller, int device) {
  weir_status status = weir__start(caller);
  if (!status && (device < 0 || device >= weir__rt.device_count))
    status = weir__no_such_device(caller, device, weir__rt.device_count);
  return status;
}

weir_status weir_device_set_current(int device) {
  weir_status status = weir__check_device(__func__, device);
  return status ? status : weir__set_device(__func__, device, true);
}

static weir_status exchange(const char *caller, int device, bool make_context, int *previous) {
  weir_status status = weir__check_fork(caller);
  int before = -1;
  if (!status && device >= 0) {
    status = weir__check_device(caller, device);
    if (!status) {
      before = weir__thread_state()->device;
      status = weir__set_device(caller, device, make_context);
    }
  }
  if (!status)
    *previous = before;
  return status;
}

weir_status weir_device_exchange(int device, int *previous) {
  WEIR__CHECK_ARGUMENT(previous);
  return exchange(__func__, device, true, previous);
}

weir_status weir_device_maybe_exchange(int device, int *previous) {
  WEIR__CHECK_ARGUMENT(previous);
  return exchange(__func__, device, false, previous);
}

/* ---- Counting and properties ---- */

weir_status weir_device_count(int *count) {
  WEIR__CHECK_ARGUMENT(count);
  if (weir_is_in_bad_fork()) {
    *count = weir__last_device_count;
    return WEIR_OK;
  }
  weir_driver *chosen;
  if (!weir__is_running() && weir__block_start(&chosen)) {
    int number;
    weir_status status = weir__count_devices(__func__, chosen, &number);
    weir__unblock_start();
    if (!status)
      weir__last_device_count = *count = number;
    return status;
  }
  *count = weir__rt.device_count;
  return WEIR_OK;
}

weir_status weir_device_has_primary_context(int device, int *has) {
  WEIR__CHECK_ARGUMENT(has);
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  weir_driver *driver;
  if (!weir__is_running() && weir__block_start(&driver)) {
    bool active = false;
    if (device < -1)
      status = weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: device is %d", __func__, device);
    else
      status = weir__has_primary_context(__func__, driver, device == -1 ? 0 : device, &active);
    weir__unblock_start();
    if (!status)
      *has = active;
    return status;
  }

  status = weir__resolve_device(__func__, device, &device);
  if (status)
    return status;
  driver = weir__rt.driver;
  unsigned flags;
  int active;
  status = WEIR__CALL(driver, DevicePrimaryCtxGetState(driver, weir__rt.devices[device].handle, &flags, &active));
  if (!status)
    *has = active != 0;
  return status;
}

/* Reads an attribute; 0 if the driver does not know it. */
static weir_status get_attribute(const char *caller, weir_cu_device handle, int attribute, int *value) {
  weir_driver *driver = weir__rt.driver;
  weir_cu_result result = driver->DeviceGetAttribute(driver, value, attribute, handle);
  if (result == WEIR_CU_INVALID_VALUE) {
    *value = 0;
    return WEIR_OK;
  }
  return weir__driver_status(driver, result, caller, "cuDeviceGetAttribute(driver, value, attribute, handle)");
}

weir_status weir_device_get_properties(int device, weir_device_properties *properties) {
  WEIR__CHECK_ARGUMENT(properties);
  if (properties->size < sizeof properties->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: properties->size is %zu; call weir_device_properties_init first", __func__,
                      properties->size);
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (status)
    return status;
  weir_driver *driver = weir__rt.driver;
  weir_cu_device handle = weir__rt.devices[device].handle;

  weir_device_properties p;
  weir_device_properties_init(&p);
  const struct {
    int attribute;
    int *value;
  } wanted[] = {
      {WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, &p.major},
      {WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR, &p.minor},
      {WEIR_CU_ATTR_MULTIPROCESSOR_COUNT, &p.multiprocessor_count},
      {WEIR_CU_ATTR_CLOCK_RATE, &p.clock_khz},
      {WEIR_CU_ATTR_WARP_SIZE, &p.warp_size},
      {WEIR_CU_ATTR_MAX_THREADS_PER_BLOCK, &p.max_threads_per_block},
      {WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR, &p.max_threads_per_multiprocessor},
      {WEIR_CU_ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR, &p.regs_per_multiprocessor},
      {WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK, &p.shared_memory_per_block},
      {WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &p.shared_memory_per_block_optin},
      {WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &p.shared_memory_per_multiprocessor},
      {WEIR_CU_ATTR_L2_CACHE_SIZE, &p.l2_cache_size},
      {WEIR_CU_ATTR_INTEGRATED, &p.is_integrated},
      {WEIR_CU_ATTR_MULTI_GPU_BOARD, &p.is_multi_gpu_board},
      {WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED, &p.virtual_memory},
      {WEIR_CU_ATTR_MEMORY_POOLS_SUPPORTED, &p.memory_pools},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(wanted) && !status; i++)
    status = get_attribute(__func__, handle, wanted[i].attribute, wanted[i].value);

  /* The device may support what the driver is too old to offer. */
  p.virtual_memory = p.virtual_memory && driver->MemAddressReserve && driver->MemCreate && driver->MemMap;
  p.memory_pools = p.memory_pools && driver->MemAllocAsync;

  weir_cu_uuid uuid;
  size_t bytes;
  if (!status)
    status = WEIR__CALL(driver, DeviceGetName(driver, p.name, sizeof p.name, handle));
  if (!status)
    status = WEIR__CALL(driver, DeviceGetPCIBusId(driver, p.pci_bus_id, sizeof p.pci_bus_id, handle));
  if (!status)
    status = WEIR__CALL(driver, DeviceGetUuid(driver, &uuid, handle));
  if (!status)
    status = WEIR__CALL(driver, DeviceTotalMem(driver, &bytes, handle));
  if (status)
    return status;
  weir__format_uuid(&uuid, p.uuid);
  p.total_memory = bytes;

  p.size = properties->size;
  memcpy(properties, &p, p.size < sizeof p ? p.size : sizeof p);
  return WEIR_OK;
}

weir_status weir_device_capability(int device, int *major, int *minor) {
  WEIR__CHECK_ARGUMENT(major);
  WEIR__CHECK_ARGUMENT(minor);
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (status)
    return status;
  weir_cu_device handle = weir__rt.devices[device].handle;
  int first, second;
  status = get_attribute(__func__, handle, WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, &first);
  if (!status)
    status = get_attribute(__func__, handle, WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR, &second);
  if (!status) {
    *major = first;
    *minor = second;
  }
  return status;
}

weir_status weir_device_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
  WEIR__CHECK_ARGUMENT(free_bytes);
  WEIR__CHECK_ARGUMENT(total_bytes);
  weir__guard guard;
  weir_status status = weir__resolve_and_enter(__func__, device, &guard);
  if (status)
    return status;
  weir_driver *driver = weir__rt.driver;
  size_t available, total;
  status = WEIR__CALL(driver, MemGetInfo(driver, &available, &total));
  weir__leave_device(&guard);
  if (!status) {
    *free_bytes = available;
    *total_bytes = total;
  }
  return status;
}

weir_status weir_device_synchronize(int device) {
  weir__guard guard;
  weir_status status = weir__resolve_and_enter(__func__, device, &guard);
  if (status)
    return status;
  status = WEIR__CALL(weir__rt.driver, CtxSynchronize(weir__rt.driver));
  weir__leave_device(&guard);
  return status;
}

/* ---- Peers ---- */

weir_status weir_device_can_access_peer(int device, int peer, int *can) {
  WEIR__CHECK_ARGUMENT(can);
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (!status)
    status = weir__resolve_device(__func__, peer, &peer);
  if (status)
    return status;
  weir_driver *driver = weir__rt.driver;
  int answer;
  status = WEIR__CALL_FOR(
      __func__, driver,
      DeviceCanAccessPeer(driver, &answer, weir__rt.devices[device].handle, weir__rt.devices[peer].handle));
  if (!status)
    *can = answer != 0;
  return status;
}

weir_status weir_device_enable_peer_access(int device, int peer) {
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (!status)
    status = weir__resolve_device(__func__, peer, &peer);
  if (status)
    return status;
  if (device == peer)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: device %d cannot be its own peer", __func__, device);
  weir_driver *driver = weir__rt.driver;
  weir_cu_context peer_context;
  weir__guard guard;
  status = weir__device_context(__func__, peer, &peer_context);
  if (!status)
    status = weir__enter_device(__func__, device, &guard);
  if (status)
    return status;
  weir_cu_result result = driver->CtxEnablePeerAccess(driver, peer_context, 0);
  weir__leave_device(&guard);
  if (result == WEIR_CU_PEER_ACCESS_ALREADY_ENABLED)
    result = WEIR_CU_SUCCESS;
  if (!result)
    atomic_fetch_or(&weir__rt.devices[device].peers, 1ull << peer);
  return weir__driver_status(driver, result, __func__, "cuCtxEnablePeerAccess(driver, peer_context, 0)");
}
