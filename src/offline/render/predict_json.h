/*
 * Predictions as JSON: the members of an object that is open.
 */
#pragma once

#include "inspect/json.h"
#include "offline/analyse/predict.h"

/* "before": what was there before the recording began; null if nothing was. */
void weir__json_start(weir__sink *sink, const weir__replayer *history);

/* How it begins, its calls and its first failure. */
void weir__json_calls(weir__sink *sink, const weir__prediction *prediction);

/* All of a prediction. */
void weir__json_prediction(weir__sink *sink, const weir__prediction *prediction);

/* null if it fits nowhere. */
void weir__json_fit(weir__sink *sink, const char *key, const weir__fit *fit);

/* All rows: what `weir whatif --json` prints for a file. */
void weir__json_whatif(weir__sink *sink, const weir__whatif *whatif);
