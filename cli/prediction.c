#include "prediction.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "progress.h"
#include "shown.h"

/* ---- Options ---- */

const char weir_cli_predicting_help[] =
    "  --memory SIZE     the device's memory, as 80GiB or a number of bytes. Without it: the limit that the file\n"
    "                    shows, or as much as it takes\n"
    "  --fraction F      the part of --memory that the program allows itself, 0 to 1\n"
    "  --device N        which device's history; the first on which memory ran out, or else that has one\n"
    "  --costs FILE      nanoseconds of driver calls, in lines as 'alloc 39000' or as JSON; default: an H200's\n"
    "  --force           predict even if a replay under the recorded settings does not reproduce the file\n"
    "  --json            the same as JSON, one object for each file\n"
    "  -h, --help        this text\n";

void weir_cli_predicting_init(weir_cli_predicting *options, const char *command) {
  *options = (weir_cli_predicting){.command = command, .device = -1};
  weir__costs_default(&options->costs);
}

int weir_cli_predicting_take(weir_cli_predicting *options, int option, char **argv) {
  const char *command = options->command;
  unsigned long long memory;
  char *end;
  switch (option) {
  case WEIR_CLI_MEMORY:
    if (!weir__parse_bytes(optarg, &memory) || !memory || memory > WEIR__REPLAY_MOST_MEMORY)
      return weir_cli_usage(command, "--memory takes a size up to 64 TiB, as 80GiB, not '%s'", optarg);
    options->memory = memory;
    return WEIR_EXIT_OK;
  case WEIR_CLI_FRACTION:
    options->fraction = strtod(optarg, &end);
    if (*end || end == optarg || !(options->fraction > 0 && options->fraction <= 1))
      return weir_cli_usage(command, "--fraction takes a number above 0 and up to 1, not '%s'", optarg);
    return WEIR_EXIT_OK;
  case WEIR_CLI_DEVICE:
    errno = 0;
    options->device = (int)strtol(optarg, &end, 10);
    if (*end || end == optarg || errno || options->device < 0)
      return weir_cli_usage(command, "--device takes a number, not '%s'", optarg);
    return WEIR_EXIT_OK;
  case WEIR_CLI_COSTS:
    if (!weir__costs_load(optarg, &options->costs))
      return WEIR_EXIT_OK;
    fprintf(stderr, "weir %s: %s\n", command, weir_last_error());
    return WEIR_EXIT_FAILED;
  case WEIR_CLI_FORCE:
    options->force = true;
    return WEIR_EXIT_OK;
  case WEIR_CLI_JSON:
    options->json = true;
    return WEIR_EXIT_OK;
  case ':':
    return weir_cli_usage(command, "%s needs a value", argv[optind - 1]);
  default:
    return weir_cli_usage(command, "there is no option '%s'", argv[optind - 1]);
  }
}

int weir_cli_predicting_check(const weir_cli_predicting *options) {
  if (options->fraction > 0 && !options->memory)
    return weir_cli_usage(options->command, "--fraction needs --memory: it is a part of it");
  return WEIR_EXIT_OK;
}

int weir_cli_take_threads(const char *command, const char *text, unsigned *threads) {
  char *end;
  errno = 0;
  long number = strtol(text, &end, 10);
  if (*end || end == text || errno || number < 1 || number > 256)
    return weir_cli_usage(command, "--threads takes a number from 1 to 256, not '%s'", text);
  *threads = (unsigned)number;
  return WEIR_EXIT_OK;
}

/* ---- Histories ---- */

/* What is not reproduced is not understood. */
static int judge(const weir_cli_predicting *options, const char *file, const weir__replay_report *check) {
  if (!check->differences)
    return WEIR_EXIT_OK;
  fprintf(stderr,
          "weir %s: %s: a replay under the recorded settings differs from the file in %zu places; the first is:\n",
          options->command, weir_cli_shown(file), check->differences);
  fprintf(stderr, "  %s\n", check->shown[0]);
  if (check->begin != WEIR__BEGINS_EMPTY)
    fputs(
        "  the recording began late or lost its beginning, and what was there before could not be worked out exactly\n",
        stderr);
  else if (check->unknown_frees)
    fprintf(stderr, "  the recording began late or lost its beginning: %zu frees are of memory from before it\n",
            check->unknown_frees);
  if (options->force) {
    fputs("  predicted all the same, as --force asks: take it as a guess\n", stderr);
    return WEIR_EXIT_OK;
  }
  fprintf(stderr, "So what it would do under others is not known. 'weir replay --check' shows more; --force predicts "
                  "all the same.\n");
  return WEIR_EXIT_FAILED;
}

