/*
 * Sleep and wake of a tag.
 *
 *   awake --wait for work, hide what is free--> falling asleep --copy, unmap, release--> asleep
 *   asleep --make, map--> waking --copy back, show what is free--> awake
 *
 * The locks of the heap and of its arenas are not held while bytes are copied. Meanwhile no arena of the tag has a free
 * block in its index, so a request misses the cache, and a miss looks at the tag's state; and active blocks are marked,
 * so that their frees are completed when the tag wakes. Each failure leads back to the state before.
 */
#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/uses.h"
#include "alloc/pools/kept.h"
#include "alloc/pools/pool.h"
#include "base/array.h"
#include "driver/call.h"
#include "weir/tag.h"

/* ---- The segments of a tag. The heap's lock is held ---- */

static bool is_of(const weir__segment *segment, const weir_tag *tag) {
  const weir__private_pool *owner = segment->arena->pool->owner;
  return owner && owner->tag == tag;
}

/* The next segment of a tag, from one of the heap's list on. */
static weir__segment *find_segment(weir__segment *from, const weir_tag *tag) {
  while (from && !is_of(from, tag))
    from = from->next;
  return from;
}
static weir__segment *first_segment(const weir_tag *tag) { return find_segment(tag->heap->segments, tag); }
static weir__segment *next_segment(const weir__segment *segment, const weir_tag *tag) {
  return find_segment(segment->next, tag);
}

/* The first page from an address on that belongs to a segment, asleep or not; NULL if there is none. */
static weir__mapping *page_from(const weir__segment *segment, uint64_t address) {
  const weir__reservation *memory = &segment->memory;
  for (uint64_t end = memory->base + memory->room * memory->slot; address < end; address += memory->slot) {
    weir__mapping *m = weir__mapping_at(memory, address);
    if (m && m->address == address && m->page->owner == m)
      return m;
  }
  return NULL;
}
static weir__mapping *first_page(const weir__segment *segment) { return page_from(segment, segment->memory.base); }
static weir__mapping *next_page(const weir__segment *segment, const weir__mapping *m) {
  return page_from(segment, weir__mapping_end(m));
}

/* ---- May it sleep? ---- */

static weir_status refuse_pins(const char *caller, const weir_tag *tag, const weir__mapping *m) {
  unsigned pins = weir__page_pins(&tag->heap->pages, m->page);
  const char *why = pins & WEIR__PIN_FIXED      ? "it is fixed in place (weir_allocator_fix_pages)"
                    : pins & WEIR__PIN_EXPORTED ? "other processes use it, or may still receive it"
                    : pins & WEIR__PIN_PEERS    ? "other devices have access to it"
                                                : "it belongs to another process";
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                    "%s: the tag '%s' cannot sleep: the page at %p may not lose its memory, as %s", caller, tag->name,
                    (void *)m->address, why);
}

/* The heap's lock is held. */
static weir_status check_pages(const char *caller, const weir_tag *tag) {
  for (const weir__segment *s = first_segment(tag); s; s = next_segment(s, tag)) {
    if (!weir__has_pages(s))
      return weir__fail(
          WEIR_ERROR_NOT_SUPPORTED, "%s: the tag '%s' cannot sleep: pool {%llu, %llu} has memory without pages, %s",
          caller, tag->name, (unsigned long long)s->arena->pool->owner->id.first,
          (unsigned long long)s->arena->pool->owner->id.second,
          s->growth == WEIR__GROWTH_PROVIDED ? "from functions of the program" : "as the device has no virtual memory");
    for (const weir__mapping *m = first_page(s); m; m = next_page(s, m))
      if (weir__pins_permit(weir__page_pins(&tag->heap->pages, m->page), WEIR__PAGE_TO_SLEEP) == WEIR__PAGE_MAY_NOT)
        return refuse_pins(caller, tag, m);
  }
  return WEIR_OK;
}

static weir_status check_device(const char *caller, const weir_tag *tag) {
  const weir_allocator *allocator = tag->heap->allocator;
  if (allocator->backend)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the back end %s has no memory that can sleep", caller,
                      weir__backend_name(allocator));
  if (atomic_load(&tag->heap->captures))
    return weir__fail(WEIR_ERROR_CAPTURE, "%s: a stream of device %d is captured; end the capture first", caller,
                      tag->heap->device);
  return WEIR_OK;
}

