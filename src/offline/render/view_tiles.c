#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/render/view_parts.h"

/* The rectangles of blocks: the largest ones are stored, in levels by the rank of their area, and each level in tiles
 * by dyadic intervals of time. What is not stored is in the coverage: how much of each cell of a coarse grid it
 * fills. */

enum {
  LEVEL_0 = 16384, /* rectangles of level 0; level l > 0 has LEVEL_0 << (l - 1) */
  MAX_LEVELS = 7,  /* so at most 1048576 rectangles in all */
  MAX_BLOCKS = 1000000,
  CHUNK_BLOCKS = 8192, /* small tiles of a level share a chunk */
  COVERAGE_COLUMNS = 1024,
  COVERAGE_ROWS = 512,
  MAX_SEGMENTS = 200000,
  NOT_STORED = 255
};

enum { FLAG_BEFORE = 1, FLAG_ALIVE = 2, FLAG_CLOSING = 4, FLAG_EXPANDABLE = 4 };

/* ---- The largest ---- */

typedef struct ranked {
  uint64_t area;
  uint32_t number;
} ranked;

static int by_area(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  return x->area != y->area ? (x->area < y->area) - (x->area > y->area)
                            : (x->number > y->number) - (x->number < y->number);
}

/* Areas in buckets that keep their order: the position of the highest bit, and the ten bits below it. */
enum { BUCKETS = 64 << 10 };

static size_t bucket_of(uint64_t area) {
  if (area < 1024)
    return (size_t)area;
  unsigned high = 63 - (unsigned)__builtin_clzll(area);
  return (size_t)(high - 9) << 10 | (size_t)(area >> (high - 10) & 1023);
}

/* Finds the `most` largest of `count` areas; those of 0 are left out. Sorted, the largest first. NULL if out of
 * host memory. */
static ranked *find_largest(size_t count, uint64_t (*area)(const weir__view *view, size_t number),
                            const weir__view *view, size_t most, size_t *found) {
  size_t *buckets = calloc(BUCKETS, sizeof *buckets), taken = 0, bucket = BUCKETS;
  if (!buckets)
    return NULL;
  for (size_t i = 0; i < count; i++)
    buckets[bucket_of(area(view, i))]++;
  while (bucket > 1 && taken < most)
    taken += buckets[--bucket];
  free(buckets);
  ranked *list = malloc((taken + 1) * sizeof *list);
  size_t length = 0;
  for (size_t i = 0; i < count && list; i++) {
    uint64_t a = area(view, i);
    if (a && bucket_of(a) >= bucket)
      list[length++] = (ranked){a, (uint32_t)i};
  }
  if (list)
    qsort(list, length, sizeof *list, by_area);
  *found = length < most ? length : most;
  return list;
}

static uint64_t block_area(const weir__view *view, size_t number) {
  const weir__life *b = &view->lives.blocks[number];
  uint64_t duration = weir__view_end(view, b->end) - b->begin;
  return view->units[number] * (duration ? duration : 1);
}

/* ---- Arrays of a chunk ---- */

typedef struct packer {
  unsigned char *bytes;
  size_t at;
} packer;

static void put(packer *p, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; i++)
    p->bytes[p->at++] = (unsigned char)(value >> (8 * i));
}

enum { BLOCK_BYTES = 7 * 4 + 3 * 2 + 2 };

/* A free that the next entry completes is no wait, but the memory is not allocated after the first of the two. */
static bool is_closing(const weir__life *b) { return b->freed != WEIR__LIFE_OPEN && b->end - b->freed == 1; }

static uint8_t block_flags(const weir__life *b) {
  return (uint8_t)((b->is_before ? FLAG_BEFORE : 0) | (b->end == WEIR__LIFE_OPEN ? FLAG_ALIVE : 0) |
                   (is_closing(b) ? FLAG_CLOSING : 0));
}

static uint32_t duration_of(uint32_t begin, uint32_t end) { return end == WEIR__LIFE_OPEN ? UINT32_MAX : end - begin; }

