#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/hash_map.h"
#include "offline/analyse/describe.h"
#include "offline/render/view_parts.h"

/* Memory by stack, size, ...: for each name one value in a column, taken after the entry at which most was allocated in
 * that column, so that the values of all names add up to the counter's most. */

/* A key that lives have in common. */
typedef struct sum {
  uint64_t key;   /* + 1 */
  uint64_t bytes; /* at the peak */
  uint64_t in_all;
  uint8_t name; /* its number in the group */
} sum;

typedef struct group {
  weir__view *view;
  const char *by;
  uint64_t (*key)(const struct group *group, size_t life);
  void (*describe)(const struct group *group, uint64_t key, char *text, size_t size);
  const uint32_t *alike; /* of stacks */
  weir__hash_map sums;   /* of sum */
  uint64_t keys[WEIR__VIEW_NAMES];
  size_t count;
  bool has_other; /* the last name is for the rest */
} group;

/* The columns: which entry stands for each. */
typedef struct columns {
  size_t span, count;
  uint32_t *entry;
} columns;

/* ---- Keys ---- */

static uint64_t stack_of(const group *g, size_t life) {
  uint32_t stack = g->view->lives.blocks[life].stack;
  return stack < g->view->recording->stack_count ? g->alike[stack] : 0;
}

static void describe_stack(const group *g, uint64_t key, char *text, size_t size) {
  char description[WEIR__DESCRIBE_TEXT];
  weir__describe_stack(g->view->recording, (uint32_t)key, description);
  snprintf(text, size, "%s", *description ? description : "no stack recorded");
}

static uint64_t size_of(const group *g, size_t life) { return weir__size_class(g->view->lives.blocks[life].size); }

static void describe_size(const group *g, uint64_t key, char *text, size_t size) {
  char description[WEIR__DESCRIBE_TEXT];
  (void)g;
  snprintf(text, size, "%s", weir__describe_size_class(key, description));
}

static uint64_t stream_of(const group *g, size_t life) { return g->view->lives.blocks[life].stream; }

static void describe_stream(const group *g, uint64_t key, char *text, size_t size) {
  char description[48];
  snprintf(text, size, "%s", weir__describe_stream(g->view->recording, (uint16_t)key, description));
}

static uint64_t phase_of(const group *g, size_t life) { return g->view->phase[life]; }

static void describe_phase(const group *g, uint64_t key, char *text, size_t size) {
  snprintf(text, size, "%s", key ? g->view->recording->strings.items[g->view->phase_names[key]].text : "no phase");
}

static uint64_t pool_of(const group *g, size_t life) { return g->view->lives.blocks[life].pool; }

static void describe_pool(const group *g, uint64_t key, char *text, size_t size) {
  char description[64];
  snprintf(text, size, "%s", weir__describe_pool(g->view->recording, (uint32_t)key, description));
}

static uint64_t class_of(const group *g, size_t life) { return g->view->classes.of[life]; }

static void describe_class(const group *g, uint64_t key, char *text, size_t size) {
  (void)g;
  snprintf(text, size, "%s", weir__class_name((weir__class)key));
}

/* ---- The largest ---- */

static sum *sum_of(group *g, uint64_t key) { return weir__hash_map_put(&g->sums, sizeof(sum), key + 1); }

static bool is_larger(const sum *a, const sum *b) {
  if (a->bytes != b->bytes)
    return a->bytes > b->bytes;
  return a->in_all != b->in_all ? a->in_all > b->in_all : a->key < b->key;
}

