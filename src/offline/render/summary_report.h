/*
 * The report of what is in a recording: what `weir summary` prints.
 */
#pragma once

#include "offline/analyse/summary.h"
#include "offline/render/report.h"

/* There is a summary of each device. `graphs` are texts, one for each device, of memory over time; NULL, or NULL items,
 * for none. */
void weir__summary_report(weir__report *report, const char *file, const weir__recording *recording,
                          const weir__summary *devices, const weir__summary_classes *classes, char *const *graphs);
