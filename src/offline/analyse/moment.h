/*
 * A moment of a recording that a command is asked for: an entry, the peak, the first failure or the end.
 */
#pragma once

#include <stddef.h>

#include "offline/analyse/explain.h"
#include "offline/analyse/summary.h"

/* Finds the entry after which the state is meant. WEIR_OFFLINE_AT_AUTO is the first failure, or else the peak. For a
 * device without a history it is 0, which stands for the end. WEIR_ERROR_INVALID_ARGUMENT if the recording does not
 * have the moment. */
weir_status weir__moment_find(const weir__recording *recording, int device, const weir__summary *summary,
                              weir_offline_moment moment, size_t event, size_t *entry);

/* "auto", "oom", "peak", "end", "event". */
const char *weir__moment_name(weir_offline_moment moment);

/* "the peak", "the end", "the first request that failed", "entry 4711". Returns `text`. */
const char *weir__moment_describe(const weir__summary *summary, weir_offline_moment moment, size_t entry,
                                  char text[64]);