static void pack_blocks(weir__view *view, const uint32_t *list, size_t count, packer *p) {
  const weir__life *blocks = view->lives.blocks;
  uint32_t last = 0;
  for (size_t i = 0; i < count; i++) {
    put(p, blocks[list[i]].begin - last, 4);
    last = blocks[list[i]].begin;
  }
  for (size_t i = 0; i < count; i++)
    put(p, duration_of(blocks[list[i]].begin, blocks[list[i]].end), 4);
  for (size_t i = 0; i < count; i++) {
    const weir__life *b = &blocks[list[i]];
    put(p, weir__view_waits(b) ? weir__view_end(view, b->end) - b->freed : 0, 4);
  }
  for (size_t i = 0; i < count; i++)
    put(p, view->y[list[i]], 4);
  for (size_t i = 0; i < count; i++)
    put(p, view->units[list[i]], 4);
  for (size_t i = 0; i < count; i++) {
    uint64_t drawn = (uint64_t)view->units[list[i]] * WEIR__VIEW_UNIT, size = blocks[list[i]].size;
    put(p, drawn > size ? drawn - size : 0, 4);
  }
  for (size_t i = 0; i < count; i++)
    put(p, weir__view_stack(view, blocks[list[i]].stack), 4);
  for (size_t i = 0; i < count; i++)
    put(p, blocks[list[i]].stream, 2);
  for (size_t i = 0; i < count; i++)
    put(p, blocks[list[i]].pool == WEIR__LIFE_NO_POOL ? 0xffff : blocks[list[i]].pool, 2);
  for (size_t i = 0; i < count; i++)
    put(p, view->phase[list[i]], 2);
  for (size_t i = 0; i < count; i++)
    put(p, view->classes.of[list[i]], 1);
  for (size_t i = 0; i < count; i++)
    put(p, block_flags(&blocks[list[i]]), 1);
}

/* ---- Tiles ---- */

typedef struct tiler {
  weir__view *view;
  unsigned bits;   /* of the time axis: it has 2^bits entries or fewer */
  uint8_t *levels; /* of each life, or NOT_STORED */
  size_t level_count;
  size_t stored;
  uint64_t hidden_bytes; /* of the largest block that is not stored */
  uint32_t *order;       /* lives by tile, then by time */
  size_t *starts;        /* of each tile in `order`, and the end */
} tiler;

/* Tiles of a level, of all depths: 2^(level + 1) - 1, numbered like the nodes of a tree from 1 on. */
static size_t tiles_before(size_t level) { return ((size_t)2 << level) - 2; }

static size_t tile_of(const tiler *t, size_t life) {
  const weir__life *b = &t->view->lives.blocks[life];
  uint64_t end = weir__view_end(t->view, b->end), last = end > b->begin ? end - 1 : b->begin;
  unsigned common = t->bits; /* how many of the highest bits of begin and last are the same */
  if (last != b->begin)
    common = t->bits - (64 - (unsigned)__builtin_clzll(last ^ b->begin));
  unsigned depth = common < t->levels[life] ? common : t->levels[life];
  uint64_t index = (uint64_t)b->begin >> (t->bits - depth);
  return tiles_before(t->levels[life]) + (((size_t)1 << depth) - 1) + (size_t)index;
}

static bool rank(tiler *t) {
  const weir__lives *l = &t->view->lives;
  size_t found = 0;
  size_t most = t->view->options->most_blocks;
  most = most && most < MAX_BLOCKS ? most : MAX_BLOCKS;
  ranked *largest = find_largest(l->block_count, block_area, t->view, most, &found);
  t->levels = malloc(l->block_count + 1);
  if (!largest || !t->levels) {
    free(largest);
    return false;
  }
  memset(t->levels, NOT_STORED, l->block_count + 1);
  size_t level = 0, limit = LEVEL_0;
  for (size_t i = 0; i < found; i++) {
    if (i == limit) {
      level++;
      limit *= 2;
    }
    t->levels[largest[i].number] = (uint8_t)level;
  }
  t->stored = found;
  t->level_count = found ? level + 1 : 0;
  free(largest);
  for (size_t i = 0; i < l->block_count; i++)
    if (t->levels[i] == NOT_STORED && l->blocks[i].size > t->hidden_bytes)
      t->hidden_bytes = l->blocks[i].size;
  return true;
}

