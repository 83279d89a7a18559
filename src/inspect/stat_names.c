#include "inspect/stat_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pools/pool.h"
#include "base/thread.h"
#include "inspect/json.h"

#define GROUP(name, kinds)                                                                                             \
  { #name, offsetof(weir_allocator_stats, name), kinds }
#define COUNT(name)                                                                                                    \
  { #name, offsetof(weir_allocator_stats, name) }

const weir__stat_count weir__stat_counts[WEIR__STAT_COUNTS] = {
    COUNT(num_alloc_retries),    COUNT(num_ooms),         COUNT(num_oom_rejections), COUNT(max_split_size),
    COUNT(num_sync_all_streams), COUNT(num_device_alloc), COUNT(num_device_free)};

static const char moving[] = "moving";

#define MOVING(name)                                                                                                   \
  { #name, offsetof(weir_allocator_stats, moving_##name) }
static const weir__stat_count moving_counts[] = {MOVING(pages_made),
                                                 MOVING(pages_moved),
                                                 MOVING(moved_bytes),
                                                 MOVING(pages_returned),
                                                 MOVING(aliases),
                                                 MOVING(aliases_peak),
                                                 MOVING(aliases_unmapped),
                                                 MOVING(unmovable_partial_bytes),
                                                 MOVING(unmovable_fixed_bytes),
                                                 MOVING(unmovable_busy_bytes),
                                                 MOVING(unmovable_pool_bytes)};

static const char ipc[] = "ipc";

#define IPC(name)                                                                                                      \
  { #name, offsetof(weir_allocator_stats, ipc_##name) }
static const weir__stat_count ipc_counts[] = {IPC(references), IPC(limbo_blocks), IPC(limbo_bytes),
                                              IPC(limbo_bytes_peak), IPC(lost_references)};

const weir__stat_group weir__stat_groups[WEIR__STAT_GROUPS] = {GROUP(allocation, WEIR_STAT_KINDS),
                                                               GROUP(segment, WEIR_STAT_KINDS),
                                                               GROUP(active, WEIR_STAT_KINDS),
                                                               GROUP(inactive_split, WEIR_STAT_KINDS),
                                                               GROUP(allocated_bytes, WEIR_STAT_KINDS),
                                                               GROUP(reserved_bytes, WEIR_STAT_KINDS),
                                                               GROUP(active_bytes, WEIR_STAT_KINDS),
                                                               GROUP(inactive_split_bytes, WEIR_STAT_KINDS),
                                                               GROUP(requested_bytes, WEIR_STAT_KINDS),
                                                               GROUP(oversize_allocations, 1),
                                                               GROUP(oversize_segments, 1)};

const char *const weir__stat_kinds[] = {"all", "small_pool", "large_pool"};
const char *const weir__stat_metrics[] = {"current", "peak", "allocated", "freed"};

static const char by_pools[] = "reserved_bytes_by_private_pools";

/* ---- All names, in order ---- */

enum {
  NAME_SIZE = 48,
  NAMES = WEIR__STAT_COUNTS + WEIR_COUNT_OF(moving_counts) + WEIR_COUNT_OF(ipc_counts) +
          9 * WEIR_STAT_KINDS * WEIR__STAT_METRICS + 2 * WEIR__STAT_METRICS
};

static char all_names[NAMES][NAME_SIZE];
static weir__once_flag all_names_once = WEIR__ONCE_INIT;

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

static void make_names(void) {
  size_t n = 0;
  for (size_t i = 0; i < WEIR__STAT_COUNTS; i++)
    snprintf(all_names[n++], NAME_SIZE, "%s", weir__stat_counts[i].name);
  for (size_t i = 0; i < WEIR_COUNT_OF(moving_counts); i++)
    snprintf(all_names[n++], NAME_SIZE, "%s.%s", moving, moving_counts[i].name);
  for (size_t i = 0; i < WEIR_COUNT_OF(ipc_counts); i++)
    snprintf(all_names[n++], NAME_SIZE, "%s.%s", ipc, ipc_counts[i].name);
  for (size_t i = 0; i < WEIR__STAT_GROUPS; i++) {
    const weir__stat_group *group = &weir__stat_groups[i];
    for (int kind = 0; kind < group->kinds; kind++)
      for (int metric = 0; metric < WEIR__STAT_METRICS; metric++)
        snprintf(all_names[n++], NAME_SIZE, "%s%s%s.%s", group->name, group->kinds > 1 ? "." : "",
                 group->kinds > 1 ? weir__stat_kinds[kind] : "", weir__stat_metrics[metric]);
  }
  qsort(all_names, NAMES, NAME_SIZE, by_text);
}

const char *weir_stats_name(size_t index) {
  weir__once(&all_names_once, make_names);
  return index < NAMES ? all_names[index] : NULL;
}

/* ---- By name ---- */

/* Removes a word, which ends at a dot or at the end, from the front of a name. */
static bool take_word(const char **name, const char *word) {
  size_t length = strlen(word);
  const char *rest = *name + length;
  if (strncmp(*name, word, length) || (*rest && (*rest != '.' || !rest[1])))
    return false;
  *name = rest + (*rest == '.');
  return true;
}

static int take_one_of(const char **name, const char *const *words, int count) {
  for (int i = 0; i < count; i++)
    if (take_word(name, words[i]))
      return i;
  return -1;
}

/* Finds the statistic that a name begins with, and removes it from the name. */
static const weir_stat *find_stat(const weir_allocator_stats *stats, const char **name) {
  const char *rest = *name;
  for (size_t i = 0; i < WEIR__STAT_GROUPS; i++) {
    const weir__stat_group *group = &weir__stat_groups[i];
    if (!take_word(&rest, group->name))
      continue;
    int kind = group->kinds > 1 ? take_one_of(&rest, weir__stat_kinds, group->kinds) : 0;
    if (kind < 0 || group->offset + (size_t)(kind + 1) * sizeof(weir_stat) > stats->size)
      return NULL;
    *name = rest;
    return weir__stat_at(stats, group, kind);
  }
  return NULL;
}

static bool find_metric(const weir_stat *stat, const char *name, int64_t *value) {
  const int64_t values[] = {stat->current, stat->peak, stat->allocated, stat->freed};
  int metric = take_one_of(&name, weir__stat_metrics, WEIR__STAT_METRICS);
  if (metric < 0 || *name)
    return false;
  *value = values[metric];
  return true;
}

static const weir__stat_count *find_count(const weir__stat_count *counts, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++)
    if (!strcmp(name, counts[i].name))
      return &counts[i];
  return NULL;
}

static bool find_value(const weir_allocator_stats *stats, const char *name, int64_t *value) {
  const char *rest = name;
  const weir__stat_count *count = take_word(&rest, moving)
                                      ? find_count(moving_counts, WEIR_COUNT_OF(moving_counts), rest)
                                  : take_word(&rest, ipc) ? find_count(ipc_counts, WEIR_COUNT_OF(ipc_counts), rest)
                                                          : find_count(weir__stat_counts, WEIR__STAT_COUNTS, name);
  if (count) {
    if (count->offset + sizeof *value > stats->size)
      return false;
    memcpy(value, (const char *)stats + count->offset, sizeof *value);
    return true;
  }
  const weir_stat *stat = find_stat(stats, &name);
  return stat && find_metric(stat, name, value);
}

static weir_status no_name(const char *caller, const char *name) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: unknown counter '%.100s'; weir_stats_name lists all names",
                    caller, name);
}

weir_status weir_stats_value(const weir_allocator_stats *stats, const char *name, int64_t *value) {
  WEIR__CHECK_ARGUMENT(stats);
  WEIR__CHECK_ARGUMENT(name);
  WEIR__CHECK_ARGUMENT(value);
  return find_value(stats, name, value) ? WEIR_OK : no_name(__func__, name);
}

/* ---- Private pools ---- */

enum { ID_SIZE = 48 };

static const char *id_text(weir_pool_id id, char text[ID_SIZE]) {
  snprintf(text, ID_SIZE, "%llu_%llu", (unsigned long long)id.first, (unsigned long long)id.second);
  return text;
}

/* Removes an id, in exactly the form that id_text writes, from the front of a name. */
static bool take_id(const char **name, weir_pool_id *id, char text[ID_SIZE]) {
  unsigned long long first, second;
  if (sscanf(*name, "%llu_%llu", &first, &second) != 2)
    return false;
  *id = (weir_pool_id){first, second};
  return take_word(name, id_text(*id, text));
}

weir_status weir_allocator_stat(weir_allocator *allocator, int device, const char *name, int64_t *value) {
  WEIR__CHECK_ALLOCATOR(allocator);
  WEIR__CHECK_ARGUMENT(name);
  WEIR__CHECK_ARGUMENT(value);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  const char *rest = name;
  if (take_word(&rest, by_pools)) {
    weir_stat stats[WEIR_STAT_KINDS];
    weir_pool_id id;
    char text[ID_SIZE];
    int kind = take_id(&rest, &id, text) ? take_one_of(&rest, weir__stat_kinds, WEIR_STAT_KINDS) : -1;
    if (kind < 0)
      return no_name(__func__, name);
    weir__mutex_lock(&heap->lock);
    const weir__account *pool = weir__account_find(&heap->accounts, id);
    if (pool)
      memcpy(stats, pool->reserved, sizeof stats);
    weir__mutex_unlock(&heap->lock);
    if (!pool)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Could not find pool of id {%llu, %llu}", __func__,
                        (unsigned long long)id.first, (unsigned long long)id.second);
    return find_metric(&stats[kind], rest, value) ? WEIR_OK : no_name(__func__, name);
  }
  weir_allocator_stats stats = {.size = sizeof stats};
  weir_status status = weir_allocator_get_stats(allocator, device, &stats);
  if (status)
    return status;
  return find_value(&stats, name, value) ? WEIR_OK : no_name(__func__, name);
}

