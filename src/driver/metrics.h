/*
 * Utilization, temperature, power and clock of a device. Each driver has its own source, or none.
 */
#pragma once

#include <stdbool.h>

#include "weir/device.h"
#include "weir/driver.h"

/* Measures a device for the public call `caller`. WEIR_ERROR_NOT_SUPPORTED if the value is not available; the last
 * error says why. */
weir_status weir__driver_measure(const char *caller, weir_driver *driver, weir_cu_device device, weir_metric metric,
                                 int *value);

/* For a table that states WEIR_DRIVER_NVIDIA (nvml.c). */
weir_status weir__nvml_measure(const char *caller, weir_driver *driver, weir_cu_device device, weir_metric metric,
                               int *value);

/* For a table of weir_driver_open_soft (soft/metrics.c). A table that wraps one is not a software device: it may list
 * other devices. */
bool weir__is_soft(const weir_driver *driver);
weir_status weir__soft_measure(const char *caller, weir_driver *driver, weir_cu_device device, weir_metric metric,
                               int *value);
