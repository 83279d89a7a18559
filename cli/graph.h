/*
 * Memory over time in a terminal.
 */
#pragma once

#include "offline/analyse/summary.h"
#include "offline/read/recording.h"

/* Prints memory in use and reserved memory of a device over time, as wide as the terminal, with marks for the peak and
 * for requests that failed: in Unicode blocks, or in ASCII if the locale is not UTF-8. The device has a history. */
weir_status weir_cli_print_graph(const weir__recording *recording, int device, const weir__summary *summary);
