#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/render/plot_parts.h"

/* What a column of pixels shows: the moment of it at which most memory is in use. */
typedef struct column {
  int64_t bytes[WEIR__PLOT_GROUPS];
  int64_t total, reserved; /* reserved: the most of the column */
} column;

typedef struct sweep {
  column now, *columns;
  size_t count, at; /* columns; that of the last entry */
} sweep;

static void add(int64_t *to, uint64_t by) { *to = (int64_t)((uint64_t)*to + by); }

/* The state stays over columns without entries. */
static void go_to(sweep *s, size_t at) {
  while (s->at < at)
    s->columns[++s->at] = s->now;
}

static void note(sweep *s) {
  column *c = &s->columns[s->at];
  int64_t reserved = s->now.reserved > c->reserved ? s->now.reserved : c->reserved;
  if (s->now.total > c->total)
    *c = s->now;
  c->reserved = reserved;
}

static void change(const weir__plot *p, sweep *s, size_t life, bool is_freed) {
  uint64_t by = is_freed ? 0 - p->lives.blocks[life].size : p->lives.blocks[life].size;
  add(&s->now.bytes[p->group_of[life]], by);
  add(&s->now.total, by);
}

static bool sweep_all(const weir__plot *p, sweep *s) {
  const weir__lives *l = &p->lives;
  size_t life = 0;
  s->columns = calloc(s->count, sizeof *s->columns);
  if (!s->columns)
    return false;
  for (; life < l->block_count && l->blocks[life].is_before; life++)
    if (l->blocks[life].freed) /* 0: it only waited for other streams */
      change(p, s, life, false);
  s->now.reserved = (int64_t)p->summary.reserved_before;
  s->columns[0] = s->now;
  for (size_t i = 0; i < p->device->event_count; i++) {
    const weir__recording_entry *e = &p->device->events[i];
    go_to(s, weir__plot_column(p, i, s->count));
    for (; life < l->block_count && l->blocks[life].begin == i; life++)
      change(p, s, life, false);
    if (p->freed[i])
      change(p, s, p->freed[i] - 1, true);
    if (e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP)
      add(&s->now.reserved, e->size);
    else if (e->action == WEIR_TRACE_SEGMENT_FREE || e->action == WEIR_TRACE_SEGMENT_UNMAP)
      add(&s->now.reserved, 0 - e->size);
    note(s);
  }
  go_to(s, s->count - 1);
  return true;
}

/* What stays is drawn below what comes and goes: by the mean, relative to the most. */
static void order_groups(const weir__plot *p, const sweep *s, size_t order[WEIR__PLOT_GROUPS]) {
  double steady[WEIR__PLOT_GROUPS] = {0};
  for (size_t g = 0; g < p->group_count; g++) {
    double sum = 0, most = 1;
    for (size_t i = 0; i < s->count; i++) {
      double value = (double)s->columns[i].bytes[g];
      sum += value;
      most = value > most ? value : most;
    }
    steady[g] = sum / most;
    order[g] = g;
  }
  if (p->by == WEIR_OFFLINE_BY_CLASS) /* their order is from what stays to what changes */
    return;
  for (size_t i = 1; i < p->group_count; i++)
    for (size_t k = i; k > 0 && steady[order[k]] > steady[order[k - 1]]; k--) {
      size_t swapped = order[k];
      order[k] = order[k - 1];
      order[k - 1] = swapped;
    }
}

typedef struct scale {
  double left, width, bottom, height;
  double most;
  size_t count;
} scale;

static double y_of(const scale *s, double bytes) { return s->bottom - s->height * (bytes < 0 ? 0 : bytes) / s->most; }
static double x_of(const scale *s, size_t column) { return s->left + s->width * (double)column / (double)s->count; }

