/*
 * A management library for tests of the list of processes: WEIR_FAKE_NVML says what it knows. "none", "two", or "broken".
 */
#include <stdlib.h>
#include <string.h>

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
  *count = 0;
  if (strcmp(mode(), "two") != 0)
    return 0;
  processes[(*count)++] = (weir__nvml_process){.pid = 4711, .bytes = 3ull << 29};
  processes[(*count)++] = (weir__nvml_process){.pid = 1234567890, .bytes = ~0ull};
  return 0;
}
