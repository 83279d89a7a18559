#include <stdlib.h>

#include "base/base.h"
#include "offline/render/plot_parts.h"
#include "offline/render/view_parts.h"
#include "offline/replay/plan.h"

/* The moment of a column of pixels at which most memory is in use. */
typedef struct column {
  uint64_t used, reserved, hole;
  bool has_entry; /* otherwise it is the state before it */
} column;

typedef struct sweep {
  const weir__plot *plot;
  column *columns, now;
  size_t count, at;
} sweep;

static void note(void *context, size_t entry, const uint64_t now[WEIR__VIEW_COUNTERS], bool changed) {
  sweep *s = context;
  (void)changed;
  for (size_t to = weir__plot_column(s->plot, entry, s->count); s->at < to;)
    s->columns[++s->at] = s->now;
  s->now = (column){now[WEIR__VIEW_ALLOCATED], now[WEIR__VIEW_RESERVED], now[WEIR__VIEW_LARGEST_HOLE], false};
  column *c = &s->columns[s->at];
  if (!c->has_entry || s->now.used > c->used)
    *c = s->now;
  c->has_entry = true;
}

static weir_status find_columns(sweep *s) {
  static const weir__view_options no_options;
  const weir__plot *p = s->plot;
  weir__settings settings;
  weir__view view = {.recording = p->recording,
                     .device = p->device,
                     .options = &no_options,
                     .lives = p->lives,
                     .width = p->device->event_count};
  view.y = malloc((p->lives.block_count + 1) * sizeof *view.y);
  view.units = malloc((p->lives.block_count + 1) * sizeof *view.units);
  weir__plan_settings(p->recording, p->options->device, &settings);
  bool ok = view.y && view.units && weir__view_axis_make(&view.lives, &view.axis) &&
            weir__view_axis_place(&view.axis, &view.lives, &settings, view.y, view.units);
  weir_status status = ok ? weir__view_visit_counters(&view, note, s) : weir__plot_no_memory();
  while (!status && s->at + 1 < s->count)
    s->columns[++s->at] = s->now;
  weir__view_axis_clear(&view.axis);
  free(view.y);
  free(view.units);
  return status;
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

static double used_of(const column *c) { return (double)c->used; }
static double reserved_of(const column *c) { return (double)c->reserved; }
static double hole_of(const column *c) { return (double)c->hole; }
static double lost_of(const column *c) {
  return c->used < c->reserved ? 100 * (1 - used_of(c) / (double)c->reserved) : 0;
}

/* Names beside the lines with the values at the end, at least two lines of text apart. */
static void put_names(const panel *p, const column *last) {
  const weir__svg_colors *colors = p->plot->svg.colors;
  struct {
    const char *name, *color;
    uint64_t bytes;
    double y;
  } names[] = {{"reserved", colors->reserved, last->reserved, 0},
               {"in use", colors->series[0], last->used, 0},
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
  put_names(p, &p->sweep->now);
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
  weir_status status = s.columns ? find_columns(&s) : weir__plot_no_memory();
  if (!status) {
    uint64_t most = plot->summary.reserved.bytes > plot->summary.live.bytes ? plot->summary.reserved.bytes
                                                                            : plot->summary.live.bytes;
    for (size_t i = 0; i < s.count && plot->summary.is_unknown; i++)
      most = s.columns[i].reserved > most ? s.columns[i].reserved : most;
    double split = plot->top + (height < 300 ? height * 0.5 : height * 0.68);
    panel upper = {plot, &s, plot->top, split, (double)weir__plot_byte_top(most, split - plot->top)};
    panel lower = {plot, &s, split + (height < 300 ? 30 : 44), plot->bottom, 100};
    draw_bytes(&upper);
    draw_share(&lower);
    weir__plot_time_axis(plot, plot->top, plot->bottom);
    weir__plot_mark_ooms(plot, plot->top, split);
  }
  free(s.columns);
  return status;
}
