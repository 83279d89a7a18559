/*
 * What a recorded job would have done under other settings, or with less memory; one, or several side by side.
 */
#pragma once

#include "offline/analyse/cost.h"
#include "offline/analyse/rows.h"
#include "offline/analyse/whatif_history.h"
#include "offline/replay/replay.h"

/* Of weir_allocator_stats. */
typedef struct weir__moving_counts {
  int64_t pages_made, pages_moved, moved_bytes, pages_returned, aliases_peak, aliases_unmapped;
} weir__moving_counts;

/* What depends on how far streams were (weir__replayer_is_range). */
typedef struct weir__prediction_busy {
  uint64_t peak_reserved, peak_allocated;
  uint64_t retries, failures, calls;
  double cost;
  weir__moving_counts moving;
} weir__prediction_busy;

/* Plain numbers: predictions are copied between machines. */
typedef struct weir__prediction {
  weir_status status; /* of the replay itself; nothing else holds unless it is WEIR_OK */
  uint64_t peak_reserved, peak_allocated, peak_requested; /* bytes */
  uint64_t retries;                                       /* requests for which everything cached was released */
  uint64_t failures;                                      /* requests that ran out of memory */
  uint64_t first_failure, failed_bytes, failed_reserved, failed_allocated; /* of the first: see weir__replay_report */
  weir__meter_counts calls;
  double cost; /* of the calls, in nanoseconds */
  weir__replay_begin begin;
  weir__moving_counts moving;
  /* All of the above are figures of a run in which every stream was idle when it was asked. In another run none was,
   * and that came out differently: the truth lies between the two. */
  bool is_range;
  weir__prediction_busy busy; /* of the other run if is_range, otherwise the same figures */
} weir__prediction;

void weir__prediction_from(const weir__replay_report *report, const weir__costs *costs, weir__prediction *prediction);

/* `settings` NULL stands for the recorded ones. Returns prediction->status. One run, or two if the outcome depends on
 * streams. */
weir_status weir__predict(const weir__replayer *replayer, const weir__settings *settings,
                          const weir__capacity *capacity, const weir__costs *costs, weir__prediction *prediction);

/* The part of the reserved memory that is not allocated, at the peaks of both: 0 to 1. */
double weir__prediction_fragmentation(const weir__prediction *prediction);

/* The figures of a prediction; the other end is that of streams that are busy. */
enum { WEIR__PREDICTION_ROWS = 7 };
void weir__prediction_rows(const weir__prediction *prediction, weir__row rows[WEIR__PREDICTION_ROWS]);

uint64_t weir__prediction_calls(const weir__prediction *prediction);

enum { WEIR__FIT_STEP = 2 << 20 };

typedef struct weir__fit {
  uint64_t bytes;   /* 0 if it fits nowhere */
  uint64_t retries; /* with that little memory; each waits for the whole device */
  uint64_t least;   /* if streams are idle; `bytes` is then for busy ones. Otherwise the same */
} weir__fit;

/* The least memory, in steps, with which no request fails; found by bisection, so with one step less a request fails.
 * It is the limit if the capacity has one, or else the device's memory. If the outcome depends on streams, it is enough
 * however busy they are. */
weir_status weir__predict_fit(const weir__replayer *replayer, const weir__settings *settings,
                              const weir__capacity *capacity, weir__fit *fit);

enum { WEIR__CONF_TEXT = 4096 };

/* The settings as text, "" for the defaults. Returns `text`. */
const char *weir__conf_text(const weir__settings *settings, char text[WEIR__CONF_TEXT]);

/* What was in use before the recording began. */
typedef struct weir__start_use {
  size_t blocks;
  uint64_t bytes; /* requested */
} weir__start_use;

weir__start_use weir__start_use_of(const weir__replayer *history);

/* ---- Rows: several settings side by side ---- */

/* What a recorded job would have done under several settings, one row for each.
 *
 * The recorded settings have the first two rows: the recording itself, as the checked replay reproduced it, and a
 * replay like those of all other rows. In these, segments get ascending addresses instead of the recorded ones. Since
 * the lowest of several free blocks of one size is used, the figures can differ slightly. Races between threads are not
 * repeated either. If the recording began late, the state before it is allocated again. */
enum { WEIR__WHATIF_OWN_ROWS = 2 };

typedef struct weir__whatif_row {
  weir__prediction p;
  weir__fit fit; /* all zero if there is none */
} weir__whatif_row;

typedef struct weir__whatif {
  const weir__replayer *history;
  const char *file; /* its name, as it was given */
  int device;
  const char *const *confs;       /* the settings of the other rows, as text */
  const weir__settings *settings; /* and as they are */
  size_t conf_count;
  uint64_t memory; /* of the device; 0 if not given */
  double fraction; /* of it that may be used; 0 if not given */
  bool fit;        /* the rows have the least memory, too */
  const weir__costs *costs;
  weir__whatif_row *rows; /* of weir__whatif_row_count */
} weir__whatif;

static inline size_t weir__whatif_row_count(const weir__whatif *whatif) {
  return whatif->conf_count + WEIR__WHATIF_OWN_ROWS;
}

/* Whether there was something before the recording. */
bool weir__whatif_is_late(const weir__whatif *whatif);

/* Whether the recorded settings reproduce the recording. */
bool weir__whatif_is_reproduced(const weir__whatif *whatif);

/* What a row is called: "recorded", or its settings. */
const char *weir__whatif_title(const weir__whatif *whatif, size_t row);

/* Computes a row, which may be the place in whatif->rows; p.status says how it went. Rows may be computed at the same
 * time. `history`, unless it is NULL, becomes the predicted history. */
void weir__whatif_predict(const weir__whatif *whatif, size_t row, weir__whatif_row *result,
                          weir__whatif_history **history);

/* The figures of a row, and the least memory in which it fits, for people: "none" if there is none. */
enum { WEIR__WHATIF_FIGURES = WEIR__PREDICTION_ROWS + 1 };
typedef struct weir__whatif_texts {
  const char *labels[WEIR__WHATIF_FIGURES];
  char of[WEIR__WHATIF_FIGURES][WEIR__ROW_TEXT];
} weir__whatif_texts;
void weir__whatif_row_texts(const weir__whatif_row *row, weir__whatif_texts *texts);

/* Whether a row is part of the report: the second one only if it does not read like the first. */
bool weir__whatif_is_shown(const weir__whatif *whatif, size_t row);
