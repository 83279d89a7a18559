/*
 * weir summary: what a recorded history contains.
 */
#include "offline/analyse/summary.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "cli.h"
#include "graph.h"
#include "json.h"
#include "offline/analyse/describe.h"
#include "offline/render/summary_json.h"
#include "progress.h"
#include "report.h"

static bool json, graph;

static const char *bytes(uint64_t n) { return weir_cli_bytes(n); }

/* ---- Text ---- */

static void print_settings(const weir__recording *s) {
  if (s->conf && *s->conf)
    printf("  settings    %s\n", weir_cli_escaped(s->conf));
  else if (s->setting_count)
    printf("  settings    the defaults\n");
  else
    printf("  settings    not recorded\n");
  size_t changes = 0;
  for (size_t i = 0; i < s->change_count; i++)
    changes += s->changes[i].event > 0;
  if (changes)
    printf("              these are the last: settings or limits changed %s during the recording\n",
           weir_cli_count(changes, "time"));
}

/* The ring has overwritten the oldest entries. A checkpoint, if there is one, has the state that they left. */
static void print_dropped(const weir__recording_device *device, const weir__summary *s) {
  if (device->dropped)
    printf("    history   the last entries: the ring was full, and %" PRIu64
           " older ones were overwritten; WEIR_RECORD_MB "
           "makes it larger\n",
           device->dropped);
  else
    printf("    history   its beginning is missing: recording began late\n");
  if (s->is_unknown)
    printf("              the state before them is not known: the file has no checkpoint of it\n");
  else
    printf("              before them %s was in use and %s reserved; the peaks until then were %s allocated and %s "
           "reserved\n",
           bytes(s->live_before), bytes(s->reserved_before), bytes(device->peak_allocated),
           bytes(device->peak_reserved));
}

static void print_completeness(const weir__recording_device *device, const weir__summary *s) {
  if (s->is_unknown || (device->start && s->completeness > WEIR__HISTORY_COMPLETE)) {
    print_dropped(device, s);
    return;
  }
  switch (s->completeness) {
  case WEIR__HISTORY_NONE:
    printf("    history   %s\n", weir_cli_no_history);
    return;
  case WEIR__HISTORY_COMPLETE:
    printf("    history   complete: everything that is freed or left was allocated in it\n");
    return;
  case WEIR__HISTORY_WRAPPED:
    printf("    history   its beginning is missing: it has %zu entries, which suggests a ring of that size that was "
           "full\n",
           device->event_count);
    break;
  case WEIR__HISTORY_LATE:
    printf("    history   its beginning is missing: recording began late, or the ring was full\n");
    break;
  }
  printf("              before it %s was in use and %s reserved; %s of memory from before\n", bytes(s->live_before),
         bytes(s->reserved_before), weir_cli_count(s->unknown_frees, "free"));
}

static void print_when(const weir__recording *recording, int device, const weir__summary *s, size_t event) {
  char span[32], phase[WEIR__DESCRIBE_TEXT];
  const weir__recording_entry *e = &recording->devices[device].events[event];
  printf("entry %zu", event);
  if (e->time_us && s->first_us)
    printf(", %s after the first", weir__describe_span(weir__time_between(s->first_us, e->time_us), span));
  if (*weir__describe_phase(recording, device, e->time_us, phase))
    printf(", %s", phase);
}

static void print_peak(const weir__recording *recording, int device, const weir__summary *s, const char *name,
                       const weir__summary_peak *peak) {
  printf("    peak      %s %s: ", bytes(peak->bytes), name);
  print_when(recording, device, s, peak->event);
  putchar('\n');
}

/* The largest first; "unknown" last. */
static void print_classes(const weir__summary_classes *m) {
  bool is_done[WEIR__CLASSES] = {[WEIR__CLASS_UNKNOWN] = true};
  const char *separator = "";
  printf("    of these  ");
  for (int i = 0; i < WEIR__CLASSES; i++) {
    int next = WEIR__CLASS_UNKNOWN;
    for (int k = 0; k < WEIR__CLASSES; k++)
      if (!is_done[k] && (next == WEIR__CLASS_UNKNOWN || m->classes[k] > m->classes[next]))
        next = k;
    is_done[next] = true;
    if (m->classes[next])
      printf("%s%s %s", separator, bytes(m->classes[next]), weir__class_name((weir__class)next));
    separator = m->classes[next] ? ", " : separator;
  }
  putchar('\n');
}

static bool is_used(const weir__recording_device *device) {
  return device->event_count || device->segment_count || device->peak_outside;
}

