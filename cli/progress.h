/*
 * A sign of life for what takes longer than a second: one line on stderr, if that is a terminal, and gone when it is done. And
 * bold, where stdout is a terminal.
 */
#ifndef WEIR_CLI_PROGRESS_H
#define WEIR_CLI_PROGRESS_H

#include <stddef.h>

typedef struct weir_cli_progress weir_cli_progress;

/* `what` is a few words, as "reading x.pickle"; it is copied. NULL where nothing is to be shown, which all calls take. */
weir_cli_progress *weir_cli_progress_begin(const char *what);

/* So much is done; from any thread. Without it the time is shown. `progress` is a weir_cli_progress *. */
void weir_cli_progress_step(void *progress, size_t done, size_t count);

void weir_cli_progress_end(weir_cli_progress *progress);

#endif