/* ---- As JSON ---- */

typedef struct pool_stats {
  weir_pool_id id;
  weir_stat reserved[WEIR_STAT_KINDS];
} pool_stats;

static int by_id(const void *a, const void *b) {
  weir_pool_id x = ((const pool_stats *)a)->id, y = ((const pool_stats *)b)->id;
  return x.first != y.first ? (x.first > y.first) - (x.first < y.first) : (x.second > y.second) - (x.second < y.second);
}

/* Copies the statistics of all listed private pools under one lock. false if out of host memory. */
static bool list_pools(weir__heap *heap, pool_stats **pools, size_t *count) {
  size_t room = 0, n = 0;
  weir__mutex_lock(&heap->lock);
  for (const weir__private_pool *p = heap->private_pools; p; p = p->next)
    room++;
  pool_stats *list = malloc((room + 1) * sizeof *list);
  for (const weir__private_pool *p = heap->private_pools; list && p; p = p->next)
    if (weir__pool_is_listed(p)) {
      list[n].id = p->id;
      memcpy(list[n++].reserved, p->small.account->reserved, sizeof list->reserved);
    }
  weir__mutex_unlock(&heap->lock);
  if (list)
    qsort(list, n, sizeof *list, by_id);
  *pools = list;
  *count = n;
  return list != NULL;
}

