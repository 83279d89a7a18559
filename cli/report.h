/*
 * What commands that read recordings have in common, and what their reports say alike.
 */
#pragma once

#include "offline/read/recording.h"
#include "offline/render/report.h"

/* Reads a recording, with progress. */
weir_status weir_cli_load(const char *file, weir__recording **recording);

/* Prints a report that has been made, as text, or as an object of JSON, or as both with --json-fd, and clears it. The
 * first begins and ends the JSON, and folds the text, and returns an exit code; `file` is NULL if it is not about one.
 * A part is an item of a list that is open. */
int weir_cli_print_report(weir__report *report, const char *file, bool is_json);
weir_status weir_cli_print_part(weir__report *report, bool is_json);

/* The text alone. */
void weir_cli_print_text(const weir__report *report);
