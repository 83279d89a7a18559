/*
 * weir replay: a recorded history, replayed through Weir's own allocator without a GPU.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/render/predict_json.h"
#include "offline/render/report.h"
#include "prediction.h"
#include "progress.h"

static struct {
  bool check;
  const char *conf; /* NULL for the recorded settings */
} options;

static void print_text(const weir_cli_history *h, const weir__replay_report *report) {
  const char *file = h->name;
  weir__prediction p;
  weir__prediction_from(report, &weir_cli_prediction.costs, &p);
  const weir_allocator_stats *s = &report->stats;
  weir_cli_fold_begin();
  if (options.check)
    printf("%s: %s compared, %zu differ\n", file, weir_cli_count(report->allocations, "allocation"),
           report->differences);
  else
    printf("%s: %s replayed, %zu failed\n", file, weir_cli_count(report->allocations, "allocation"), report->failures);
  if (report->limit_is_inferred)
    printf("  limit       %s, inferred from the recording\n", weir_cli_bytes(report->limit));
  const char *allocated = weir_cli_bytes(p.peak_allocated), *requested = weir_cli_bytes(p.peak_requested);
  printf("  peak        %s allocated", allocated);
  if (strcmp(allocated, requested) != 0) /* what explain and summary call in use */
    printf(" (%s as requested)", requested);
  printf(", %s reserved: %.1f %% fragmentation\n", weir_cli_bytes(p.peak_reserved),
         100 * weir__prediction_fragmentation(&p));
  printf("  driver      %s, %s; %s, %lld out of memory\n", weir_cli_count((uint64_t)s->num_device_alloc, "allocation"),
         weir_cli_count((uint64_t)s->num_device_free, "free"), weir_cli_count((uint64_t)s->num_alloc_retries, "retry"),
         (long long)s->num_ooms);
  fputs("  calls       ", stdout);
  weir_cli_print_calls(&p.calls);
  printf("; %s in total, estimated\n", weir_cli_ns(p.cost));
  if (p.failures) {
    fputs("  failed      ", stdout);
    weir_cli_print_failure(&p);
    putchar('\n');
  }
  printf("  speed       %s in %.1f ms, %.1f million per second\n", weir_cli_count(report->events, "entry"),
         report->seconds * 1e3, report->seconds > 0 ? (double)report->events / report->seconds / 1e6 : 0);
  if (report->rescued)
    printf("  served      %s that failed in the file: suitable blocks became free while the allocator waited\n",
           weir_cli_count(report->rescued, "request"));
  if (report->begin != WEIR__BEGINS_EMPTY) {
    bool has_checkpoint = h->recording->devices[h->device].start != NULL;
    fputs("  began late  ", stdout);
    weir_cli_print_start(h->history);
    puts(report->begin == WEIR__BEGINS_HELD
             ? has_checkpoint ? ": placed as a checkpoint of the file has them"
                              : ": placed as inferred from the end of the file"
             : ": allocated again in order of address, since their order is not known. Take the rest as an estimate");
  }
  if (report->raced)
    printf("  raced       %s that came just before another thread freed a block that would have served them\n",
           weir_cli_count(report->raced, "request"));
  if (report->dropped)
    printf("  window      the last entries: the ring was full, and %llu older ones were overwritten\n",
           (unsigned long long)report->dropped);
  if (report->unknown_frees)
    printf("  incomplete  %s of memory that was allocated before the recording began\n",
           weir_cli_count(report->unknown_frees, "free"));
  for (size_t i = 0; i < report->differences && i < WEIR__REPLAY_SHOWN; i++)
    printf("  %s\n", report->shown[i]);
  if (report->differences > WEIR__REPLAY_SHOWN)
    printf("  and %zu more\n", report->differences - WEIR__REPLAY_SHOWN);
  if (report->differences && weir__replayer_settings(h->history)->moving_pages)
    puts("  note        " WEIR__MOVING_NOTE);
}

