/*
 * weir leaks: memory that grows from step to step.
 */
#include "offline/render/leaks_report.h"

#include <stdio.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/replay/replay.h"
#include "progress.h"
#include "report.h"

static struct {
  int device; /* -1 for all that have a history */
  uint64_t memory;
  int list; /* how many rows of each kind are shown */
  bool json;
} options = {.device = -1, .list = 10};

static size_t files_with_leaks, files_read;

static bool wants(const weir__recording *recording, size_t device) {
  return options.device >= 0 ? (size_t)options.device == device : recording->devices[device].event_count > 0;
}

static int look_at(const char *file) {
  weir__recording *recording;
  if (weir_cli_load(file, &recording))
    return weir_cli_fail("%s", weir_last_error());
  if (options.device >= 0 && weir__recording_check_device(recording, weir_cli_input_name(file), options.device)) {
    weir_cli_fail("%s", weir_last_error());
    weir__recording_free(recording);
    return WEIR_EXIT_FAILED;
  }
  weir_status status = WEIR_OK;
  bool is_found = false, has_any = false;
  if (!options.json) {
    weir_cli_fold_begin();
    printf("%s%s%s\n", weir_cli_bold(), weir_cli_input_name(file), weir_cli_plain());
  }
  for (size_t d = 0; d < recording->device_count && !status; d++) {
    weir__leaks leaks;
    weir__leaks_options how = {.memory = options.memory};
    if (!wants(recording, d))
      continue;
    weir_cli_progress *progress = weir_cli_progress_begin("looking for leaks");
    status = weir__leaks_find(recording, (int)d, &how, &leaks);
    weir_cli_progress_end(progress);
    if (status)
      break;
    has_any = true;
    is_found |= leaks.verdict == WEIR__LEAKS_FOUND;
    weir__report report;
    weir__leaks_report(&report, recording, file, &leaks, (size_t)options.list);
    status = weir_cli_print_part(&report, options.json);
    weir__leaks_clear(&leaks);
  }
  if (status)
    weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error());
  if (!has_any && !status && !options.json)
    puts("  no device has a history");
  weir__recording_free(recording);
  files_read++;
  files_with_leaks += is_found;
  return status ? WEIR_EXIT_FAILED : is_found ? WEIR_EXIT_SHORT : WEIR_EXIT_OK;
}

static int run(int count, char **files) {
  if (options.json || weir_cli_json_is_separate()) {
    weir_cli_json_begin(0);
    WEIR_CLI_JSON(JSON_LIST("files"));
    for (int i = 0; i < count; i++)
      WEIR_CLI_JSON(JSON_TEXT(NULL, files[i]));
    WEIR_CLI_JSON(JSON_CLOSE, JSON_LIST("recordings"));
  }
  int code = weir_cli_for_each(count, files, look_at);
  if (options.json || weir_cli_json_is_separate()) {
    WEIR_CLI_JSON(JSON_CLOSE);
    weir_cli_json_end();
  }
  if (!options.json && count > 1 && files_read)
    printf("%zu of %zu recordings leak%s\n", files_with_leaks, files_read,
           files_with_leaks && files_with_leaks < files_read ? ": the others do the same work without" : "");
  return code;
}

static const weir_cli_option option_table[] = {
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = 1023,
     .help = "look at one device only. Default: all that have a history"},
    {"memory", .kind = WEIR_CLI_SIZE, .value = "SIZE", .target = &options.memory, .most = WEIR__REPLAY_MAX_MEMORY,
     .help =
         "the memory that the job may reserve, such as 80GiB, to predict when it runs out. Default: the limit or the "
         "device's memory in the recording"},
    {"list", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.list, .least = 1, .most = 100000,
     .help = "show up to N rows of each kind. Default: 10"},
    {"json", .target = &options.json, .help = "print JSON, one object for all files"},
    WEIR_CLI_JSON_FD_OPTION,
    {0}};

const weir_cli_command weir_cmd_leaks = {
    .name = "leaks",
    .summary = "find memory that grows from step to step",
    .description =
        "Find memory that grows from step to step: the stacks, or sizes where there are no stacks, whose blocks are "
        "allocated regularly and never freed, with the rate, the first step and when memory runs out. Warm-up, caches "
        "that fill, and buffers that are replaced are not leaks. Also shown: blocks that outlive their phase, and "
        "memory that idle streams hold.\n"
        "Steps are those that the recording marks, by annotations or phases, or else are inferred from the history. "
        "Several files are the ranks, or the parts, of one job.",
    .argument = "FILE...",
    .options = option_table,
    .exit = {"no leak was found", "a file cannot be read", NULL, "a leak was found"},
    .run = run};
