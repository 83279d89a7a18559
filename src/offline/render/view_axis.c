#include "offline/render/view_axis.h"

#include <stdlib.h>

#include "alloc/replay_port.h"
#include "base/array.h"
#include "base/rangemap.h"

/* Longer ranges than a terabyte are those of a damaged recording. */
#define MAX_UNITS (1ull << 31)

/* The units that a range of bytes touches. false if it is empty, too long, or runs past the last address. */
static bool to_units(uint64_t address, uint64_t size, uint64_t *first, uint64_t *end) {
  if (!size || address + (size - 1) < address)
    return false;
  *first = address >> WEIR__VIEW_UNIT_BITS;
  *end = ((address + (size - 1)) >> WEIR__VIEW_UNIT_BITS) + 1;
  return *end - *first <= MAX_UNITS;
}

static int by_first(const void *a, const void *b) {
  uint64_t x = ((const weir__view_span *)a)->first, y = ((const weir__view_span *)b)->first;
  return (x > y) - (x < y);
}

static void sort_and_merge(weir__view_axis *axis) {
  size_t kept = 0;
  if (!axis->count)
    return;
  qsort(axis->spans, axis->count, sizeof *axis->spans, by_first);
  for (size_t i = 1; i < axis->count; i++) {
    const weir__view_span *s = &axis->spans[i];
    if (s->first > axis->spans[kept].end)
      axis->spans[++kept] = *s;
    else if (s->end > axis->spans[kept].end)
      axis->spans[kept].end = s->end;
  }
  axis->count = kept + 1;
}

static const weir__view_span *find_span(weir__view_axis *axis, uint64_t unit) {
  size_t low = 0, high = axis->count;
  if (axis->last < high && axis->spans[axis->last].first <= unit && unit < axis->spans[axis->last].end)
    return &axis->spans[axis->last];
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (axis->spans[middle].first <= unit)
      low = middle + 1;
    else
      high = middle;
  }
  if (!low || unit >= axis->spans[low - 1].end)
    return NULL;
  axis->last = low - 1;
  return &axis->spans[low - 1];
}

static bool add(weir__view_axis *axis, uint64_t first, uint64_t end) {
  if (!WEIR__RESERVE(axis->spans, axis->room, axis->count + 1))
    return false;
  axis->spans[axis->count++] = (weir__view_span){.first = first, .end = end};
  return true;
}

/* Blocks lie in segments, but for those of a history that began late or is damaged. */
static bool add_other_blocks(weir__view_axis *axis, const weir__lives *lives) {
  uint64_t first, end;
  weir__view_axis others = {0};
  bool ok = true;
  for (size_t i = 0; i < lives->block_count && ok; i++) {
    const weir__life *b = &lives->blocks[i];
    if (!to_units(b->address, b->size ? b->size : 1, &first, &end))
      continue;
    const weir__view_span *s = find_span(axis, first);
    if (!s || s->end < end)
      ok = add(&others, first, end);
    if (others.count >= 1 << 20 && others.count == others.room) /* a damaged file may have many that overlap */
      sort_and_merge(&others);
  }
  for (size_t i = 0; i < others.count && ok; i++)
    ok = add(axis, others.spans[i].first, others.spans[i].end);
  free(others.spans);
  axis->last = 0;
  sort_and_merge(axis);
  return ok;
}

static void number_spans(weir__view_axis *axis) {
  uint64_t y = 0;
  size_t kept = 0;
  for (size_t i = 0; i < axis->count && y < UINT32_MAX; i++) {
    weir__view_span s = axis->spans[i];
    s.y = (uint32_t)y;
    if (s.end - s.first > UINT32_MAX - y)
      s.end = s.first + (UINT32_MAX - y);
    y += s.end - s.first;
    axis->spans[kept++] = s;
  }
  axis->count = kept;
  axis->height = (uint32_t)y;
}