/* Writes nested dicts, or one flat dict whose keys are the paths. */
typedef struct stats_writer {
  weir__sink *sink;
  bool is_flat;
  char path[128];
} stats_writer;

static size_t enter(stats_writer *w, const char *name) {
  size_t length = strlen(w->path);
  if (w->is_flat)
    snprintf(w->path + length, sizeof w->path - length, "%s%s", length ? "." : "", name);
  else {
    w->sink->format->key(w->sink, name, NULL);
    weir__write_open_dict(w->sink);
  }
  return length;
}

static void leave(stats_writer *w, size_t length) {
  w->path[length] = 0;
  if (!w->is_flat)
    weir__write_close(w->sink);
}

static void write_value(stats_writer *w, const char *name, int64_t value) {
  char key[192];
  snprintf(key, sizeof key, "%s%s%s", w->path, *w->path ? "." : "", name);
  w->sink->format->key(w->sink, key, NULL);
  w->sink->format->integer(w->sink, value);
}

static void write_stat(stats_writer *w, const weir_stat *stat) {
  const int64_t values[] = {stat->current, stat->peak, stat->allocated, stat->freed};
  for (int i = 0; i < WEIR__STAT_METRICS; i++)
    write_value(w, weir__stat_metrics[i], values[i]);
}

static void write_kinds(stats_writer *w, const weir_stat *stats) {
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    size_t before = enter(w, weir__stat_kinds[kind]);
    write_stat(w, &stats[kind]);
    leave(w, before);
  }
}

