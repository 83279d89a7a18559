#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "offline/analyse/describe.h"
#include "offline/render/plot_parts.h"

/* Rows and gaps in pixels; at most so many rectangles are drawn, and labels written. */
enum { UNIT = 512, ROW_GAP = 5, HEADING = 24, MIN_ROW = 9, MAX_ROW = 34, MAX_ROWS = 26, MAX_BOXES = 9000 };

/* A segment that is there at the moment, and where it is drawn: behind the others of its arena. */
typedef struct segment {
  const weir__segment_life *life;
  uint64_t at;
} segment;

/* Segments of one pool and stream. */
typedef struct arena {
  size_t first, count; /* segments */
  uint64_t bytes, used, largest;
  double y; /* of its first row */
} arena;

typedef struct map {
  weir__plot *plot;
  segment *segments;
  size_t count;
  arena *arenas;
  size_t arena_count;
  const weir__life **blocks; /* that are there, by address */
  size_t block_count;
  uint64_t per_row; /* bytes */
  double row, width;
  bool has_headings;
} map;

static bool is_there(const weir__plot *p, uint32_t begin, uint32_t end, bool is_before) {
  if (!p->device->event_count)
    return end == WEIR__LIFE_OPEN;
  return (is_before || begin <= p->moment) && end > p->moment;
}

static int by_arena(const void *a, const void *b) {
  const weir__segment_life *x = ((const segment *)a)->life, *y = ((const segment *)b)->life;
  if (x->pool != y->pool)
    return (x->pool > y->pool) - (x->pool < y->pool);
  if (x->stream != y->stream)
    return (x->stream > y->stream) - (x->stream < y->stream);
  return (x->address > y->address) - (x->address < y->address);
}

static int by_address(const void *a, const void *b) {
  const weir__life *x = *(const weir__life *const *)a, *y = *(const weir__life *const *)b;
  return (x->address > y->address) - (x->address < y->address);
}

/* Sizes in a damaged recording may be any. */
static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

static uint64_t rows_of(const map *m, const arena *a) { return a->bytes / m->per_row + (a->bytes % m->per_row != 0); }

static bool collect(map *m) {
  const weir__lives *l = &m->plot->lives;
  m->segments = malloc((l->segment_count + 1) * sizeof *m->segments);
  size_t room = 0;
  for (size_t i = 0; i < l->block_count; i++)
    room += is_there(m->plot, l->blocks[i].begin, l->blocks[i].end, l->blocks[i].is_before);
  m->blocks = malloc((room + 1) * sizeof *m->blocks);
  if (!m->segments || !m->blocks)
    return false;
  for (size_t i = 0; i < l->segment_count; i++)
    if (is_there(m->plot, l->segments[i].begin, l->segments[i].end, l->segments[i].is_before))
      m->segments[m->count++] = (segment){.life = &l->segments[i]};
  for (size_t i = 0; i < l->block_count; i++)
    if (is_there(m->plot, l->blocks[i].begin, l->blocks[i].end, l->blocks[i].is_before))
      m->blocks[m->block_count++] = &l->blocks[i];
  if (m->count)
    qsort(m->segments, m->count, sizeof *m->segments, by_arena);
  qsort(m->blocks, m->block_count, sizeof *m->blocks, by_address);
  return true;
}

