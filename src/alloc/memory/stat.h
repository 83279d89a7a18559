/*
 * Changes of one statistic. Its owner guards it.
 */
#pragma once

#include "weir/alloc.h"

static inline void weir__stat_add(weir_stat *stat, int64_t by) {
  stat->current += by;
  if (by < 0) {
    stat->freed -= by;
    return;
  }
  stat->allocated += by;
  if (stat->current > stat->peak)
    stat->peak = stat->current;
}

static inline void weir__stat_reset_peak(weir_stat *stat) { stat->peak = stat->current; }
static inline void weir__stat_reset_accumulated(weir_stat *stat) { stat->allocated = stat->freed = 0; }