/* Finds the names: the keys with the most bytes at the peak, and then those with the most bytes of all lives. */
static bool choose(group *g, uint32_t peak) {
  const weir__lives *l = &g->view->lives;
  sum top[WEIR__VIEW_NAMES] = {{0}};
  size_t next = 0;
  for (size_t i = 0; i < l->block_count; i++) {
    const weir__life *b = &l->blocks[i];
    sum *s = sum_of(g, g->key(g, i));
    if (!s)
      return false;
    s->in_all += b->size;
    if (weir__life_spans(b, peak))
      s->bytes += b->size;
  }
  size_t room = g->sums.count > WEIR__VIEW_NAMES ? WEIR__VIEW_NAMES - 1 : WEIR__VIEW_NAMES;
  for (sum *s; (s = weir__hash_map_next(&g->sums, sizeof *s, &next));) {
    size_t at = g->count < room ? g->count++ : g->count;
    if (at == room && !is_larger(s, &top[--at]))
      continue;
    for (; at > 0 && is_larger(s, &top[at - 1]); at--)
      top[at] = top[at - 1];
    top[at] = *s;
  }
  next = 0;
  for (sum *s; (s = weir__hash_map_next(&g->sums, sizeof *s, &next));)
    s->name = (uint8_t)g->count; /* the rest */
  for (size_t i = 0; i < g->count; i++) {
    sum *s = weir__hash_map_find(&g->sums, sizeof *s, top[i].key);
    g->keys[i] = top[i].key - 1;
    if (s)
      s->name = (uint8_t)i;
  }
  g->has_other = g->sums.count > g->count;
  g->count += g->has_other;
  return true;
}

/* ---- Values ---- */

/* The first column whose entry is not before `entry`. */
static size_t column_from(const columns *c, uint64_t entry) {
  size_t column = (size_t)(entry / c->span);
  if (column >= c->count)
    return c->count;
  return c->entry[column] >= entry ? column : column + 1;
}

/* Adds each life to the columns in which it was allocated: first as differences between columns, then as sums. */
static void fill(group *g, const columns *c, uint64_t *values) {
  const weir__lives *l = &g->view->lives;
  uint64_t last_key = UINT64_MAX;
  size_t name = 0;
  for (size_t i = 0; i < l->block_count; i++) {
    const weir__life *b = &l->blocks[i];
    uint64_t key = g->key(g, i);
    if (key != last_key)
      name = ((const sum *)weir__hash_map_find(&g->sums, sizeof(sum), key + 1))->name;
    last_key = key;
    size_t from = column_from(c, b->begin), to = column_from(c, b->freed);
    if (b->is_before && b->freed == 0)
      continue;
    if (from < to) {
      values[name * (c->count + 1) + from] += b->size;
      values[name * (c->count + 1) + to] -= b->size;
    }
  }
  for (size_t n = 0; n < g->count; n++)
    for (size_t i = 1; i < c->count; i++)
      values[n * (c->count + 1) + i] += values[n * (c->count + 1) + i - 1];
}

/* Halves the columns: of two, the one with more in all. */
static void halve(const group *g, columns *c, uint64_t *values, size_t stride) {
  for (size_t i = 0; i < (c->count + 1) / 2; i++) {
    size_t a = 2 * i, b = 2 * i + 1 < c->count ? 2 * i + 1 : a;
    uint64_t sum_a = 0, sum_b = 0;
    for (size_t n = 0; n < g->count; n++) {
      sum_a += values[n * stride + a];
      sum_b += values[n * stride + b];
    }
    for (size_t n = 0; n < g->count; n++)
      values[n * stride + i] = values[n * stride + (sum_b > sum_a ? b : a)];
  }
  c->span *= 2;
  c->count = (c->count + 1) / 2;
}

static void write_names(group *g) {
  char text[WEIR__DESCRIBE_TEXT];
  size_t keys = g->count - g->has_other;
  WEIR__JSON(g->view->index, JSON_TEXT("by", g->by), JSON_LIST("names"));
  for (size_t i = 0; i < keys; i++) {
    g->describe(g, g->keys[i], text, sizeof text);
    WEIR__JSON(g->view->index, JSON_TEXT(NULL, text));
  }
  if (g->has_other)
    WEIR__JSON(g->view->index, JSON_TEXT(NULL, "other"));
  WEIR__JSON(g->view->index, JSON_CLOSE, JSON_LIST("keys"));
  for (size_t i = 0; i < keys; i++) {
    bool is_stack = strcmp(g->by, "stack") == 0;
    WEIR__JSON(g->view->index,
               JSON_NATURAL(NULL, is_stack ? weir__view_stack(g->view, (uint32_t)g->keys[i]) : g->keys[i]));
  }
  if (g->has_other)
    WEIR__JSON(g->view->index, JSON_NULL(NULL));
  WEIR__JSON(g->view->index, JSON_CLOSE);
}

