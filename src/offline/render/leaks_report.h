/*
 * The report of leaks: what `weir leaks` prints for a device.
 */
#pragma once

#include "offline/analyse/leaks.h"
#include "offline/render/report.h"

/* `list` is how many rows of each kind the text has. */
void weir__leaks_report(weir__report *report, const weir__recording *recording, const char *file,
                        const weir__leaks *leaks, size_t list);