static void print_device(const weir__recording *recording, int number, const weir__summary *s,
                         const weir__summary_classes *m) {
  const weir__recording_device *device = &recording->devices[number];
  char span[32];
  size_t made = s->actions[WEIR_TRACE_SEGMENT_ALLOC] + s->actions[WEIR_TRACE_SEGMENT_MAP];
  printf("  %sdevice %d%s\n", weir_cli_bold(), number, weir_cli_plain());
  if (device->event_count) {
    printf("    entries   %zu in %s: %s, %s, %s allocated and %zu released", device->event_count,
           s->first_us ? weir__describe_span(weir__time_between(s->first_us, s->last_us), span)
                       : "a time that was not recorded",
           weir_cli_count(s->actions[WEIR_TRACE_ALLOC], "allocation"),
           weir_cli_count(s->actions[WEIR_TRACE_FREE_REQUESTED], "free"), weir_cli_count(made, "segment"),
           s->actions[WEIR_TRACE_SEGMENT_FREE] + s->actions[WEIR_TRACE_SEGMENT_UNMAP]);
    if (s->streams > 1)
      printf(", on %s", weir_cli_count(s->streams, "stream"));
    putchar('\n');
  }
  print_completeness(device, s);
  weir_cli_print_outside("    beside    ", device);
  if (s->actions[WEIR_TRACE_OOM]) {
    printf("    %sout of memory%s  %s, the first at ", weir_cli_bold(), weir_cli_plain(),
           weir_cli_count(s->actions[WEIR_TRACE_OOM], "time"));
    print_when(recording, number, s, s->first_oom);
    printf(": a request of %s\n", bytes(device->events[s->first_oom].size));
  }
  if (s->is_unknown) {
    puts("    peak      not known");
    puts("    at end    not known");
    return;
  }
  if (device->event_count) {
    print_peak(recording, number, s, "in use", &s->live);
    if (m->has_classes)
      print_classes(m);
    weir_cli_print_holders("      ", recording, s->holders, s->holder_count);
    print_peak(recording, number, s, "reserved", &s->reserved);
    if (graph && weir_cli_print_graph(recording, number, s))
      puts("    out of host memory for a graph");
  }
  if (s->is_end_told) {
    printf("    at end    %s in use, as requested, of %s reserved: computed from the entries%s\n",
           bytes(s->end_requested), bytes(s->end_reserved),
           recording->was_killed ? "; the process was killed, or still runs" : "");
    weir_cli_print_holders("      ", recording, s->at_end, s->at_end_count);
    return;
  }
  if (recording->is_events_only) {
    puts("    at end    not known: the file has no list of segments");
    return;
  }
  printf("    at end    %s in use of %s reserved, in %zu large and %zu small segments%s\n", bytes(s->end_active),
         bytes(s->end_reserved), s->large_segments, s->small_segments, s->private ? ", some in private pools" : "");
  weir_cli_print_holders("      ", recording, s->at_end, s->at_end_count);
}

/* Pinned host memory, if the file has any. */
static void print_host(const weir__recording_device *host) {
  const weir__summary_host sums = weir__summarize_host(host);
  if (!host->segment_count && !host->event_count)
    return;
  printf("  pinned host memory  %s in use of %s, in %s; %s\n", bytes(sums.active), bytes(sums.reserved),
         weir_cli_count(host->segment_count, "segment"), weir_cli_count(host->event_count, "entry"));
}

static void print_text(const char *file, const weir__recording *recording, const weir__summary *devices,
                       const weir__summary_classes *more) {
  size_t events = 0, used = 0;
  weir_cli_fold_begin();
  for (size_t i = 0; i < recording->device_count; i++) {
    events += recording->devices[i].event_count;
    used += is_used(&recording->devices[i]);
  }
  printf("%s%s%s: %s, %s", weir_cli_bold(), weir_cli_input_name(file), weir_cli_plain(), weir_cli_count(used, "device"),
         weir_cli_count(events, "entry"));
  if (recording->is_events_only)
    puts(", recorded with WEIR_RECORD");
  else
    printf(", %s\n", weir_cli_count(recording->segment_count, "segment"));
  print_settings(recording);
  bool has_stacks = false;
  print_host(&recording->host);
  for (size_t i = 0; i < recording->device_count; i++) {
    if (!is_used(&recording->devices[i]))
      continue;
    print_device(recording, (int)i, &devices[i], &more[i]);
    has_stacks |= devices[i].has_stacks;
  }
  if (used && !has_stacks)
    printf("  no stacks were recorded, so allocations are grouped by size: %s records them\n",
           weir_cli_stacks_option(recording));
  for (size_t i = 0; i < recording->ignored_count; i++)
    printf("  unknown key '%s' of %s, %s\n", weir_cli_escaped(recording->ignored[i].key), recording->ignored[i].where,
           weir_cli_count(recording->ignored[i].count, "time"));
  if (events) {
    fputs("  next: ", stdout);
    weir_cli_print_command("explain", "", file);
  } else if (used)
    printf("  next: %s\n", weir_cli_record_advice);
  else
    puts("  nothing was recorded: the work must run between torch.cuda.memory._record_memory_history() and "
         "_dump_snapshot()");
}

static void print_json(const char *file, const weir__recording *recording, const weir__summary *devices,
                       const weir__summary_classes *classes) {
  weir_cli_json_begin(0);
  weir__summary_json(&weir_cli_json_sink, file, recording, devices, classes);
  weir_cli_json_end();
}

/* One file; an exit code. */
static int summarize_file(const char *file) {
  weir__recording *recording;
  weir_cli_progress *progress = weir_cli_progress_begin("reading");
  weir_status status = weir__recording_load(file, NULL, &recording);
  if (status) {
    weir_cli_progress_end(progress);
    return weir_cli_fail("%s", weir_last_error());
  }
  weir__summary *devices = calloc(recording->device_count + 1, sizeof *devices);
  weir__summary_classes *more = calloc(recording->device_count + 1, sizeof *more);
  if (!devices || !more)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  for (size_t i = 0; i < recording->device_count && !status; i++)
    status = weir__summarize(recording, (int)i, &devices[i]);
  for (size_t i = 0; i < recording->device_count && !status; i++)
    status = weir__summarize_classes(recording, (int)i, &devices[i], &more[i]);
  weir_cli_progress_end(progress);
  if (status || !devices || !more)
    weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error());
  else
    WEIR_CLI_PRINT_REPORT(json, print_json, print_text, file, recording, devices, more);
  free(more);
  free(devices);
  weir__recording_free(recording);
  return status ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
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
