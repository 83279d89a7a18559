#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/hash_map.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/moment.h"
#include "offline/render/plot_parts.h"

enum { LEFT = 78, RIGHT = 104, TOP = 78, BOTTOM = 56, LEGEND_ROW = 19, LINE_HEIGHT = 44 };

/* ---- Time ---- */

/* An entry without a time has that of the one before. Times do not run back. */
static bool find_x(weir__plot *p) {
  size_t count = p->device->event_count;
  double span = (double)(p->summary.last_us - p->summary.first_us);
  p->x = malloc((count + 1) * sizeof *p->x);
  float last = 0;
  for (size_t i = 0; i < count && p->x; i++) {
    int64_t time = p->device->events[i].time_us;
    float x = p->has_times && time ? (float)((double)(time - p->summary.first_us) / span) : last;
    if (!p->has_times)
      x = (float)((double)i / (double)count);
    last = x > last ? x < 1 ? x : 1 : last;
    p->x[i] = last;
  }
  return p->x != NULL;
}

/* ---- Groups ---- */

typedef struct sum {
  uint64_t key; /* + 1 */
  uint64_t bytes;
  size_t count;
  size_t group; /* + 1 once it is chosen */
} sum;

static uint64_t key_of(const weir__plot *p, const uint32_t *alike, size_t life) {
  const weir__life *l = &p->lives.blocks[life];
  switch (p->by) {
  case WEIR_OFFLINE_BY_STACK:
    return l->stack < p->recording->stack_count ? alike[l->stack] : 0;
  case WEIR_OFFLINE_BY_CLASS:
    return p->classes.of[life];
  case WEIR_OFFLINE_BY_STREAM:
    return l->stream;
  case WEIR_OFFLINE_BY_POOL:
    return l->pool;
  default:
    if (p->has_ranges)
      return weir__size_class(l->size);
    return l->size == UINT64_MAX ? 0 : l->size;
  }
}

static void name_group(const weir__plot *p, uint64_t key, weir__plot_group *group) {
  char text[WEIR__DESCRIBE_TEXT];
  switch (p->by) {
  case WEIR_OFFLINE_BY_STACK:
    snprintf(group->name, sizeof group->name, "%s",
             key ? weir__describe_stack(p->recording, (uint32_t)key, text) : "no stack recorded");
    break;
  case WEIR_OFFLINE_BY_CLASS:
    snprintf(group->name, sizeof group->name, "%s", weir__class_name((weir__class)key));
    break;
  case WEIR_OFFLINE_BY_STREAM:
    snprintf(group->name, sizeof group->name, "%s", weir__describe_stream(p->recording, (uint16_t)key, text));
    break;
  case WEIR_OFFLINE_BY_POOL:
    snprintf(group->name, sizeof group->name, "%s", weir__describe_pool(p->recording, (uint32_t)key, text));
    break;
  default:
    if (p->has_ranges)
      snprintf(group->name, sizeof group->name, "blocks of %s", weir__describe_size_class(key, text));
    else
      snprintf(group->name, sizeof group->name, "blocks of %s", weir__format_bytes(key, text));
    break;
  }
}

static int by_bytes(const void *a, const void *b) {
  const sum *x = *(const sum *const *)a, *y = *(const sum *const *)b;
  return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes) : (x->key > y->key) - (x->key < y->key);
}

/* Classes have fixed colours, and an order from what stays to what changes. */
static const int class_order[WEIR__CLASSES] = {
    [WEIR__CLASS_WEIGHTS] = 0,     [WEIR__CLASS_OPTIMIZER] = 1, [WEIR__CLASS_GRADIENTS] = 2,
    [WEIR__CLASS_ACTIVATIONS] = 3, [WEIR__CLASS_TEMPORARY] = 4, [WEIR__CLASS_UNKNOWN] = 5};
static const int class_color[WEIR__CLASSES] = {
    [WEIR__CLASS_WEIGHTS] = 0,     [WEIR__CLASS_OPTIMIZER] = 4, [WEIR__CLASS_GRADIENTS] = 5,
    [WEIR__CLASS_ACTIVATIONS] = 2, [WEIR__CLASS_TEMPORARY] = 1, [WEIR__CLASS_UNKNOWN] = 7};

