#include "src/compute.h"

#include <pthread.h>
#include <string.h>

#include "src/blas.h"
#include "src/tunable.h"

atomic_ulong weir__compute_epoch = 0;

static pthread_mutex_t epoch_lock = PTHREAD_MUTEX_INITIALIZER;

static void runtime_ends(void *context) {
  (void)context;
  weir__nccl_end();
  weir__tunable_end();
  weir__blas_end();
  weir__modules_end();
  weir__builtins_end();
  weir__compute_epoch++;
}

/* Registers for the end of the runtime, once. */
static weir_status start(void) {
  weir_status status = WEIR_OK;
  pthread_mutex_lock(&epoch_lock);
  if (!weir__compute_epoch) {
    status = weir_shutdown_hook_add(runtime_ends, NULL);
    if (!status)
      weir__compute_epoch = 1;
  }
  pthread_mutex_unlock(&epoch_lock);
  return status;
}

weir_status weir__compute_enter(const char *caller, int device, weir__on_device *on) {
  *on = (weir__on_device){.previous = -1};
  weir_status status = weir__compute_epoch ? WEIR_OK : start();
  if (!status && device < 0)
    status = weir_device_get_current(&device);
  if (!status)
    status = weir_get_driver(&on->driver);
  if (!status)
    status = weir_device_exchange(device, &on->previous);
  on->device = device;
  return status ? weir__fail_as(caller, status) : WEIR_OK;
}

/* A failure does no harm: every call enters the context that it needs. */
void weir__compute_leave(const weir__on_device *on) {
  int previous;
  if (on->previous != on->device && weir_device_maybe_exchange(on->previous, &previous))
    weir__log(WEIR_LOG_DEBUG, "device %d could not be made current again", on->previous);
}

enum { NOT_RELAXED = -1 };

int weir__compute_relax(weir_driver *driver) {
  int mode = WEIR_CU_CAPTURE_RELAXED;
  return driver->ThreadExchangeStreamCaptureMode(driver, &mode) ? NOT_RELAXED : mode;
}

void weir__compute_restore(weir_driver *driver, int mode) {
  if (mode != NOT_RELAXED)
    driver->ThreadExchangeStreamCaptureMode(driver, &mode);
}

const char *weir__last_reason(void) {
  const char *text = weir_last_error(), *colon = strstr(text, ": ");
  return colon ? colon + 2 : text;
}

void weir__compute_unload(int device, weir_cu_module module) {
  weir_driver *driver;
  weir__on_device on;
  if (weir_get_driver(&driver))
    return; /* a forked child, in which the module does not exist */
  bool is_entered = !weir__compute_enter(__func__, device, &on);
  int mode = weir__compute_relax(driver);
  driver->ModuleUnload(driver, module);
  weir__compute_restore(driver, mode);
  if (is_entered)
    weir__compute_leave(&on);
}
