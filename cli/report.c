#include "report.h"

#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "json.h"
#include "progress.h"

weir_status weir_cli_load(const char *file, weir__recording **recording) {
  weir_cli_progress *progress = weir_cli_progress_begin("reading");
  weir_status status = weir__recording_load(file, NULL, recording);
  weir_cli_progress_end(progress);
  return status;
}

void weir_cli_print_text(const weir__report *report) {
  const weir__report_style style = {weir_cli_bold(), weir_cli_plain(), weir_cli_keep_mark(), weir_cli_print_command};
  bool is_whole = weir__report_text(report, stdout, &style);
#if WEIR_EXPENSIVE_CHECKS
  if (!is_whole)
    abort();
#else
  (void)is_whole;
#endif
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
  if (has_json) {
    weir__sink_begin(&weir_cli_json_sink, &weir__json_format, weir_write_file, weir_cli_json_file());
    weir_cli_json_sink.line_depth = report->line_depth;
  }
  if (!is_json)
    weir_cli_fold_begin();
  weir_status status = weir_cli_print_part(report, is_json);
  if (has_json && !status)
    weir__sink_end(&weir_cli_json_sink, NULL); /* main() reports an error of the output */
  if (!status)
    return WEIR_EXIT_OK;
  return file ? weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error())
              : weir_cli_fail("%s", weir_last_error());
}
