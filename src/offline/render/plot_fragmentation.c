#include <stdlib.h>

#include "base/base.h"
#include "base/rangemap.h"
#include "offline/render/plot_parts.h"

/* The largest hole is searched for at one moment of each column, the one at which most memory is in use. Walking over
 * all blocks is limited to so many in all; with more, fewer columns have a value of their own. */
enum { MAX_WALKED = 8000000, UNIT = 512 };

typedef struct column {
  size_t entry;           /* after which most is in use; SIZE_MAX if the column has no entries */
  int64_t used, reserved; /* negative in a damaged recording: drawn as 0 */
  uint64_t hole;
} column;

typedef struct ending {
  uint32_t end;
  size_t segment;
} ending;

typedef struct sweep {
  const weir__plot *plot;
  column *columns;
  size_t count;
  column end;                      /* after the last entry */
  weir__rangemap blocks, segments; /* the life + 1 */
  uint32_t *ended;                 /* by entry: the life + 1 that ends */
  ending *segment_ends;            /* by `end` */
  size_t next_block, next_segment, next_end;
} sweep;

static void add(int64_t *to, uint64_t by) { *to = (int64_t)((uint64_t)*to + by); }

/* Memory in use and reserved, and the moment of each column. */
static void find_moments(sweep *s) {
  const weir__plot *p = s->plot;
  int64_t used = (int64_t)p->summary.live_before, reserved = (int64_t)p->summary.reserved_before;
  size_t at = 0;
  s->columns[0] = (column){SIZE_MAX, used, reserved, 0};
  for (size_t i = 0; i < p->device->event_count; i++) {
    const weir__recording_entry *e = &p->device->events[i];
    for (size_t to = weir__plot_column(p, i, s->count); at < to;)
      s->columns[++at] = (column){SIZE_MAX, used, reserved, 0};
    if (e->action == WEIR_TRACE_ALLOC)
      add(&used, e->size);
    else if (e->action == WEIR_TRACE_FREE_REQUESTED)
      add(&used, 0 - e->size);
    else if (e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP)
      add(&reserved, e->size);
    else if (e->action == WEIR_TRACE_SEGMENT_FREE || e->action == WEIR_TRACE_SEGMENT_UNMAP)
      add(&reserved, 0 - e->size);
    column *c = &s->columns[at];
    if (c->entry == SIZE_MAX || used > c->used)
      *c = (column){i, used, reserved, 0};
  }
  while (at + 1 < s->count)
    s->columns[++at] = (column){SIZE_MAX, used, reserved, 0};
  s->end = (column){SIZE_MAX, used, reserved, 0};
}

static int by_end(const void *a, const void *b) {
  uint32_t x = ((const ending *)a)->end, y = ((const ending *)b)->end;
  return (x > y) - (x < y);
}

static void put_block(sweep *s, size_t number) {
  const weir__life *life = &s->plot->lives.blocks[number];
  weir__rangemap_insert(
      &s->blocks, life->address, weir__round_up(life->size ? life->size : 1, UNIT),
      (void *)(uintptr_t)(number + 1)); /* a block that overlaps another, as in a damaged file, is left out */
}

/* Goes on to the state after an entry. */
static void go_to(sweep *s, size_t *done, size_t entry) {
  const weir__lives *l = &s->plot->lives;
  for (; *done <= entry; ++*done) {
    size_t i = *done;
    for (; s->next_end < l->segment_count && s->segment_ends[s->next_end].end <= i; s->next_end++)
      weir__rangemap_remove(&s->segments, l->segments[s->segment_ends[s->next_end].segment].address);
    for (; s->next_segment < l->segment_count && l->segments[s->next_segment].begin <= i; s->next_segment++) {
      const weir__segment_life *g = &l->segments[s->next_segment];
      if (g->end > i)
        weir__rangemap_insert(&s->segments, g->address, g->size, (void *)(uintptr_t)(s->next_segment + 1));
    }
    if (s->ended[i])
      weir__rangemap_remove(&s->blocks, l->blocks[s->ended[i] - 1].address);
    for (; s->next_block < l->block_count && l->blocks[s->next_block].begin <= i; s->next_block++)
      if (l->blocks[s->next_block].end > i)
        put_block(s, s->next_block);
  }
}

/* A hole does not cross the end of a segment, unless the next one is of the same expandable segment. */
static uint64_t largest_hole(const sweep *s) {
  uint64_t address = 0, size, largest = 0, block = 0, block_size, free_from = 0, last_end = 0;
  bool was_expandable = false;
  void *value, *at = weir__rangemap_at_or_after(&s->blocks, 0, &block, &block_size);
  for (; (value = weir__rangemap_at_or_after(&s->segments, address, &address, &size)); address += size) {
    const weir__segment_life *g = &s->plot->lives.segments[(uintptr_t)value - 1];
    if (!(g->is_expandable && was_expandable && last_end == address))
      free_from = address;
    was_expandable = g->is_expandable;
    last_end = address + size;
    while (at && block < last_end) {
      if (block > free_from && block - free_from > largest)
        largest = block - free_from;
      free_from = block + block_size > free_from ? block + block_size : free_from;
      at = weir__rangemap_at_or_after(&s->blocks, block + block_size, &block, &block_size);
    }
    if (last_end > free_from && last_end - free_from > largest)
      largest = last_end - free_from;
    if (!last_end)
      break;
  }
  return largest;
}

