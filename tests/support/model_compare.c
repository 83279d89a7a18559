/*
 * Compares the trace and the statistics of the model with those of the allocator.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/model.h"

void model_wrong(model *m, const char *format, ...) {
  if (m->wrong[0])
    return;
  va_list args;
  va_start(args, format);
  vsnprintf(m->wrong, sizeof m->wrong, format, args);
  va_end(args);
}

/* ---- Traces ---- */

static int by_content(const void *a, const void *b) {
  const weir_trace_entry *x = a, *y = b;
  const uint64_t left[] = {x->action, x->address, x->bytes, (uint64_t)x->stream, x->pool.first, x->pool.second};
  const uint64_t right[] = {y->action, y->address, y->bytes, (uint64_t)y->stream, y->pool.first, y->pool.second};
  for (size_t i = 0; i < sizeof left / sizeof *left; i++)
    if (left[i] != right[i])
      return left[i] < right[i] ? -1 : 1;
  return 0;
}

static void describe(const weir_trace_entry *e, char text[120]) {
  snprintf(text, 120, "%s %llx %llu stream %p pool {%llu, %llu}", weir_trace_action_name(e->action),
           (unsigned long long)e->address, (unsigned long long)e->bytes, (void *)e->stream,
           (unsigned long long)e->pool.first, (unsigned long long)e->pool.second);
}

/* The order within one call is not compared: it is unspecified which stream's blocks are released first. */
void model_end(model *m) {
  weir_trace_entry *seen = calloc(m->trace_count + 1, sizeof *seen);
  if (!seen)
    abort();
  if (m->trace_count)
    memcpy(seen, m->trace, m->trace_count * sizeof *seen);
  qsort(seen, m->trace_count, sizeof *seen, by_content);
  if (m->expected_count)
    qsort(m->expected, m->expected_count, sizeof *m->expected, by_content);
  char text[120];
  for (size_t i = 0; i < m->trace_count || i < m->expected_count; i++) {
    int order = i >= m->trace_count ? -1 : i >= m->expected_count ? 1 : by_content(&m->expected[i], &seen[i]);
    if (!order)
      continue;
    describe(order < 0 ? &m->expected[i] : &seen[i], text);
    model_wrong(m, order < 0 ? "only the model has: %s" : "only the allocator has: %s", text);
  }
  free(seen);
}

/* ---- Statistics ---- */

typedef struct named_stat {
  const char *name;
  size_t offset;
  int kinds;
} named_stat;

static const named_stat named_stats[] = {
#define STATS(name, kinds)                                                                                             \
  { #name, offsetof(weir_allocator_stats, name), kinds }
    STATS(allocation, WEIR_STAT_KINDS),
    STATS(segment, WEIR_STAT_KINDS),
    STATS(active, WEIR_STAT_KINDS),
    STATS(inactive_split, WEIR_STAT_KINDS),
    STATS(allocated_bytes, WEIR_STAT_KINDS),
    STATS(reserved_bytes, WEIR_STAT_KINDS),
    STATS(active_bytes, WEIR_STAT_KINDS),
    STATS(inactive_split_bytes, WEIR_STAT_KINDS),
    STATS(requested_bytes, WEIR_STAT_KINDS),
    STATS(oversize_allocations, 1),
    STATS(oversize_segments, 1)};

enum { NAMED_STATS = sizeof named_stats / sizeof *named_stats };

static weir_stat *stat_at(const weir_allocator_stats *stats, int i, int kind) {
  return (weir_stat *)((char *)(uintptr_t)stats + named_stats[i].offset) + kind;
}

void model_reset_peaks(model *m) {
  for (int i = 0; i < NAMED_STATS; i++)
    for (int kind = 0; kind < named_stats[i].kinds; kind++)
      stat_at(&m->stats, i, kind)->peak = stat_at(&m->stats, i, kind)->current;
  for (model_pool_stats *stats = m->pool_stats; stats; stats = stats->next)
    for (int kind = 0; kind < WEIR_STAT_KINDS; kind++)
      stats->reserved_bytes[kind].peak = stats->reserved_bytes[kind].current;
}

void model_reset_accumulated(model *m) {
  for (int i = 0; i < NAMED_STATS; i++)
    for (int kind = 0; kind < named_stats[i].kinds; kind++)
      stat_at(&m->stats, i, kind)->allocated = stat_at(&m->stats, i, kind)->freed = 0;
  for (model_pool_stats *stats = m->pool_stats; stats; stats = stats->next)
    for (int kind = 0; kind < WEIR_STAT_KINDS; kind++)
      stats->reserved_bytes[kind].allocated = stats->reserved_bytes[kind].freed = 0;
  m->stats.num_alloc_retries = m->stats.num_ooms = m->stats.num_sync_all_streams = 0;
  m->stats.num_device_alloc = m->stats.num_device_free = m->stats.num_oom_rejections = 0;
}

static void compare_number(model *m, const char *name, int64_t mine, int64_t theirs) {
  if (mine != theirs)
    model_wrong(m, "%s: the model has %lld, the allocator %lld", name, (long long)mine, (long long)theirs);
}

void model_compare_stats(model *m, const weir_allocator_stats *stats) {
  const uint64_t split = m->settings.max_split;
  for (int i = 0; i < NAMED_STATS; i++)
    for (int kind = 0; kind < named_stats[i].kinds; kind++) {
      const weir_stat *mine = stat_at(&m->stats, i, kind), *theirs = stat_at(stats, i, kind);
      if (memcmp(mine, theirs, sizeof *mine))
        model_wrong(
            m,
            "%s of kind %d: the model has current %lld peak %lld allocated %lld freed %lld, the allocator %lld %lld "
            "%lld %lld",
            named_stats[i].name, kind, (long long)mine->current, (long long)mine->peak, (long long)mine->allocated,
            (long long)mine->freed, (long long)theirs->current, (long long)theirs->peak, (long long)theirs->allocated,
            (long long)theirs->freed);
    }
  compare_number(m, "num_alloc_retries", m->stats.num_alloc_retries, stats->num_alloc_retries);
  compare_number(m, "num_ooms", m->stats.num_ooms, stats->num_ooms);
  compare_number(m, "num_sync_all_streams", m->stats.num_sync_all_streams, stats->num_sync_all_streams);
  compare_number(m, "num_device_alloc", m->stats.num_device_alloc, stats->num_device_alloc);
  compare_number(m, "num_device_free", m->stats.num_device_free, stats->num_device_free);
  compare_number(m, "num_oom_rejections", m->stats.num_oom_rejections, stats->num_oom_rejections);
  compare_number(m, "max_split_size", split == MODEL_UNLIMITED ? -1 : (int64_t)split, stats->max_split_size);
}
