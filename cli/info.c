/*
 * weir info: the driver that Weir uses, why it was chosen, and its devices.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/environment.h"
#include "cli.h"
#include "driver/call.h"
#include "driver/nvml.h"
#include "json.h"
#include "live.h"
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

/* ---- The memory of each card ---- */

enum { MAX_DEVICES = 64 };

/* What a context takes of a device, in a process that does nothing else: UINT64_MAX if it is not known. On a card that
 * others use too, NVIDIA's library says what this process has. */
static uint64_t context_of(weir_driver *driver, int device) {
  enum { most = 256 };
  weir__nvml_process processes[most];
  weir_cu_context context;
  size_t free_bytes, total;
  uint64_t bytes = UINT64_MAX;
  if (driver->DevicePrimaryCtxRetain(driver, &context, device))
    return bytes;
  if (weir__driver_can(driver, WEIR_DRIVER_NVIDIA)) {
    size_t count = weir__device_processes(driver, device, processes, most);
    for (size_t i = 0; i < count; i++)
      if (processes[i].pid == (unsigned)getpid())
        bytes = processes[i].bytes;
  } else if (!driver->CtxSetCurrent(driver, context) && !driver->MemGetInfo(driver, &free_bytes, &total))
    bytes = total - free_bytes;
  return bytes;
}

/* Measured in a child, before this process starts the driver. false if the child has failed. */
static bool measure_contexts(uint64_t bytes[MAX_DEVICES], int *count) {
  int ends[2];
  *count = 0;
  if (pipe(ends))
    return false;
  pid_t child = fork();
  if (child == 0) {
    weir_driver *driver;
    int devices = 0;
    close(ends[0]);
    bool done =
        !weir_driver_open(NULL, &driver) && !driver->Init(driver, 0) && !driver->DeviceGetCount(driver, &devices);
    for (int i = 0; done && i < devices && i < MAX_DEVICES; i++) {
      uint64_t measured = context_of(driver, i);
      done = write(ends[1], &measured, sizeof measured) == sizeof measured;
    }
    _exit(done ? 0 : 1);
  }
  close(ends[1]);
  while (child > 0 && *count < MAX_DEVICES && read(ends[0], &bytes[*count], sizeof *bytes) == sizeof *bytes)
    ++*count;
  close(ends[0]);
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void print_memory(const weir_cli_live *live, const uint64_t *contexts, int count) {
  for (int i = 0; i < count; i++)
    printf("Device %d: a context takes %s, measured in a fresh process\n", i,
           contexts[i] == UINT64_MAX ? "what is not known" : weir_cli_bytes(contexts[i]));
  for (size_t i = 0; i < live->card_count; i++) {
    const weir_cli_card *card = &live->cards[i];
    printf("\n%s %s: ", weir_cli_escaped(card->name), weir_cli_escaped(card->uuid));
    if (card->knows_used)
      printf("%s used of %s\n", weir_cli_bytes(card->used), weir_cli_bytes(card->total));
    else
      printf("%s\n", weir_cli_bytes(card->total));
    for (size_t k = 0; k < card->row_count; k++) {
      const weir_cli_ledger_row *row = &card->rows[k];
      char pid[32] = "";
      if (row->pid)
        snprintf(pid, sizeof pid, "%lld ", (long long)row->pid);
      weir_cli_keep_line();
      printf("  %s%12s  %s%s, by %s\n", row->is_part ? "  " : "",
             row->precision == WEIR_CLI_UNKNOWN ? "not known" : weir_cli_bytes(row->bytes), pid,
             weir_cli_escaped(row->what), row->method);
    }
  }
  if (!live->card_count)
    puts("No process of yours has Weir and a page.");
}

static int report_memory(bool json) {
  uint64_t contexts[MAX_DEVICES];
  int count;
  weir_cli_live live;
  if (!measure_contexts(contexts, &count))
    return weir_cli_fail("the driver cannot be used; 'weir info' says why");
  weir_cli_live_read(&live, 0);
  weir_cli_live_add_cards(&live);
  if (!json)
    print_memory(&live, contexts, count);
  else {
    weir_cli_json_begin(2);
    WEIR_CLI_JSON(JSON_LIST("context_bytes"));
    for (int i = 0; i < count; i++)
      WEIR_CLI_JSON(JSON_NATURAL_IF(contexts[i] != UINT64_MAX, NULL, contexts[i]));
    WEIR_CLI_JSON(JSON_CLOSE, JSON_LIST("cards"));
    for (size_t i = 0; i < live.card_count; i++)
      weir_cli_card_json(&live.cards[i]);
    WEIR_CLI_JSON(JSON_CLOSE);
    weir_cli_json_end();
  }
  weir_cli_live_clear(&live);
  return WEIR_EXIT_OK;
}

static bool json, memory;

static int run(int count, char **arguments) {
  (void)count, (void)arguments;
  if (memory)
    return report_memory(json);
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

static const weir_cli_option option_table[] = {
    {"memory", .target = &memory,
     .help =
         "show what the memory of each card is used for, as far as your processes with Weir say, and what a context "
         "takes"},
    {"json", .target = &json, .help = "print JSON"},
    {0}};

const weir_cli_command weir_cmd_info = {
    .name = "info",
    .summary = "show the driver and its devices",
    .description = "Show the driver that Weir uses, why it was chosen, and every device with its memory.",
    .options = option_table,
    .exit = {"done, also if there is no device", "the driver cannot be used"},
    .run = run};
