/*
 * Settings, limits and caching of an allocator that exists.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/allocator.h"
#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/trace.h"
#include "base/thread.h"
#include "driver/call.h"

/* ---- Settings ---- */

/* Turns collection by age on or off after one of its conditions, a threshold and a limit, has changed. Lazily freed
 * blocks (weir__last_alloc) are flushed, so that they count as free from the start. The heap's lock is held. */
static void note_ageing(weir__heap *heap) {
  bool is_on = weir__settings_of(heap)->garbage_collection_threshold > 0 &&
               heap->accounts.device.limit[WEIR__LIMIT_HARD] != UINT64_MAX;
  if (is_on)
    weir__pool_flush(&heap->large);
  weir__slow_reason_set(heap, WEIR__SLOW_AGING, is_on);
}

/* The back end and the guard are fixed at creation. */
static weir_status check_backend(const weir_allocator *allocator, const weir__settings *old,
                                 const weir__settings *changed) {
  if (changed->guard != old->guard)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "guard: the mode is fixed at creation; set WEIR_GUARD before");
  if (changed->backend == old->backend)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "backend:%s cannot be set: the back end is fixed at creation (now %s)",
                    changed->backend == WEIR__BACKEND_NATIVE ? "native" : "cudaMallocAsync",
                    weir__backend_name(allocator));
}

/* Readers load the settings without a lock, so a change installs a new copy. Old copies are kept, since readers may
 * still use them. */
weir_status weir_allocator_configure(weir_allocator *allocator, const char *conf) {
  WEIR__CHECK_ALLOCATOR(allocator);
  WEIR__CHECK_ARGUMENT(conf);
  weir__settings *changed = calloc(1, sizeof *changed);
  if (!changed)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  weir__mutex_lock(&allocator->configure_lock);
  const weir__settings *old = atomic_load(&allocator->settings);
  weir_status status = weir__settings_parse(old, conf, changed);
  if (!status)
    status = check_backend(allocator, old, changed);
  if (status) {
    free(changed);
    weir__fail(status, "%s: %s", __func__, weir_last_error());
  } else {
    weir__growth_fit(allocator, changed);
    changed->older = (weir__settings *)old;
    atomic_store_explicit(&allocator->settings, changed, memory_order_release);
    for (int i = 0; i < allocator->heap_count; i++) {
      weir__mutex_lock(&allocator->heaps[i].lock);
      note_ageing(&allocator->heaps[i]);
      weir__mutex_unlock(&allocator->heaps[i].lock);
    }
    weir__trace_settings(allocator);
  }
  weir__mutex_unlock(&allocator->configure_lock);
  return status;
}

/* The value of a key, or all settings if it is NULL. */
static weir_status put_settings(const char *caller, weir_allocator *allocator, const char *key, char *text, size_t size,
                                size_t *length) {
  const weir__settings *settings = atomic_load(&allocator->settings);
  size_t whole = 0;
  if (size && !text)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the text is NULL", caller);
  if (!key)
    whole = weir__settings_format(settings, text, size);
  else if (!weir__setting_format(settings, key, text, size, &whole))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: unknown key '%s'", caller, key);
  if (length)
    *length = whole;
  return WEIR_OK;
}

weir_status weir_allocator_settings(weir_allocator *allocator, char *text, size_t size, size_t *length) {
  WEIR__CHECK_ARGUMENT(allocator);
  return put_settings(__func__, allocator, NULL, text, size, length);
}

weir_status weir_allocator_setting(weir_allocator *allocator, const char *key, char *text, size_t size,
                                   size_t *length) {
  WEIR__CHECK_ARGUMENT(allocator);
  WEIR__CHECK_ARGUMENT(key);
  return put_settings(__func__, allocator, key, text, size, length);
}

weir_status weir_allocator_set_reserve_class(weir_allocator *allocator, int device, weir_cu_stream stream,
                                             const char *reserve_class) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  if (reserve_class && strlen(reserve_class) >= WEIR__RESERVE_CLASS_NAME)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the name of a class has at most %d bytes", __func__,
                      WEIR__RESERVE_CLASS_NAME - 1);
  weir_status status = WEIR_OK;
  weir__mutex_lock(&heap->lock);
  weir__stream_class **at = &heap->classes;
  while (*at && (*at)->stream != stream)
    at = &(*at)->next;
  weir__stream_class *class = *at;
  if (!reserve_class || !*reserve_class) {
    if (class)
      *at = class->next;
    free(class);
  } else if (class || (class = *at = calloc(1, sizeof *class))) {
    class->stream = stream;
    memcpy(class->name, reserve_class, strlen(reserve_class) + 1);
  } else
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  weir__mutex_unlock(&heap->lock);
  return status;
}

