#include "report.h"

#include <stdio.h>

#include "cli.h"
#include "json.h"
#include "offline/analyse/describe.h"
#include "progress.h"

weir_status weir_cli_load(const char *file, weir__recording **recording) {
  weir_cli_progress *progress = weir_cli_progress_begin("reading");
  weir_status status = weir__recording_load(file, NULL, recording);
  weir_cli_progress_end(progress);
  return status;
}

const char weir_cli_no_history[] = "none: whether memory ran out, and its peak, are not known";

const char weir_cli_record_advice[] =
    "record a history: call torch.cuda.memory._record_memory_history(stacks=\"python\") before the work and "
    "_dump_snapshot(\"job.pickle\") after it; for a program on Weir, set WEIR_RECORD=FOLDER";

const char *weir_cli_stacks_option(const weir__recording *recording) {
  return recording->is_events_only ? "WEIR_RECORD_STACKS=alloc" : "_record_memory_history(stacks=\"python\")";
}

void weir_cli_print_text(const weir__report *report) {
  const weir__report_style style = {weir_cli_bold(), weir_cli_plain(), weir_cli_print_command};
  weir__report_text(report, stdout, &style);
}

weir_status weir_cli_print_part(weir__report *report, bool is_json) {
  weir_status status = weir__report_status(report);
  if (!status && (is_json || weir_cli_json_is_separate()))
    weir__report_json(report, &weir_cli_json_sink, NULL);
  if (!status && !is_json)
    weir_cli_print_text(report);
  weir__report_clear(report);
  return status;
}

int weir_cli_print_report(weir__report *report, const char *file, bool is_json) {
  bool has_json = is_json || weir_cli_json_is_separate();
  if (has_json)
    weir__sink_begin(&weir_cli_json_sink, &weir__json_format, weir_write_file, weir_cli_json_file());
  if (!is_json)
    weir_cli_fold_begin();
  weir_status status = weir_cli_print_part(report, is_json);
  if (has_json && !status)
    weir__sink_end(&weir_cli_json_sink, NULL); /* main() reports an error of the output */
  return status ? weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error()) : WEIR_EXIT_OK;
}

void weir_cli_print_holders(const char *indent, const weir__recording *recording, const weir__holder *holders,
                            size_t count) {
  char stack[WEIR__DESCRIBE_TEXT];
  for (size_t i = 0; i < count; i++) {
    const weir__holder *h = &holders[i];
    printf("%s%11s  %s ", indent, weir_cli_bytes(h->bytes), weir_cli_count(h->count, "block"));
    if (h->size)
      printf("of %s\n", weir_cli_bytes(h->size));
    else
      printf("%s\n", h->stack ? weir__describe_stack(recording, h->stack, stack) : "without a stack");
  }
}

void weir_cli_print_outside(const char *label, const weir__recording_device *device) {
  if (device->peak_outside)
    printf("%s%s at the end of the recording and %s at most are in no figure here: the program created them "
           "itself (cuMemCreate)\n",
           label, weir_cli_bytes(device->outside), weir_cli_bytes(device->peak_outside));
}
