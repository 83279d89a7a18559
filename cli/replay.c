/*
 * weir replay: a recorded history through Weir's own allocator, without a GPU.
 */
#include <getopt.h>
#include <stdio.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "prediction.h"
#include "progress.h"

typedef struct replay_options {
  weir_cli_predicting common;
  bool check;
  const char *conf; /* NULL: the recorded settings */
} replay_options;

static void print_help(void) {
  weir_cli_help_begin();
  fputs(
      "Usage: weir replay [OPTION...] FILE...\n"
      "\n"
      "Feeds recorded memory histories to Weir's allocator, on books instead of a device. A FILE is what\n"
      "torch.cuda.memory._dump_snapshot() writes, plain or compressed with zstd or gzip, or a recording that\n"
      "WEIR_RECORD made; - is the standard input.\n"
      "Before anything is said about other settings or other memory, a replay under the recorded ones is compared "
      "with\n"
      "the file.\n"
      "\n"
      "Options:\n"
      "  --check           only compare: place new segments where the file has them, and compare the address of each\n"
      "                    allocation, and each segment made, freed, mapped and unmapped. --memory and --fraction\n"
      "                    are those of the recording then\n"
      "  --conf SETTINGS   without --check: other settings than the recorded ones, as expandable_segments:True\n",
      stdout);
  fputs(weir_cli_predicting_help, stdout);
  fputs("\n"
        "Exit codes: 0 all replayed, and with --check nothing differs; 1 something differs, or a file cannot be read;\n"
        "2 invalid usage; 3 with --conf or --memory: requests run out of memory.\n",
        stdout);
}

static void print_text(const weir_cli_history *h, const replay_options *options, const weir__replay_report *report) {
  const char *file = h->name;
  char text[3][32];
  weir__prediction p;
  weir__prediction_from(report, &options->common.costs, &p);
  const weir_allocator_stats *s = &report->stats;
  weir_cli_fold_begin();
  if (options->check)
    printf("%s: %zu allocations compared, %zu differ\n", file, report->allocations, report->differences);
  else
    printf("%s: %zu allocations made, %zu failed\n", file, report->allocations, report->failures);
  if (report->limit_is_inferred)
    printf("  limit       %s, inferred from the recording\n", weir__format_bytes(report->limit, text[0]));
  printf("  peak        %s allocated, %s reserved: %.1f %% fragmentation\n",
         weir__format_bytes(p.peak_allocated, text[0]), weir__format_bytes(p.peak_reserved, text[1]),
         100 * weir__prediction_fragmentation(&p));
  printf("  driver      %lld allocations, %lld frees; %lld retries, %lld out of memory\n",
         (long long)s->num_device_alloc, (long long)s->num_device_free, (long long)s->num_alloc_retries,
         (long long)s->num_ooms);
  fputs("  calls       ", stdout);
  weir_cli_print_calls(&p.calls);
  printf("; %s in all, estimated\n", weir_cli_format_ns(p.cost, text[0]));
  if (p.failures) {
    fputs("  failed      ", stdout);
    weir_cli_print_failure(&p);
    putchar('\n');
  }
  printf("  speed       %zu events in %.1f ms, %.1f million a second\n", report->events, report->seconds * 1e3,
         report->seconds > 0 ? (double)report->events / report->seconds / 1e6 : 0);
  if (report->rescued)
    printf("  served      %zu requests that failed in the file: blocks for them became free while others were waited "
           "for\n",
           report->rescued);
  if (report->begin != WEIR__BEGINS_EMPTY) {
    bool has_checkpoint = h->snapshot->devices[h->device].start != NULL;
    fputs("  began late  ", stdout);
    weir_cli_print_start(h->history);
    puts(report->begin == WEIR__BEGINS_HELD
             ? has_checkpoint ? ": held in the places\n              that a checkpoint of the file has"
                              : ": held in the places\n              that are told from the end of the file"
             : ": allocated anew,\n              by address, since nobody knows in which order it was. Take the rest "
               "as an "
               "estimate");
  }
  if (report->raced)
    printf("  raced       %zu requests that asked for memory just before another thread freed what would have served "
           "them\n",
           report->raced);
  if (report->dropped)
    printf("  window      the last events: the ring was full, and %llu older ones are not there\n",
           (unsigned long long)report->dropped);
  if (report->unknown_frees)
    printf("  incomplete  %zu frees of memory that was allocated before the recording began\n", report->unknown_frees);
  for (size_t i = 0; i < report->differences && i < WEIR__REPLAY_SHOWN; i++)
    printf("  %s\n", report->shown[i]);
  if (report->differences > WEIR__REPLAY_SHOWN)
    printf("  and %zu more\n", report->differences - WEIR__REPLAY_SHOWN);
}

