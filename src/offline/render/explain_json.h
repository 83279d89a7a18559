/*
 * An explanation as JSON: the object of `weir explain --json`.
 */
#pragma once

#include "inspect/json.h"
#include "offline/analyse/explain.h"

/* Writes the members of an object that is open. `name` is that of the file. */
void weir__explain_json(weir__sink *sink, const char *name, const weir__recording *recording,
                        const weir__explanation *explanation);