/* The first block at or after an address. */
static size_t block_at(const map *m, uint64_t address) {
  size_t low = 0, high = m->block_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (m->blocks[middle]->address < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static uint64_t size_of(const map *m, size_t block, uint64_t end) {
  const weir__life *l = m->blocks[block];
  uint64_t size = weir__round_up(l->size ? l->size : 1, UNIT);
  if (block + 1 < m->block_count && m->blocks[block + 1]->address - l->address < size)
    size = m->blocks[block + 1]->address - l->address;
  return l->address + size > end ? end - l->address : size;
}

static bool find_arenas(map *m) {
  m->arenas = calloc(m->count + 1, sizeof *m->arenas);
  if (!m->arenas)
    return false;
  arena *a = NULL;
  for (size_t i = 0; i < m->count; i++) {
    const weir__segment_life *s = m->segments[i].life, *before = i ? m->segments[i - 1].life : NULL;
    if (!before || before->pool != s->pool || before->stream != s->stream) {
      a = &m->arenas[m->arena_count++];
      a->first = i;
    }
    m->segments[i].at = a->bytes;
    a->bytes = add(a->bytes, s->size);
    a->count++;
    uint64_t end = s->address + s->size, free_from = s->address;
    for (size_t k = block_at(m, s->address); k < m->block_count && m->blocks[k]->address < end; k++) {
      uint64_t hole = m->blocks[k]->address - free_from;
      a->largest = m->blocks[k]->address > free_from && hole > a->largest ? hole : a->largest;
      a->used += m->blocks[k]->size;
      free_from = m->blocks[k]->address + size_of(m, k, end);
    }
    a->largest = end - free_from > a->largest ? end - free_from : a->largest;
  }
  return true;
}

/* Finds how much a row shows, so that all arenas fit. */
static void find_rows(map *m) {
  double height = m->plot->bottom - m->plot->top;
  uint64_t all = 0;
  m->has_headings = (double)m->arena_count * (HEADING + MIN_ROW + ROW_GAP) < height * 0.8;
  for (size_t i = 0; i < m->arena_count; i++)
    all = add(all, m->arenas[i].bytes);
  double room = height - (m->has_headings ? (double)m->arena_count * HEADING : 0);
  size_t rows = (size_t)(room / (14 + ROW_GAP));
  rows = rows > MAX_ROWS ? MAX_ROWS : rows ? rows : 1;
  rows = rows < m->arena_count ? m->arena_count : rows;
  m->per_row = all / rows + 1;
  for (;;) {
    size_t needed = 0;
    for (size_t i = 0; i < m->arena_count; i++)
      needed += (size_t)rows_of(m, &m->arenas[i]);
    if (needed <= rows || m->per_row > all / 2) {
      rows = needed;
      break;
    }
    m->per_row += m->per_row / 50 + 1;
  }
  m->row = room / (double)(rows ? rows : 1) - ROW_GAP;
  m->row = m->row > MAX_ROW ? MAX_ROW : m->row < 1 ? 1 : m->row;
  double y = m->plot->top;
  for (size_t i = 0; i < m->arena_count; i++) {
    y += m->has_headings ? HEADING : 0;
    m->arenas[i].y = y;
    y += (double)rows_of(m, &m->arenas[i]) * (m->row + ROW_GAP);
  }
}

/* ---- Drawing ---- */

typedef void (*piece)(map *m, double x, double y, double width, void *context);

/* Calls `draw` for the part of a range in each row. */
static void for_each_row(map *m, const arena *a, uint64_t at, uint64_t size, piece draw, void *context) {
  while (size) {
    uint64_t row = at / m->per_row, from = at % m->per_row, part = m->per_row - from;
    part = part < size ? part : size;
    draw(m, m->plot->left + m->width * (double)from / (double)m->per_row, a->y + (double)row * (m->row + ROW_GAP),
         m->width * (double)part / (double)m->per_row, context);
    at += part;
    size -= part;
  }
}

static void draw_box(map *m, double x, double y, double width, void *context) {
  (void)context;
  weir__svg_box(&m->plot->svg, x, y, width > 3 ? width - 0.5 : width, m->row);
}

static void draw_segments(map *m) {
  weir__svg *svg = &m->plot->svg;
  fputs("<path class=\"segments\" d=\"", svg->file);
  for (size_t i = 0; i < m->arena_count; i++) {
    const arena *a = &m->arenas[i];
    double small = (double)m->per_row / m->width; /* bytes of a pixel */
    for (size_t k = a->first; k < a->first + a->count;) {
      uint64_t at = m->segments[k].at, size = 0; /* what is smaller than three pixels is merged */
      do
        size += m->segments[k++].life->size;
      while (k < a->first + a->count && (double)size < 3 * small && (double)m->segments[k].life->size < 3 * small);
      for_each_row(m, a, at, size, draw_box, NULL);
    }
  }
  fprintf(svg->file, "\" style=\"fill:%s\" stroke=\"%s\" stroke-width=\".5\"/>\n", svg->colors->free,
          svg->colors->axis);
}

/* A block, or several that are smaller than `least` together. */
typedef struct drawn {
  uint64_t at, size;
  size_t arena;
  const weir__life *block; /* NULL if they are several */
  uint8_t group;
  bool is_pending;
} drawn;

typedef struct drawns {
  drawn *items;
  size_t count, room;
} drawns;

static bool add_drawn(drawns *d, const drawn *next, uint64_t least) {
  drawn *last = d->count ? &d->items[d->count - 1] : NULL;
  /* Small neighbours are drawn as one, in the colour of the larger. */
  if (last && last->arena == next->arena && last->size < least && next->size < least &&
      next->at - (last->at + last->size) < least / 2) {
    last->group = next->size > last->size ? next->group : last->group;
    last->size = next->at + next->size - last->at;
    last->block = NULL;
    return true;
  }
  if (!WEIR__RESERVE(d->items, d->room, d->count + 1) || !d->items)
    return false;
  d->items[d->count++] = *next;
  return true;
}

static bool find_drawn(map *m, uint64_t least, drawns *d) {
  d->count = 0;
  for (size_t i = 0; i < m->arena_count; i++)
    for (size_t k = m->arenas[i].first; k < m->arenas[i].first + m->arenas[i].count; k++) {
      const weir__segment_life *s = m->segments[k].life;
      uint64_t end = s->address + s->size;
      for (size_t b = block_at(m, s->address); b < m->block_count && m->blocks[b]->address < end; b++) {
        const weir__life *l = m->blocks[b];
        drawn next = {.at = m->segments[k].at + (l->address - s->address),
                      .size = size_of(m, b, end),
                      .arena = i,
                      .block = l,
                      .group = m->plot->group_of[l - m->plot->lives.blocks],
                      .is_pending = m->plot->device->event_count && l->freed <= m->plot->moment};
        if (!add_drawn(d, &next, least))
          return false;
      }
    }
  return true;
}

typedef struct label {
  const char *text, *color;
  bool is_done;
} label;

/* In the first row that has room for it. */
static void draw_label(map *m, double x, double y, double width, void *context) {
  label *l = context;
  if (l->is_done || width < weir__svg_text_width(l->text) + 10 || m->row < 13)
    return;
  l->is_done = true;
  weir__svg_text_colored(&m->plot->svg, x + width / 2, y + m->row / 2 + 4, WEIR__SVG_MIDDLE, "label", l->color,
                         l->text);
}

static bool is_wide(const map *m, uint64_t size) { return m->width * (double)size / (double)m->per_row > 50; }

/* The size of blocks and holes where there is room for it. */
static void draw_labels(map *m, const drawns *d) {
  const weir__svg_colors *colors = m->plot->svg.colors;
  char bytes[32], text[48];
  for (size_t i = 0; i < d->count; i++) {
    const drawn *b = &d->items[i];
    if (b->block && is_wide(m, b->size))
      for_each_row(
          m, &m->arenas[b->arena], b->at, b->size, draw_label,
          &(label){weir__format_bytes(b->block->size, bytes), colors->ink[m->plot->groups[b->group].color], false});
  }
  for (size_t i = 0; i < m->arena_count; i++)
    for (size_t k = m->arenas[i].first; k < m->arenas[i].first + m->arenas[i].count; k++) {
      const weir__segment_life *s = m->segments[k].life;
      uint64_t end = s->address + s->size, from = s->address;
      for (size_t b = block_at(m, s->address);; b++) {
        bool is_last = b >= m->block_count || m->blocks[b]->address >= end;
        uint64_t to = is_last ? end : m->blocks[b]->address;
        if (to > from && is_wide(m, to - from)) {
          snprintf(text, sizeof text, "%s free", weir__format_bytes(to - from, bytes));
          for_each_row(m, &m->arenas[i], m->segments[k].at + (from - s->address), to - from, draw_label,
                       &(label){text, colors->muted, false});
        }
        if (is_last)
          break;
        from = m->blocks[b]->address + size_of(m, b, end);
      }
    }
}

static void draw_blocks(map *m, const drawns *d) {
  weir__svg *svg = &m->plot->svg;
  for (int pending = 0; pending < 2; pending++)
    for (size_t g = 0; g < m->plot->group_count; g++) {
      bool is_any = false;
      for (size_t i = 0; i < d->count; i++) {
        const drawn *b = &d->items[i];
        if (b->group != g || b->is_pending != (pending == 1))
          continue;
        fputs(is_any ? "" : "<path class=\"blocks\" d=\"", svg->file);
        is_any = true;
        for_each_row(m, &m->arenas[b->arena], b->at, b->size, draw_box, NULL);
      }
      if (is_any)
        fprintf(svg->file, "\" style=\"fill:%s%s\"/>\n", svg->colors->series[m->plot->groups[g].color],
                pending ? ";fill-opacity:.4" : "");
    }
}

static void draw_headings(map *m) {
  for (size_t i = 0; i < m->arena_count && m->has_headings; i++) {
    const arena *a = &m->arenas[i];
    const weir__segment_life *s = m->segments[a->first].life;
    char text[320], pool[64], stream[48], bytes[4][32];
    snprintf(text, sizeof text, "%s, %s: %s in %zu segment%s, %s in use, %s free in it, the largest hole %s",
             weir__describe_pool(m->plot->recording, s->pool, pool),
             weir__describe_stream(m->plot->recording, s->stream, stream), weir__format_bytes(a->bytes, bytes[0]),
             a->count, a->count == 1 ? "" : "s", weir__format_bytes(a->used, bytes[1]),
             weir__format_bytes(a->bytes > a->used ? a->bytes - a->used : 0, bytes[2]),
             weir__format_bytes(a->largest, bytes[3]));
    weir__svg_text_within(&m->plot->svg, m->plot->left, a->y - 7, m->width, "label", text);
  }
}

static void draw_scale(map *m) {
  char text[96], bytes[32];
  snprintf(text, sizeof text, "one row: %s; grey: free%s", weir__format_bytes(m->per_row, bytes),
           m->width < 700 ? "" : "; pale: freed, and in use by another stream");
  weir__svg_text(&m->plot->svg, m->plot->left + m->width, m->plot->top - 6, WEIR__SVG_END, "muted", text);
}

static bool draw(map *m) {
  drawns d = {0};
  uint64_t all = 0, used = 0;
  if (!collect(m) || !find_arenas(m))
    return false;
  find_rows(m);
  uint64_t least = (uint64_t)((double)m->per_row / m->width);
  bool ok;
  do {
    ok = find_drawn(m, least, &d);
    least *= 2;
  } while (ok && d.count > MAX_BOXES);
  for (size_t i = 0; i < m->arena_count; i++) {
    all = add(all, m->arenas[i].bytes);
    used += m->arenas[i].used;
  }
  if (ok) {
    fprintf(m->plot->svg.file, "<g class=\"map\" data-reserved=\"%llu\" data-used=\"%llu\" data-segments=\"%zu\">\n",
            (unsigned long long)all, (unsigned long long)used, m->count);
    draw_segments(m);
    draw_blocks(m, &d);
    draw_labels(m, &d);
    draw_headings(m);
    draw_scale(m);
    fputs("</g>\n", m->plot->svg.file);
  }
  free(d.items);
  return ok;
}

weir_status weir__plot_segments(weir__plot *plot) {
  plot->left = 24;
  plot->right = plot->width - 24;
  plot->bottom += 34; /* there is no axis of time */
  weir__plot_reserve_legend(plot, plot->group_count);
  map m = {.plot = plot, .width = plot->right - plot->left};
  bool ok = draw(&m);
  free(m.segments);
  free(m.arenas);
  free(m.blocks);
  if (!ok)
    return weir__plot_no_memory();
  weir__plot_legend(plot, "In use then, as requested");
  return WEIR_OK;
}