static int by_class(const void *a, const void *b) {
  return class_order[(*(const sum *const *)a)->key - 1] - class_order[(*(const sum *const *)b)->key - 1];
}

/* The largest get a group each, and the rest share the last one. */
static bool take_groups(weir__plot *p, const weir__hash_map *map, const uint32_t *alike) {
  size_t count = 0, next = 0;
  sum **sorted = malloc((map->count + 1) * sizeof *sorted);
  if (!sorted)
    return false;
  for (sum *s; (s = weir__hash_map_next(map, sizeof *s, &next));)
    sorted[count++] = s;
  qsort(sorted, count, sizeof *sorted, p->by == WEIR_OFFLINE_BY_CLASS ? by_class : by_bytes);
  size_t own = count;
  while (own > 0 && !sorted[own - 1]->bytes && p->by != WEIR_OFFLINE_BY_CLASS) /* not in use then */
    own--;
  own = count <= WEIR__PLOT_GROUPS && own == count ? count : own < WEIR__PLOT_GROUPS ? own : WEIR__PLOT_GROUPS - 1;
  for (size_t i = 0; i < count; i++) {
    size_t number = i < own ? i : own;
    weir__plot_group *group = &p->groups[number];
    if (i < own) {
      name_group(p, sorted[i]->key - 1, group);
      group->color = p->by == WEIR_OFFLINE_BY_CLASS ? class_color[sorted[i]->key - 1] : (int)number;
    }
    group->bytes += sorted[i]->bytes;
    group->count += sorted[i]->count;
    sorted[i]->group = number + 1;
  }
  p->group_count = count > own ? own + 1 : own;
  if (count > own) {
    static const char *const others[] = {[WEIR_OFFLINE_BY_STACK] = "stacks",
                                         [WEIR_OFFLINE_BY_SIZE] = "sizes",
                                         [WEIR_OFFLINE_BY_STREAM] = "streams",
                                         [WEIR_OFFLINE_BY_POOL] = "pools",
                                         [WEIR_OFFLINE_BY_CLASS] = "classes"};
    snprintf(p->groups[own].name, WEIR__PLOT_NAME, "%zu other %s", count - own, others[p->by]);
    p->groups[own].color = WEIR__SVG_SERIES - 1;
  }
  for (size_t i = 0; i < p->lives.block_count; i++) {
    const sum *s = weir__hash_map_find(map, sizeof *s, key_of(p, alike, i) + 1);
    p->group_of[i] = (uint8_t)(s ? s->group - 1 : 0);
  }
  free(sorted);
  return true;
}

static weir_status group_blocks(weir__plot *plot, const uint32_t *alike) {
  weir__hash_map map = {0};
  memset(plot->groups, 0, sizeof plot->groups);
  free(plot->group_of);
  plot->group_of = calloc(plot->lives.block_count + 1, 1);
  bool ok = plot->group_of != NULL;
  for (size_t i = 0; i < plot->lives.block_count && ok; i++) {
    sum *s = weir__hash_map_put(&map, sizeof *s, key_of(plot, alike, i) + 1);
    ok = s != NULL;
    if (ok && weir__life_spans(&plot->lives.blocks[i], plot->moment)) {
      s->bytes += plot->lives.blocks[i].size;
      s->count++;
    }
  }
  ok = ok && take_groups(plot, &map, alike);
  weir__hash_map_clear(&map);
  return ok ? WEIR_OK : weir__plot_no_memory();
}

