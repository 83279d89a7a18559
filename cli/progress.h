/*
 * Progress of operations that take longer than a second: one line on standard error, if that is a terminal, which is
 * erased at the end.
 */
#pragma once

#include <stddef.h>

typedef struct weir_cli_progress weir_cli_progress;

/* `what` is a few words such as "reading x.pickle", and is copied. Returns NULL, which all calls accept, if nothing
 * is to be shown. */
weir_cli_progress *weir_cli_progress_begin(const char *what);

/* Shows how much is done instead of the time; from any thread. `progress` is a weir_cli_progress *. */
void weir_cli_progress_step(void *progress, size_t done, size_t count);

void weir_cli_progress_end(weir_cli_progress *progress);
