#include "driver/nvml.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/environment.h"
#include "base/library.h"
#include "base/system.h"
#include "driver/call.h"
#include "driver/metrics.h"

/* Symbols to look up, the newest name first. */
static const struct symbol {
  size_t slot; /* offset of the pointer in weir__nvml */
  const char *names[2];
} symbols[] = {
    {offsetof(weir__nvml, Init), {"nvmlInit_v2", "nvmlInit"}},
    {offsetof(weir__nvml, Shutdown), {"nvmlShutdown"}},
    {offsetof(weir__nvml, DeviceGetCount), {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}},
    {offsetof(weir__nvml, DeviceGetHandleByIndex), {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}},
    {offsetof(weir__nvml, DeviceGetUUID), {"nvmlDeviceGetUUID"}},
    {offsetof(weir__nvml, DeviceGetHandleByPciBusId),
     {"nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId"}},
    {offsetof(weir__nvml, DeviceGetMemoryInfoV2), {"nvmlDeviceGetMemoryInfo_v2"}},
    {offsetof(weir__nvml, DeviceGetMemoryInfo), {"nvmlDeviceGetMemoryInfo"}},
    {offsetof(weir__nvml, DeviceGetComputeRunningProcesses),
     {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"}},
    {offsetof(weir__nvml, DeviceGetUtilizationRates), {"nvmlDeviceGetUtilizationRates"}},
    {offsetof(weir__nvml, DeviceGetTemperatureV), {"nvmlDeviceGetTemperatureV"}},
    {offsetof(weir__nvml, DeviceGetTemperature), {"nvmlDeviceGetTemperature"}},
    {offsetof(weir__nvml, DeviceGetPowerUsage), {"nvmlDeviceGetPowerUsage"}},
    {offsetof(weir__nvml, DeviceGetClockInfo), {"nvmlDeviceGetClockInfo"}},
    {offsetof(weir__nvml, ErrorString), {"nvmlErrorString"}},
};

static const char *library_name(void) {
  const char *name = weir__env_value(WEIR__ENV_NVML_LIBRARY);
  return name ? name : "libnvidia-ml.so.1";
}

bool weir__nvml_open(weir__nvml *nvml) {
  *nvml = (weir__nvml){0};
  nvml->library = weir__library_open(library_name());
  if (!nvml->library)
    return false;

  for (size_t i = 0; i < WEIR_COUNT_OF(symbols); i++) {
    void *address = NULL;
    for (size_t n = 0; n < WEIR_COUNT_OF(symbols[i].names) && symbols[i].names[n] && !address; n++)
      address = weir__library_symbol(nvml->library, symbols[i].names[n]);
    memcpy((char *)nvml + symbols[i].slot, &address, sizeof address);
  }
  if (nvml->Init && nvml->Shutdown && nvml->Init() == 0)
    return true;
  weir__library_close(nvml->library);
  *nvml = (weir__nvml){0};
  return false;
}

void weir__nvml_close(weir__nvml *nvml) {
  nvml->Shutdown();
  weir__library_close(nvml->library);
  *nvml = (weir__nvml){0};
}

bool weir__nvml_uuids(const weir__nvml *nvml, char uuids[][WEIR__NVML_UUID_SIZE], int room, int *count) {
  if (!nvml->DeviceGetCount || !nvml->DeviceGetHandleByIndex || !nvml->DeviceGetUUID)
    return false;
  unsigned number = 0;
  if (nvml->DeviceGetCount(&number) != 0)
    return false;
  if (number > (unsigned)room)
    number = (unsigned)room;
  for (unsigned i = 0; i < number; i++) {
    weir__nvml_handle device;
    if (nvml->DeviceGetHandleByIndex(i, &device) != 0 ||
        nvml->DeviceGetUUID(device, uuids[i], WEIR__NVML_UUID_SIZE) != 0)
      return false;
    uuids[i][WEIR__NVML_UUID_SIZE - 1] = '\0';
  }
  *count = (int)number;
  return true;
}

bool weir__nvml_card(const weir__nvml *nvml, const char *bus, weir__nvml_memory *memory, weir__nvml_process *processes,
                     int room, int *count) {
  weir__nvml_handle device;
  weir__nvml_memory_v1 older;
  unsigned number = (unsigned)room;
  *memory = (weir__nvml_memory){.version = sizeof *memory | 2u << 24};
  if (!nvml->DeviceGetHandleByPciBusId || nvml->DeviceGetHandleByPciBusId(bus, &device) != 0)
    return false;
  if (!nvml->DeviceGetMemoryInfoV2 || nvml->DeviceGetMemoryInfoV2(device, memory) != 0) {
    if (!nvml->DeviceGetMemoryInfo || nvml->DeviceGetMemoryInfo(device, &older) != 0)
      return false;
    *memory = (weir__nvml_memory){.total = older.total, .free = older.free, .used = older.used};
  }
  bool lists = nvml->DeviceGetComputeRunningProcesses &&
               nvml->DeviceGetComputeRunningProcesses(device, &number, processes) == 0 && number <= (unsigned)room;
  *count = lists ? (int)number : -1;
  return true;
}

const char *weir__nvml_list_processes(weir_driver *driver, weir_cu_device device, weir__nvml_process *processes,
                                      unsigned *count) {
  weir__nvml nvml;
  weir__nvml_handle handle;
  char bus[32];
  if (!weir__driver_can(driver, WEIR_DRIVER_NVIDIA))
    return "the device is not an NVIDIA device";
  if (driver->DeviceGetPCIBusId(driver, bus, sizeof bus, device))
    return "the driver does not report the PCI bus id of the device";
  if (!weir__nvml_open(&nvml))
    return "libnvidia-ml.so.1 cannot be loaded; it comes with NVIDIA's driver";
  bool known = nvml.DeviceGetHandleByPciBusId && nvml.DeviceGetComputeRunningProcesses &&
               nvml.DeviceGetHandleByPciBusId(bus, &handle) == 0 &&
               nvml.DeviceGetComputeRunningProcesses(handle, count, processes) == 0;
  weir__nvml_close(&nvml);
  return known ? NULL : "NVIDIA's management library does not report them";
}

size_t weir__device_processes(weir_driver *driver, weir_cu_device device, weir__nvml_process *processes, size_t room) {
  enum { most = 256 };
  weir__nvml_process found[most];
  unsigned count = most;
  size_t written = 0;
  if (weir__nvml_list_processes(driver, device, found, &count))
    return 0;
  for (unsigned i = 0; i < count && i < most && written < room; i++)
    if (found[i].bytes != ~0ull) /* NVML_VALUE_NOT_AVAILABLE, as in some virtual machines */
      processes[written++] = found[i];
  return written;
}

/* ---- Metrics ---- */

/* The library lacks the function. Its own results are not negative. */
enum { MISSING_FUNCTION = -1 };

static int temperature_of(const weir__nvml *nvml, weir__nvml_handle device, int *value) {
  weir__nvml_temperature newer = {.version = sizeof newer | 1u << 24, .sensor = WEIR__NVML_GPU_SENSOR};
  int result = nvml->DeviceGetTemperatureV ? nvml->DeviceGetTemperatureV(device, &newer) : MISSING_FUNCTION;
  if (result == 0) {
    *value = newer.celsius;
    return 0;
  }
  if (!nvml->DeviceGetTemperature)
    return result;
  unsigned celsius;
  result = nvml->DeviceGetTemperature(device, WEIR__NVML_GPU_SENSOR, &celsius);
  if (result == 0)
    *value = (int)celsius;
  return result;
}

static int measure(const weir__nvml *nvml, weir__nvml_handle device, weir_metric metric, int *value) {
  weir__nvml_rates rates;
  unsigned number;
  int result = MISSING_FUNCTION;
  switch (metric) {
  case WEIR_METRIC_UTILIZATION:
  case WEIR_METRIC_MEMORY_USAGE:
    if (nvml->DeviceGetUtilizationRates)
      result = nvml->DeviceGetUtilizationRates(device, &rates);
    if (result == 0)
      *value = (int)(metric == WEIR_METRIC_UTILIZATION ? rates.gpu : rates.memory);
    return result;
  case WEIR_METRIC_TEMPERATURE:
    return temperature_of(nvml, device, value);
  case WEIR_METRIC_POWER_DRAW:
    if (nvml->DeviceGetPowerUsage)
      result = nvml->DeviceGetPowerUsage(device, &number);
    break;
  case WEIR_METRIC_CLOCK_RATE:
    if (nvml->DeviceGetClockInfo)
      result = nvml->DeviceGetClockInfo(device, WEIR__NVML_CLOCK_SM, &number);
    break;
  }
  if (result == 0)
    *value = (int)number;
  return result;
}

weir_status weir__nvml_measure(const char *caller, weir_driver *driver, weir_cu_device device, weir_metric metric,
                               int *value) {
  char bus[32];
  weir_status status = WEIR__CALL_FOR(caller, driver, DeviceGetPCIBusId(driver, bus, sizeof bus, device));
  if (status)
    return status;
  weir__nvml nvml;
  if (!weir__nvml_open(&nvml))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: NVIDIA's management library %s cannot be loaded or started; it comes with the driver, and "
                      "WEIR_NVML_LIBRARY can name another file",
                      caller, library_name());
  weir__nvml_handle handle;
  int result = nvml.DeviceGetHandleByPciBusId ? nvml.DeviceGetHandleByPciBusId(bus, &handle) : MISSING_FUNCTION;
  if (result == 0)
    result = measure(&nvml, handle, metric, value);
  if (result == MISSING_FUNCTION)
    status = weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: NVIDIA's management library %s is too old for this metric",
                        caller, library_name());
  else if (result != 0)
    status = weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                        "%s: NVIDIA's management library does not report this metric for device %s: %s (%d)", caller,
                        bus, nvml.ErrorString ? nvml.ErrorString(result) : "unknown error", result);
  weir__nvml_close(&nvml);
  return status;
}
