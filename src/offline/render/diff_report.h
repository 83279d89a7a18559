/*
 * The report of what changed between two recordings: what `weir diff` prints.
 */
#pragma once

#include "offline/analyse/diff.h"
#include "offline/render/report.h"

/* The text has `list` rows of each kind, and only the kinds whose bits are in `keys`; 0 for all. */
void weir__diff_report(weir__report *report, const weir__diff *diff, size_t list, unsigned keys);