/* Chooses the groups by what is in use after plot->moment. */
static weir_status choose_groups(weir__plot *plot) {
  uint32_t *alike = NULL;
  plot->by = plot->options->by;
  if (plot->by == WEIR_OFFLINE_BY_AUTO)
    plot->by = plot->summary.has_stacks ? WEIR_OFFLINE_BY_STACK
               : plot->classes.is_known ? WEIR_OFFLINE_BY_CLASS
                                        : WEIR_OFFLINE_BY_SIZE;
  weir_status status = weir__describe_alike(plot->recording, &alike);
  if (!status)
    status = group_blocks(plot, alike);
  const weir__plot_group *last = plot->group_count ? &plot->groups[plot->group_count - 1] : NULL;
  uint64_t all = 0;
  for (size_t i = 0; i < plot->group_count; i++)
    all += plot->groups[i].bytes;
  /* Many sizes, of which the largest groups are a small part. */
  if (!status && plot->by == WEIR_OFFLINE_BY_SIZE && plot->group_count == WEIR__PLOT_GROUPS &&
      last->bytes > all / 5 * 2) {
    plot->has_ranges = true;
    status = group_blocks(plot, alike);
  }
  free(alike);
  return status;
}

/* ---- The legend ---- */

static size_t legend_columns(const weir__plot *p) {
  return p->by == WEIR_OFFLINE_BY_STACK || p->width < 800 ? 2 : p->width < 1100 ? 3 : 4;
}

/* A low picture has room for the largest groups only. */
static size_t legend_rows(const weir__plot *p, size_t count) {
  size_t columns = legend_columns(p), rows = (count + columns - 1) / columns;
  return p->height < 420 && rows > 2 ? 2 : rows;
}

void weir__plot_reserve_legend(weir__plot *plot, size_t count) {
  plot->bottom -= 26 + (double)(legend_rows(plot, count) * LEGEND_ROW);
}

void weir__plot_legend(weir__plot *plot, const char *heading) {
  weir__svg *svg = &plot->svg;
  size_t columns = legend_columns(plot), rows = legend_rows(plot, plot->group_count);
  double wide = (plot->width - 24 - plot->left) / (double)columns;
  double top = plot->height - 14 - (double)rows * LEGEND_ROW;
  char bytes[32], text[WEIR__PLOT_NAME + 64];
  weir__svg_text(svg, plot->left, top - 8, WEIR__SVG_START, "muted", heading);
  for (size_t i = 0; i < plot->group_count && i < rows * columns; i++) {
    const weir__plot_group *g = &plot->groups[i];
    size_t column = i / rows, row = i % rows;
    double x = plot->left + (double)column * wide, y = top + (double)row * LEGEND_ROW;
    weir__svg_rect(svg, x, y + 2, 12, 12, svg->colors->series[g->color], "rx=\"2\"");
    snprintf(text, sizeof text, "%s  %s", weir__format_bytes(g->bytes, bytes), g->name);
    weir__svg_text_within(svg, x + 18, y + 12, wide - 30, "label", text);
  }
}

/* ---- Axes ---- */

/* The distance of lines: 1, 2 or 5 times a power of ten of the unit, so that there are at most `most` of them. */
static double nice_step(double range, double most) {
  double step = 1;
  while (range / step > most)
    step *= 10;
  while (range / (step / 10) <= most)
    step /= 10;
  if (range / (step / 5) <= most)
    return step / 5;
  return range / (step / 2) <= most ? step / 2 : step;
}

static double byte_unit(uint64_t most, const char **name) {
  static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double unit = 1;
  size_t i = 0;
  for (; i + 1 < sizeof names / sizeof *names && (double)most >= unit * 1024; i++)
    unit *= 1024;
  *name = names[i];
  return unit;
}

static double byte_step(uint64_t most, double height, double *unit, const char **name) {
  double lines = height / LINE_HEIGHT < 2 ? 2 : height / LINE_HEIGHT;
  *unit = byte_unit(most, name);
  double step = nice_step((double)most / *unit, lines);
  return *unit <= 1 && step < 1 ? 1 : step;
}

uint64_t weir__plot_byte_top(uint64_t most, double height) {
  const char *name;
  double unit, step = byte_step(most ? most : 1, height, &unit, &name), top = 0;
  while (top * unit < (most ? (double)most * 1.04 : 1)) /* the axis of nothing has a length, too */
    top += step;
  return top * unit < 1.8e19 ? (uint64_t)(top * unit) : UINT64_MAX;
}

