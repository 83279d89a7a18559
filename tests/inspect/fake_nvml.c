/*
 * A stand-in for NVIDIA's management library. WEIR_FAKE_NVML selects the processes: "none", "two", "many", with this
 * one among the last, "container", without it, or "broken". Metrics have values unless it is "broken"; "plain" lacks
 * the newer call for the temperature. Compiled with FAKE_NVML_OLD, the library has no metrics at all.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/nvml.h"

static const char *mode(void) {
  const char *text = getenv("WEIR_FAKE_NVML");
  return text ? text : "none";
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, weir__nvml_handle *device);
int nvmlDeviceGetComputeRunningProcesses_v3(weir__nvml_handle device, unsigned *count, weir__nvml_process *processes);

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, weir__nvml_handle *device) {
  *device = NULL;
  return *id ? 0 : 2;
}

int nvmlDeviceGetComputeRunningProcesses_v3(weir__nvml_handle device, unsigned *count, weir__nvml_process *processes) {
  (void)device;
  if (!strcmp(mode(), "broken"))
    return 999;
  unsigned room = *count;
  *count = 0;
  if (!strcmp(mode(), "many") || !strcmp(mode(), "container")) {
    for (unsigned i = 0; i < 20 && *count < room; i++)
      processes[(*count)++] = (weir__nvml_process){.pid = 2000000000 + i, .bytes = (uint64_t)(1 + i) << 30};
    if (!strcmp(mode(), "many"))
      processes[10] = (weir__nvml_process){.pid = (unsigned)getpid(), .bytes = 1 << 30};
    return 0;
  }
  if (strcmp(mode(), "two") != 0)
    return 0;
  processes[(*count)++] = (weir__nvml_process){.pid = 4711, .bytes = 3ull << 29};
  processes[(*count)++] = (weir__nvml_process){.pid = 1234567890, .bytes = ~0ull};
  return 0;
}

#ifndef FAKE_NVML_OLD
int nvmlDeviceGetUtilizationRates(weir__nvml_handle device, weir__nvml_rates *rates);
int nvmlDeviceGetTemperatureV(weir__nvml_handle device, weir__nvml_temperature *temperature);
int nvmlDeviceGetTemperature(weir__nvml_handle device, int sensor, unsigned *celsius);
int nvmlDeviceGetPowerUsage(weir__nvml_handle device, unsigned *milliwatts);
int nvmlDeviceGetClockInfo(weir__nvml_handle device, int clock, unsigned *megahertz);
const char *nvmlErrorString(int result);

enum { NOT_SUPPORTED = 3, FUNCTION_NOT_FOUND = 13 };

static int answer(void) { return !strcmp(mode(), "broken") ? NOT_SUPPORTED : 0; }

int nvmlDeviceGetUtilizationRates(weir__nvml_handle device, weir__nvml_rates *rates) {
  (void)device;
  *rates = (weir__nvml_rates){.gpu = 87, .memory = 12};
  return answer();
}

int nvmlDeviceGetTemperatureV(weir__nvml_handle device, weir__nvml_temperature *temperature) {
  (void)device;
  if (!strcmp(mode(), "plain"))
    return FUNCTION_NOT_FOUND;
  if (temperature->version != (12 | 1u << 24) || temperature->sensor != 0)
    return 25; /* NVML_ERROR_ARGUMENT_VERSION_MISMATCH */
  temperature->celsius = 41;
  return answer();
}

int nvmlDeviceGetTemperature(weir__nvml_handle device, int sensor, unsigned *celsius) {
  (void)device, (void)sensor;
  *celsius = 40;
  return answer();
}

int nvmlDeviceGetPowerUsage(weir__nvml_handle device, unsigned *milliwatts) {
  (void)device;
  *milliwatts = 123456;
  return answer();
}

int nvmlDeviceGetClockInfo(weir__nvml_handle device, int clock, unsigned *megahertz) {
  (void)device;
  *megahertz = clock == 1 ? 1980 : 0;
  return answer();
}

const char *nvmlErrorString(int result) { return result == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }
#endif
