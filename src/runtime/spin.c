/*
 * The spin kernel: keeps a stream busy for a number of cycles of the device clock.
 */
#include "base/thread.h"
#include "driver/kernels.h"
#include "runtime/runtime.h"

/* The first spin may be in a capture, during which a module can be loaded, but unloaded only in relaxed mode. */
static void unload(weir_driver *driver, weir_cu_module module) {
  int mode = WEIR_CU_CAPTURE_RELAXED;
  bool relaxed = !driver->ThreadExchangeStreamCaptureMode(driver, &mode);
  driver->ModuleUnload(driver, module);
  if (relaxed)
    driver->ThreadExchangeStreamCaptureMode(driver, &mode);
}

static weir_status load(const char *caller, weir__device *device) {
  weir_driver *driver = weir__rt.driver;
  weir_cu_module module;
  weir_cu_function function;
  weir_status status = WEIR__CALL_FOR(caller, driver, ModuleLoadData(driver, &module, weir__kernels_ptx));
  if (status)
    return status;
  status = WEIR__CALL_FOR(caller, driver, ModuleGetFunction(driver, &function, module, "weir_spin"));
  if (status) {
    unload(driver, module);
    return status;
  }
  device->spin_module = module;
  device->spin = function;
  return WEIR_OK;
}

static weir_status load_once(const char *caller, weir__device *device) {
  weir_status status = WEIR_OK;
  weir__mutex_lock(&device->lock);
  if (!device->spin)
    status = load(caller, device);
  weir__mutex_unlock(&device->lock);
  return status;
}

weir_status weir__spin(const char *caller, weir__device *device, weir_cu_stream raw, uint64_t cycles) {
  weir_driver *driver = weir__rt.driver;
  if (!device->spin) {
    weir_status status = load_once(caller, device);
    if (status)
      return status;
  }
  void *params[] = {&cycles};
  weir_cu_function function = device->spin;
  return WEIR__CALL_FOR(caller, driver, LaunchKernel(driver, function, 1, 1, 1, 1, 1, 1, 0, raw, params, NULL));
}