/* ---- Limits ---- */

static void set_limit(weir__heap *heap, uint64_t bytes) {
  weir__lock_acquire(&heap->accounts.lock); /* of polls */
  heap->accounts.device.limit[WEIR__LIMIT_HARD] = bytes;
  weir__lock_release(&heap->accounts.lock);
  note_ageing(heap);
  weir__trace_limit(heap);
}

weir_status weir_allocator_set_fraction(weir_allocator *allocator, int device, double fraction) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  if (!(fraction >= 0 && fraction <= 1))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: invalid fraction:%g. Please set within [0, 1].", __func__,
                      fraction);
  weir__mutex_lock(&heap->lock);
  heap->accounts.fraction = fraction;
  set_limit(heap, fraction < 1 ? (uint64_t)(fraction * (double)heap->total + 0.5) : UINT64_MAX);
  weir__mutex_unlock(&heap->lock);
  if (allocator->backend && allocator->backend->program.set_fraction)
    allocator->backend->program.set_fraction(allocator->backend->program.context, fraction, device);
  return WEIR_OK;
}

weir_status weir_allocator_set_limit(weir_allocator *allocator, int device, uint64_t bytes) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir__mutex_lock(&heap->lock);
  set_limit(heap, bytes);
  weir__mutex_unlock(&heap->lock);
  return WEIR_OK;
}

/* The heap's lock is held. */
static weir_status set_limits(const char *caller, weir__heap *heap, weir__account *account, uint64_t soft,
                              uint64_t hard) {
  if (soft > hard && soft != UINT64_MAX)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the soft limit, %llu bytes, is above the hard one, %llu",
                      caller, (unsigned long long)soft, (unsigned long long)hard);
  weir__lock_acquire(&heap->accounts.lock); /* of polls */
  account->limit[WEIR__LIMIT_SOFT] = soft;
  account->limit[WEIR__LIMIT_HARD] = hard;
  weir__lock_release(&heap->accounts.lock);
  return WEIR_OK;
}

weir_status weir_allocator_set_soft_limit(weir_allocator *allocator, int device, uint64_t bytes) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir__account *account = &heap->accounts.device;
  weir__mutex_lock(&heap->lock);
  uint64_t hard = account->limit[WEIR__LIMIT_HARD];
  weir_status status = set_limits(__func__, heap, account, bytes, hard);
  weir__mutex_unlock(&heap->lock);
  return status;
}

weir_status weir_pool_set_limits(weir_allocator *allocator, int device, weir_pool_id id, uint64_t soft, uint64_t hard) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir__mutex_lock(&heap->lock);
  weir__account *account =
      id.first || id.second ? weir__account_find(&heap->accounts, id) : &heap->accounts.default_pool;
  weir_status status = account ? set_limits(__func__, heap, account, soft, hard)
                               : weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there is no pool {%llu, %llu}", __func__,
                                            (unsigned long long)id.first, (unsigned long long)id.second);
  weir__mutex_unlock(&heap->lock);
  return status;
}

weir_status weir_tag_set_limits(weir_tag *tag, uint64_t soft, uint64_t hard) {
  WEIR__CHECK_ARGUMENT(tag);
  WEIR__CHECK_ALLOCATOR(tag->heap->allocator);
  weir__mutex_lock(&tag->heap->lock);
  weir_status status = set_limits(__func__, tag->heap, &tag->account, soft, hard);
  weir__mutex_unlock(&tag->heap->lock);
  return status;
}

weir_status weir_allocator_get_fraction(weir_allocator *allocator, int device, double *fraction) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(fraction);
  weir__mutex_lock(&heap->lock);
  *fraction = heap->accounts.fraction;
  weir__mutex_unlock(&heap->lock);
  return WEIR_OK;
}