static void print_json(const weir_cli_history *h, const weir__replay_report *report) {
  const weir_allocator_stats *s = &report->stats;
  weir__prediction p;
  weir__prediction_from(report, &weir_cli_prediction.costs, &p);
  weir_cli_json_begin(0);
  WEIR_CLI_JSON(JSON_TEXT("file", h->file), JSON_INTEGER("device", h->device), JSON_BOOL("checked", options.check),
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
                JSON_REAL("fragmentation", weir__prediction_fragmentation(&p), 6), JSON_REAL("cost_ns", p.cost, 0),
                JSON_REAL("seconds", report->seconds, 6));
  weir__json_start(&weir_cli_json_sink, h->history);
  weir__json_calls(&weir_cli_json_sink, &p);
  weir_cli_json_end();
}

static int check_file(const char *file) {
  weir_cli_history h;
  int code = weir_cli_history_check(file, &h);
  if (code)
    return code;
  const weir__replay_report *report = weir__replayer_check(h.history);
  WEIR_CLI_PRINT_REPORT(weir_cli_prediction.json, print_json, print_text, &h, report);
  code = report->differences ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
  weir_cli_history_close(&h);
  return code;
}

static int run_file(const char *file) {
  const weir_cli_prediction_options *common = &weir_cli_prediction;
  weir__replay_report report;
  weir_cli_history h;
  weir__settings settings;
  weir__capacity capacity;
  int code = options.conf ? weir_cli_read_conf(options.conf, &settings) : WEIR_EXIT_OK;
  if (!code)
    code = weir_cli_history_open(file, &h);
  if (code)
    return code;
  const weir__settings *used = options.conf ? &settings : NULL;
  weir_cli_progress *progress = weir_cli_progress_begin("replaying");
  weir_status status = weir__replayer_capacity_of(h.history, used, common->memory, common->fraction, &capacity);
  if (!status)
    status = weir__replayer_run(h.history, used, &capacity, NULL, &report);
  weir_cli_progress_end(progress);
  if (status) {
    code = weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error());
  } else {
    report.limit_is_inferred = !common->memory && !capacity.is_recorded && capacity.limit != UINT64_MAX;
    WEIR_CLI_PRINT_REPORT(common->json, print_json, print_text, &h, &report);
    code = report.failures && (options.conf || common->memory) ? WEIR_EXIT_SHORT : WEIR_EXIT_OK;
  }
  weir_cli_history_close(&h);
  return code;
}

static int run(int count, char **files) {
  if (options.conf && options.check)
    return weir_cli_usage("--check compares under the recorded settings: it takes no --conf");
  int code = weir_cli_prediction_begin();
  return code ? code : weir_cli_for_each(count, files, options.check ? check_file : run_file);
}

static const weir_cli_option option_table[] = {
    {"check", .target = &options.check,
     .help = "only compare: place new segments where the file has them, and compare the address of each allocation and "
             "each segment that is allocated, freed, mapped or unmapped. --memory and --fraction are then those of the "
             "recording"},
    {"conf", .kind = WEIR_CLI_TEXT, .value = "SETTINGS", .target = &options.conf,
     .help = "settings to replay under instead of the recorded ones, such as expandable_segments:True; not with "
             "--check"},
    {0}};

const weir_cli_command weir_cmd_replay = {
    .name = "replay",
    .group = "Predict",
    .summary = "replay recorded memory histories through the allocator, and check every decision",
    .description = "Replay recorded memory histories through Weir's allocator, on a ledger instead of a device. Before "
                   "anything is predicted for other settings or another amount of memory, a replay under the recorded "
                   "settings is compared with the file.",
    .argument = "FILE...",
    .options = option_table,
    .shared = weir_cli_prediction_table,
    .exit = {"all files were replayed, and with --check nothing differs", "something differs, or a file cannot be read",
             NULL, "with --conf or --memory: requests run out of memory"},
    .run = run};
