/*
 * What the guard has found, in words (guard.c). The public calls are in weir/guard.h.
 */
#ifndef WEIR_INSPECT_GUARD_H
#define WEIR_INSPECT_GUARD_H

#include "alloc/guard/guard.h"

/* Logs a new finding, adds it to the history, and ends the process if that was asked for. */
void weir__guard_report(weir_allocator *allocator, const weir_guard_finding *finding);

/* Switches the recording on that findings read, unless one is on. */
void weir__guard_record(weir_allocator *allocator);

#endif
