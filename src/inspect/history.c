/*
 * The public calls of weir/history.h on an allocator's recorder.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/guard_port.h"
#include "alloc/cache/trace.h"
#include "base/clock.h"
#include "base/thread.h"
#include "driver/work.h"
#include "inspect/checkpoint.h"
#include "record/stacks.h"
#include "record/texts.h"

static weir_status no_memory(const char *caller) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
}

/* The recorder, created on first use. NULL if out of host memory. */
static weir__recorder *history_of(weir_allocator *allocator) {
  weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  if (history)
    return history;
  weir__mutex_lock(&allocator->configure_lock);
  history = atomic_load(&allocator->history);
  if (!history) {
    history = weir__recorder_new(allocator->heap_count);
    atomic_store_explicit(&allocator->history, history, memory_order_release);
  }
  weir__mutex_unlock(&allocator->configure_lock);
  return history;
}

/* Keeps work that a device has executed while it was profiled. */
static void keep_work(const weir__work *work) {
  static const char *const kinds[] = {[WEIR__WORK_KERNEL] = "kernel",
                                      [WEIR__WORK_COPY] = "copy",
                                      [WEIR__WORK_FILL] = "fill",
                                      [WEIR__WORK_HOST] = "host"};
  weir__clock_point first = weir__clock_first();
  weir__recorders_add_work(
      &(weir__recorded_work){.name = work->name,
                             .kind = kinds[work->kind],
                             .device = work->device,
                             .stream = (uint64_t)(uintptr_t)work->stream,
                             .bytes = work->bytes,
                             .start_ns = first.unix_ns + ((int64_t)work->start_ns - first.monotonic_ns),
                             .duration_ns = work->end_ns - work->start_ns});
}

weir_status weir_history_record(weir_allocator *allocator, const weir_history_options *given) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir_history_options options;
  weir_history_options_init(&options);
  weir_status status = weir__read_options(__func__, "options", &options, sizeof options, given);
  if (status)
    return status;
  if ((unsigned)options.mode > WEIR_HISTORY_ALL)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: mode %d: expected off, state or all", __func__,
                      (int)options.mode);
  if ((unsigned)options.context > WEIR_CONTEXT_ALL)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: context %d: expected none, state, alloc or all", __func__,
                      (int)options.context);
  if ((unsigned)options.stacks > WEIR_STACKS_EITHER)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: stacks %d: expected language, all or either", __func__,
                      (int)options.stacks);
  if (options.skip >> WEIR_TRACE_ACTIONS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: Unknown TraceEntry action: 0x%x; weir_history_action gives the bits", __func__,
                      options.skip >> WEIR_TRACE_ACTIONS << WEIR_TRACE_ACTIONS);
  weir__recorder *history = history_of(allocator);
  if (!history)
    return no_memory(__func__);
  atomic_store_explicit(&weir__work_observer, keep_work, memory_order_release);
  weir__recorder_set(history, &options);
  weir__update_tracing(allocator);
  weir__checkpoint_begin(allocator);
  return WEIR_OK;
}

int weir_history_is_on_anywhere(void) { return atomic_load_explicit(&weir__recorders_on, memory_order_relaxed) != 0; }

weir_status weir_history_is_on(const weir_allocator *allocator, int *is_on) {
  WEIR__CHECK_ARGUMENT(allocator);
  WEIR__CHECK_ARGUMENT(is_on);
  const weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  *is_on = history && weir__recorder_is_on(history);
  return WEIR_OK;
}

weir_status weir_history_clear(weir_allocator *allocator) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__recorder *history = atomic_load(&allocator->history);
  if (history) {
    weir__recorder_clear(history);
    weir__checkpoint_begin(allocator);
  }
  return WEIR_OK;
}

