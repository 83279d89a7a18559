/*
 * The steps of a job as JSON.
 */
#ifndef WEIR_OFFLINE_RENDER_STEPS_JSON_H
#define WEIR_OFFLINE_RENDER_STEPS_JSON_H

#include "inspect/json.h"
#include "pattern/steps.h"

/* Writes {"source", "name", "confidence", "count", "warm_up", "boundaries"}. */
void weir__steps_json(weir__sink *sink, const char *key, const weir__steps *steps);

#endif