/* The result of the last failed change of pages, or of a lack of host memory for it. */
static weir_status pages_status(const char *caller, const weir__heap *heap) {
  if (!heap->pages.failed_call)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  return weir__driver_status(heap->allocator->driver, weir__pages_failure(&heap->pages), caller,
                             heap->pages.failed_call);
}

/* ---- What is live ---- */

static bool add_range(weir__kept *kept, uint64_t address, uint64_t bytes) {
  weir__kept_range *last = kept->count ? &kept->ranges[kept->count - 1] : NULL;
  if (last && last->address + last->bytes == address)
    last->bytes += bytes;
  else {
    if (!WEIR__RESERVE(kept->ranges, kept->room, kept->count + 1))
      return false;
    kept->ranges[kept->count++] = (weir__kept_range){address, bytes, kept->bytes};
  }
  kept->bytes += bytes;
  return true;
}

/* What graphs may read of memory that is free. */
static bool add_captured(weir__kept *kept, const weir__segment *segment, const weir__block *block) {
  uint64_t end = block->address + weir__block_bytes(block), most;
  most = segment->memory.base + segment->memory.room * segment->memory.slot;
  end = end < most ? end : most; /* what lies behind has no pages */
  bool is_captured;
  for (uint64_t at = block->address, to; at < end; at = to) {
    to = weir__captured_run(segment, at, end, &is_captured);
    if (is_captured && !add_range(kept, at, to - at))
      return false;
  }
  return true;
}

/* The arena's lock is held. */
static bool list_segment(weir__kept *kept, const weir__segment *segment) {
  bool is_of_graph = segment->memory.pins & WEIR__PIN_GRAPH;
  for (const weir__block *b = segment->first; b; b = weir__block_next(b)) {
    if (weir__block_is_active(b) ? !add_range(kept, b->address, weir__block_bytes(b))
                                 : is_of_graph && !add_captured(kept, segment, b))
      return false;
  }
  return true;
}

/* Ranges are in the order of their addresses within a segment, and `kept` is empty before. */
static bool list_live(const weir_tag *tag, weir__kept *kept) {
  bool done = true;
  for (weir__segment *s = first_segment(tag); s && done; s = next_segment(s, tag)) {
    weir__arena_lock(s->arena);
    done = list_segment(kept, s);
    weir__arena_unlock(s->arena);
  }
  return done;
}

/* ---- Hiding what is free ---- */

static void show(weir_tag *tag) {
  for (weir__segment *s = first_segment(tag); s; s = next_segment(s, tag)) {
    weir__arena_lock(s->arena);
    weir__segment_show(tag->heap, s);
    weir__account_publish(&s->arena->account);
    weir__arena_unlock(s->arena);
  }
}

static bool hide(weir_tag *tag) {
  bool done = true;
  for (weir__segment *s = first_segment(tag); s && done; s = next_segment(s, tag)) {
    weir__arena_lock(s->arena);
    done = weir__segment_hide(tag->heap, s);
    weir__account_publish(&s->arena->account);
    weir__arena_unlock(s->arena);
  }
  if (!done)
    show(tag);
  return done;
}

/* ---- Pages ---- */

typedef struct changes {
  weir__page_change *all;
  size_t count, room;
} changes;

/* Adds a page to a change of its action that ends where it begins, or begins one. */
static bool add_page(changes *c, weir__page_action action, weir__segment *segment, const weir__mapping *m) {
  weir__page_change *last = c->count ? &c->all[c->count - 1] : NULL;
  if (last && last->reservation == &segment->memory && last->address + last->bytes == m->address) {
    last->bytes += m->page->bytes;
    return true;
  }
  if (!WEIR__RESERVE(c->all, c->room, c->count + 1))
    return false;
  c->all[c->count++] = (weir__page_change){action, &segment->memory, m->address, m->page->bytes, .page = NULL};
  return true;
}