bool weir__view_axis_make(const weir__lives *lives, weir__view_axis *axis) {
  weir__view_axis made = {0};
  uint64_t first, end;
  bool ok = true;
  for (size_t i = 0; i < lives->segment_count && ok; i++)
    if (to_units(lives->segments[i].address, lives->segments[i].size, &first, &end))
      ok = add(&made, first, end);
  sort_and_merge(&made);
  if (!ok || !add_other_blocks(&made, lives)) {
    free(made.spans);
    return false;
  }
  number_spans(&made);
  *axis = made;
  return true;
}

void weir__view_axis_clear(weir__view_axis *axis) {
  free(axis->spans);
  *axis = (weir__view_axis){0};
}

bool weir__view_axis_find(weir__view_axis *axis, uint64_t address, uint64_t size, uint32_t *y, uint32_t *units) {
  uint64_t first, end;
  const weir__view_span *s = to_units(address, size, &first, &end) ? find_span(axis, first) : NULL;
  if (!s)
    return false;
  end = end < s->end ? end : s->end;
  *y = (uint32_t)(s->y + (first - s->first));
  *units = (uint32_t)(end - first);
  return true;
}

/* ---- Blocks ---- */

/* Under settings that round up more, the sizes are those of the recorded settings, which a program may have changed. So
 * blocks are cut where another block of that moment begins. */
typedef struct cutter {
  const weir__lives *lives;
  const uint32_t *y;
  uint32_t *units;
  weir__rangemap open; /* the number of a life + 1, by y */
} cutter;

static bool begin_block(cutter *c, size_t life) {
  uint64_t base, units;
  void *other;
  if (!c->units[life])
    return true;
  while ((other = weir__rangemap_overlap(&c->open, c->y[life], c->units[life], &base, &units))) {
    if (base == c->y[life])
      return true; /* the same place twice, as in a damaged recording */
    if (base > c->y[life]) {
      c->units[life] = (uint32_t)(base - c->y[life]);
      continue;
    }
    c->units[(uintptr_t)other - 1] = (uint32_t)(c->y[life] - base);
    weir__rangemap_remove(&c->open, base);
    if (!weir__rangemap_insert(&c->open, base, c->y[life] - base, other))
      return false;
  }
  return weir__rangemap_insert(&c->open, c->y[life], c->units[life], (void *)(uintptr_t)(life + 1));
}

static void end_block(cutter *c, size_t life) {
  if (c->units[life] && weir__rangemap_find(&c->open, c->y[life], NULL, NULL) == (void *)(uintptr_t)(life + 1))
    weir__rangemap_remove(&c->open, c->y[life]);
}

static bool cut_blocks(const weir__lives *lives, const uint32_t *y, uint32_t *units) {
  cutter c = {.lives = lives, .y = y, .units = units};
  uint32_t *ends = calloc(lives->entry_count + 1, sizeof *ends); /* of each entry: the life that ends, + 1 */
  size_t next = 0;
  bool ok = ends != NULL;
  for (size_t i = 0; i < lives->block_count && ok; i++)
    if (lives->blocks[i].end != WEIR__LIFE_OPEN)
      ends[lives->blocks[i].end] = (uint32_t)i + 1;
  for (; next < lives->block_count && ok && lives->blocks[next].is_before; next++)
    ok = begin_block(&c, next);
  for (size_t i = 0; i < lives->entry_count && ok; i++) {
    if (ends[i])
      end_block(&c, ends[i] - 1);
    for (; next < lives->block_count && ok && lives->blocks[next].begin == i; next++)
      ok = begin_block(&c, next);
  }
  weir__rangemap_clear(&c.open);
  free(ends);
  return ok;
}

bool weir__view_axis_place(weir__view_axis *axis, const weir__lives *lives, const weir__settings *settings, uint32_t *y,
                           uint32_t *units) {
  bool rounds_up = false;
  for (int i = 0; i < WEIR__ROUNDUP_INTERVALS; i++)
    rounds_up |= settings->roundup_divisions[i] > 1;
  for (size_t i = 0; i < lives->block_count; i++) {
    const weir__life *b = &lives->blocks[i];
    uint64_t rounded = weir__port_round(settings, b->size ? b->size : 1);
    if (!weir__view_axis_find(axis, b->address, rounded, &y[i], &units[i]))
      y[i] = units[i] = 0;
  }
  return !rounds_up || cut_blocks(lives, y, units);
}
