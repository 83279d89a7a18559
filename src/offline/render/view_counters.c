#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/render/view_holes.h"
#include "offline/render/view_parts.h"

/* ---- The sweep: memory after each entry ---- */

typedef struct sweep {
  weir__view *view;
  weir__holes holes;
  weir__holes_range *ranges; /* of each block's life that has begun */
  uint32_t *at;              /* of each entry: the block's life that it frees or ends, + 1; or 0 */
  uint32_t *segment_ends;    /* segments by their end, without those that are still open then */
  size_t segment_end_count;
  uint64_t now[WEIR__VIEW_COUNTERS];
} sweep;

static void mark_holes(void *context, weir__holes *holes) {
  weir__view *v = context;
  uint32_t y, units;
  for (size_t i = 0; i < v->lives.block_count; i++)
    if (v->units[i])
      weir__holes_mark(holes, v->y[i], v->units[i]);
  for (size_t i = 0; i < v->lives.segment_count; i++)
    if (weir__view_axis_find(&v->axis, v->lives.segments[i].address, v->lives.segments[i].size, &y, &units))
      weir__holes_mark(holes, y, units);
  for (size_t i = 0; i < v->axis.count; i++)
    weir__holes_mark(holes, v->axis.spans[i].y, 0);
}

typedef struct segment_end {
  uint32_t end, segment;
} segment_end;

static int by_end(const void *a, const void *b) {
  const segment_end *x = a, *y = b;
  return x->end != y->end ? (x->end > y->end) - (x->end < y->end)
                          : (x->segment > y->segment) - (x->segment < y->segment);
}

static bool sort_segment_ends(sweep *s) {
  const weir__lives *l = &s->view->lives;
  size_t count = 0;
  segment_end *ends = malloc((l->segment_count + 1) * sizeof *ends);
  s->segment_ends = malloc((l->segment_count + 1) * sizeof *s->segment_ends);
  for (size_t i = 0; i < l->segment_count && ends; i++)
    if (l->segments[i].end != WEIR__LIFE_OPEN)
      ends[count++] = (segment_end){l->segments[i].end, (uint32_t)i};
  if (!ends || !s->segment_ends) {
    free(ends);
    return false;
  }
  qsort(ends, count, sizeof *ends, by_end);
  for (size_t i = 0; i < count; i++)
    s->segment_ends[i] = ends[i].segment;
  s->segment_end_count = count;
  free(ends);
  return true;
}

static void change_segment(sweep *s, size_t segment, bool is_begin) {
  const weir__segment_life *g = &s->view->lives.segments[segment];
  uint32_t y, units;
  s->now[WEIR__VIEW_RESERVED] += is_begin ? g->size : 0 - g->size;
  if (weir__view_axis_find(&s->view->axis, g->address, g->size, &y, &units))
    weir__holes_reserve(&s->holes, weir__holes_find(&s->holes, y, units), is_begin, !g->is_expandable);
}

static void cover(sweep *s, size_t life, bool is_begin) {
  if (!s->view->units[life])
    return;
  if (is_begin)
    s->ranges[life] = weir__holes_find(&s->holes, s->view->y[life], s->view->units[life]);
  weir__holes_cover(&s->holes, s->ranges[life], is_begin);
}

/* A block that was freed before the history, or by its first entry, waits from the beginning. */
static bool waits_first(const weir__life *life) { return life->is_before && life->freed == 0; }

static void begin_life(sweep *s, size_t life) {
  const weir__life *b = &s->view->lives.blocks[life];
  s->now[waits_first(b) ? WEIR__VIEW_PENDING : WEIR__VIEW_ALLOCATED] += b->size;
  cover(s, life, true);
}

/* An entry requests the free of a block, or completes it, or both. */
static void end_life(sweep *s, size_t life, uint32_t entry) {
  const weir__life *b = &s->view->lives.blocks[life];
  bool waits = waits_first(b) || weir__view_waits(b);
  if (b->freed == entry && !waits_first(b)) {
    s->now[WEIR__VIEW_ALLOCATED] -= b->size;
    s->now[WEIR__VIEW_PENDING] += waits ? b->size : 0;
  }
  if (b->end == entry) {
    s->now[WEIR__VIEW_PENDING] -= waits ? b->size : 0;
    cover(s, life, false);
  }
}

/* An entry is about one address, so it frees or ends one life at most. */
static bool find_ends(sweep *s) {
  const weir__lives *l = &s->view->lives;
  s->at = calloc(s->view->width, sizeof *s->at);
  for (size_t i = 0; i < l->block_count && s->at; i++) {
    const weir__life *b = &l->blocks[i];
    if (b->freed != WEIR__LIFE_OPEN && !waits_first(b))
      s->at[b->freed] = (uint32_t)i + 1;
    if (b->end != WEIR__LIFE_OPEN)
      s->at[b->end] = (uint32_t)i + 1;
  }
  return s->at != NULL;
}

static void go(sweep *s, weir__view_visit *visit, void *context) {
  weir__view *v = s->view;
  for (size_t i = 0; i < v->axis.count; i++) /* spans lie side by side on the axis, but not in memory */
    weir__holes_wall(&s->holes, v->axis.spans[i].y);
  const weir__lives *l = &v->lives;
  size_t block = 0, segment = 0, segment_end = 0;
  for (; segment < l->segment_count && l->segments[segment].is_before; segment++)
    change_segment(s, segment, true);
  for (; block < l->block_count && l->blocks[block].is_before; block++)
    begin_life(s, block);
  for (size_t i = 0; i < v->width; i++) {
    bool changed = i == 0;
    for (; segment_end < s->segment_end_count && l->segments[s->segment_ends[segment_end]].end == i; changed = true)
      change_segment(s, s->segment_ends[segment_end++], false);
    for (; segment < l->segment_count && l->segments[segment].begin == i; changed = true)
      change_segment(s, segment++, true);
    if (s->at[i]) {
      end_life(s, s->at[i] - 1, (uint32_t)i);
      changed = true;
    }
    for (; block < l->block_count && l->blocks[block].begin == i; changed = true)
      begin_life(s, block++);
    if (changed)
      s->now[WEIR__VIEW_LARGEST_HOLE] = weir__holes_largest(&s->holes);
    visit(context, i, s->now, changed);
  }
}