/* All pages of a tag that are in the state that an action begins with. */
static bool add_pages(changes *c, weir__page_action action, const weir_tag *tag) {
  for (weir__segment *s = first_segment(tag); s; s = next_segment(s, tag))
    for (const weir__mapping *m = first_page(s); m; m = next_page(s, m))
      if (weir__is_asleep(m) == (action != WEIR__PAGE_SLEEP) && !add_page(c, action, s, m))
        return false;
  return true;
}

/* Makes the pages of a tag fall asleep, or wake, all or none. False with heap->pages.failed_call set, or NULL there for
 * a lack of host memory. */
static bool change_pages(weir_tag *tag, weir__page_action action) {
  weir__pages *pages = &tag->heap->pages;
  changes c = {0};
  pages->failure = WEIR_CU_SUCCESS;
  pages->failed_call = NULL;
  bool done = add_pages(&c, action, tag) && weir__pages_change(pages, c.all, c.count);
  free(c.all);
  return done;
}

/* Counts the memory of a segment's pages as it is now, and returns the bytes of those that are asleep. */
static uint64_t count_segment(weir__segment *segment) {
  uint64_t asleep = 0;
  for (const weir__mapping *m = first_page(segment); m; m = next_page(segment, m))
    asleep += weir__is_asleep(m) ? m->page->bytes : 0;
  if (asleep == segment->asleep)
    return asleep;
  weir__arena_lock(segment->arena);
  weir__account_charge(&segment->arena->account, (int64_t)(segment->asleep - asleep), 0);
  weir__arena_unlock(segment->arena);
  segment->asleep = asleep;
  return asleep;
}

static void count_pages(weir_tag *tag) {
  tag->asleep_bytes = 0;
  for (weir__segment *s = first_segment(tag); s; s = next_segment(s, tag))
    tag->asleep_bytes += count_segment(s);
}

/* ---- Falling asleep ---- */

static weir_status wait_for_work(const char *caller, weir__heap *heap, const weir_tag_sleep_options *options) {
  weir_driver *driver = heap->allocator->driver;
  const char *call = options->stream_count ? "cuStreamSynchronize" : "cuCtxSynchronize";
  weir_cu_result r = options->stream_count ? WEIR_CU_SUCCESS : driver->CtxSynchronize(driver);
  for (size_t i = 0; i < options->stream_count && !r; i++)
    r = driver->StreamSynchronize(driver, options->streams[i]);
  return r ? weir__driver_status(driver, r, caller, call) : WEIR_OK;
}

/* From awake to falling asleep; *kept lists what is live, or is NULL if nothing is to be kept. The heap's lock is
 * held. */
static weir_status begin_sleep(const char *caller, weir_tag *tag, weir__kept *kept) {
  weir__heap *heap = tag->heap;
  heap->pages.failure = WEIR_CU_SUCCESS;
  if (heap->pending || heap->quarantined)
    weir__wait_for_events(heap); /* of blocks that were freed: they are not live then */
  else if (heap->sent.collect)
    heap->sent.collect(heap);
  weir_status status = heap->pages.failure ? pages_status(caller, heap) : WEIR_OK;
  if (!status && heap->allocator->guard) /* it may have checked blocks since, by work on their streams */
    status = wait_for_work(caller, heap, &(weir_tag_sleep_options){.size = sizeof(weir_tag_sleep_options)});
  if (!status)
    status = check_device(caller, tag);
  if (!status)
    status = check_pages(caller, tag);
  if (status)
    return status;
  if (!hide(tag))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  if (kept && !list_live(tag, kept)) {
    show(tag);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  }
  tag->state = WEIR_TAG_FALLING_ASLEEP;
  return WEIR_OK;
}

/* Copies what is live to the host. No lock but the sleeper's is held. */
static weir_status save(const char *caller, weir_tag *tag, weir__kept *kept, const weir_tag_sleep_options *options) {
  weir__heap *heap = tag->heap;
  weir__carry carry = {true, options->progress, options->context};
  uint64_t available;
  char need[32], have[32];
  if (!weir__kept_take(heap->sleeper, heap->allocator->driver, kept, &available))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY,
                      "%s: the tag '%s' keeps %s, and the host has %s left; discard the bytes, or free host memory",
                      caller, tag->name, weir__format_bytes(kept->bytes, need), weir__format_bytes(available, have));
  weir_cu_result r = weir__kept_carry(heap, heap->sleeper, kept, &carry);
  return r ? weir__driver_status(heap->allocator->driver, r, caller, heap->sleeper->failed_call) : WEIR_OK;
}