static bool find_holes(sweep *s) {
  const weir__plot *p = s->plot;
  size_t done = 0, skipped = 0;
  s->ended = calloc(p->device->event_count + 1, sizeof *s->ended);
  s->segment_ends = malloc((p->lives.segment_count + 1) * sizeof *s->segment_ends);
  if (!s->ended || !s->segment_ends)
    return false;
  for (size_t i = 0; i < p->lives.block_count; i++)
    if (p->lives.blocks[i].end < p->device->event_count)
      s->ended[p->lives.blocks[i].end] = (uint32_t)i + 1;
  for (size_t i = 0; i < p->lives.segment_count; i++)
    s->segment_ends[i] = (ending){p->lives.segments[i].end, i};
  qsort(s->segment_ends, p->lives.segment_count, sizeof *s->segment_ends, by_end);
  for (size_t i = 0; i < s->count; i++) {
    column *c = &s->columns[i];
    size_t step = 1 + weir__rangemap_count(&s->blocks) * s->count / MAX_WALKED;
    c->hole = i ? s->columns[i - 1].hole : 0;
    if (c->entry == SIZE_MAX || ++skipped < step)
      continue;
    go_to(s, &done, c->entry);
    c->hole = largest_hole(s);
    skipped = 0;
  }
  go_to(s, &done, p->device->event_count - 1);
  s->end.hole = largest_hole(s);
  return true;
}

/* ---- Drawing ---- */

typedef struct panel {
  weir__plot *plot;
  const sweep *sweep;
  double top, bottom, most;
} panel;

static double y_of(const panel *p, double value) {
  double y = p->bottom - (p->bottom - p->top) * value / p->most;
  return y > p->bottom ? p->bottom : y < p->top ? p->top : y;
}

static void put_steps(const panel *p, double (*value)(const column *c), bool is_area) {
  weir__svg *svg = &p->plot->svg;
  double width = p->plot->right - p->plot->left, last = 0;
  fprintf(svg->file, "M");
  weir__svg_number(svg, p->plot->left);
  fputc(' ', svg->file);
  if (is_area) {
    weir__svg_number(svg, p->bottom);
    fputc('V', svg->file);
  }
  for (size_t i = 0; i < p->sweep->count; i++) {
    double y = y_of(p, value(&p->sweep->columns[i]));
    if (i && y - last < 0.1 && last - y < 0.1)
      continue;
    if (i) {
      fputc('H', svg->file);
      weir__svg_number(svg, p->plot->left + width * (double)i / (double)p->sweep->count);
      fputc('V', svg->file);
    }
    weir__svg_number(svg, y);
    last = y;
  }
  fputc('H', svg->file);
  weir__svg_number(svg, p->plot->right);
  if (is_area) {
    fputc('V', svg->file);
    weir__svg_number(svg, p->bottom);
    fputc('z', svg->file);
  }
}

static uint64_t used_bytes(const column *c) { return c->used > 0 ? (uint64_t)c->used : 0; }
static uint64_t reserved_bytes(const column *c) { return c->reserved > 0 ? (uint64_t)c->reserved : 0; }
static double used_of(const column *c) { return (double)used_bytes(c); }
static double reserved_of(const column *c) { return (double)reserved_bytes(c); }
static double hole_of(const column *c) { return (double)c->hole; }
static double lost_of(const column *c) {
  return c->reserved > 0 && c->used < c->reserved ? 100 * (1 - used_of(c) / (double)c->reserved) : 0;
}

/* Names beside the lines with the values at the end, at least two lines of text apart. */
static void put_names(const panel *p, const column *last) {
  const weir__svg_colors *colors = p->plot->svg.colors;
  struct {
    const char *name, *color;
    uint64_t bytes;
    double y;
  } names[] = {{"reserved", colors->reserved, reserved_bytes(last), 0},
               {"in use", colors->series[0], used_bytes(last), 0},
               {"largest hole", colors->series[5], last->hole, 0}};
  enum { COUNT = 3, APART = 30 };
  for (size_t i = 0; i < COUNT; i++)
    names[i].y = y_of(p, (double)names[i].bytes);
  for (size_t i = 1; i < COUNT; i++) /* from the top down */
    for (size_t k = i; k > 0 && names[k].y < names[k - 1].y; k--) {
      __typeof__(names[0]) swapped = names[k];
      names[k] = names[k - 1];
      names[k - 1] = swapped;
    }
  for (size_t i = COUNT; i-- > 0;) {
    double limit = i + 1 < COUNT ? names[i + 1].y - APART : p->bottom - 12;
    names[i].y = names[i].y > limit ? limit : names[i].y;
  }
  for (size_t i = 0; i < COUNT; i++) {
    char text[32];
    weir__svg_text_colored(&p->plot->svg, p->plot->right + 8, names[i].y + 2, WEIR__SVG_START, "strong", names[i].color,
                           names[i].name);
    weir__svg_text(&p->plot->svg, p->plot->right + 8, names[i].y + 16, WEIR__SVG_START, "tick",
                   weir__format_bytes(names[i].bytes, text));
  }
}