static weir_status write_levels(group *g, columns c, size_t number) {
  weir_status status = WEIR_OK;
  size_t stride = c.count + 1;
  uint64_t *values = calloc(g->count * stride, sizeof *values);
  double *out = malloc(g->count * c.count * sizeof *out);
  if (!values || !out) {
    free(values);
    free(out);
    return weir__view_no_memory();
  }
  fill(g, &c, values);
  WEIR__JSON(g->view->index, JSON_LIST("levels"));
  for (size_t level = 0; !status; level++) {
    for (size_t n = 0; n < g->count; n++)
      for (size_t i = 0; i < c.count; i++)
        out[n * c.count + i] = (double)values[n * stride + i];
    WEIR__JSON(g->view->index, JSON_OBJECT(NULL), JSON_NATURAL("span", c.span), JSON_NATURAL("columns", c.count));
    status = weir__view_add_chunk(g->view, "g", 100 * number + level, out, g->count * c.count * sizeof *out);
    WEIR__JSON(g->view->index, JSON_CLOSE);
    if (c.count <= WEIR__VIEW_MIN_COLUMNS)
      break;
    halve(g, &c, values, stride);
  }
  WEIR__JSON(g->view->index, JSON_CLOSE);
  free(values);
  free(out);
  return status;
}

/* The entries at which most is allocated in each column of a span that groups have. */
static bool choose_columns(const weir__view *view, columns *c) {
  const weir__view_columns *from = &view->columns;
  c->span = from->span;
  while ((view->width - 1) / c->span + 1 > WEIR__VIEW_GROUP_COLUMNS)
    c->span *= 2;
  c->count = (view->width - 1) / c->span + 1;
  c->entry = malloc(c->count * sizeof *c->entry);
  size_t ratio = c->span / from->span;
  for (size_t i = 0; i < c->count && c->entry; i++) {
    size_t best = i * ratio;
    for (size_t k = best + 1; k < (i + 1) * ratio && k < from->count; k++)
      best = from->most[0][k] > from->most[0][best] ? k : best;
    c->entry[i] = from->peak_entry[best];
  }
  return c->entry != NULL;
}

/* The entry at which most is allocated of all. */
static uint32_t peak_of(const weir__view *view) {
  const weir__view_columns *c = &view->columns;
  size_t best = 0;
  for (size_t i = 1; i < c->count; i++)
    best = c->most[0][i] > c->most[0][best] ? i : best;
  return c->peak_entry[best];
}

weir_status weir__view_write_groups(weir__view *view) {
  uint32_t *alike = NULL;
  columns c = {0};
  weir_status status = weir__describe_alike(view->recording, &alike);
  if (!status && !choose_columns(view, &c))
    status = weir__view_no_memory();
  group groups[] = {{.by = "stack", .key = stack_of, .describe = describe_stack},
                    {.by = "size", .key = size_of, .describe = describe_size},
                    {.by = "stream", .key = stream_of, .describe = describe_stream},
                    {.by = "phase", .key = phase_of, .describe = describe_phase},
                    {.by = "class", .key = class_of, .describe = describe_class},
                    {.by = "pool", .key = pool_of, .describe = describe_pool}};
  WEIR__JSON(view->index, JSON_LIST("groups"));
  for (size_t i = 0; i < WEIR_COUNT_OF(groups) && !status; i++) {
    group *g = &groups[i];
    g->view = view;
    g->alike = alike;
    if (!choose(g, peak_of(view)))
      status = weir__view_no_memory();
    else if (g->count > 1 || (g->count && g->key == size_of)) { /* otherwise it is the counter */
      WEIR__JSON(view->index, JSON_OBJECT(NULL));
      write_names(g);
      status = write_levels(g, c, i);
      WEIR__JSON(view->index, JSON_CLOSE);
    }
    weir__hash_map_clear(&g->sums);
    weir__view_step(view, 50 + 2 * i);
  }
  WEIR__JSON(view->index, JSON_CLOSE);
  free(alike);
  free(c.entry);
  return status;
}
