/*
 * Parts that several reports have in their JSON.
 */
#pragma once

#include "inspect/json.h"
#include "offline/read/recording.h"
#include "pattern/steps.h"

/* The steps of a job: {"source", "name", "confidence", "count", "warm_up", "boundaries"}. */
void weir__steps_json(weir__sink *sink, const char *key, const weir__steps *steps);

/* Memory that the program created itself: {"end", "peak"}. Nothing is written if there is none. */
void weir__outside_json(weir__sink *sink, const char *key, const weir__recording_device *device);