static void print_json(const weir_cli_history *h, const replay_options *options, const weir__replay_report *report) {
  const weir_allocator_stats *s = &report->stats;
  weir__prediction p;
  weir__prediction_from(report, &options->common.costs, &p);
  weir_cli_json_begin(0);
  WEIR_CLI_JSON(JSON_TEXT("file", h->file), JSON_INTEGER("device", h->device), JSON_BOOL("checked", options->check),
                JSON_NATURAL("events", report->events), JSON_NATURAL("allocations", report->allocations),
                JSON_NATURAL("differences", report->differences), JSON_NATURAL("failures", report->failures),
                JSON_NATURAL("served", report->rescued), JSON_NATURAL("unknown_frees", report->unknown_frees),
                JSON_NATURAL("raced", report->raced), JSON_NATURAL("dropped", report->dropped),
                JSON_NATURAL_IF(report->limit != UINT64_MAX, "limit", report->limit),
                JSON_BOOL("limit_is_inferred", report->limit_is_inferred),
                JSON_INTEGER("peak_allocated", s->allocated_bytes[WEIR_STAT_ALL].peak),
                JSON_INTEGER("peak_reserved", s->reserved_bytes[WEIR_STAT_ALL].peak),
                JSON_INTEGER("peak_active", s->active_bytes[WEIR_STAT_ALL].peak),
                JSON_INTEGER("peak_requested", s->requested_bytes[WEIR_STAT_ALL].peak),
                JSON_INTEGER("num_allocations", s->allocation[WEIR_STAT_ALL].allocated),
                JSON_INTEGER("num_device_alloc", s->num_device_alloc),
                JSON_INTEGER("num_device_free", s->num_device_free),
                JSON_INTEGER("num_alloc_retries", s->num_alloc_retries), JSON_INTEGER("num_ooms", s->num_ooms),
                JSON_REAL("seconds", report->seconds, 6));
  weir_cli_json_start(h->history);
  weir_cli_json_calls(&p);
  weir_cli_json_end();
}

static int check_file(const char *file, const replay_options *options) {
  weir_cli_history h;
  int code = weir_cli_history_check(&options->common, file, &h);
  if (code)
    return code;
  const weir__replay_report *report = weir__replayer_check(h.history);
  (options->common.json ? print_json : print_text)(&h, options, report);
  code = report->differences ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
  weir_cli_history_close(&h);
  return code;
}

static int run_file(const char *file, const replay_options *options) {
  const weir_cli_predicting *common = &options->common;
  weir__replay_report report;
  weir_cli_history h;
  weir__settings settings;
  weir__capacity capacity;
  int code = options->conf ? weir_cli_read_conf(common, options->conf, &settings) : WEIR_EXIT_OK;
  if (!code)
    code = weir_cli_history_open(common, file, &h);
  if (code)
    return code;
  const weir__settings *used = options->conf ? &settings : NULL;
  weir_cli_progress *progress = weir_cli_progress_begin("replaying");
  weir_status status = weir__replayer_capacity_of(h.history, used, common->memory, common->fraction, &capacity);
  if (!status)
    status = weir__replayer_run(h.history, used, &capacity, NULL, &report);
  weir_cli_progress_end(progress);
  if (status) {
    fprintf(stderr, "weir replay: %s: %s\n", file, weir_last_error());
    code = WEIR_EXIT_FAILED;
  } else {
    report.limit_is_inferred = !common->memory && capacity.limit != UINT64_MAX;
    (common->json ? print_json : print_text)(&h, options, &report);
    code = report.failures && (options->conf || common->memory) ? WEIR_EXIT_SHORT : WEIR_EXIT_OK;
  }
  weir_cli_history_close(&h);
  return code;
}

int weir_cmd_replay(int argc, char **argv) {
  static const struct option long_options[] = {{"check", no_argument, NULL, 'c'},
                                               {"conf", required_argument, NULL, 's'},
                                               {"help", no_argument, NULL, 'h'},
                                               WEIR_CLI_PREDICTING_OPTIONS,
                                               {NULL, 0, NULL, 0}};
  replay_options options = {0};
  weir_cli_predicting_init(&options.common, "replay");
  opterr = 0;
  optind = 1;
  for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
    int code = WEIR_EXIT_OK;
    if (option == 'c')
      options.check = true;
    else if (option == 's')
      options.conf = optarg;
    else if (option == 'h') {
      print_help();
      return WEIR_EXIT_OK;
    } else
      code = weir_cli_predicting_take(&options.common, option, argv);
    if (code)
      return code;
  }
  if (optind == argc)
    return weir_cli_usage("replay", "no file is named");
  if (options.conf && options.check)
    return weir_cli_usage("replay", "--check compares with the recorded settings: no --conf");
  int code = weir_cli_predicting_check(&options.common);
  if (code)
    return code;
  for (int i = optind; i < argc; i++) {
    int one = options.check ? check_file(argv[i], &options) : run_file(argv[i], &options);
    if (one && code != WEIR_EXIT_FAILED)
      code = one;
  }
  return code;
}
