#include "driver/metrics.h"

#include "driver/call.h"

weir_status weir__driver_measure(const char *caller, weir_driver *driver, weir_cu_device device, weir_metric metric,
                                 int *value) {
  if (weir__driver_can(driver, WEIR_DRIVER_NVIDIA))
    return weir__nvml_measure(caller, driver, device, metric, value);
  if (weir__is_soft(driver))
    return weir__soft_measure(caller, driver, device, metric, value);
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the driver \"%s\" does not measure its devices", caller,
                    driver->name);
}
