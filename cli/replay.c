/*
 * weir replay: a recorded history through Weir's own allocator, without a GPU.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/replay.h"

static void print_help(void) {
  fputs(
      "Usage: weir replay [OPTION...] FILE...\n"
      "\n"
      "Feeds recorded memory histories to Weir's allocator, on books instead of a device. A FILE is what\n"
      "torch.cuda.memory._dump_snapshot() writes, plain or compressed with zstd.\n"
      "\n"
      "Options:\n"
      "  --check           place new segments where the file has them, and compare every decision: the address of\n"
      "                    each allocation, each segment made, freed, mapped and unmapped\n"
      "  --memory SIZE     the device's memory, as 80GiB or a number of bytes; a file does not record it\n"
      "  --fraction F      the part of it that the program allowed itself, 0 to 1; a file does not record it either.\n"
      "                    Without --memory the limit is told from what the file shows\n"
      "  --conf SETTINGS   without --check: other settings than the recorded ones, as expandable_segments:True\n"
      "  --device N        which device's history; 0\n"
      "  --json            the same as JSON, one object for each file\n"
      "  -h, --help        this text\n"
      "\n"
      "Exit codes: 0 all replayed, and with --check nothing differs; 1 something differs, or a file cannot be read;\n"
      "2 the command line was wrong.\n",
      stdout);
}

static void print_text(const char *file, const weir__replay_options *options, const weir__replay_report *report) {
  char text[3][32];
  const weir_allocator_stats *s = &report->stats;
  if (options->check)
    printf("%s: %zu allocations compared, %zu differ\n", file, report->allocations, report->differences);
  else
    printf("%s: %zu allocations made, %zu failed\n", file, report->allocations, report->failures);
  if (report->limit_is_inferred)
    printf("  limit       %s, told from what the file shows\n", weir__format_bytes(report->limit, text[0]));
  printf("  peak        %s allocated, %s reserved\n",
         weir__format_bytes((unsigned long long)s->allocated_bytes[WEIR_STAT_ALL].peak, text[0]),
         weir__format_bytes((unsigned long long)s->reserved_bytes[WEIR_STAT_ALL].peak, text[1]));
  printf("  driver      %lld allocations, %lld frees; %lld retries, %lld out of memory\n",
         (long long)s->num_device_alloc, (long long)s->num_device_free, (long long)s->num_alloc_retries,
         (long long)s->num_ooms);
  printf("  speed       %zu events in %.1f ms, %.1f million a second\n", report->events, report->seconds * 1e3,
         report->seconds > 0 ? (double)report->events / report->seconds / 1e6 : 0);
  if (report->rescued)
    printf("  served      %zu requests that failed in the file: blocks for them became free while others were waited "
           "for\n",
           report->rescued);
  if (report->unknown_frees)
    printf("  incomplete  %zu frees of memory that was allocated before the recording began\n", report->unknown_frees);
  for (size_t i = 0; i < report->differences && i < WEIR__REPLAY_SHOWN; i++)
    printf("  %s\n", report->shown[i]);
  if (report->differences > WEIR__REPLAY_SHOWN)
    printf("  and %zu more\n", report->differences - WEIR__REPLAY_SHOWN);
}

static void print_json(const char *file, const weir__replay_options *options, const weir__replay_report *report) {
  const weir_allocator_stats *s = &report->stats;
  printf("{\"file\": ");
  weir_cli_json_string(file);
  printf(", \"checked\": %s, \"events\": %zu, \"allocations\": %zu, \"differences\": %zu, \"failures\": %zu, ",
         options->check ? "true" : "false", report->events, report->allocations, report->differences, report->failures);
  printf("\"served\": %zu, \"unknown_frees\": %zu, ", report->rescued, report->unknown_frees);
  if (report->limit == UINT64_MAX)
    printf("\"limit\": null, ");
  else
    printf("\"limit\": %llu, ", (unsigned long long)report->limit);
  printf("\"limit_is_inferred\": %s, ", report->limit_is_inferred ? "true" : "false");
  printf("\"peak_allocated\": %lld, \"peak_reserved\": %lld, \"peak_active\": %lld, \"peak_requested\": %lld, ",
         (long long)s->allocated_bytes[0].peak, (long long)s->reserved_bytes[0].peak,
         (long long)s->active_bytes[0].peak, (long long)s->requested_bytes[0].peak);
  printf(
      "\"num_allocations\": %lld, \"num_device_alloc\": %lld, \"num_device_free\": %lld, \"num_alloc_retries\": %lld, "
      "\"num_ooms\": %lld, \"seconds\": %.6f}\n",
      (long long)s->allocation[0].allocated, (long long)s->num_device_alloc, (long long)s->num_device_free,
      (long long)s->num_alloc_retries, (long long)s->num_ooms, report->seconds);
}

/* One file; an exit code. */
static int replay_file(const char *file, const weir__replay_options *options, bool json) {
  weir__snapshot *snapshot;
  weir__replay_report report;
  if (weir__snapshot_load(file, NULL, &snapshot)) {
    fprintf(stderr, "weir replay: %s\n", weir_last_error());
    return WEIR_EXIT_FAILED;
  }
  weir_status status = weir__replay(snapshot, options, &report);
  weir__snapshot_free(snapshot);
  if (status) {
    fprintf(stderr, "weir replay: %s: %s\n", file, weir_last_error());
    return WEIR_EXIT_FAILED;
  }
  (json ? print_json : print_text)(file, options, &report);
  return report.differences ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
}

