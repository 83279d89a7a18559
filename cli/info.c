/*
 * weir info: the driver that Weir uses, why it was chosen, and its devices.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/environment.h"
#include "cli.h"
#include "json.h"
#include "weir/weir.h"

enum { REASON_SIZE = 512 };

typedef struct report {
  const char *choice;       /* WEIR_DRIVER */
  char reason[REASON_SIZE]; /* why this driver was chosen automatically; "" if WEIR_DRIVER names it */
  weir_driver *driver;
  int version; /* of CUDA; 0 if the driver does not report it */
  int device_count;
} report;

/* An error without the name of the call in front and the advice at the end. */
static void copy_cause(const char *error, char cause[REASON_SIZE]) {
  const char *colon = strstr(error, ": ");
  if (strncmp(error, "weir_", 5) == 0 && colon)
    error = colon + 2;
  snprintf(cause, REASON_SIZE, "%.*s", (int)strcspn(error, ";"), error);
}

/* Why the software device was chosen automatically: tries NVIDIA's driver again. */
static void explain_soft(char reason[REASON_SIZE]) {
  weir_driver *cuda;
  if (weir_driver_open_cuda(&cuda) != WEIR_OK) {
    copy_cause(weir_last_error(), reason);
    return;
  }
  int count = 0;
  weir_cu_result result = cuda->Init(cuda, 0);
  if (!result)
    result = cuda->DeviceGetCount(cuda, &count);
  if (result != WEIR_CU_SUCCESS)
    snprintf(reason, REASON_SIZE, "NVIDIA's driver cannot be used: %s", weir_cu_result_string(result));
  else
    snprintf(reason, REASON_SIZE, "NVIDIA's driver has no device");
  weir_driver_close(cuda);
}

static void explain_choice(report *report) {
  if (strcmp(report->choice, "auto") != 0)
    return;
  if (!(report->driver->capabilities & WEIR_DRIVER_NVIDIA))
    explain_soft(report->reason);
  else
    snprintf(report->reason, REASON_SIZE, "NVIDIA's driver has a device");
}

static void print_device(int device, const weir_device_properties *p, size_t free_bytes) {
  printf("\nDevice %d: %s\n", device, p->name);
  printf("  uuid             %s\n", p->uuid);
  printf("  PCI              %s\n", p->pci_bus_id);
  printf("  capability       %d.%d\n", p->major, p->minor);
  printf("  memory           %s free of %s\n", weir_cli_bytes(free_bytes), weir_cli_bytes(p->total_memory));
  printf("  multiprocessors  %d at %d MHz\n", p->multiprocessor_count, p->clock_khz / 1000);
  printf("  virtual memory   %s\n", p->virtual_memory ? "yes" : "no");
  printf("  memory pools     %s\n", p->memory_pools ? "yes" : "no");
}

static void print_device_json(int device, const weir_device_properties *p, size_t free_bytes) {
  WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_INTEGER("index", device), JSON_TEXT("name", p->name),
                JSON_TEXT("uuid", p->uuid), JSON_TEXT("pci_bus_id", p->pci_bus_id), JSON_LIST("capability"),
                JSON_INTEGER(NULL, p->major), JSON_INTEGER(NULL, p->minor), JSON_CLOSE,
                JSON_NATURAL("total_memory", p->total_memory), JSON_NATURAL("free_memory", free_bytes),
                JSON_INTEGER("multiprocessor_count", p->multiprocessor_count), JSON_INTEGER("clock_khz", p->clock_khz),
                JSON_BOOL("virtual_memory", p->virtual_memory), JSON_BOOL("memory_pools", p->memory_pools));
}

static weir_status print_devices(int count, bool json) {
  for (int i = 0; i < count; i++) {
    weir_device_properties properties;
    weir_device_properties_init(&properties);
    size_t free_bytes, total_bytes;
    weir_status status = weir_device_get_properties(i, &properties);
    if (!status)
      status = weir_device_memory_info(i, &free_bytes, &total_bytes);
    if (status)
      return status;
    (json ? print_device_json : print_device)(i, &properties, free_bytes);
    if (json)
      WEIR_CLI_JSON(JSON_CLOSE);
  }
  return WEIR_OK;
}

static weir_status print_report(const report *report, bool json) {
  if (!json) {
    const char *visible = weir__env_text(WEIR__ENV_VISIBLE_DEVICES);
    weir_cli_fold_begin();
    printf("Weir      %s\n", weir_version());
    printf("Driver    %s", report->driver->name);
    if (report->version > 0)
      printf(", CUDA %d.%d", report->version / 1000, report->version % 1000 / 10);
    if (report->reason[0])
      printf("\nChosen    automatically: %s\n", report->reason);
    else
      printf("\nChosen    by WEIR_DRIVER=%s\n", report->choice);
    printf("Devices   %d", report->device_count);
    if (visible)
      printf(", with CUDA_VISIBLE_DEVICES=\"%s\"", visible);
    fputs("\n", stdout);
    return print_devices(report->device_count, false);
  }
  weir_cli_json_begin(2);
  WEIR_CLI_JSON(JSON_TEXT("weir", weir_version()), JSON_OBJECT("driver"), JSON_TEXT("name", report->driver->name),
                JSON_TEXT("choice", report->choice), JSON_TEXT("reason", report->reason),
                JSON_INTEGER("cuda_version", report->version), JSON_CLOSE, JSON_LIST("devices"));
  weir_status status = print_devices(report->device_count, true);
  WEIR_CLI_JSON(JSON_CLOSE);
  weir_cli_json_end();
  return status;
}

static int fail(weir_status status) {
  fprintf(stderr, "weir info: %s: %s\n", weir_status_name(status), weir_last_error());
  return WEIR_EXIT_FAILED;
}

static bool json;

static int run(int count, char **arguments) {
  (void)count, (void)arguments;
  report report = {.choice = weir__env_value(WEIR__ENV_DRIVER)};
  if (!report.choice)
    report.choice = "auto";
  weir_driver *opened = NULL;
  weir_status status = weir_get_driver(&report.driver);
  if (!status)
    status = weir_device_count(&report.device_count);
  else if (status == WEIR_ERROR_NO_DEVICE)
    /* Without a device nothing is started, but the driver can still be opened to show its name. */
    status = weir_driver_open(NULL, &opened);
  if (status)
    return fail(status);
  if (opened)
    report.driver = opened;
  if (report.driver->DriverGetVersion(report.driver, &report.version) != WEIR_CU_SUCCESS)
    report.version = 0;
  explain_choice(&report);

  status = print_report(&report, json);
  int code = !status ? WEIR_EXIT_OK : fail(status);
  weir_driver_close(opened);
  weir_shutdown();
  return code;
}

static const weir_cli_option option_table[] = {{"json", .target = &json, .help = "print JSON"}, {0}};

const weir_cli_command weir_cmd_info = {
    .name = "info",
    .summary = "show the driver and its devices",
    .description = "Show the driver that Weir uses, why it was chosen, and every device with its memory.",
    .options = option_table,
    .exit = {"done, also if there is no device", "the driver cannot be used"},
    .run = run};
