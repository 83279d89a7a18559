/*
 * Writes reports in fuzzers: as JSON and as text, whose sentences name rows that the report has.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "offline/render/report.h"

static FILE *fuzz_report_out; /* discards what is written */

static inline void fuzz_report_command(const char *command, const char *options, const char *file) {
  fprintf(fuzz_report_out, "%s %s %s\n", command, options, file);
}

/* Clears it. */
static inline void fuzz_report(weir__report *report) {
  static weir__sink sink;
  if (!fuzz_report_out && !(fuzz_report_out = fopen("/dev/null", "w")))
    abort();
  weir__sink_begin(&sink, &weir__json_format, weir_write_file, fuzz_report_out);
  weir__report_json(report, &sink, NULL);
  weir__sink_end(&sink, NULL);
  if (!weir__report_status(report) &&
      !weir__report_text(report, fuzz_report_out, &(weir__report_style){"", "", "", fuzz_report_command}))
    abort();
  weir__report_clear(report);
}
