/*
 * What a recorded job would have done under several settings, one row for each.
 *
 * The recorded settings have the first two rows: the recording itself, as the checked replay reproduced it, and a
 * replay like those of all other rows. In these, segments get ascending addresses instead of the recorded ones. Since
 * the lowest of several free blocks of one size is used, the figures can differ slightly. Races between threads are not
 * repeated either. If the recording began late, the state before it is allocated again.
 */
#ifndef WEIR_OFFLINE_ANALYSE_WHATIF_H
#define WEIR_OFFLINE_ANALYSE_WHATIF_H

#include "offline/analyse/predict.h"
#include "offline/analyse/whatif_history.h"

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

/* The settings of a row; NULL for the recorded ones with the state before the recording as it was. */
const weir__settings *weir__whatif_settings(const weir__whatif *whatif, size_t row);

/* Computes a row, which may be the place in whatif->rows; p.status says how it went. Rows may be computed at the same
 * time. `history`, unless it is NULL, becomes the predicted history. */
void weir__whatif_predict(const weir__whatif *whatif, size_t row, weir__whatif_row *result,
                          weir__whatif_history **history);

/* Whether a row is part of the JSON: the second one only if it differs from the first. */
bool weir__whatif_is_shown(const weir__whatif *whatif, size_t row);

#endif
