/*
 * The result of a search for settings as a report: what `weir tune` prints.
 */
#pragma once

#include "offline/analyse/tune.h"
#include "offline/render/report.h"

/* A recording that was tuned. */
typedef struct weir__tuned_file {
  const char *file, *name; /* the second for people, with the device if there are several */
  int device;
} weir__tuned_file;

typedef struct weir__tuned {
  const weir__tune_options *options;
  const weir__tune_result *result;
  const weir__tuned_file *files; /* one for each history */
  const char *pytorch;           /* the version, as it was given; or NULL */
} weir__tuned;

void weir__tune_report(weir__report *report, const weir__tuned *tuned);
