/*
 * weir summary: what a recorded history contains.
 */
#include "offline/render/summary_report.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/base.h"
#include "cli.h"
#include "graph.h"
#include "json.h"
#include "progress.h"
#include "report.h"

static bool json, graph;

/* Draws a device if --graph asks for it: a text to be freed, NULL otherwise, or if out of host memory. */
static char *draw(const weir__recording *recording, int device, const weir__summary *s) {
  if (!graph || !recording->devices[device].event_count || s->is_unknown)
    return NULL;
  weir_cli_fold_begin(); /* so that its lines are marked */
  if (!weir_cli_capture_begin())
    return NULL;
  if (weir_cli_print_graph(recording, device, s))
    puts("    out of host memory for a graph");
  return weir_cli_capture_end();
}

/* One file; an exit code. */
static int summarize_file(const char *file) {
  weir__recording *recording;
  weir__report report;
  weir_cli_progress *progress = weir_cli_progress_begin("reading");
  weir_status status = weir__recording_load(file, NULL, &recording);
  if (status) {
    weir_cli_progress_end(progress);
    return weir_cli_fail("%s", weir_last_error());
  }
  weir__summary *devices = calloc(recording->device_count + 1, sizeof *devices);
  weir__summary_classes *more = calloc(recording->device_count + 1, sizeof *more);
  char **graphs = calloc(recording->device_count + 1, sizeof *graphs);
  if (!devices || !more || !graphs)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  for (size_t i = 0; i < recording->device_count && !status; i++)
    status = weir__summarize(recording, (int)i, &devices[i]);
  for (size_t i = 0; i < recording->device_count && !status; i++)
    status = weir__summarize_classes(recording, (int)i, &devices[i], &more[i]);
  weir_cli_progress_end(progress);
  int code = WEIR_EXIT_FAILED;
  if (status || !devices || !more || !graphs)
    weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error());
  else {
    for (size_t i = 0; i < recording->device_count; i++)
      graphs[i] = draw(recording, (int)i, &devices[i]);
    weir__summary_report(&report, file, recording, devices, more, graphs);
    code = weir_cli_print_report(&report, file, json);
    for (size_t i = 0; i < recording->device_count; i++)
      free(graphs[i]);
  }
  free(graphs);
  free(more);
  free(devices);
  weir__recording_free(recording);
  return code;
}

static int run(int count, char **files) {
  if (json && graph)
    return weir_cli_usage("--graph is text: leave out --json");
  return weir_cli_for_each(count, files, summarize_file);
}

static const weir_cli_option option_table[] = {
    {"json", .target = &json, .help = "print JSON, one object for each file"},
    WEIR_CLI_JSON_FD_OPTION,
    {"graph", 'g', .target = &graph,
     .help = "draw memory over time, as wide as the terminal, in ASCII if the locale is not UTF-8"},
    {0}};

const weir_cli_command weir_cmd_summary = {
    .name = "summary",
    .group = "Inspect",
    .summary = "show what a recorded memory history contains",
    .description =
        "Show what recorded memory histories contain: devices, settings, entries, the time they span, peaks, "
        "segments, the largest holders of memory, and how complete each history is.",
    .argument = "FILE...",
    .options = option_table,
    .exit = {"all files were read", "a file cannot be read"},
    .run = run};