weir_status weir_history_get_info(weir_allocator *allocator, int device, weir_history_info *info) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!weir__heap_get(__func__, allocator, device))
    return WEIR_ERROR_INVALID_DEVICE;
  if (!info || info->size < sizeof info->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: info is NULL, or its size is not set", __func__);
  weir__recorder *history = atomic_load(&allocator->history);
  weir_history_info now = {.size = info->size};
  if (history) {
    weir__entry *events;
    size_t kept;
    if (!weir__ring_read(&history->devices[device].ring, UINT64_MAX, &events, &kept, &now.dropped))
      return no_memory(__func__);
    free(events);
    now.kept = kept;
    now.lost = atomic_load(&history->rings.lost) + atomic_load(&weir__stacks.lost) + atomic_load(&weir__texts.lost);
    weir__mutex_lock(&history->lock);
    now.mode = (weir_history_mode)atomic_load(&history->mode);
    now.context = (weir_history_context)weir__rings_rules(&history->rings).context;
    now.stacks = (weir_history_stacks)atomic_load(&history->stacks);
    now.max_entries = history->limit;
    now.skip = weir__rings_rules(&history->rings).skip;
    now.annotations = history->annotation_count;
    now.annotations_dropped = history->annotations_dropped;
    weir__mutex_unlock(&history->lock);
  }
  weir__copy_sized(info, info->size, &now, sizeof now);
  return WEIR_OK;
}

/* ---- Annotations, marks and metadata ---- */

static weir_status check_pairs(const char *caller, const char *const *pairs, size_t pair_count) {
  if (pair_count && !pairs)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: pairs is NULL", caller);
  for (size_t i = 0; i < 2 * pair_count; i++)
    if (!pairs[i])
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the %s of pair %zu is NULL", caller, i % 2 ? "value" : "key",
                        i / 2);
  return WEIR_OK;
}

/* Whether a mark begins a step of the job, such as "ProfilerStep#7". */
static bool is_step(const char *const *pairs, size_t pair_count) {
  bool is_named = false, is_start = true;
  for (size_t i = 0; i < pair_count; i++) {
    is_named |= !strcmp(pairs[2 * i], "name") && strcasestr(pairs[2 * i + 1], "step");
    is_start &= strcmp(pairs[2 * i], "stage") || !strcmp(pairs[2 * i + 1], "START");
  }
  return is_named && is_start;
}

static void check_at_step(weir_allocator *allocator, const char *const *pairs, size_t pair_count) {
  if (allocator->guard && is_step(pairs, pair_count))
    allocator->guard->calls->step(allocator);
}

weir_status weir_history_annotate(weir_allocator *allocator, int device, const char *const *pairs, size_t pair_count) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!weir__heap_get(__func__, allocator, device))
    return WEIR_ERROR_INVALID_DEVICE;
  weir_status status = check_pairs(__func__, pairs, pair_count);
  if (status)
    return status;
  weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  if (history && !weir__recorder_annotate(history, device, pairs, pair_count))
    return no_memory(__func__);
  check_at_step(allocator, pairs, pair_count);
  return WEIR_OK;
}

weir_status weir_history_annotate_all(int device, const char *const *pairs, size_t pair_count) {
  weir_status status = check_pairs(__func__, pairs, pair_count);
  if (status || !weir_history_is_on_anywhere())
    return status;
  return weir__recorders_annotate(device, pairs, pair_count) ? WEIR_OK : no_memory(__func__);
}

weir_status weir_history_mark_all(int device, const char *text) {
  if (weir_history_is_on_anywhere())
    weir__recorders_mark(device, weir__text_number(text));
  return WEIR_OK;
}

weir_status weir_history_mark(weir_allocator *allocator, int device, const char *text) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!weir__heap_get(__func__, allocator, device))
    return WEIR_ERROR_INVALID_DEVICE;
  weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  if (history && weir__recorder_is_on(history))
    weir__recorder_mark(history, device, WEIR_TRACE_USER_DEFINED, 0, 0, weir__text_number(text));
  if (text)
    check_at_step(allocator, (const char *const[]){"name", text}, 1);
  return WEIR_OK;
}

weir_status weir_history_mark_pointer(weir_allocator *allocator, const void *pointer, const char *text) {
  weir_pointer_info info = {.size = sizeof info};
  WEIR__CHECK_ALLOCATOR(allocator);
  if (weir_allocator_describe(allocator, pointer, &info))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: no live allocation found at pointer %p", __func__, pointer);
  weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  if (history && weir__recorder_is_on(history))
    weir__recorder_mark(history, info.device, WEIR_TRACE_ANNOTATE, (uint64_t)pointer, info.requested,
                        weir__text_number(text));
  return WEIR_OK;
}

weir_status weir_history_set_metadata(weir_allocator *allocator, int device, const char *text) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!weir__heap_get(__func__, allocator, device))
    return WEIR_ERROR_INVALID_DEVICE;
  weir__recorder *history = history_of(allocator);
  if (!history)
    return no_memory(__func__);
  weir__recorder_set_metadata(history, device, weir__text_number(text));
  return WEIR_OK;
}
