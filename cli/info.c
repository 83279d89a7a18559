/*
 * weir info: the driver that Weir uses, why it was chosen, and its devices.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "weir/weir.h"
#ifdef WEIR_HAVE_COMPUTE
#include "src/nccl.h"
#include "weir/compute/kernel.h"
#endif

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
  char text[2][32];
  printf("\nDevice %d: %s\n", device, p->name);
  printf("  uuid             %s\n", p->uuid);
  printf("  PCI              %s\n", p->pci_bus_id);
  printf("  capability       %d.%d\n", p->major, p->minor);
  printf("  memory           %s free of %s\n", weir__format_bytes(free_bytes, text[0]),
         weir__format_bytes(p->total_memory, text[1]));
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

#ifdef WEIR_HAVE_COMPUTE
/* What a communicator of one rank takes: created for the purpose, as those of other processes cannot be seen. */
static void print_communicator(int device, bool json) {
  weir_nccl_comm *comm;
  weir_nccl_memory memory;
  char text[2][32];
  weir_nccl_memory_init(&memory);
  weir_status status = weir_nccl_init_all(1, &device, NULL, &comm);
  if (!status) {
    status = weir_nccl_get_memory(comm, &memory);
    weir_nccl_destroy(comm);
  }
  if (json) {
    WEIR_CLI_JSON(JSON_OBJECT("nccl"));
    if (status)
      WEIR_CLI_JSON(JSON_TEXT("error", weir_last_error()));
    else
      WEIR_CLI_JSON(JSON_NATURAL("device_bytes", memory.device_bytes), JSON_NATURAL("host_bytes", memory.host_bytes),
                    JSON_NATURAL("suspendable_bytes", memory.suspendable_bytes),
                    JSON_BOOL("is_exact", memory.is_exact));
    WEIR_CLI_JSON(JSON_CLOSE);
  } else if (status)
    printf("  NCCL             no communicator: %s\n", weir_last_error());
  else {
    printf("  NCCL             %s%s of the device for a communicator of one rank",
           weir__format_bytes(memory.device_bytes, text[0]), memory.is_exact ? "" : " (estimated)");
    if (memory.host_bytes)
      printf(", %s of the host", weir__format_bytes(memory.host_bytes, text[1]));
    fputs("\n", stdout);
  }
}
#endif

static bool with_nccl;

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
#ifdef WEIR_HAVE_COMPUTE
    if (with_nccl)
      print_communicator(i, json);
#endif
    if (json)
      WEIR_CLI_JSON(JSON_CLOSE);
  }
  return WEIR_OK;
}

/* NVIDIA's libraries that libweir_compute loads, and where they are. */
static void print_libraries(bool json) {
#ifdef WEIR_HAVE_COMPUTE
  static const char *const names[] = {"nvrtc", "cublas", "nccl"};
  if (json)
    WEIR_CLI_JSON(JSON_OBJECT("libraries"));
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++) {
    char path[1024] = "";
    const char *how = "not found";
    bool is_found = !weir_library_find(names[i], path, sizeof path, &how);
    char version[32] = "";
    int number;
    if (is_found && !strcmp(names[i], "nccl") && !weir__nccl_library.version("weir info", &number) && number >= 10000)
      snprintf(version, sizeof version, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    if (json) {
      WEIR_CLI_JSON(JSON_OBJECT(names[i]), JSON_TEXT("path", path), JSON_TEXT("how", how));
      if (*version)
        WEIR_CLI_JSON(JSON_TEXT("version", version));
      WEIR_CLI_JSON(JSON_CLOSE);
    } else {
      printf("%-9s %-6s %s%s%s%s%s%s\n", i == 0 ? "Libraries" : "", names[i], path, is_found ? " (" : "",
             *version ? version : "", *version ? ", " : "", how, is_found ? ")" : "");
    }
  }
  if (json)
    WEIR_CLI_JSON(JSON_CLOSE);
#else
  (void)json;
#endif
}

static weir_status print_report(const report *report, bool json) {
  if (!json) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
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
    print_libraries(false);
    return print_devices(report->device_count, false);
  }
  weir_cli_json_begin(2);
  WEIR_CLI_JSON(JSON_TEXT("weir", weir_version()), JSON_OBJECT("driver"), JSON_TEXT("name", report->driver->name),
                JSON_TEXT("choice", report->choice), JSON_TEXT("reason", report->reason),
                JSON_INTEGER("cuda_version", report->version), JSON_CLOSE, JSON_LIST("devices"));
  weir_status status = print_devices(report->device_count, true);
  WEIR_CLI_JSON(JSON_CLOSE);
  print_libraries(true);
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
  report report = {.choice = getenv("WEIR_DRIVER")};
  if (!report.choice || !*report.choice)
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

static const weir_cli_option option_table[] = {
    {"json", .target = &json, .help = "print JSON"},
#ifdef WEIR_HAVE_COMPUTE
    {"nccl", .target = &with_nccl, .help = "create an NCCL communicator on each device, and show its memory"},
#endif
    {0}};

const weir_cli_command weir_cmd_info = {
    .name = "info",
    .summary = "show the driver and its devices",
    .description = "Show the driver that Weir uses, why it was chosen, and every device with its memory.",
    .options = option_table,
    .exit = {"done, also if there is no device", "the driver cannot be used"},
    .run = run};
