/*
 * Reports of replays and predictions: what `weir replay` prints, the JSON of `weir whatif`, and parts of others.
 */
#pragma once

#include "offline/analyse/predict.h"
#include "offline/render/report.h"

/* All of a prediction, into the object that is open. */
void weir__prediction_rows_add(weir__report *report, const weir__prediction *prediction);

/* null if it fits nowhere. */
void weir__fit_rows(weir__report *report, const char *key, const weir__fit *fit);

/* All rows: what `weir whatif --json` prints for a file. There is no text. */
void weir__whatif_report(weir__report *report, const weir__whatif *whatif);

/* One replay of a file. */
typedef struct weir__replayed {
  const char *file, *name; /* the second for people, with the device if there are several */
  const weir__recording *recording;
  int device;
  const weir__replayer *history;
  const weir__replay_report *result;
  const weir__costs *costs;
  bool is_check;
} weir__replayed;

void weir__replayed_report(weir__report *report, const weir__replayed *replayed);
