/*
 * The cost of driver calls: a table of nanoseconds, and an estimate from counted calls. The default table was measured
 * on an H200.
 */
#pragma once

#include "offline/replay/meter.h"

/* Nanoseconds of one kind of call, for each handle and for each MiB. */
typedef struct weir__cost {
  double handle, mib;
} weir__cost;

typedef struct weir__costs {
  weir__cost of[WEIR__METER_KINDS];
} weir__costs;

void weir__costs_default(weir__costs *costs);

/* Reads a file over the defaults: lines "KEY NANOSECONDS", or the same as one flat JSON object. A KEY is a kind of call
 * ("create"), or a kind and "_mib" ("create_mib"). An error names the line. */
weir_status weir__costs_load(const char *path, weir__costs *costs);

/* The same for a text in memory; errors call it `name`. */
weir_status weir__costs_parse(const char *name, const char *text, weir__costs *costs);

/* In nanoseconds. A failed call counts as one for a single handle. */
double weir__costs_estimate(const weir__costs *costs, const weir__meter_counts *counts);
