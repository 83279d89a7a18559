/*
 * Predictions as JSON: the members of an object that is open.
 */
#ifndef WEIR_OFFLINE_RENDER_PREDICT_JSON_H
#define WEIR_OFFLINE_RENDER_PREDICT_JSON_H

#include "inspect/json.h"
#include "offline/analyse/predict.h"

enum { WEIR__CONF_TEXT = 4096 };

/* The settings as text, "" for the defaults. Returns `text`. */
const char *weir__conf_text(const weir__settings *settings, char text[WEIR__CONF_TEXT]);

/* What was in use before the recording began. */
typedef struct weir__start_use {
  size_t blocks;
  uint64_t bytes; /* requested */
} weir__start_use;

weir__start_use weir__start_use_of(const weir__replayer *history);

/* "before": what was there before the recording began; null if nothing was. */
void weir__json_start(weir__sink *sink, const weir__replayer *history);

/* How it begins, its fragmentation, its calls and its first failure. */
void weir__json_calls(weir__sink *sink, const weir__prediction *prediction);

/* All of a prediction. */
void weir__json_prediction(weir__sink *sink, const weir__prediction *prediction);

/* null if it fits nowhere. */
void weir__json_fit(weir__sink *sink, const char *key, const weir__fit *fit);

#endif