static void put_tick(char text[48], double value, double step, const char *unit) {
  int decimals = step >= 1 ? 0 : step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3;
  snprintf(text, 48, "%.*f%s%s", decimals, value, *unit ? " " : "", unit);
}

void weir__plot_byte_axis(weir__plot *plot, double top, double bottom, uint64_t most) {
  const char *name;
  char text[48];
  /* The top is up to one line higher than what it was chosen for. */
  double unit, step = byte_step(most ? most : 1, bottom - top + LINE_HEIGHT, &unit, &name);
  for (int i = 0; i * step * unit <= (double)most * 1.0001; i++) {
    double value = i * step;
    double y = bottom - (bottom - top) * (most ? value * unit / (double)most : 0);
    weir__svg_line(&plot->svg, plot->left, y, plot->right, y,
                   value > 0 ? plot->svg.colors->grid : plot->svg.colors->axis, "");
    put_tick(text, value, step, value > 0 ? name : "");
    weir__svg_text(&plot->svg, plot->left - 8, y + 4, WEIR__SVG_END, "tick", text);
  }
}

static double time_unit(double seconds, const char **name) {
  if (seconds >= 7200) {
    *name = "h";
    return 3600;
  }
  *name = seconds >= 180 ? "min" : seconds >= 0.5 ? "s" : seconds >= 0.0005 ? "ms" : "us";
  return seconds >= 180 ? 60 : seconds >= 0.5 ? 1 : seconds >= 0.0005 ? 1e-3 : 1e-6;
}

void weir__plot_time_axis(weir__plot *plot, double top, double bottom) {
  const char *name = "";
  char text[96], label[64];
  double width = plot->right - plot->left, lines = width / 90 < 2 ? 2 : width / 90;
  double range = (double)plot->device->event_count, unit = 1;
  if (plot->has_times) {
    range = (double)(plot->summary.last_us - plot->summary.first_us) * 1e-6;
    unit = time_unit(range, &name);
  }
  double step = nice_step(range / unit, lines);
  if (!plot->has_times && step < 1)
    step = 1;
  for (int i = 0; i * step * unit <= range * 1.0001; i++) {
    double value = i * step;
    double x = plot->left + width * (value * unit / range);
    weir__svg_line(&plot->svg, x, bottom, x, bottom + 5, plot->svg.colors->axis, "");
    put_tick(text, value, step, "");
    weir__svg_text(&plot->svg, x, bottom + 18, WEIR__SVG_MIDDLE, "tick", text);
  }
  snprintf(label, sizeof label, "time since the first entry (%s)", name);
  weir__svg_text(&plot->svg, plot->left + width / 2, bottom + 36, WEIR__SVG_MIDDLE, "muted",
                 plot->has_times ? label : "entries of the history");
  (void)top;
}

void weir__plot_mark_ooms(weir__plot *plot, double top, double bottom) {
  enum { MAX = 40 };
  size_t marked = 0, all = plot->summary.actions[WEIR_TRACE_OOM];
  double last = -1;
  char text[96], bytes[32];
  for (size_t i = plot->summary.first_oom; all && i < plot->device->event_count; i++) {
    if (plot->device->events[i].action != WEIR_TRACE_OOM)
      continue;
    double x = plot->left + (plot->right - plot->left) * weir__plot_x(plot, i);
    if (x - last < 1 || marked == MAX)
      continue;
    last = x;
    weir__svg_line(&plot->svg, x, top, x, bottom, plot->svg.colors->alarm, "stroke-width=\"1.4\" class=\"oom\"");
    if (!marked++) {
      bool is_right = x > (plot->left + plot->right) / 2;
      snprintf(text, sizeof text, "out of memory%s: %s requested", all > 1 ? " (first)" : "",
               weir__format_bytes(plot->device->events[i].size, bytes));
      weir__svg_text(&plot->svg, x + (is_right ? -6 : 6), top + 12, is_right ? WEIR__SVG_END : WEIR__SVG_START,
                     "alarm halo", text);
    }
  }
}

