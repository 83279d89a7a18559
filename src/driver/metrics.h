/*
 * How busy a device is, how warm, how fast: each driver tells it in its own way, or not at all.
 */
#ifndef WEIR_DRIVER_METRICS_H
#define WEIR_DRIVER_METRICS_H

#include "weir/driver.h"

typedef enum weir__metric {
  WEIR__METRIC_UTILIZATION,  /* percent */
  WEIR__METRIC_MEMORY_USAGE, /* percent */
  WEIR__METRIC_TEMPERATURE,  /* degrees Celsius */
  WEIR__METRIC_POWER_DRAW,   /* milliwatts */
  WEIR__METRIC_CLOCK_RATE    /* megahertz */
} weir__metric;

/* Measures a device on behalf of the public call `who`. WEIR_ERROR_NOT_SUPPORTED, and the text says what is missing,
 * where that cannot be had. */
weir_status weir__driver_measure(const char *who, weir_driver *driver, weir_cu_device device, weir__metric metric,
                                 int *value);

/* The same of NVIDIA's driver (nvml.c) and of the software device (soft/metrics.c). */
weir_status weir__nvml_measure(const char *who, weir_driver *driver, weir_cu_device device, weir__metric metric,
                               int *value);
weir_status weir__soft_measure(const char *who, weir_driver *driver, weir_cu_device device, weir__metric metric,
                               int *value);

#endif