/* From falling asleep to asleep, or back to awake if nothing could be unmapped. The heap's lock is held. */
static weir_status end_sleep(const char *caller, weir_tag *tag) {
  weir_status status = check_device(caller, tag); /* another thread may have captured, or shared pages, meanwhile */
  if (!status)
    status = check_pages(caller, tag);
  if (!status && !change_pages(tag, WEIR__PAGE_SLEEP))
    status = pages_status(caller, tag->heap);
  count_pages(tag);
  tag->state = status && !tag->asleep_bytes ? WEIR_TAG_AWAKE : WEIR_TAG_ASLEEP;
  if (tag->state == WEIR_TAG_AWAKE)
    show(tag);
  return status;
}

static weir_status drop_kept(const char *caller, weir_tag *tag, weir_tag_content content) {
  if (tag->state != WEIR_TAG_ASLEEP || content != WEIR_TAG_DISCARD)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the tag '%s' is %s", caller, tag->name,
                      weir_tag_state_name(tag->state));
  weir__kept *kept = tag->kept;
  weir__mutex_lock(&tag->heap->lock);
  tag->kept = NULL;
  weir__mutex_unlock(&tag->heap->lock);
  if (kept)
    weir__kept_drop(tag->heap->sleeper, tag->heap->allocator->driver, kept);
  return WEIR_OK;
}

static weir_status sleep_awake(const char *caller, weir_tag *tag, weir__kept *kept,
                               const weir_tag_sleep_options *options) {
  weir__heap *heap = tag->heap;
  weir_status status = wait_for_work(caller, heap, options);
  if (status)
    return status;
  weir__mutex_lock(&heap->lock);
  status = begin_sleep(caller, tag, kept);
  weir__mutex_unlock(&heap->lock);
  if (status)
    return status;
  if (kept)
    status = save(caller, tag, kept, options);
  weir__mutex_lock(&heap->lock);
  if (status) {
    tag->state = WEIR_TAG_AWAKE;
    show(tag);
  } else
    status = end_sleep(caller, tag);
  weir__mutex_unlock(&heap->lock);
  return status;
}

/* ---- Entering ---- */

static weir_status read_options(const char *caller, const weir_tag_sleep_options *given,
                                weir_tag_sleep_options *options) {
  weir_tag_sleep_options_init(options);
  weir_status status = weir__read_options(caller, "options", options, sizeof *options, given);
  if (!status && options->stream_count && !options->streams)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: streams is NULL and stream_count is %zu", caller,
                      options->stream_count);
  return status;
}

/* What a call here has changed of the thread. */
typedef struct visit {
  weir_cu_context previous;
  int mode;
} visit;

/* Takes the sleeper's lock, and makes the device's context current. A capture of another device is not disturbed. */
static weir_status enter(const char *caller, weir_tag *tag, visit *v) {
  if (!tag)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: tag is NULL", caller);
  weir__heap *heap = tag->heap;
  weir_driver *driver = heap->allocator->driver;
  weir_status status = weir__allocator_check(caller, heap->allocator);
  if (!status)
    status = check_device(caller, tag);
  if (status)
    return status;
  weir__mutex_lock(&heap->sleeper->lock);
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, &v->previous);
  weir__mutex_unlock(&heap->lock);
  const char *call = "cuDevicePrimaryCtxRetain";
  v->mode = WEIR_CU_CAPTURE_RELAXED;
  if (!r && (r = driver->ThreadExchangeStreamCaptureMode(driver, &v->mode))) {
    call = "cuThreadExchangeStreamCaptureMode";
    weir__heap_leave(heap, v->previous);
  }
  if (!r && atomic_load(&heap->sleeper->is_busy)) { /* since an earlier call failed */
    if ((r = driver->CtxSynchronize(driver))) {
      call = "cuCtxSynchronize";
      weir__heap_leave(heap, v->previous);
    } else
      atomic_store(&heap->sleeper->is_busy, false);
  }
  if (r)
    weir__mutex_unlock(&heap->sleeper->lock);
  return r ? weir__driver_status(driver, r, caller, call) : WEIR_OK;
}

