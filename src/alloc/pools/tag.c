/*
 * Tags: names on private pools, and their scopes, which are those of threads for the tag's own pool.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/pools/kept.h"
#include "alloc/pools/pool.h"
#include "base/thread.h"
#include "weir/tag.h"

/* Ids of the tags' own pools have this in their second half. Graphs and pool handles have 0 in one half. */
enum { POOLS_OF_TAGS = 0x746167, MAX_NAME = 63 };

const char *weir_tag_state_name(weir_tag_state state) {
  static const char *const names[] = {
#define X(number, name, text) [number] = text,
      WEIR_TAG_STATE_MAP(X)
#undef X
  };
  return (unsigned)state < WEIR_COUNT_OF(names) ? names[state] : "unknown";
}

weir_status weir__tag_check(const char *caller, const weir__heap *heap, const weir__private_pool *pool) {
  const weir_tag *tag = weir__thread_tag(heap);
  if (!tag || !pool || pool->tag == tag)
    return WEIR_OK;
  unsigned long long first = pool->id.first, second = pool->id.second;
  if (!pool->tag)
    return weir__fail(WEIR_ERROR_BAD_STATE,
                      "%s: pool {%llu, %llu} was created outside of tags and is selected in the scope of the tag '%s'",
                      caller, first, second, tag->name);
  return weir__fail(WEIR_ERROR_BAD_STATE,
                    "%s: pool {%llu, %llu} belongs to the tag '%s' and is selected in the scope of the tag '%s'",
                    caller, first, second, pool->tag->name, tag->name);
}

/* ---- Creation ---- */

static weir_status create(weir__heap *heap, const char *name, uint64_t number, weir_tag **tag) {
  weir_pool_options options;
  weir_pool_options_init(&options);
  weir_pool_id id = {number, POOLS_OF_TAGS};
  if (!heap->sleeper && !(heap->sleeper = weir__sleeper_new()))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "weir_tag_open: out of host memory");
  weir_tag *made = calloc(1, sizeof *made);
  char *copy = strdup(name);
  if (!made || !copy)
    goto free_both;
  if (weir__pool_find(heap, id)) {
    free(made);
    free(copy);
    return weir__fail(WEIR_ERROR_BAD_STATE,
                      "weir_tag_open: the program has a pool {%llu, %llu}, which is that of a tag",
                      (unsigned long long)id.first, (unsigned long long)id.second);
  }
  *made = (weir_tag){.heap = heap, .name = copy};
  weir__account_begin_tag(&made->account, &heap->accounts, copy);
  made->pool = weir__pool_hold(heap, id, &options, made);
  if (!made->pool)
    goto free_both;
  *tag = made;
  return WEIR_OK;

free_both:
  free(made);
  free(copy);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "weir_tag_open: out of host memory");
}

weir_status weir__tag_adopt(weir__private_pool *pool, const char *name) {
  weir__heap *heap = pool->small.heap;
  weir_pool_options options;
  weir_pool_options_init(&options);
  weir_tag **link = &heap->tags;
  while (*link && strcmp((*link)->name, name))
    link = &(*link)->next;
  if (!*link) {
    weir_tag *made = calloc(1, sizeof *made);
    char *copy = strdup(name);
    if (!made || !copy) {
      free(made);
      free(copy);
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the tag of a pool");
    }
    *made = (weir_tag){.heap = heap, .name = copy};
    *link = made;
  }
  pool->tag = *link;
  pool->growth = weir__growth_of_options(heap, &options, pool->tag);
  if (pool->id.second == POOLS_OF_TAGS)
    pool->tag->pool = pool;
  return WEIR_OK;
}

weir_status weir_tag_open(weir_allocator *allocator, int device, const char *name, weir_tag **tag) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(name);
  WEIR__CHECK_ARGUMENT(tag);
  size_t length = strnlen(name, MAX_NAME + 1);
  if (!length || length > MAX_NAME)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the name has %s bytes, expected 1 to %d", __func__,
                      length ? "more" : "0", MAX_NAME);
  weir_status status = WEIR_OK;
  weir__mutex_lock(&heap->lock);
  weir_tag **link = &heap->tags;
  uint64_t number = 1;
  for (; *link && strcmp((*link)->name, name); link = &(*link)->next)
    number++;
  if (!*link)
    status = create(heap, name, number, link);
  if (!status)
    *tag = *link;
  weir__mutex_unlock(&heap->lock);
  weir__pools_finalize(heap); /* of pools dropped by a sweep */
  return status;
}