static bool sort_into_tiles(tiler *t) {
  size_t tiles = tiles_before(MAX_LEVELS), sum = 0;
  t->starts = calloc(tiles + 2, sizeof *t->starts);
  t->order = malloc((t->stored + 1) * sizeof *t->order);
  if (!t->starts || !t->order)
    return false;
  for (size_t i = 0; i < t->view->lives.block_count; i++)
    if (t->levels[i] != NOT_STORED)
      t->starts[tile_of(t, i) + 2]++;
  for (size_t i = 0; i < tiles + 2; i++)
    t->starts[i] = sum += t->starts[i];
  for (size_t i = 0; i < t->view->lives.block_count; i++)
    if (t->levels[i] != NOT_STORED)
      t->order[t->starts[tile_of(t, i) + 1]++] = (uint32_t)i;
  return true;
}

static void write_tile(const tiler *t, size_t level, size_t tile, size_t at, const char *chunk) {
  size_t node = tile - tiles_before(level) + 1;
  unsigned depth = 63 - (unsigned)__builtin_clzll(node);
  WEIR__JSON(t->view->index, JSON_OBJECT(NULL), JSON_NATURAL("level", level), JSON_NATURAL("depth", depth),
             JSON_NATURAL("index", node - ((size_t)1 << depth)),
             JSON_NATURAL("count", t->starts[tile + 1] - t->starts[tile]), JSON_NATURAL("at", at),
             JSON_TEXT("chunk", chunk), JSON_CLOSE);
}

/* Writes the tiles of a level, in chunks of CHUNK_BLOCKS or more. */
static weir_status write_level(tiler *t, size_t level, unsigned char *buffer, size_t *chunk) {
  size_t end = tiles_before(level + 1);
  weir_status status = WEIR_OK;
  for (size_t first = tiles_before(level), next; first < end && !status; first = next) {
    packer p = {.bytes = buffer};
    char name[WEIR__VIEW_NAME];
    snprintf(name, sizeof name, "%db%zu", t->view->part, *chunk);
    for (next = first; next < end && t->starts[next] - t->starts[first] < CHUNK_BLOCKS; next++) {
      size_t count = t->starts[next + 1] - t->starts[next];
      if (!count)
        continue;
      write_tile(t, level, next, p.at, name);
      pack_blocks(t->view, t->order + t->starts[next], count, &p);
    }
    if (!p.at)
      continue;
    ++*chunk;
    status = weir__view_pack(t->view->data, name, t->view->options->is_raw, p.bytes, p.at);
  }
  weir__view_step(t->view, 65 + 30 * t->starts[end] / (t->stored + 1));
  return status;
}

static weir_status write_tiles(tiler *t) {
  weir_status status = WEIR_OK;
  size_t chunk = 0;
  unsigned char *buffer = malloc((t->stored + 1) * BLOCK_BYTES);
  if (!buffer)
    return weir__view_no_memory();
  WEIR__JSON(t->view->index, JSON_LIST("tiles"));
  for (size_t level = 0; level < t->level_count && !status; level++)
    status = write_level(t, level, buffer, &chunk);
  WEIR__JSON(t->view->index, JSON_CLOSE);
  free(buffer);
  return status;
}

/* ---- Coverage ---- */

/* A range as differences between the cells of an axis: the first cell is covered in part, then whole ones, and the last
 * in part. */
typedef struct steps {
  size_t cell[4];
  double by[4];
} steps;

