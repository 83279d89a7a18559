#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "offline/render/plot_parts.h"
#include "offline/render/view_axis.h"

/* Blocks that are drawn as rectangles of their own: the largest ones. The others are drawn as cells of a grid, which
 * has at most so many rectangles after cells of one colour are merged. */
enum { MAX_RECTANGLES = 2500, MAX_BOXES = 7000 };
enum { RESERVED = WEIR__PLOT_GROUPS, NOTHING = 255, COVERED = 254 };

/* A rectangle in pixels, from the top left corner of the drawing. */
typedef struct box {
  float x, y, width, height;
} box;

typedef struct drawing {
  weir__plot *plot;
  weir__view_axis axis;
  double width, height;
  float least; /* the area from which on blocks are drawn as rectangles of their own */
  uint8_t *cells;
  float *shares; /* of a cell, what its colour covers */
  size_t columns, rows;
  double cell; /* pixels */
} drawing;

static bool find_box(drawing *d, uint64_t address, uint64_t size, size_t begin, size_t end, box *b) {
  uint32_t low, units;
  if (!weir__view_axis_find(&d->axis, address, size, &low, &units))
    return false;
  double scale = d->height / (double)d->axis.height, x = weir__plot_x(d->plot, begin) * d->width;
  *b = (box){.x = (float)x,
             .width = (float)(weir__plot_x(d->plot, end) * d->width - x),
             .height = (float)(units * scale),
             .y = (float)(d->height - ((double)low + units) * scale)};
  return b->height > 0 && b->width >= 0;
}

static bool find_block(drawing *d, size_t number, box *b) {
  const weir__life *l = &d->plot->lives.blocks[number];
  return find_box(d, l->address, weir__round_up(l->size ? l->size : 1, WEIR__VIEW_UNIT), l->is_before ? 0 : l->begin,
                  l->end == WEIR__LIFE_OPEN ? d->plot->device->event_count : l->end, b);
}

/* A block that is thinner than this is drawn with the cells. */
static bool is_wide(const box *b) { return b->width >= 1.5f && b->height >= 0.8f; }

static void choose_rectangles(drawing *d) {
  enum { BUCKETS = 1 << 16 };
  uint32_t *buckets = calloc(BUCKETS, sizeof *buckets);
  box b;
  size_t count = 0, bucket = BUCKETS;
  for (size_t i = 0; i < d->plot->lives.block_count && buckets; i++)
    if (find_block(d, i, &b) && is_wide(&b)) {
      float area = b.width * b.height;
      buckets[area < BUCKETS - 1 ? (size_t)area : BUCKETS - 1]++;
    }
  while (buckets && bucket > 0 && count + buckets[bucket - 1] <= MAX_RECTANGLES)
    count += buckets[--bucket];
  d->least = buckets ? (float)bucket : 1e30f;
  free(buckets);
}

/* Adds what a box covers to cells. A colour keeps a cell if it covers more of it than others. */
static void paint(drawing *d, const box *b, uint8_t color) {
  double x0 = b->x / d->cell, x1 = (b->x + b->width) / d->cell, y0 = b->y / d->cell, y1 = (b->y + b->height) / d->cell;
  size_t left = x0 > 0 ? (size_t)x0 : 0, top = y0 > 0 ? (size_t)y0 : 0;
  for (size_t row = top; row < d->rows && (double)row < y1; row++) {
    double high = (y1 < (double)row + 1 ? y1 : (double)row + 1) - (y0 > (double)row ? y0 : (double)row);
    for (size_t column = left; column < d->columns && (double)column < x1; column++) {
      double wide = (x1 < (double)column + 1 ? x1 : (double)column + 1) - (x0 > (double)column ? x0 : (double)column);
      size_t at = row * d->columns + column;
      float share = (float)(wide * high);
      if (share <= 0)
        continue;
      if (d->cells[at] == NOTHING || (d->cells[at] == RESERVED && color != RESERVED)) {
        d->cells[at] = color;
        d->shares[at] = share;
      } else if (d->cells[at] == color)
        d->shares[at] += share;
      else if (share > d->shares[at]) {
        d->cells[at] = color;
        d->shares[at] += share;
      } else
        d->shares[at] += share;
    }
  }
}

