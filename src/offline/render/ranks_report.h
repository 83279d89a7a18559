/*
 * The comparison of ranks as a report: what `weir ranks` prints.
 */
#pragma once

#include "offline/analyse/ranks.h"
#include "offline/render/report.h"

/* The text has up to `list` rows of each kind. `conf` are the settings of the predictions, NULL if there are none. */
void weir__ranks_report(weir__report *report, const weir__ranks *ranks, const char *conf, size_t list);