weir_status weir__view_visit_counters(weir__view *view, weir__view_visit *visit, void *context) {
  sweep s = {.view = view};
  s.ranges = calloc(view->lives.block_count + 1, sizeof *s.ranges);
  bool ok = s.ranges && find_ends(&s) && sort_segment_ends(&s) && weir__holes_make(&s.holes, mark_holes, view);
  if (ok)
    go(&s, visit, context);
  weir__holes_clear(&s.holes);
  free(s.ranges);
  free(s.segment_ends);
  free(s.at);
  return ok ? WEIR_OK : weir__view_no_memory();
}

/* ---- Columns ---- */

static bool make_columns(weir__view *view) {
  weir__view_columns *c = &view->columns;
  c->span = 1;
  while ((view->width - 1) / c->span + 1 > WEIR__VIEW_COUNTER_COLUMNS)
    c->span *= 2;
  c->count = (view->width - 1) / c->span + 1;
  bool ok = (c->peak_entry = malloc(c->count * sizeof *c->peak_entry)) != NULL;
  for (int k = 0; k < WEIR__VIEW_COUNTERS; k++) {
    c->least[k] = malloc(c->count * sizeof *c->least[k]);
    c->most[k] = malloc(c->count * sizeof *c->most[k]);
    ok = ok && c->least[k] && c->most[k];
  }
  return ok;
}

static void note(void *context, size_t entry, const uint64_t now[WEIR__VIEW_COUNTERS], bool changed) {
  weir__view *view = context;
  weir__view_columns *c = &view->columns;
  size_t column = entry / c->span;
  bool is_first = entry % c->span == 0;
  if (entry % (1 << 20) == 0)
    weir__view_step(view, 20 + 30 * entry / view->width);
  if (!changed && !is_first)
    return;
  if (is_first || now[WEIR__VIEW_ALLOCATED] > c->most[WEIR__VIEW_ALLOCATED][column])
    c->peak_entry[column] = (uint32_t)entry;
  for (int k = 0; k < WEIR__VIEW_COUNTERS; k++) {
    if (is_first || now[k] < c->least[k][column])
      c->least[k][column] = now[k];
    if (is_first || now[k] > c->most[k][column])
      c->most[k][column] = now[k];
  }
}

weir_status weir__view_sweep(weir__view *view) {
  return make_columns(view) ? weir__view_visit_counters(view, note, view) : weir__view_no_memory();
}

void weir__view_columns_clear(weir__view_columns *columns) {
  for (int k = 0; k < WEIR__VIEW_COUNTERS; k++) {
    free(columns->least[k]);
    free(columns->most[k]);
  }
  free(columns->peak_entry);
  *columns = (weir__view_columns){0};
}

/* ---- Levels ---- */

/* Halves the columns in place. */
static void halve(weir__view_columns *c) {
  for (size_t i = 0; i < (c->count + 1) / 2; i++) {
    size_t a = 2 * i, b = 2 * i + 1 < c->count ? 2 * i + 1 : a;
    for (int k = 0; k < WEIR__VIEW_COUNTERS; k++) {
      c->least[k][i] = c->least[k][a] < c->least[k][b] ? c->least[k][a] : c->least[k][b];
      c->most[k][i] = c->most[k][a] > c->most[k][b] ? c->most[k][a] : c->most[k][b];
    }
  }
  c->span *= 2;
  c->count = (c->count + 1) / 2;
}

static weir_status write_level(weir__view *view, const weir__view_columns *c, size_t number, double *values) {
  size_t at = 0;
  for (int k = 0; k < WEIR__VIEW_COUNTERS; k++) {
    for (size_t i = 0; i < c->count; i++)
      values[at++] = (double)c->least[k][i];
    for (size_t i = 0; i < c->count; i++)
      values[at++] = (double)c->most[k][i];
  }
  WEIR__JSON(view->index, JSON_OBJECT(NULL), JSON_NATURAL("span", c->span), JSON_NATURAL("columns", c->count));
  weir_status status = weir__view_add_chunk(view, "c", number, values, at * sizeof *values);
  WEIR__JSON(view->index, JSON_CLOSE);
  return status;
}

/* The columns are of no use afterwards. */
weir_status weir__view_write_counters(weir__view *view) {
  static const char *const names[WEIR__VIEW_COUNTERS] = {"allocated", "reserved", "largest_hole", "pending"};
  weir__view_columns *c = &view->columns;
  weir_status status = WEIR_OK;
  double *values = malloc(2 * WEIR__VIEW_COUNTERS * c->count * sizeof *values);
  if (!values)
    return weir__view_no_memory();
  WEIR__JSON(view->index, JSON_OBJECT("counters"), JSON_LIST("names"));
  for (int k = 0; k < WEIR__VIEW_COUNTERS; k++)
    WEIR__JSON(view->index, JSON_TEXT(NULL, names[k]));
  WEIR__JSON(view->index, JSON_CLOSE, JSON_LIST("levels"));
  for (size_t level = 0; !status; level++) {
    status = write_level(view, c, level, values);
    if (c->count <= WEIR__VIEW_MIN_COLUMNS)
      break;
    halve(c);
  }
  WEIR__JSON(view->index, JSON_CLOSE, JSON_CLOSE);
  free(values);
  return status;
}