/* Others than the one that was taken, and that nobody asked for. */
static void mention_others(const weir_cli_predicting *options, const weir_cli_history *h) {
  if (options->device >= 0 || options->json)
    return;
  for (int i = 0; (size_t)i < h->snapshot->device_count; i++)
    if (i != h->device && h->snapshot->devices[i].event_count) {
      fprintf(stderr,
              "weir %s: %s has a history of other devices too: this is of device %d; --device %d takes another\n",
              options->command, weir_cli_shown(h->file), h->device, i);
      return;
    }
}

static int open_history(const weir_cli_predicting *options, const char *file, uint64_t memory, double fraction,
                        weir_cli_history *h) {
  char what[160];
  *h = (weir_cli_history){.file = file};
  snprintf(what, sizeof what, "reading %s", weir_cli_shown(file));
  weir_cli_progress *progress = weir_cli_progress_begin(what);
  weir_status status = weir__recording_load(file, NULL, &h->snapshot);
  bool is_loaded = !status;
  if (is_loaded) {
    h->device = options->device >= 0 ? options->device : weir__recording_first_device(h->snapshot);
    status = weir__replayer_open(h->snapshot, h->device, memory, fraction, &h->history);
  }
  weir_cli_progress_end(progress);
  if (status) {
    fprintf(stderr, "weir %s: %s%s%s\n", options->command, is_loaded ? weir_cli_shown(file) : "", is_loaded ? ": " : "",
            weir_last_error());
    weir_cli_history_close(h);
    return WEIR_EXIT_FAILED;
  }
  if (h->snapshot->device_count > 1)
    snprintf(h->name, sizeof h->name, "%s, device %d", weir_cli_shown(file), h->device);
  else
    snprintf(h->name, sizeof h->name, "%s", weir_cli_shown(file));
  mention_others(options, h);
  return WEIR_EXIT_OK;
}

int weir_cli_history_open(const weir_cli_predicting *options, const char *file, weir_cli_history *history) {
  int code = open_history(options, file, 0, 0, history);
  if (!code) {
    code = judge(options, file, weir__replayer_check(history->history));
    if (code)
      weir_cli_history_close(history);
  }
  return code;
}

int weir_cli_history_check(const weir_cli_predicting *options, const char *file, weir_cli_history *history) {
  return open_history(options, file, options->memory, options->fraction, history);
}

void weir_cli_history_close(weir_cli_history *history) {
  weir__replayer_close(history->history);
  if (history->snapshot)
    weir__recording_free(history->snapshot);
  *history = (weir_cli_history){0};
}

int weir_cli_read_conf(const weir_cli_predicting *options, const char *conf, weir__settings *settings) {
  if (!weir__settings_parse(NULL, conf, settings))
    return WEIR_EXIT_OK;
  fprintf(stderr, "weir %s: --conf %s: %s\n", options->command, weir_cli_shown(conf), weir_last_error());
  return WEIR_EXIT_FAILED;
}

/* ---- Printing ---- */

const char *weir_cli_conf_text(const weir__settings *settings, char text[WEIR_CLI_CONF_TEXT]) {
  weir__settings_format(settings, text, WEIR_CLI_CONF_TEXT);
  return text;
}

const char *weir_cli_format_ns(double ns, char text[32]) {
  static const struct {
    double from, unit;
    const char *name;
  } units[] = {{1e9, 1e9, "s"}, {1e6, 1e6, "ms"}, {0, 1e3, "us"}};
  size_t i = 0;
  while (ns < units[i].from)
    i++;
  double number = ns / units[i].unit;
  snprintf(text, 32, "%.*f %s", number < 10 ? 2 : number < 100 ? 1 : 0, number, units[i].name);
  return text;
}