static weir_status leave(weir_tag *tag, const visit *v, weir_status status) {
  weir_driver *driver = tag->heap->allocator->driver;
  int mode = v->mode;
  if (mode != WEIR_CU_CAPTURE_RELAXED)
    driver->ThreadExchangeStreamCaptureMode(driver, &mode);
  weir__heap_leave(tag->heap, v->previous);
  weir__mutex_unlock(&tag->heap->sleeper->lock);
  weir__pools_finalize(tag->heap);
  return status;
}

weir_status weir_tag_sleep(weir_tag *tag, weir_tag_content content, const weir_tag_sleep_options *given) {
  weir_tag_sleep_options options;
  visit v;
  weir_status status = read_options(__func__, given, &options);
  if (!status && content != WEIR_TAG_KEEP && content != WEIR_TAG_DISCARD)
    status =
        weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: content is %d, expected keep or discard", __func__, (int)content);
  if (!status)
    status = enter(__func__, tag, &v);
  if (status)
    return status;
  weir__heap *heap = tag->heap;
  if (tag->state != WEIR_TAG_AWAKE) /* it changes with the sleeper's lock held */
    return leave(tag, &v, drop_kept(__func__, tag, content));
  weir__kept *kept = content == WEIR_TAG_KEEP ? calloc(1, sizeof *kept) : NULL;
  if (content == WEIR_TAG_KEEP && !kept)
    return leave(tag, &v, weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__));
  status = sleep_awake(__func__, tag, kept, &options);
  weir__mutex_lock(&heap->lock);
  if (kept && tag->state == WEIR_TAG_ASLEEP) {
    tag->kept = kept;
    tag->copied_bytes += kept->bytes;
  }
  weir__mutex_unlock(&heap->lock);
  if (kept && !tag->kept)
    weir__kept_drop(heap->sleeper, heap->allocator->driver, kept);
  return leave(tag, &v, status);
}

/* ---- Waking ---- */

/* Whether bytes of a page are live. The arena's lock is held. */
static bool is_needed(const weir__segment *segment, const weir__mapping *m, const weir__block **block) {
  const weir__block *b = *block;
  while (b && b->address + weir__block_bytes(b) <= m->address)
    b = weir__block_next(b);
  *block = b;
  for (; b && b->address < weir__mapping_end(m); b = weir__block_next(b))
    if (weir__block_is_active(b))
      return true;
  return segment->memory.pins & WEIR__PIN_GRAPH;
}

/* Ends pages of a segment whose blocks were freed while they were asleep. On failure some are left, which does no
 * harm. */
static void forget_unneeded(weir__heap *heap, weir__segment *segment) {
  weir__arena_lock(segment->arena);
  weir__segment_settle(segment);
  const weir__block *block = segment->first;
  for (weir__mapping *m = first_page(segment), *next; m; m = next) {
    next = next_page(segment, m);
    weir__page_change gone = {WEIR__PAGE_FORGET, &segment->memory, m->address, m->page->bytes, .page = NULL};
    if (!weir__is_asleep(m) || is_needed(segment, m, &block))
      continue;
    segment->asleep -= gone.bytes;
    if (weir__pages_change(&heap->pages, &gone, 1))
      weir__page_map_update(heap->allocator->page_map, gone.address, gone.bytes, segment->arena, false);
    else
      segment->asleep += gone.bytes;
  }
  weir__arena_unlock(segment->arena);
}

/* Whether the limits of the device, the tag and a pool allow what the pool's pages need. */
static const weir__account *refused_by(const weir_tag *tag) {
  const weir__account *by = NULL;
  uint64_t all = 0;
  for (const weir__private_pool *p = tag->heap->private_pools; p; p = p->next) {
    uint64_t bytes = 0;
    for (const weir__segment *s = p->tag == tag ? first_segment(tag) : NULL; s; s = next_segment(s, tag))
      bytes += s->arena->pool->owner == p ? s->asleep : 0;
    if (bytes && weir__account_headroom(p->small.account, WEIR__LIMIT_HARD, &by) < bytes)
      return by;
    all += bytes;
  }
  return weir__account_headroom(&tag->account, WEIR__LIMIT_HARD, &by) < all ? by : NULL;
}

