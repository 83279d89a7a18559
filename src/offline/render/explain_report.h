/*
 * The report of an explanation: what `weir explain` prints.
 */
#pragma once

#include "offline/analyse/explain.h"
#include "offline/render/report.h"

/* `file` is its name. */
void weir__explain_report(weir__report *report, const char *file, const weir__recording *recording,
                          const weir__explanation *explanation);