/* ---- The document ---- */

static const char *const titles[] = {[WEIR_OFFLINE_PLOT_MEMORY] = "GPU memory over time",
                                     [WEIR_OFFLINE_PLOT_SEGMENTS] = "Map of segments",
                                     [WEIR_OFFLINE_PLOT_TRACE] = "Blocks over time and addresses",
                                     [WEIR_OFFLINE_PLOT_FRAGMENTATION] = "Fragmentation over time"};
static const char *const kind_names[] = {
#define X(name, text, help) text,
    WEIR__PLOT_KIND_MAP(X)
#undef X
};

/* 14531 as "14,531". */
static const char *grouped(size_t number, char text[32]) {
  char digits[32];
  int length = snprintf(digits, sizeof digits, "%zu", number), at = 0;
  for (int i = 0; i < length; i++) {
    if (i && (length - i) % 3 == 0)
      text[at++] = ',';
    text[at++] = digits[i];
  }
  text[at] = 0;
  return text;
}

static void put_subtitle(weir__plot *p) {
  char text[1200], number[32], span[32], moment[64] = "";
  const char *name = p->options->name ? p->options->name : "", *slash = strrchr(name, '/');
  const weir__summary *s = &p->summary;
  name = slash && slash[1] ? slash + 1 : name;
  int length = snprintf(text, sizeof text, "%.300s%sdevice %d · %s entries", name, *name ? " · " : "",
                        p->options->device, grouped(p->device->event_count, number));
  if (s->first_us && s->last_us > s->first_us)
    length += snprintf(text + length, sizeof text - (size_t)length, " in %s",
                       weir__describe_span(s->last_us - s->first_us, span));
  if (p->options->kind == WEIR_OFFLINE_PLOT_SEGMENTS)
    length += snprintf(text + length, sizeof text - (size_t)length, " · at %s",
                       weir__moment_describe(s, p->options->moment, p->moment, moment));
  if (p->options->kind == WEIR_OFFLINE_PLOT_SEGMENTS && p->moment < p->device->event_count &&
      p->device->events[p->moment].action == WEIR_TRACE_OOM)
    length += snprintf(text + length, sizeof text - (size_t)length, " (%s)",
                       weir__format_bytes(p->device->events[p->moment].size, span));
  length += snprintf(text + length, sizeof text - (size_t)length, " · settings: %.300s",
                     p->recording->conf && *p->recording->conf ? p->recording->conf
                     : p->recording->setting_count             ? "defaults"
                                                               : "not recorded");
  if (s->is_unknown)
    snprintf(text + length, sizeof text - (size_t)length, " · memory from before the recording is not known");
  weir__svg_text_within(&p->svg, 24, 54, p->width - 48, "muted", text);
}

static void begin(weir__plot *p) {
  const weir__svg_colors *c = p->svg.colors;
  FILE *f = p->svg.file;
  const weir__plot_options *o = p->options;
  char peak[32], reserved[32];
  fprintf(f,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" "
          "data-kind=\"%s\" data-device=\"%d\" data-entries=\"%zu\"",
          (int)p->width, (int)p->height, (int)p->width, (int)p->height, kind_names[o->kind], o->device,
          p->device->event_count);
  if (!p->summary.is_unknown && p->device->event_count)
    fprintf(f, " data-peak-allocated=\"%llu\" data-peak-reserved=\"%llu\"", (unsigned long long)p->summary.live.bytes,
            (unsigned long long)p->summary.reserved.bytes);
  fprintf(f, " data-ooms=\"%zu\">\n<title>", p->summary.actions[WEIR_TRACE_OOM]);
  weir__svg_escaped(&p->svg, o->title ? o->title : titles[o->kind], 0);
  fprintf(f, "</title>\n<desc>");
  if (p->device->event_count)
    fprintf(f, "Peak: %s in use, %s reserved. ", weir__format_bytes(p->summary.live.bytes, peak),
            weir__format_bytes(p->summary.reserved.bytes, reserved));
  fprintf(f,
          "Written by weir plot.</desc>\n<style>text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,"
          "sans-serif;font-size:12px;fill:%s}.title{font-size:20px;font-weight:600}.muted{fill:%s}.tick{fill:%s;"
          "font-variant-numeric:tabular-nums}.strong{font-weight:600}.alarm{fill:%s;font-weight:600}"
          ".halo{paint-order:stroke;stroke:%s;stroke-width:3px;stroke-linejoin:round}path{fill:none}"
          ".cells path,.cells rect{shape-rendering:crispEdges}</style>\n",
          c->text, c->muted, c->muted, c->alarm, c->background);
  weir__svg_rect(&p->svg, 0, 0, p->width, p->height, c->background, "");
  weir__svg_text_within(&p->svg, 24, 34, (p->width - 48) * 0.6, "title", o->title ? o->title : titles[o->kind]);
  put_subtitle(p);
}

