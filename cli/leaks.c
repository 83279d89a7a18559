/*
 * weir leaks: memory that grows from step to step.
 */
#include "offline/render/leaks_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/analyse/describe.h"
#include "offline/replay/replay.h"
#include "progress.h"
#include "report.h"

static struct {
  int device; /* -1 for all that have a history */
  uint64_t memory;
  int list; /* how many rows of each kind are shown */
  bool json;
} options = {.device = -1, .list = 10};

static const char *bytes(double n) { return weir_cli_bytes((uint64_t)(n > 0 ? n + 0.5 : 0)); }

static const char *unit(const weir__leaks *l) { return weir__steps_unit(&l->steps); }

/* ---- Text ---- */

static void print_blocks(const weir__leak *leak) {
  for (size_t i = 0; i < leak->example_count && i < 2; i++)
    printf("                  0x%" PRIx64 ", %s, since entry %u\n", leak->examples[i].address,
           bytes((double)leak->examples[i].size), leak->examples[i].entry);
  if (leak->count > 2 && leak->example_count)
    printf("                  and %" PRIu64 " more\n", leak->count - 2);
}

static void print_leak(const weir__recording *recording, const weir__leaks *l, const weir__leak *leak) {
  char title[192], stream[48];
  printf("      %11s a %s  %s: %s, %s", bytes(leak->bytes_per_step), unit(l),
         weir__describe_blocks(recording, leak->stack, leak->size, title), weir_cli_count(leak->count, "block"),
         bytes((double)leak->bytes));
  if (leak->every > 1.5 && !leak->is_joint)
    printf(", every %.1f %ss", leak->every, unit(l));
  printf(", from %s %lld to %lld", unit(l), (long long)leak->first_step, (long long)leak->last_step);
  if (leak->stream)
    printf(", on %s", weir__describe_stream(recording, leak->stream, stream));
  putchar('\n');
  print_blocks(leak);
}

static void print_growing(const weir__recording *recording, const weir__leaks *l) {
  static const char *const why[] = {"", "", "stopped growing, as a cache that is full",
                                    "slows down, as a cache that fills",
                                    "grows because each block is replaced by a larger one, as a key/value cache does"};
  char title[192];
  if (!l->growing_count)
    return;
  printf("    no leak   %s grew:\n", weir_cli_count(l->growing_count, "other"));
  for (size_t i = 0; i < l->growing_count && i < (size_t)options.list; i++) {
    const weir__leak *g = &l->growing[i];
    printf("      %11s  %s: %s (%s %lld to %lld)\n", bytes((double)g->bytes),
           weir__describe_blocks(recording, g->stack, g->size, title), why[g->kind], unit(l), (long long)g->first_step,
           (long long)g->last_step);
  }
}

static void print_end(const weir__leaks *l) {
  char least[32], most[32];
  if (l->verdict != WEIR__LEAKS_FOUND)
    return;
  if (l->runs_out == WEIR__RUNS_OUT_NOT_KNOWN) {
    printf("    runs out  not known, since %s\n",
           l->limit ? "the state before the history is not known"
                    : "the recording does not have the memory of the device; --memory SIZE states it");
    return;
  }
  printf("    runs out  in %" PRIu64, l->steps_least);
  if (l->runs_out == WEIR__RUNS_OUT_RANGE)
    printf(" to %" PRIu64, l->steps_most);
  printf(" %ss", unit(l));
  if (l->step_us > 0) {
    printf(" (%s", weir__describe_span((int64_t)((double)l->steps_least * l->step_us), least));
    weir__describe_span((int64_t)((double)l->steps_most * l->step_us), most);
    if (strcmp(least, most) != 0)
      printf(" to %s", most);
    putchar(')');
  }
  printf(", at %s of %s\n", l->limit_is_device ? "the device's memory" : "a limit", bytes((double)l->limit));
}

static void print_rest(const weir__recording *recording, const weir__leaks *l) {
  char title[192], stream[48];
  for (size_t i = 0; i < l->outliving_count && i < (size_t)options.list; i++) {
    const weir__outliving *o = &l->outliving[i];
    printf("    %s %s in %s of phase '%s' outlived it by up to %lld %ss: %s\n", i ? "         " : "phases   ",
           bytes((double)o->bytes), weir_cli_count(o->count, "block"),
           weir_cli_escaped(recording->strings.items[o->phase].text), (long long)o->steps, unit(l),
           weir__describe_blocks(recording, o->stack, o->size, title));
  }
  for (size_t i = 0; i < l->idle_count && i < (size_t)options.list; i++) {
    const weir__idle_stream *s = &l->idle[i];
    printf("    %s %s holds %s, %s of it free, and was last used at entry %u\n", i ? "         " : "streams  ",
           weir__describe_stream(recording, s->stream, stream), bytes((double)s->reserved),
           bytes((double)(s->reserved - s->in_use)), s->last_entry);
  }
  if (l->idle_count > (size_t)options.list)
    printf("              and %zu more idle streams\n", l->idle_count - (size_t)options.list);
}

static void print_device(const weir__recording *recording, const weir__leaks *l) {
  char text[192];
  printf("  %sdevice %d%s\n", weir_cli_bold(), l->device, weir_cli_plain());
  printf("    steps     %s", weir__steps_describe(&l->steps, text));
  if (l->steps.warm_up == 1)
    printf("; the first is warm-up");
  else if (l->steps.warm_up)
    printf("; the first %zu are warm-up", l->steps.warm_up);
  putchar('\n');
  if (l->verdict == WEIR__LEAKS_UNKNOWN)
    printf("    leaks     not known: %s\n", l->reason);
  else if (l->verdict == WEIR__LEAKS_NONE)
    puts("    leaks     none found");
  else {
    printf("    %sleaks%s     %s a %s since %s %lld: %s in %s that were not freed\n", weir_cli_bold(), weir_cli_plain(),
           bytes(l->bytes_per_step), unit(l), unit(l), (long long)l->first_step, bytes((double)l->bytes),
           weir_cli_count(l->count, "block"));
    for (size_t i = 0; i < l->leak_count && i < (size_t)options.list; i++)
      print_leak(recording, l, &l->leaks[i]);
    if (l->leak_count > (size_t)options.list)
      printf("      and %zu more; --list N shows more\n", l->leak_count - (size_t)options.list);
  }
  print_end(l);
  print_growing(recording, l);
  print_rest(recording, l);
}

/* ---- The command ---- */

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
    if (status) {
      weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error());
      break;
    }
    has_any = true;
    is_found |= leaks.verdict == WEIR__LEAKS_FOUND;
    if (options.json || weir_cli_json_is_separate())
      weir__leaks_json(&weir_cli_json_sink, NULL, recording, file, &leaks);
    if (!options.json)
      print_device(recording, &leaks);
    weir__leaks_clear(&leaks);
  }
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
