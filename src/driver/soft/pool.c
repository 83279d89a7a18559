/*
 * Stream-ordered pools. A pool holds ranges. A range that was freed in a stream can be reused by that stream at once,
 * and by others once the stream has reached the free.
 */
#include "driver/soft/soft.h"

/* Frees unused ranges while at least `keep` bytes remain reserved. */
static void trim(model *m, model_pool *pool, uint64_t keep) {
  for (struct soft_range **at = &((struct soft_pool *)pool)->ranges; *at && pool->reserved > keep;) {
    model_range *range = &(*at)->r;
    if (!range->idle || range->refs || pool->reserved - range->room < keep) {
      at = &(*at)->next;
      continue;
    }
    *at = (*at)->next;
    pool->reserved -= range->room;
    weir__model_free_range(m, range);
  }
}

void weir__soft_release_range(struct soft *soft, struct soft_range *range) {
  model_pool *pool = range->r.pool;
  pool->used -= range->r.bytes;
  range->r.idle = true;
  range->r.turn++;
  range->freeing = NULL;
  weir__model_drop_pool(&soft->m, pool);
}

/* A range that work of another device refers to is freed with that work. */
static void close_pool(model *m, model_pool *pool) {
  struct soft_range *next;
  for (struct soft_range *range = ((struct soft_pool *)pool)->ranges; range; range = next) {
    next = range->next;
    if (range->r.refs) {
      range->r.pool = NULL;
      pool->device->graph_used += range->r.room;
    } else
      weir__model_free_range(m, &range->r);
  }
  ((struct soft_pool *)pool)->ranges = NULL;
  pool->reserved = pool->used = 0;
}

/* The smallest range that fits, is at most twice as large, and is free from the point of view of the stream. */
static struct soft_range *find_range(const model_pool *pool, const model_stream *stream, uint64_t room) {
  struct soft_range *best = NULL;
  for (struct soft_range *c = ((const struct soft_pool *)pool)->ranges; c; c = c->next) {
    bool is_free = c->r.idle && (!c->freeing || &c->freeing->s == stream);
    if (is_free && c->r.room >= room && c->r.room / 2 <= room && (!best || c->r.room < best->r.room))
      best = c;
  }
  return best;
}

static weir_cu_result new_range(model *m, model_pool *pool, uint64_t bytes, model_range **range) {
  uint64_t room = weir__round_up(bytes, MODEL_GRANULARITY);
  if (pool->max_bytes && (pool->reserved > pool->max_bytes || room > pool->max_bytes - pool->reserved))
    return WEIR_CU_OUT_OF_MEMORY;
  return m->hooks->new_range(m, &(model_request){MODEL_RANGE_POOLED, pool->device, bytes, 0, 0}, range);
}

static weir_cu_result grow(model *m, model_pool *pool, uint64_t bytes, struct soft_range **grown) {
  model_range *range;
  weir_cu_result r = new_range(m, pool, bytes, &range);
  if (r == WEIR_CU_OUT_OF_MEMORY) {
    trim(m, pool, 0);
    r = new_range(m, pool, bytes, &range);
  }
  if (r == WEIR_CU_OUT_OF_MEMORY && pool->reserved) {
    uint64_t handle = weir__handle_of(&m->pools, pool);
    weir__soft_wait_device(m, pool->device); /* completes the frees in other streams */
    if (weir__handles_get(&m->pools, handle) != pool || pool->destroyed)
      return r; /* destroyed by another thread meanwhile */
    trim(m, pool, 0);
    r = new_range(m, pool, bytes, &range);
  }
  if (r)
    return r;
  struct soft_range *of = *grown = (struct soft_range *)range;
  range->pool = pool;
  of->next = ((struct soft_pool *)pool)->ranges;
  ((struct soft_pool *)pool)->ranges = of;
  weir__model_pool_reserve(pool, range->room);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result alloc(model *m, model_pool *pool, model_stream *stream, uint64_t bytes, model_range **range) {
  struct soft_range *found = find_range(pool, stream, weir__round_up(bytes, MODEL_GRANULARITY));
  weir_cu_result r = found ? WEIR_CU_SUCCESS : grow(m, pool, bytes, &found);
  if (r)
    return r;
  if (found->freeing)
    pool->used -= found->r.bytes; /* the queued free of its former use no longer counts */
  found->freeing = NULL;
  found->r.turn++;
  found->r.idle = false;
  found->r.bytes = bytes;
  weir__model_pool_use(pool, bytes);
  *range = &found->r;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result free_range(model *m, model_range *range, model_stream *stream) {
  struct soft_range *of = (struct soft_range *)range;
  if (!stream) {
    weir__soft_release_range((struct soft *)m, of);
    return WEIR_CU_SUCCESS;
  }
  model_work work = {.kind = MODEL_WORK_FREE, .as.memory = {range, range->turn}};
  range->refs++;
  weir_cu_result r = weir__model_submit(m, stream, &work);
  if (r)
    return r;
  range->idle = true;
  of->freeing = (struct soft_stream *)stream;
  return WEIR_CU_SUCCESS;
}

void weir__soft_add_pool_hooks(model_hooks *hooks) {
  hooks->pool_alloc = alloc;
  hooks->pool_free = free_range;
  hooks->pool_trim = trim;
  hooks->pool_close = close_pool;
}
