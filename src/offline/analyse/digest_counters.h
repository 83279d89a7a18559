/*
 * What holds memory, while a history is read: bytes in use by stack, phase, text, pool and stream, and their peaks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/analyse/digest_make.h"

/* Nothing is copied when a new peak of all is reached: `epoch` is the number of the last peak before which the counter
 * changed. If that is not the latest, the counter is as it was at the peak, and notes it before it changes. Likewise
 * for groups of steps, of which it has those up to `group`. */
typedef struct weir__digest_counter {
  uint64_t name;
  uint64_t now, peak, at_peak, allocations, total;
  uint32_t epoch, group;
  uint64_t *peaks; /* in each of WEIR__DIGEST_GROUPS; NULL if they are not wanted */
} weir__digest_counter;

/* By numbers of the caller's. */
typedef struct weir__digest_counters {
  weir__digest_counter *items;
  size_t count, room;
  bool has_peaks;
} weir__digest_counters;

/* The counter of a number; NULL if the host has no memory. It has no name at first. */
weir__digest_counter *weir__digest_counter_at(weir__digest_counters *counters, size_t number);

static inline void weir__digest_counter_touch(weir__digest_counter *c, uint32_t epoch, uint32_t group) {
  if (c->epoch != epoch) {
    c->at_peak = c->now;
    c->epoch = epoch;
  }
  while (c->group < group && c->peaks)
    c->peaks[++c->group] = c->now;
}

static inline void weir__digest_counter_add(weir__digest_counter *c, uint64_t bytes, uint32_t epoch, uint32_t group) {
  weir__digest_counter_touch(c, epoch, group);
  c->now += bytes;
  c->peak = c->now > c->peak ? c->now : c->peak;
  if (c->peaks && c->now > c->peaks[c->group])
    c->peaks[c->group] = c->now;
}

static inline void weir__digest_counter_subtract(weir__digest_counter *c, uint64_t bytes, uint32_t epoch,
                                                 uint32_t group) {
  weir__digest_counter_touch(c, epoch, group);
  c->now -= bytes;
}

/* The first group begins: what was before belongs to none. */
void weir__digest_counters_begin(weir__digest_counters *counters);

/* Joins pairs of groups; all of WEIR__DIGEST_GROUPS are complete. */
void weir__digest_counters_halve(weir__digest_counters *counters);

/* Makes a list of holders, by name, of the counters that were used; those of one name are one. `groups` is the number
 * of groups at the end. */
weir_status weir__digest_counters_list(weir__digest_counters *counters, uint32_t epoch, uint32_t groups,
                                       weir__chunks *memory, weir__digest_list *list);

void weir__digest_counters_clear(weir__digest_counters *counters);