static bool fill_cells(drawing *d) {
  const weir__lives *l = &d->plot->lives;
  box b;
  d->columns = (size_t)(d->width / d->cell) + 1;
  d->rows = (size_t)(d->height / d->cell) + 1;
  d->cells = malloc(d->columns * d->rows);
  d->shares = calloc(d->columns * d->rows, sizeof *d->shares);
  uint8_t *under = calloc(d->columns * d->rows, 1);
  if (!d->cells || !d->shares || !under) {
    free(under);
    return false;
  }
  memset(d->cells, NOTHING, d->columns * d->rows);
  for (size_t i = 0; i < l->segment_count; i++)
    if (find_box(d, l->segments[i].address, l->segments[i].size, l->segments[i].is_before ? 0 : l->segments[i].begin,
                 l->segments[i].end == WEIR__LIFE_OPEN ? d->plot->device->event_count : l->segments[i].end, &b))
      paint(d, &b, RESERVED);
  for (size_t i = 0; i < d->columns * d->rows; i++)
    under[i] = d->cells[i] == RESERVED && d->shares[i] >= 0.4f;
  for (size_t i = 0; i < l->block_count; i++)
    if (find_block(d, i, &b) && !(is_wide(&b) && b.width * b.height >= d->least))
      paint(d, &b, d->plot->group_of[i]);
  for (size_t i = 0; i < d->columns * d->rows; i++)
    if (d->cells[i] != NOTHING && d->shares[i] < 0.4f)
      d->cells[i] = under[i] ? RESERVED : NOTHING;
  free(under);
  return true;
}

/* What rectangles of their own cover may have any colour. */
static void cover_cells(drawing *d) {
  box b;
  for (size_t i = 0; i < d->plot->lives.block_count; i++) {
    if (!find_block(d, i, &b) || !is_wide(&b) || b.width * b.height < d->least)
      continue;
    size_t left = (size_t)(b.x / d->cell + 0.999), right = (size_t)((b.x + b.width) / d->cell);
    size_t top = (size_t)(b.y / d->cell + 0.999), bottom = (size_t)((b.y + b.height) / d->cell);
    for (size_t row = top; row < bottom && row < d->rows; row++)
      for (size_t column = left; column < right && column < d->columns; column++)
        d->cells[row * d->columns + column] = COVERED;
  }
}

typedef struct run {
  uint32_t left, right, top, bottom;
  uint8_t color;
} run;

typedef struct runs {
  run *items;
  size_t count, room;
} runs;

/* Runs of one colour in a row, merged with an equal run of the row above. */
static bool find_runs(const drawing *d, runs *found) {
  uint32_t *above = calloc(d->columns + 1, sizeof *above); /* by `left`: the run + 1 */
  bool ok = above != NULL;
  for (uint32_t row = 0; row < d->rows && ok; row++) {
    const uint8_t *cells = d->cells + (size_t)row * d->columns;
    for (uint32_t i = 0; i < d->columns && ok;) {
      uint8_t color = cells[i];
      uint32_t left = i;
      while (i < d->columns && (cells[i] == color || (color < NOTHING && color != COVERED && cells[i] == COVERED)))
        i++;
      if (color == NOTHING || color == COVERED)
        continue;
      run *old = above[left] ? &found->items[above[left] - 1] : NULL;
      if (old && old->bottom == row && old->right == i && old->color == color) {
        old->bottom++;
        continue;
      }
      ok = WEIR__RESERVE(found->items, found->room, found->count + 1);
      if (ok) {
        found->items[found->count++] = (run){left, i, row, row + 1, color};
        above[left] = (uint32_t)found->count;
      }
    }
  }
  free(above);
  return ok;
}