void weir__tags_clear(weir__heap *heap) {
  while (heap->tags) {
    weir_tag *tag = heap->tags;
    heap->tags = tag->next;
    free(tag->name);
    free(tag);
  }
  weir__sleeper_delete(heap->sleeper);
  heap->sleeper = NULL;
}

/* ---- Scopes ---- */

/* A tag of an allocator that belongs to the parent of this process has no heap any more that could be used. */
static weir_status check(const char *caller, const weir_tag *tag) {
  if (!tag)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: tag is NULL", caller);
  return weir__allocator_check(caller, tag->heap->allocator);
}

weir_status weir_tag_begin(weir_tag *tag) {
  weir_status status = check(__func__, tag);
  if (status)
    return status;
  weir__heap *heap = tag->heap;
  weir__backend_port *backend = heap->allocator->backend;
  weir__mutex_lock(&heap->lock);
  status = weir__thread_scope_open(heap, tag->pool);
  weir__mutex_unlock(&heap->lock);
  if (status)
    return weir__fail(status, "%s: out of host memory", __func__);
  if (backend && backend->program.begin_pool)
    backend->program.begin_pool(backend->program.context, heap->device, tag->pool->id, NULL, NULL);
  return WEIR_OK;
}

weir_status weir_tag_end(weir_tag *tag) {
  weir_status status = check(__func__, tag);
  if (status)
    return status;
  weir__heap *heap = tag->heap;
  weir__backend_port *backend = heap->allocator->backend;
  weir__mutex_lock(&heap->lock);
  bool had_one = weir__thread_scope_close(tag->pool);
  weir__mutex_unlock(&heap->lock);
  if (!had_one)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the calling thread is not in the scope of the tag '%s'", __func__,
                      tag->name);
  if (backend && backend->program.end_pool)
    backend->program.end_pool(backend->program.context, heap->device, tag->pool->id);
  return WEIR_OK;
}

/* ---- Looking ---- */

weir_status weir_allocator_tags(weir_allocator *allocator, int device, weir_tag **tags, size_t room, size_t *count) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(count);
  if (room && !tags)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: tags is NULL and room is %zu", __func__, room);
  size_t n = 0;
  weir__mutex_lock(&heap->lock);
  for (weir_tag *tag = heap->tags; tag; tag = tag->next)
    if (n++ < room)
      tags[n - 1] = tag;
  weir__mutex_unlock(&heap->lock);
  *count = n;
  return WEIR_OK;
}

weir_status weir_pool_tag(weir_allocator *allocator, int device, weir_pool_id id, weir_tag **tag) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(tag);
  weir__mutex_lock(&heap->lock);
  const weir__private_pool *pool = weir__pool_find(heap, id);
  weir_tag *of = pool ? pool->tag : NULL;
  weir__mutex_unlock(&heap->lock);
  if (!pool && (id.first || id.second))
    return weir__no_pool(__func__, id);
  *tag = of;
  return WEIR_OK;
}

static void add_pool(weir__heap *heap, const weir__private_pool *pool, weir_tag_info *info) {
  weir__glance seen = weir__account_glance(&heap->accounts, pool->small.account);
  info->pools++;
  info->reserved_bytes += (uint64_t)seen.reserved[WEIR_STAT_ALL].current;
  info->allocated_bytes += (uint64_t)seen.counted[WEIR_STAT_ALL].of.allocated_bytes;
}

weir_status weir_tag_get_info(weir_tag *tag, weir_tag_info *info) {
  weir_status status = check(__func__, tag);
  if (status)
    return status;
  if (!info || info->size < sizeof info->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: info is NULL, or its size is not set", __func__);
  weir__heap *heap = tag->heap;
  weir_tag_info known = {.size = info->size, .name = tag->name, .device = heap->device, .pool = tag->pool->id};
  weir__mutex_lock(&heap->lock);
  known.state = tag->state;
  known.asleep_bytes = tag->asleep_bytes;
  known.kept_bytes = tag->kept ? tag->kept->bytes : 0;
  known.copied_bytes = tag->copied_bytes;
  known.pinned_bytes = atomic_load(&heap->sleeper->pinned);
  weir__accounts_revoke(&heap->accounts); /* so that the published counts are exact */
  for (const weir__private_pool *pool = heap->private_pools; pool; pool = pool->next)
    if (pool->tag == tag)
      add_pool(heap, pool, &known);
  weir__mutex_unlock(&heap->lock);
  weir__copy_sized(info, info->size, &known, sizeof known);
  return WEIR_OK;
}
