/*
 * Utilization, temperature, power and clock of a device.
 */
#include "driver/metrics.h"

#include "runtime/runtime.h"

weir_status weir_device_metric(int device, weir_metric metric, int *value) {
  WEIR__CHECK_ARGUMENT(value);
  if ((unsigned)metric > WEIR_METRIC_CLOCK_RATE)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: unknown metric %d", __func__, (int)metric);
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (status)
    return status;
  return weir__driver_measure(__func__, weir__rt.driver, weir__rt.devices[device].handle, metric, value);
}