static void draw_runs(drawing *d, const runs *found) {
  weir__svg *svg = &d->plot->svg;
  fputs("<g class=\"cells\">\n", svg->file);
  for (int color = RESERVED; color >= 0; color--) {
    bool is_any = false;
    for (size_t i = 0; i < found->count; i++) {
      const run *r = &found->items[i];
      if (r->color != color)
        continue;
      fputs(is_any ? "" : "<path d=\"", svg->file);
      is_any = true;
      double right = (double)r->right * d->cell < d->width ? (double)r->right * d->cell : d->width;
      double bottom = (double)r->bottom * d->cell < d->height ? (double)r->bottom * d->cell : d->height;
      weir__svg_box(svg, d->plot->left + (double)r->left * d->cell, d->plot->top + (double)r->top * d->cell,
                    right - (double)r->left * d->cell, bottom - (double)r->top * d->cell);
    }
    if (is_any)
      fprintf(svg->file, "\" style=\"fill:%s\"/>\n",
              color == RESERVED ? svg->colors->free : svg->colors->series[d->plot->groups[color].color]);
  }
  fputs("</g>\n", svg->file);
}

static void draw_rectangles(drawing *d) {
  weir__svg *svg = &d->plot->svg;
  box b;
  for (size_t g = 0; g < d->plot->group_count; g++) {
    bool is_any = false;
    for (size_t i = 0; i < d->plot->lives.block_count; i++) {
      if (d->plot->group_of[i] != g || !find_block(d, i, &b) || !is_wide(&b) || b.width * b.height < d->least)
        continue;
      fputs(is_any ? "" : "<path d=\"", svg->file);
      is_any = true;
      weir__svg_box(svg, d->plot->left + b.x, d->plot->top + b.y, b.width, b.height);
    }
    if (is_any)
      fprintf(svg->file, "\" style=\"fill:%s\" stroke=\"%s\" stroke-width=\".4\"/>\n",
              svg->colors->series[d->plot->groups[g].color], svg->colors->background);
  }
}

static bool draw(drawing *d) {
  if (!weir__view_axis_make(&d->plot->lives, &d->axis))
    return false;
  if (!d->axis.height)
    return true;
  choose_rectangles(d);
  runs found = {0};
  bool ok = true;
  d->cell = 1;
  while (ok) {
    free(d->cells);
    free(d->shares);
    found.count = 0;
    ok = fill_cells(d);
    if (ok) {
      cover_cells(d);
      ok = find_runs(d, &found);
    }
    if (found.count <= MAX_BOXES || d->cell > 8)
      break;
    d->cell *= 1.5;
  }
  if (ok) {
    weir__plot_byte_axis(d->plot, d->plot->top, d->plot->bottom, (uint64_t)d->axis.height * WEIR__VIEW_UNIT);
    draw_runs(d, &found);
    draw_rectangles(d);
  }
  free(found.items);
  return ok;
}

weir_status weir__plot_trace(weir__plot *plot) {
  weir__plot_reserve_legend(plot, plot->group_count);
  plot->top += 12;
  plot->right = plot->width - 24;
  drawing d = {.plot = plot, .width = plot->right - plot->left, .height = plot->bottom - plot->top};
  bool ok = draw(&d);
  weir__view_axis_clear(&d.axis);
  free(d.cells);
  free(d.shares);
  if (!ok)
    return weir__plot_no_memory();
  weir__plot_time_axis(plot, plot->top, plot->bottom);
  weir__plot_mark_ooms(plot, plot->top, plot->bottom);
  weir__svg_text_within(&plot->svg, plot->left, plot->top - 8, d.width, "muted",
                        "addresses that were ever reserved, without the gaps between them; grey: reserved and free");
  weir__plot_legend(plot, "In use at the peak, as requested");
  return WEIR_OK;
}