static void draw_bytes(panel *p) {
  weir__svg *svg = &p->plot->svg;
  weir__plot_byte_axis(p->plot, p->top, p->bottom, (uint64_t)p->most);
  fprintf(svg->file, "<path class=\"used\" d=\"");
  put_steps(p, used_of, true);
  fprintf(svg->file, "\" style=\"fill:%s;fill-opacity:.75\"/>\n<path class=\"reserved\" d=\"", svg->colors->series[0]);
  put_steps(p, reserved_of, false);
  fprintf(svg->file, "\" stroke=\"%s\" stroke-width=\"1.8\"/>\n<path class=\"hole\" d=\"", svg->colors->reserved);
  put_steps(p, hole_of, false);
  fprintf(svg->file, "\" stroke=\"%s\" stroke-width=\"1.6\"/>\n", svg->colors->series[5]);
  put_names(p, &p->sweep->end);
}

static void draw_share(panel *p) {
  weir__svg *svg = &p->plot->svg;
  weir__plot *plot = p->plot;
  char text[160], bytes[2][32];
  for (int percent = 0; percent <= 100; percent += 50) {
    double y = y_of(p, percent);
    weir__svg_line(svg, plot->left, y, plot->right, y, percent ? svg->colors->grid : svg->colors->axis, "");
    snprintf(text, sizeof text, "%d %%", percent);
    weir__svg_text(svg, plot->left - 8, y + 4, WEIR__SVG_END, "tick", text);
  }
  fprintf(svg->file, "<path class=\"lost\" d=\"");
  put_steps(p, lost_of, true);
  fprintf(svg->file, "\" style=\"fill:%s;fill-opacity:.55\"/>\n", svg->colors->series[7]);
  bool is_narrow = plot->width < 800;
  weir__svg_text(svg, plot->left, p->top - 8, WEIR__SVG_START, "muted",
                 is_narrow ? "share not in use" : "share of the reserved memory that is not in use");
  double share = plot->summary.reserved.bytes && !plot->summary.is_unknown
                     ? 1 - (double)plot->summary.live.bytes / (double)plot->summary.reserved.bytes
                     : -1;
  if (share >= 0) {
    int length = snprintf(text, sizeof text, "at the peaks: %.1f %%", 100 * share);
    if (!is_narrow)
      snprintf(text + length, sizeof text - (size_t)length, " (%s in use, %s reserved)",
               weir__format_bytes(plot->summary.live.bytes, bytes[0]),
               weir__format_bytes(plot->summary.reserved.bytes, bytes[1]));
    weir__svg_text(svg, plot->right, p->top - 8, WEIR__SVG_END, "strong", text);
  }
}

weir_status weir__plot_fragmentation(weir__plot *plot) {
  double width = plot->right - plot->left, height = plot->bottom - plot->top;
  sweep s = {.plot = plot, .count = (size_t)width > 2000 ? 2000 : (size_t)width};
  s.columns = calloc(s.count, sizeof *s.columns);
  bool ok = s.columns != NULL;
  if (ok) {
    find_moments(&s);
    ok = find_holes(&s);
  }
  if (ok) {
    uint64_t most = plot->summary.reserved.bytes > plot->summary.live.bytes ? plot->summary.reserved.bytes
                                                                            : plot->summary.live.bytes;
    for (size_t i = 0; i < s.count && plot->summary.is_unknown; i++)
      most = s.columns[i].reserved > (int64_t)most ? (uint64_t)s.columns[i].reserved : most;
    double split = plot->top + (height < 300 ? height * 0.5 : height * 0.68);
    panel upper = {plot, &s, plot->top, split, (double)weir__plot_byte_top(most, split - plot->top)};
    panel lower = {plot, &s, split + (height < 300 ? 30 : 44), plot->bottom, 100};
    draw_bytes(&upper);
    draw_share(&lower);
    weir__plot_time_axis(plot, plot->top, plot->bottom);
    weir__plot_mark_ooms(plot, plot->top, split);
  }
  weir__rangemap_clear(&s.blocks);
  weir__rangemap_clear(&s.segments);
  free(s.columns);
  free(s.ended);
  free(s.segment_ends);
  return ok ? WEIR_OK : weir__plot_no_memory();
}