static void write_pools(stats_writer *w, const pool_stats *pools, size_t count) {
  size_t before = enter(w, by_pools);
  for (size_t i = 0; i < count; i++) {
    char text[ID_SIZE];
    size_t above = enter(w, id_text(pools[i].id, text));
    write_kinds(w, pools[i].reserved);
    leave(w, above);
  }
  leave(w, before);
}

static void write_counts(stats_writer *w, const weir_allocator_stats *stats, const weir__stat_count *counts,
                         size_t count) {
  for (size_t i = 0; i < count; i++) {
    int64_t value;
    memcpy(&value, (const char *)stats + counts[i].offset, sizeof value);
    write_value(w, counts[i].name, value);
  }
}

static void write_all(stats_writer *w, const weir_allocator_stats *stats, const pool_stats *pools, size_t count) {
  write_counts(w, stats, weir__stat_counts, WEIR__STAT_COUNTS);
  size_t above = enter(w, moving);
  write_counts(w, stats, moving_counts, WEIR_COUNT_OF(moving_counts));
  leave(w, above);
  above = enter(w, ipc);
  write_counts(w, stats, ipc_counts, WEIR_COUNT_OF(ipc_counts));
  leave(w, above);
  for (size_t i = 0; i < WEIR__STAT_GROUPS; i++) {
    size_t before = enter(w, weir__stat_groups[i].name);
    if (weir__stat_groups[i].kinds == 1)
      write_stat(w, weir__stat_at(stats, &weir__stat_groups[i], 0));
    else
      write_kinds(w, weir__stat_at(stats, &weir__stat_groups[i], 0));
    leave(w, before);
  }
  write_pools(w, pools, count);
}

weir_status weir_allocator_write_stats(weir_allocator *allocator, int device, weir_stats_form form, weir_write_fn write,
                                       void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  WEIR__CHECK_ARGUMENT(write);
  if (form != WEIR_STATS_NESTED && form != WEIR_STATS_FLAT)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: form %d: expected WEIR_STATS_NESTED or _FLAT", __func__,
                      (int)form);
  if (!weir__heap_get(__func__, allocator, device))
    return WEIR_ERROR_INVALID_DEVICE;
  weir_allocator_stats stats = {.size = sizeof stats};
  weir_status status = weir_allocator_get_stats(allocator, device, &stats);
  if (status)
    return status;
  pool_stats *pools = NULL;
  size_t count = 0;
  weir__sink *sink = malloc(sizeof *sink);
  if (!sink || !list_pools(&allocator->heaps[device], &pools, &count)) {
    free(sink);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  }
  stats_writer w = {.sink = sink, .is_flat = form == WEIR_STATS_FLAT};
  weir__sink_begin(sink, &weir__json_format, write, context);
  weir__write_open_dict(sink);
  write_all(&w, &stats, pools, count);
  weir__write_close(sink);
  status = weir__sink_end(sink, __func__);
  free(pools);
  free(sink);
  return status;
}