int weir_cmd_replay(int argc, char **argv) {
  static const struct option long_options[] = {
      {"check", no_argument, NULL, 'c'},          {"memory", required_argument, NULL, 'm'},
      {"fraction", required_argument, NULL, 'f'}, {"conf", required_argument, NULL, 's'},
      {"device", required_argument, NULL, 'd'},   {"json", no_argument, NULL, 'j'},
      {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0}};
  weir__replay_options options = {0};
  bool json = false;
  char *end;
  unsigned long long memory;
  opterr = 0;
  optind = 1;
  for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
    switch (option) {
    case 'c':
      options.check = true;
      break;
    case 'j':
      json = true;
      break;
    case 's':
      options.conf = optarg;
      break;
    case 'm':
      if (!weir__parse_bytes(optarg, &memory) || !memory || memory > WEIR__REPLAY_MOST_MEMORY)
        return weir_cli_usage("replay", "--memory takes a size up to 64 TiB, as 80GiB, not '%s'", optarg);
      options.memory = memory;
      break;
    case 'f':
      options.fraction = strtod(optarg, &end);
      if (*end || end == optarg || !(options.fraction > 0 && options.fraction <= 1))
        return weir_cli_usage("replay", "--fraction takes a number above 0 and up to 1, not '%s'", optarg);
      break;
    case 'd':
      errno = 0;
      options.device = (int)strtol(optarg, &end, 10);
      if (*end || end == optarg || errno || options.device < 0)
        return weir_cli_usage("replay", "--device takes a number, not '%s'", optarg);
      break;
    case 'h':
      print_help();
      return WEIR_EXIT_OK;
    case ':':
      return weir_cli_usage("replay", "%s needs a value", argv[optind - 1]);
    default:
      return weir_cli_usage("replay", "there is no option '%s'", argv[optind - 1]);
    }
  }
  if (optind == argc)
    return weir_cli_usage("replay", "no file is named");
  if (options.fraction > 0 && !options.memory)
    return weir_cli_usage("replay", "--fraction needs --memory: it is a part of it");
  if (options.conf && options.check)
    return weir_cli_usage("replay", "--check compares with the recorded settings: no --conf");
  int code = WEIR_EXIT_OK;
  for (int i = optind; i < argc; i++) {
    int one = replay_file(argv[i], &options, json);
    if (one)
      code = one;
  }
  return code;
}
