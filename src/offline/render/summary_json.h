/*
 * Summaries as JSON: the object of `weir summary --json`.
 */
#pragma once

#include "inspect/json.h"
#include "offline/analyse/summary.h"

/* Writes the members of an object that is open. `name` is that of the file; there is a summary of each device. */
void weir__summary_json(weir__sink *sink, const char *name, const weir__recording *recording,
                        const weir__summary *devices, const weir__summary_classes *classes);