static weir_status no_memory(const char *caller, const weir_tag *tag, const weir__account *by) {
  weir__heap *heap = tag->heap;
  weir_driver *driver = heap->allocator->driver;
  char need[32], text[32], name[64];
  uint64_t free_bytes = 0, total = heap->total;
  if (by) {
    weir__account_name(by, heap->device, name, sizeof name);
    return weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
                      "%s: the tag '%s' needs %s to wake, and the limit of %s leaves %s; it is asleep as before",
                      caller, tag->name, weir__format_bytes(tag->asleep_bytes, need), name,
                      weir__format_bytes(weir__account_headroom(by, WEIR__LIMIT_HARD, &by), text));
  }
  driver->MemGetInfo(driver, &free_bytes, &total);
  return weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
                    "%s: the tag '%s' needs %s to wake, and GPU %d has %s free; it is asleep as before", caller,
                    tag->name, weir__format_bytes(tag->asleep_bytes, need), heap->device,
                    weir__format_bytes(free_bytes, text));
}

/* From asleep to waking: all pages have memory. The heap's lock is held. */
static weir_status begin_wake(const char *caller, weir_tag *tag) {
  weir__heap *heap = tag->heap;
  weir_status status = check_device(caller, tag);
  if (status)
    return status;
  for (weir__segment *s = first_segment(tag); s; s = next_segment(s, tag))
    forget_unneeded(heap, s);
  count_pages(tag);
  const weir__account *by = refused_by(tag);
  bool done = !by && change_pages(tag, WEIR__PAGE_WAKE);
  if (!done && (by || (!heap->pages.failure && heap->pages.failed_call))) { /* what is only cached goes first */
    weir__release_cached(heap, true);
    by = refused_by(tag);
    done = !by && change_pages(tag, WEIR__PAGE_WAKE);
  }
  if (!done)
    return by || (!heap->pages.failure && heap->pages.failed_call) ? no_memory(caller, tag, by)
                                                                   : pages_status(caller, heap);
  count_pages(tag);
  tag->state = WEIR_TAG_WAKING;
  return WEIR_OK;
}

/* The kept ranges of pages that have memory: the others were freed meanwhile. */
static bool list_awake(const weir__heap *heap, const weir__kept *kept, weir__kept *awake) {
  for (size_t i = 0; i < kept->count; i++) {
    const weir__kept_range *r = &kept->ranges[i];
    const weir__segment *segment = weir__segment_at(heap, r->address);
    for (uint64_t at = r->address, end = at + r->bytes, to; segment && at < end; at = to) {
      const weir__mapping *m = weir__mapping_at(&segment->memory, at);
      to = m ? weir__mapping_end(m)
             : (at - segment->memory.base) / segment->memory.slot * segment->memory.slot + segment->memory.slot +
                   segment->memory.base;
      to = to < end ? to : end;
      weir__kept_range *last = awake->count ? &awake->ranges[awake->count - 1] : NULL;
      uint64_t place = r->at + (at - r->address);
      if (!weir__is_owner(m))
        continue;
      if (last && last->address + last->bytes == at && last->at + last->bytes == place)
        last->bytes += to - at;
      else if (WEIR__RESERVE(awake->ranges, awake->room, awake->count + 1))
        awake->ranges[awake->count++] = (weir__kept_range){at, to - at, place};
      else
        return false;
    }
  }
  return true;
}

/* Copies back what was kept. No lock but the sleeper's is held: the tag is waking, so its segments stay. */
static weir_status restore(const char *caller, weir_tag *tag, const weir_tag_sleep_options *options) {
  weir__heap *heap = tag->heap;
  weir__carry carry = {false, options->progress, options->context};
  const weir__kept *kept = tag->kept;
  weir__kept awake = {.bytes = kept->bytes, .pieces = kept->pieces, .piece_count = kept->piece_count};
  weir__mutex_lock(&heap->lock);
  bool listed = list_awake(heap, kept, &awake);
  weir__mutex_unlock(&heap->lock);
  weir_status status = WEIR_OK;
  weir_cu_result r = listed ? weir__kept_carry(heap, heap->sleeper, &awake, &carry) : WEIR_CU_SUCCESS;
  if (!listed)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  else if (r)
    status = weir__driver_status(heap->allocator->driver, r, caller, heap->sleeper->failed_call);
  free(awake.ranges);
  return status;
}