void weir_cli_print_calls(const weir__meter_counts *calls) {
  bool is_first = true;
  for (int kind = 0; kind < WEIR__METER_KINDS; kind++) {
    if (!calls->of[kind].calls)
      continue;
    printf("%s%llu %s", is_first ? "" : ", ", (unsigned long long)calls->of[kind].calls,
           weir__meter_name((weir__meter_kind)kind));
    is_first = false;
  }
  if (is_first)
    fputs("none", stdout);
}

void weir_cli_print_failure(const weir__prediction *prediction) {
  char text[3][32];
  printf("event %llu: a request of %s, with %s reserved and %s of it allocated",
         (unsigned long long)prediction->first_failure, weir__format_bytes(prediction->failed_bytes, text[0]),
         weir__format_bytes(prediction->failed_reserved, text[1]),
         weir__format_bytes(prediction->failed_allocated, text[2]));
}

typedef struct start {
  size_t blocks;  /* in use */
  uint64_t bytes; /* of them, as they were asked for */
} start;

static start count_start(const weir__state *state) {
  start sum = {0};
  for (size_t i = 0; i < state->block_count; i++)
    if (weir__state_is_active(&state->blocks[i])) {
      sum.blocks++;
      sum.bytes += state->blocks[i].requested;
    }
  return sum;
}

bool weir_cli_print_start(const weir__replayer *history) {
  const weir__state *state = weir__replayer_start(history);
  const start sum = count_start(state);
  char text[2][32];
  if (!state->segment_count)
    return false;
  printf("%zu blocks (%s) in %zu segments (%s) were there before it", sum.blocks,
         weir__format_bytes(sum.bytes, text[0]), state->segment_count, weir__format_bytes(state->reserved, text[1]));
  return true;
}

void weir_cli_json_start(const weir__replayer *history) {
  const weir__state *state = weir__replayer_start(history);
  const start sum = count_start(state);
  printf("\"before\": ");
  if (state->segment_count)
    printf("{\"blocks\": %zu, \"requested\": %llu, \"segments\": %zu, \"reserved\": %llu}", sum.blocks,
           (unsigned long long)sum.bytes, state->segment_count, (unsigned long long)state->reserved);
  else
    printf("null");
}

void weir_cli_json_calls(const weir__prediction *prediction) {
  static const char *const begins[] = {
      [WEIR__BEGINS_EMPTY] = "empty", [WEIR__BEGINS_HELD] = "held", [WEIR__BEGINS_ANEW] = "anew"};
  printf("\"begins\": \"%s\", ", begins[prediction->begin]);
  printf("\"fragmentation\": %.6f, \"cost_ns\": %.0f, \"calls\": {", weir__prediction_fragmentation(prediction),
         prediction->cost);
  for (int kind = 0; kind < WEIR__METER_KINDS; kind++) {
    const weir__meter_count *c = &prediction->calls.of[kind];
    printf("%s\"%s\": {\"calls\": %llu, \"failed\": %llu, \"handles\": %llu, \"bytes\": %llu}", kind ? ", " : "",
           weir__meter_name((weir__meter_kind)kind), (unsigned long long)c->calls, (unsigned long long)c->failed,
           (unsigned long long)c->handles, (unsigned long long)c->bytes);
  }
  fputs("}, \"first_failure\": ", stdout);
  if (prediction->failures)
    printf("{\"event\": %llu, \"bytes\": %llu, \"reserved\": %llu, \"allocated\": %llu}",
           (unsigned long long)prediction->first_failure, (unsigned long long)prediction->failed_bytes,
           (unsigned long long)prediction->failed_reserved, (unsigned long long)prediction->failed_allocated);
  else
    fputs("null", stdout);
}

void weir_cli_json_prediction(const weir__prediction *prediction) {
  printf("\"peak_reserved\": %llu, \"peak_allocated\": %llu, \"peak_requested\": %llu, \"retries\": %llu, "
         "\"failures\": %llu, ",
         (unsigned long long)prediction->peak_reserved, (unsigned long long)prediction->peak_allocated,
         (unsigned long long)prediction->peak_requested, (unsigned long long)prediction->retries,
         (unsigned long long)prediction->failures);
  weir_cli_json_calls(prediction);
}