static void end(weir__plot *p) { fputs("</svg>\n", p->svg.file); }

static weir_status prepare(weir__plot *p) {
  const weir__plot_options *o = p->options;
  weir_status status = weir__summarize(p->recording, o->device, &p->summary);
  if (!status)
    status = weir__lives_make(p->recording, o->device, &p->lives);
  if (!status)
    status = weir__classes_make(p->recording, o->device, &p->lives, &p->classes);
  if (status)
    return status;
  if (!p->device->event_count && (o->kind != WEIR_OFFLINE_PLOT_SEGMENTS || !p->device->segment_count))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "device %d has no %s in this recording", o->device,
                      p->device->segment_count ? "history; --kind segments shows its end" : "history and no segments");
  p->moment = p->summary.live.event;
  if (o->kind == WEIR_OFFLINE_PLOT_SEGMENTS) {
    status = weir__moment_find(p->recording, o->device, &p->summary, o->moment, o->event, &p->moment);
    if (status)
      return status;
  }
  p->has_times =
      p->summary.first_us && p->summary.last_us > p->summary.first_us &&
      (o->axis == WEIR__PLOT_AXIS_TIME || (o->axis == WEIR__PLOT_AXIS_AUTO && o->kind != WEIR_OFFLINE_PLOT_TRACE));
  p->freed = calloc(p->device->event_count + 1, sizeof *p->freed);
  if (!p->freed || !find_x(p))
    return weir__plot_no_memory();
  for (size_t i = 0; i < p->lives.block_count; i++)
    if (p->lives.blocks[i].freed < p->device->event_count)
      p->freed[p->lives.blocks[i].freed] = (uint32_t)i + 1;
  return choose_groups(p);
}

weir_status weir__plot_write(const weir__recording *recording, const weir__plot_options *options, FILE *file) {
  static weir_status (*const kinds[])(weir__plot *) = {[WEIR_OFFLINE_PLOT_MEMORY] = weir__plot_memory,
                                                       [WEIR_OFFLINE_PLOT_SEGMENTS] = weir__plot_segments,
                                                       [WEIR_OFFLINE_PLOT_TRACE] = weir__plot_trace,
                                                       [WEIR_OFFLINE_PLOT_FRAGMENTATION] = weir__plot_fragmentation};
  weir__plot p = {.recording = recording,
                  .device = &recording->devices[options->device],
                  .options = options,
                  .width = options->width ? options->width : WEIR__PLOT_WIDTH,
                  .height = options->height ? options->height : WEIR__PLOT_HEIGHT,
                  .svg = {.file = file, .colors = weir__svg_colors_of(options->is_dark)}};
  p.left = LEFT;
  p.top = TOP;
  p.right = p.width - RIGHT;
  p.bottom = p.height - BOTTOM;
  weir_status status = prepare(&p);
  if (!status) {
    begin(&p);
    status = kinds[options->kind](&p);
    end(&p);
  }
  weir__lives_clear(&p.lives);
  weir__classes_clear(&p.classes);
  free(p.freed);
  free(p.x);
  free(p.group_of);
  return status;
}