/* From waking to awake, or back to asleep. The heap's lock is held. */
static void end_wake(weir_tag *tag, weir_status status) {
  tag->state = status ? WEIR_TAG_ASLEEP : WEIR_TAG_AWAKE;
  if (!status)
    show(tag);
  else if (!atomic_load(&tag->heap->sleeper->is_busy))
    change_pages(tag, WEIR__PAGE_SLEEP); /* pages that are not unmapped keep their memory until the next wake */
  count_pages(tag);
}

weir_status weir_tag_wake(weir_tag *tag, const weir_tag_sleep_options *given) {
  weir_tag_sleep_options options;
  visit v;
  weir_status status = read_options(__func__, given, &options);
  if (!status)
    status = enter(__func__, tag, &v);
  if (status)
    return status;
  weir__heap *heap = tag->heap;
  if (tag->state != WEIR_TAG_ASLEEP)
    return leave(tag, &v,
                 weir__fail(WEIR_ERROR_BAD_STATE, "%s: the tag '%s' is %s", __func__, tag->name,
                            weir_tag_state_name(tag->state)));
  weir__mutex_lock(&heap->lock);
  status = begin_wake(__func__, tag);
  weir__mutex_unlock(&heap->lock);
  if (status)
    return leave(tag, &v, status);
  if (tag->kept)
    status = restore(__func__, tag, &options);
  weir__mutex_lock(&heap->lock);
  end_wake(tag, status);
  weir__kept *kept = status ? NULL : tag->kept;
  tag->kept = status ? tag->kept : NULL;
  tag->copied_bytes += kept ? kept->bytes : 0;
  weir__mutex_unlock(&heap->lock);
  if (kept)
    weir__kept_drop(heap->sleeper, heap->allocator->driver, kept);
  return leave(tag, &v, status);
}

/* ---- Preparing ---- */

weir_status weir_tag_prepare(weir_tag *tag) {
  visit v;
  weir_status status = enter(__func__, tag, &v);
  if (status)
    return status;
  weir__heap *heap = tag->heap;
  weir__sleeper *sleeper = heap->sleeper;
  weir_driver *driver = heap->allocator->driver;
  weir__kept *kept = calloc(1, sizeof *kept);
  uint64_t available;
  char need[32], have[32];
  weir__mutex_lock(&heap->lock);
  bool listed = kept && list_live(tag, kept);
  weir__mutex_unlock(&heap->lock);
  if (!listed)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  else if (kept->bytes > sleeper->budget)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY,
                        "%s: the tag '%s' has %s, and %s may stay pinned (WEIR_SLEEP_PINNED)", __func__, tag->name,
                        weir__format_bytes(kept->bytes, need), weir__format_bytes(sleeper->budget, have));
  else if (!weir__kept_take(sleeper, driver, kept, &available))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: the tag '%s' has %s, and the host has %s left", __func__,
                        tag->name, weir__format_bytes(kept->bytes, need), weir__format_bytes(available, have));
  else {
    weir_cu_result r = weir__kept_pin_all(heap, sleeper, kept);
    status = r ? weir__driver_status(driver, r, __func__, sleeper->failed_call) : WEIR_OK;
  }
  if (kept)
    weir__kept_drop(sleeper, driver, kept);
  return leave(tag, &v, status);
}

/* ---- The end of a heap ---- */

void weir__tags_end_sleep(weir__heap *heap) {
  weir__sleeper *sleeper = heap->sleeper;
  weir_driver *driver = heap->allocator->driver;
  for (weir_tag *tag = heap->tags; tag; tag = tag->next)
    if (tag->kept) {
      weir__kept_drop(sleeper, driver, tag->kept);
      tag->kept = NULL;
    }
  if (!sleeper)
    return;
  weir__kept_clear(sleeper, driver);
  weir__carry_end(sleeper, driver);
}
