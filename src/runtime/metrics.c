/*
 * Utilization, temperature, power and clock of a device.
 */
#include "driver/metrics.h"

#include "runtime/runtime.h"

static weir_status measure(const char *caller, int device, weir__metric metric, int *value) {
  weir_status status = weir__resolve_device(caller, device, &device);
  if (status)
    return status;
  return weir__driver_measure(caller, weir__rt.driver, weir__rt.devices[device].handle, metric, value);
}

weir_status weir_device_utilization(int device, int *percent) {
  WEIR__CHECK_ARGUMENT(percent);
  return measure(__func__, device, WEIR__METRIC_UTILIZATION, percent);
}

weir_status weir_device_memory_usage(int device, int *percent) {
  WEIR__CHECK_ARGUMENT(percent);
  return measure(__func__, device, WEIR__METRIC_MEMORY_USAGE, percent);
}

weir_status weir_device_temperature(int device, int *celsius) {
  WEIR__CHECK_ARGUMENT(celsius);
  return measure(__func__, device, WEIR__METRIC_TEMPERATURE, celsius);
}

weir_status weir_device_power_draw(int device, int *milliwatts) {
  WEIR__CHECK_ARGUMENT(milliwatts);
  return measure(__func__, device, WEIR__METRIC_POWER_DRAW, milliwatts);
}

weir_status weir_device_clock_rate(int device, int *megahertz) {
  WEIR__CHECK_ARGUMENT(megahertz);
  return measure(__func__, device, WEIR__METRIC_CLOCK_RATE, megahertz);
}
