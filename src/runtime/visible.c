/*
 * Counting devices, if possible without initializing a driver that a fork would break.
 */
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "driver/cuda.h"
#include "driver/nvml.h"
#include "runtime/runtime.h"

weir_status weir__init_driver(const char *caller, weir_driver *driver, int *count) {
  weir_cu_result result = driver->Init(driver, 0);
  /* NVIDIA's driver returns INVALID_DEVICE if CUDA_VISIBLE_DEVICES names a device twice, which leaves none. */
  if (result == WEIR_CU_NO_DEVICE || result == WEIR_CU_INVALID_DEVICE) {
    *count = 0;
    return WEIR_OK;
  }
  weir_status status = weir__driver_status(driver, result, caller, "cuInit(driver, 0)");
  if (status)
    return status;
  weir__note_driver_init(driver);
  int number;
  status = WEIR__CALL_FOR(caller, driver, DeviceGetCount(driver, &number));
  if (!status)
    *count = number < WEIR_MAX_DEVICES ? number : WEIR_MAX_DEVICES;
  return status;
}

/* Counts NVIDIA's devices. The management library answers without initializing the driver. If it cannot, the driver is
 * initialized, and later children cannot use it. A driver that fails to initialize has no devices. */
static int count_cuda(weir_driver *cuda) {
  weir__nvml nvml;
  if (weir__nvml_open(&nvml)) {
    char texts[WEIR_MAX_DEVICES][WEIR__NVML_UUID_SIZE];
    const char *uuids[WEIR_MAX_DEVICES];
    int ordinals[WEIR_MAX_DEVICES];
    int count;
    bool known = weir__nvml_uuids(&nvml, texts, WEIR_MAX_DEVICES, &count);
    weir__nvml_close(&nvml);
    if (known) {
      for (int i = 0; i < count; i++)
        uuids[i] = texts[i];
      count = weir__visible_ordinals(weir__env_text(WEIR__ENV_VISIBLE_DEVICES), uuids, count, ordinals);
      if (count != WEIR__VISIBLE_MIG)
        return count;
    }
  }

  if (cuda->Init(cuda, 0))
    return 0;
  weir__note_driver_init(cuda);
  int count;
  if (cuda->DeviceGetCount(cuda, &count))
    return 0;
  return count < WEIR_MAX_DEVICES ? count : WEIR_MAX_DEVICES;
}

static bool is_automatic(const char *choice) { return !choice || strcmp(choice, "auto") == 0; }

weir_status weir__count_devices(const char *caller, weir_driver *chosen, int *count) {
  if (chosen)
    return weir__init_driver(caller, chosen, count);

  /* Chooses as weir_driver_open does. That function cannot be used here, because it initializes NVIDIA's driver to
   * choose. */
  const char *choice = weir__env_value(WEIR__ENV_DRIVER);
  bool automatic = is_automatic(choice);
  if (automatic || strcmp(choice, "cuda") == 0) {
    char reason[WEIR__CUDA_REASON];
    weir_driver *cuda;
    int number = 0;
    if (!weir__cuda_open(reason, &cuda)) {
      number = count_cuda(cuda);
      weir_driver_close(cuda);
    } else if (automatic) {
      static atomic_flag was_logged = ATOMIC_FLAG_INIT; /* log it once: devices may be counted often */
      if (!atomic_flag_test_and_set(&was_logged))
        weir__cuda_log_fallback(caller, reason);
    }
    if (number > 0 || !automatic) {
      *count = number;
      return WEIR_OK;
    }
    choice = "soft";
  }

  weir_driver *driver;
  weir_status status = weir_driver_open(choice, &driver);
  if (status)
    return status;
  status = weir__init_driver(caller, driver, count);
  weir_driver_close(driver);
  return status;
}

weir_status weir__has_primary_context(const char *caller, weir_driver *chosen, int device, bool *has) {
  int count;
  weir_status status = weir__count_devices(caller, chosen, &count);
  if (status)
    return status;
  if (device >= count)
    return weir__no_such_device(caller, device, count);

  *has = false;
  weir_driver *driver = chosen;
  if (!chosen) {
    const char *choice = weir__env_value(WEIR__ENV_DRIVER);
    char reason[WEIR__CUDA_REASON];
    if (!is_automatic(choice) && strcmp(choice, "cuda") != 0)
      return WEIR_OK; /* no other code can have a context on a driver that is not open */
    if (weir__cuda_open(reason, &driver))
      return WEIR_OK;
  }
  /* A driver that is not initialized returns NOT_INITIALIZED, and has no contexts. */
  weir_cu_device handle;
  unsigned flags;
  int active;
  if (!driver->DeviceGet(driver, &handle, device) && !driver->DevicePrimaryCtxGetState(driver, handle, &flags, &active))
    *has = active;
  if (!chosen)
    weir_driver_close(driver);
  return WEIR_OK;
}
