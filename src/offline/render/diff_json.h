/*
 * What changed between two recordings as JSON: the object of `weir diff --json`.
 */
#pragma once

#include "inspect/json.h"
#include "offline/analyse/diff.h"

void weir__diff_json(weir__sink *sink, const char *key, const weir__diff *diff);
