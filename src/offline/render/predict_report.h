/*
 * Reports of replays and predictions: what `weir replay` and `weir whatif` print, and parts of others.
 */
#pragma once

#include "offline/analyse/predict.h"
#include "offline/render/report.h"

/* All of a prediction, into the object that is open. */
void weir__prediction_rows_add(weir__report *report, const weir__prediction *prediction);

/* null if it fits nowhere. */
void weir__fit_rows(weir__report *report, const char *key, const weir__fit *fit);

/* "before": what was there before the recording began; null if nothing was. */
void weir__start_rows(weir__report *report, const weir__replayer *history);

/* In sentences: of that, of an object that has a prediction with failures, and the line below a table whose first
 * column is the reserved memory. */
#define WEIR__EXISTED_BEFORE                                                                                           \
  "{before.blocks block} ({before.requested}) in {before.segments segment} ({before.reserved}) existed before it"
#define WEIR__FIRST_FAILURE                                                                                            \
  "entry {first_failure.event}: a request of {first_failure.bytes}, with {first_failure.reserved} reserved and "       \
  "{first_failure.allocated} of it allocated"
#define WEIR__LOWER_BOUND                                                                                              \
  "{least_possible:12}  no allocator could go below: the most bytes in use at one moment, in pages of 2 MiB\n"

/* Says whether a file was reproduced, and the limit that was inferred unless the user has stated the memory. The object
 * that is open has "events". */
void weir__check_say(weir__report *report, const weir__replay_report *check, const char *name, bool has_memory);

/* What `weir whatif` prints for a file. The name is for people, with the device if there are several. */
void weir__whatif_report(weir__report *report, const weir__whatif *whatif, const char *name);

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
