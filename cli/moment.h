/*
 * The option --at: a moment of a recording.
 */
#pragma once

#include <stddef.h>

#include "offline/analyse/explain.h"
#include "options.h"

#define WEIR_CLI_MOMENT_TAKES "oom, peak, end or the number of an entry"

extern const weir_cli_choice weir_cli_moments[];

/* Returns an exit code. */
int weir_cli_read_moment(const char *text, weir_offline_moment *moment, size_t *event);