static steps range_steps(double from, double to, size_t cells) {
  size_t a = (size_t)from, b = (size_t)to;
  a = a < cells ? a : cells - 1;
  b = b < cells ? b : cells;
  double left = (a == b ? to : (double)(a + 1)) - from, right = a == b ? 0 : to - (double)b;
  return (steps){{a, a + 1, b, b + 1}, {left, a == b ? -left : 1 - left, a == b ? 0 : right - 1, a == b ? 0 : -right}};
}

/* The sums over both axes of the products of differences are the areas, so a rectangle takes 16 additions, whatever its
 * size. */
static void add_rectangle(double *grid, const steps *x, const steps *y) {
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 4; k++)
      grid[y->cell[i] * (COVERAGE_COLUMNS + 2) + x->cell[k]] += y->by[i] * x->by[k];
}

static void add_up(double *grid) {
  enum { STRIDE = COVERAGE_COLUMNS + 2 };
  for (size_t row = 0; row < COVERAGE_ROWS; row++)
    for (size_t i = 1; i < STRIDE; i++)
      grid[row * STRIDE + i] += grid[row * STRIDE + i - 1];
  for (size_t row = 1; row < COVERAGE_ROWS; row++)
    for (size_t i = 0; i < STRIDE; i++)
      grid[row * STRIDE + i] += grid[(row - 1) * STRIDE + i];
}

static weir_status write_coverage(tiler *t) {
  const weir__view *v = t->view;
  if (t->stored == v->lives.block_count || !v->axis.height) {
    WEIR__JSON(v->index, JSON_NULL("coverage"));
    return WEIR_OK;
  }
  double *grid = calloc((COVERAGE_ROWS + 2) * (COVERAGE_COLUMNS + 2), sizeof *grid);
  uint8_t *cells = malloc(COVERAGE_ROWS * COVERAGE_COLUMNS);
  if (!grid || !cells) {
    free(grid);
    free(cells);
    return weir__view_no_memory();
  }
  double x_scale = COVERAGE_COLUMNS / (double)v->width, y_scale = COVERAGE_ROWS / (double)v->axis.height;
  for (size_t i = 0; i < v->lives.block_count; i++) {
    const weir__life *b = &v->lives.blocks[i];
    if (t->levels[i] != NOT_STORED || !v->units[i])
      continue;
    steps x = range_steps(b->begin * x_scale, (double)weir__view_end(v, b->end) * x_scale, COVERAGE_COLUMNS);
    steps y = range_steps(v->y[i] * y_scale, ((double)v->y[i] + v->units[i]) * y_scale, COVERAGE_ROWS);
    add_rectangle(grid, &x, &y);
  }
  add_up(grid);
  for (size_t row = 0; row < COVERAGE_ROWS; row++)
    for (size_t i = 0; i < COVERAGE_COLUMNS; i++) {
      double share = grid[row * (COVERAGE_COLUMNS + 2) + i] * 255;
      cells[row * COVERAGE_COLUMNS + i] = (uint8_t)(share <= 0 ? 0 : share >= 255 ? 255 : share + 0.5);
    }
  WEIR__JSON(v->index, JSON_OBJECT("coverage"), JSON_NATURAL("columns", COVERAGE_COLUMNS),
             JSON_NATURAL("rows", COVERAGE_ROWS));
  weir_status status = weir__view_add_chunk(t->view, "v", 0, cells, COVERAGE_ROWS * COVERAGE_COLUMNS);
  WEIR__JSON(v->index, JSON_CLOSE);
  free(grid);
  free(cells);
  return status;
}

weir_status weir__view_write_blocks(weir__view *view) {
  tiler t = {.view = view};
  while ((uint64_t)1 << t.bits < view->width)
    t.bits++;
  bool ok = rank(&t) && sort_into_tiles(&t);
  weir_status status = ok ? WEIR_OK : weir__view_no_memory();
  if (ok) {
    WEIR__JSON(view->index, JSON_OBJECT("blocks"), JSON_NATURAL("total", view->lives.block_count),
               JSON_NATURAL("stored", t.stored), JSON_NATURAL("hidden_bytes_max", t.hidden_bytes),
               JSON_NATURAL("levels", t.level_count));
    status = write_tiles(&t);
    WEIR__JSON(view->index, JSON_CLOSE);
    status = status ? status : write_coverage(&t);
  }
  free(t.levels);
  free(t.order);
  free(t.starts);
  return status;
}