/* Steps along the columns, forwards or backwards. Changes below a tenth of a pixel are left out. */
static void put_steps(weir__svg *svg, const scale *s, const double *bytes, bool is_back) {
  double last = -1e9;
  for (size_t k = 0; k < s->count; k++) {
    size_t i = is_back ? s->count - 1 - k : k;
    double y = y_of(s, bytes[i]);
    if (k && y - last < 0.1 && last - y < 0.1)
      continue;
    if (k) {
      fputc('H', svg->file);
      weir__svg_number(svg, x_of(s, is_back ? i + 1 : i));
    }
    fputs(k || is_back ? "V" : "M", svg->file);
    if (!k && !is_back) {
      weir__svg_number(svg, x_of(s, 0));
      fputc(' ', svg->file);
    }
    weir__svg_number(svg, y);
    last = y;
  }
  fputc('H', svg->file);
  weir__svg_number(svg, x_of(s, is_back ? 0 : s->count));
}

/* A label in an area where it is high for long enough; in the legend otherwise. */
static void label_area(weir__plot *p, const scale *s, const double *from, const double *to,
                       const weir__plot_group *group) {
  char text[WEIR__PLOT_NAME];
  snprintf(text, sizeof text, "%s", group->name);
  char *brace = strstr(text, " (");
  if (brace)
    *brace = 0;
  double width = weir__svg_text_width(text) + 12;
  size_t columns = (size_t)(width / s->width * (double)s->count) + 1;
  if (columns > s->count)
    return;
  double best = 0, best_middle = 0;
  size_t best_at = 0, step = columns / 4 ? columns / 4 : 1;
  for (size_t i = 0; i + columns <= s->count; i += step) {
    double top = 0, bottom = 1e9; /* of what is inside everywhere, upside down */
    for (size_t k = i; k < i + columns; k++) {
      double low = s->bottom - y_of(s, from[k]), high = s->bottom - y_of(s, to[k]);
      top = low > top ? low : top;
      bottom = high < bottom ? high : bottom;
    }
    if (bottom - top > best) {
      best = bottom - top;
      best_at = i;
      best_middle = (top + bottom) / 2;
    }
  }
  if (best < 16)
    return;
  weir__svg_text_colored(&p->svg, (x_of(s, best_at) + x_of(s, best_at + columns)) / 2, s->bottom - best_middle + 4,
                         WEIR__SVG_MIDDLE, "strong", p->svg.colors->ink[group->color], text);
}

static void draw_areas(weir__plot *p, const scale *s, const sweep *w, double *from, double *to) {
  size_t order[WEIR__PLOT_GROUPS] = {0};
  order_groups(p, w, order);
  weir__svg *svg = &p->svg;
  fprintf(svg->file, "<g class=\"areas\">\n");
  for (size_t g = 0; g < p->group_count; g++) {
    bool is_any = false;
    for (size_t i = 0; i < s->count; i++) {
      double bytes = (double)w->columns[i].bytes[order[g]];
      to[i] = from[i] + (bytes > 0 ? bytes : 0);
      is_any |= bytes > 0;
    }
    if (is_any) {
      fputs("<path d=\"", svg->file);
      put_steps(svg, s, to, false);
      put_steps(svg, s, from, true);
      fprintf(svg->file, "Z\" style=\"fill:%s\"/>\n", svg->colors->series[p->groups[order[g]].color]);
    }
    memcpy(from, to, s->count * sizeof *from);
  }
  fputs("</g>\n", svg->file);
  memset(from, 0, s->count * sizeof *from);
  for (size_t g = 0; g < p->group_count; g++) {
    for (size_t i = 0; i < s->count; i++)
      to[i] = from[i] + (double)w->columns[i].bytes[order[g]];
    label_area(p, s, from, to, &p->groups[order[g]]);
    memcpy(from, to, s->count * sizeof *from);
  }
}