/* ---- Segments ---- */

static uint64_t segment_area(const weir__view *view, size_t number) {
  const weir__segment_life *g = &view->lives.segments[number];
  uint64_t duration = weir__view_end(view, g->end) - g->begin, units = g->size >> WEIR__VIEW_UNIT_BITS;
  return (units < UINT32_MAX ? units + 1 : UINT32_MAX) * (duration ? duration : 1);
}

typedef struct placed_segment {
  uint32_t number, y, units;
} placed_segment;

static int by_number(const void *a, const void *b) {
  uint32_t x = ((const placed_segment *)a)->number, y = ((const placed_segment *)b)->number;
  return (x > y) - (x < y);
}

static void pack_segments(weir__view *view, const placed_segment *list, size_t count, packer *p) {
  const weir__segment_life *all = view->lives.segments;
  uint32_t last = 0;
  for (size_t i = 0; i < count; i++) {
    put(p, all[list[i].number].begin - last, 4);
    last = all[list[i].number].begin;
  }
  for (size_t i = 0; i < count; i++)
    put(p, duration_of(all[list[i].number].begin, all[list[i].number].end), 4);
  for (size_t i = 0; i < count; i++)
    put(p, list[i].y, 4);
  for (size_t i = 0; i < count; i++)
    put(p, list[i].units, 4);
  for (size_t i = 0; i < count; i++)
    put(p, weir__view_stack(view, all[list[i].number].stack), 4);
  for (size_t i = 0; i < count; i++)
    put(p, all[list[i].number].stream, 2);
  for (size_t i = 0; i < count; i++)
    put(p, all[list[i].number].pool < 0xffff ? all[list[i].number].pool : 0xffff, 2);
  for (size_t i = 0; i < count; i++) {
    const weir__segment_life *g = &all[list[i].number];
    put(p,
        (g->is_before ? FLAG_BEFORE : 0u) | (g->end == WEIR__LIFE_OPEN ? FLAG_ALIVE : 0u) |
            (g->is_expandable ? FLAG_EXPANDABLE : 0u),
        1);
  }
}

enum { SEGMENT_BYTES = 5 * 4 + 2 * 2 + 1 };

/* The segments of a list that are on the axis, in the order of their lives. */
static size_t place_segments(weir__view *view, const ranked *largest, size_t found, placed_segment *list) {
  size_t count = 0;
  for (size_t i = 0; i < found; i++) {
    const weir__segment_life *g = &view->lives.segments[largest[i].number];
    list[count].number = largest[i].number;
    count += weir__view_axis_find(&view->axis, g->address, g->size, &list[count].y, &list[count].units);
  }
  qsort(list, count, sizeof *list, by_number);
  return count;
}

weir_status weir__view_write_segments(weir__view *view) {
  size_t found = 0;
  weir_status status = WEIR_OK;
  ranked *largest = find_largest(view->lives.segment_count, segment_area, view, MAX_SEGMENTS, &found);
  placed_segment *list = malloc((found + 1) * sizeof *list);
  packer p = {.bytes = malloc(found * SEGMENT_BYTES + 1)};
  if (largest && list && p.bytes) {
    size_t count = place_segments(view, largest, found, list);
    pack_segments(view, list, count, &p);
    WEIR__JSON(view->index, JSON_OBJECT("segments"), JSON_NATURAL("total", view->lives.segment_count),
               JSON_NATURAL("stored", count));
    status = weir__view_add_chunk(view, "s", 0, p.bytes, p.at);
    WEIR__JSON(view->index, JSON_CLOSE);
  } else
    status = weir__view_no_memory();
  free(largest);
  free(list);
  free(p.bytes);
  return status;
}