/* The line of reserved memory, with its name at the end. */
static void draw_reserved(weir__plot *p, const scale *s, const sweep *w, double *values) {
  weir__svg *svg = &p->svg;
  char bytes[32];
  for (size_t i = 0; i < s->count; i++)
    values[i] = (double)w->columns[i].reserved;
  fputs("<path class=\"reserved\" d=\"", svg->file);
  put_steps(svg, s, values, false);
  fprintf(svg->file, "\" stroke=\"%s\" stroke-width=\"1.8\"/>\n", svg->colors->reserved);
  double end = w->now.reserved > 0 ? (double)w->now.reserved : 0, y = y_of(s, end);
  weir__svg_text(svg, p->right + 8, y + 1, WEIR__SVG_START, "strong", "reserved");
  weir__svg_text(svg, p->right + 8, y + 15, WEIR__SVG_START, "tick", weir__format_bytes((uint64_t)end, bytes));
}

static void draw_peak(weir__plot *p, const scale *s) {
  char text[96], bytes[32];
  double x = s->left + s->width * weir__plot_x(p, p->summary.live.event), y = y_of(s, (double)p->summary.live.bytes);
  bool is_right = x > s->left + s->width * 0.7;
  fprintf(p->svg.file, "<g class=\"peak\" data-bytes=\"%llu\" data-entry=\"%zu\">\n<circle cx=\"",
          (unsigned long long)p->summary.live.bytes, p->summary.live.event);
  weir__svg_number(&p->svg, x);
  fputs("\" cy=\"", p->svg.file);
  weir__svg_number(&p->svg, y);
  fprintf(p->svg.file, "\" r=\"4\" fill=\"%s\" stroke=\"%s\" stroke-width=\"1.5\"/>\n", p->svg.colors->text,
          p->svg.colors->background);
  snprintf(text, sizeof text, "peak: %s in use", weir__format_bytes(p->summary.live.bytes, bytes));
  weir__svg_text(&p->svg, x + (is_right ? -9 : 9), y - 6, is_right ? WEIR__SVG_END : WEIR__SVG_START, "strong halo",
                 text);
  fputs("</g>\n", p->svg.file);
}

weir_status weir__plot_memory(weir__plot *plot) {
  static const char *const by[] = {[WEIR_OFFLINE_BY_STACK] = "by stack",
                                   [WEIR_OFFLINE_BY_CLASS] = "by class",
                                   [WEIR_OFFLINE_BY_SIZE] = "by size",
                                   [WEIR_OFFLINE_BY_STREAM] = "by stream",
                                   [WEIR_OFFLINE_BY_POOL] = "by pool"};
  char heading[96];
  weir__plot_reserve_legend(plot, plot->group_count);
  double width = plot->right - plot->left;
  sweep w = {.count = (size_t)width > 2000 ? 2000 : (size_t)width};
  double *values = calloc(2 * w.count + 2, sizeof *values);
  if (!values || !sweep_all(plot, &w)) {
    free(values);
    free(w.columns);
    return weir__plot_no_memory();
  }
  uint64_t most =
      plot->summary.live.bytes > plot->summary.reserved.bytes ? plot->summary.live.bytes : plot->summary.reserved.bytes;
  if (plot->summary.is_unknown) {
    most = 1;
    for (size_t i = 0; i < w.count; i++) {
      most = w.columns[i].total > (int64_t)most ? (uint64_t)w.columns[i].total : most;
      most = w.columns[i].reserved > (int64_t)most ? (uint64_t)w.columns[i].reserved : most;
    }
  }
  most = weir__plot_byte_top(most, plot->bottom - plot->top);
  scale s = {.left = plot->left,
             .width = width,
             .bottom = plot->bottom,
             .height = plot->bottom - plot->top,
             .most = (double)most,
             .count = w.count};
  weir__plot_byte_axis(plot, plot->top, plot->bottom, most);
  draw_areas(plot, &s, &w, values, values + w.count);
  weir__plot_time_axis(plot, plot->top, plot->bottom);
  draw_reserved(plot, &s, &w, values);
  weir__plot_mark_ooms(plot, plot->top, plot->bottom);
  if (!plot->summary.is_unknown)
    draw_peak(plot, &s);
  snprintf(heading, sizeof heading, "In use at the peak %s, as requested", by[plot->by]);
  weir__plot_legend(plot, heading);
  free(values);
  free(w.columns);
  return WEIR_OK;
}
