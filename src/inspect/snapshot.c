/*
 * Takes snapshots.
 *
 * Each device is copied at one moment, under the lock of its heap and of all arenas that have memory, so that the
 * blocks agree with each other and with the entries before the cut. Everything else (sorting, names) is done without
 * locks.
 */
#include "inspect/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/backends/backend.h"
#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/move.h"
#include "base/array.h"
#include "base/thread.h"
#include "record/operations.h"
#include "record/recorder.h"
#include "record/stacks.h"
#include "record/texts.h"

const char *weir_block_state_name(weir_block_state state) {
  static const char *const names[] = {
#define X(name, text) text,
      WEIR_BLOCK_STATE_MAP(X)
#undef X
  };
  return (unsigned)state < WEIR_BLOCK_STATES ? names[state] : "unknown";
}

/* ---- A device frozen at one moment ---- */

static int by_arena(const void *a, const void *b) {
  const weir__arena *x = ((const weir__frozen_segment *)a)->segment->arena,
                    *y = ((const weir__frozen_segment *)b)->segment->arena;
  return (x > y) - (x < y);
}

bool weir__frozen_list(const weir__heap *heap, weir_pool_id pool, weir__frozen_segment **list, size_t *count) {
  size_t room = 0;
  *list = NULL;
  *count = 0;
  for (const weir__segment *s = heap->segments; s; s = s->next) {
    const weir__private_pool *owner = s->arena->pool->owner;
    if ((pool.first || pool.second) && (!owner || owner->id.first != pool.first || owner->id.second != pool.second))
      continue;
    if (!WEIR__RESERVE(*list, room, *count + 1))
      return false;
    (*list)[(*count)++] = (weir__frozen_segment){.segment = s};
  }
  if (*count)
    qsort(*list, *count, sizeof **list, by_arena);
  return true;
}

void weir__freeze(const weir__frozen_segment *list, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (weir__is_first_of_arena(list, i)) {
      weir__arena *arena = list[i].segment->arena;
      weir__arena_lock(arena);
      weir__account_freeze(&arena->account);
    }
}

void weir__unfreeze(const weir__frozen_segment *list, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (weir__is_first_of_arena(list, i)) {
      weir__account_unfreeze(&list[i].segment->arena->account);
      weir__arena_unlock(list[i].segment->arena);
    }
}

/* ---- The copy of one device. The heap's lock is held ---- */

/* Locks all arenas. Returns how many mapped blocks they have. */
static size_t freeze_and_count(const weir__frozen_segment *list, size_t count) {
  size_t blocks = 0;
  weir__freeze(list, count);
  for (size_t i = 0; i < count; i++)
    for (weir__piece piece = {0}; weir__next_piece(list[i].segment, &piece);)
      blocks += piece.state != WEIR__UNMAPPED;
  return blocks;
}

static const uint32_t states[] = {[WEIR__FREE] = WEIR_BLOCK_INACTIVE,
                                  [WEIR__ALLOCATED] = WEIR_BLOCK_ACTIVE_ALLOCATED,
                                  [WEIR__WAITING] = WEIR_BLOCK_ACTIVE_PENDING_FREE};

/* Copies the mapped blocks of a segment to where there is room. Returns the active bytes. */
static uint64_t copy_blocks(weir_snapshot *snapshot, weir__frozen_segment *p, int device,
                            const weir__history_source *source) {
  uint64_t active = 0;
  weir_snapshot_block *to = snapshot->blocks + snapshot->block_count;
  for (weir__piece b = {0}; weir__next_piece(p->segment, &b);) {
    if (b.state == WEIR__UNMAPPED)
      continue;
    bool is_active = weir__block_is_active(b.block);
    *to = (weir_snapshot_block){.size = sizeof *to,
                                .address = b.address,
                                .bytes = b.bytes,
                                .requested = is_active ? b.block->requested : 0,
                                .state = states[b.state]};
    if (is_active) {
      active += b.bytes;
      if (source->block_stack)
        to->stack = source->block_stack(source->context, device, b.address);
    }
    to++;
  }
  p->first = snapshot->block_count;
  p->count = (size_t)(to - snapshot->blocks) - p->first;
  snapshot->block_count += p->count;
  return active;
}

/* Copies all blocks at one moment. The memory copied to is touched before, so that no page fault happens under the
 * locks. */
static bool copy_device(weir__heap *heap, weir_snapshot *snapshot, weir__frozen_segment *list, size_t count,
                        const weir__history_source *source) {
  size_t blocks = freeze_and_count(list, count);
  while (snapshot->block_room - snapshot->block_count < blocks) {
    weir__unfreeze(list, count);
    size_t need = snapshot->block_count + blocks + blocks / 16 + 64;
    if (!WEIR__RESERVE(snapshot->blocks, snapshot->block_room, need))
      return false;
    memset(snapshot->blocks + snapshot->block_count, 0,
           (snapshot->block_room - snapshot->block_count) * sizeof *snapshot->blocks);
    blocks = freeze_and_count(list, count);
  }
  uint64_t active = 0;
  for (size_t i = 0; i < count; i++)
    active += copy_blocks(snapshot, &list[i], heap->device, source);
  if (source->cut)
    source->cut(source->context, heap->device, active);
  weir__unfreeze(list, count);
  return true;
}

/* Makes a segment of each run of blocks without a gap. A fixed segment is one run. */
static bool make_runs(weir__heap *heap, weir_snapshot *snapshot, size_t *room, const weir__frozen_segment *p,
                      const weir__history_source *source) {
  const weir__arena *arena = p->segment->arena;
  weir_snapshot_segment *run = NULL;
  for (size_t i = p->first; i < p->first + p->count; i++) {
    const weir_snapshot_block *b = &snapshot->blocks[i];
    if (!run || run->address + run->bytes != b->address) {
      if (!WEIR__RESERVE(snapshot->segments, *room, snapshot->segment_count + 1))
        return false;
      run = &snapshot->segments[snapshot->segment_count++];
      *run =
          (weir_snapshot_segment){.size = sizeof *run,
                                  .address = b->address,
                                  .blocks = (const weir_snapshot_block *)i, /* an index until the array is complete */
                                  .stream = arena->stream,
                                  .device = heap->device,
                                  .is_large = !arena->pool->is_small,
                                  .is_expandable = weir__has_pages(p->segment)};
      if (arena->pool->owner)
        run->pool = arena->pool->owner->id;
      if (source->segment_stack)
        run->stack = source->segment_stack(source->context, p->segment);
    }
    run->block_count++;
    run->bytes += b->bytes;
    run->requested += b->requested;
    if (b->state == WEIR_BLOCK_ACTIVE_ALLOCATED)
      run->allocated += b->bytes;
    if (b->state != WEIR_BLOCK_INACTIVE)
      run->active += b->bytes;
  }
  return true;
}

static int by_address(const void *a, const void *b) {
  uint64_t x = ((const weir_snapshot_segment *)a)->address, y = ((const weir_snapshot_segment *)b)->address;
  return (x > y) - (x < y);
}

static bool take_device(weir__heap *heap, weir_pool_id pool, weir_snapshot *snapshot, size_t *room,
                        const weir__history_source *source) {
  weir__frozen_segment *list;
  size_t count, before = snapshot->segment_count;
  weir__mutex_lock(&heap->lock);
  bool done = weir__frozen_list(heap, pool, &list, &count) && copy_device(heap, snapshot, list, count, source);
  for (size_t i = 0; done && i < count; i++)
    done = make_runs(heap, snapshot, room, &list[i], source);
  weir__mutex_unlock(&heap->lock);
  if (done && snapshot->segment_count > before)
    qsort(snapshot->segments + before, snapshot->segment_count - before, sizeof *snapshot->segments, by_address);
  free(list);
  return done;
}

/* ---- The recorded part ---- */

static uint32_t add_text(weir_snapshot *s, const char *text) {
  uint32_t number = weir__text_set_add(&s->texts, text);
  s->is_out_of_memory |= number == WEIR__NO_TEXT;
  return number;
}

/* The next element of an array, or NULL if out of host memory. */
#define ADD(s, array, count, room)                                                                                     \
  (WEIR__RESERVE((s)->array, (s)->room, (s)->count + 1) ? &(s)->array[(s)->count++]                                    \
                                                        : ((s)->is_out_of_memory = true, NULL))

void weir__snapshot_add_frame(weir_snapshot *s, uintptr_t address, const char *function, const char *file, int line) {
  weir__taken_frame *frame = ADD(s, frames, frame_count, frame_room);
  if (!frame)
    return;
  *frame = (weir__taken_frame){.address = address, .line = line};
  if (!address) {
    frame->function = add_text(s, function);
    frame->file = add_text(s, file);
  }
}

void weir__snapshot_add_annotation(weir_snapshot *s, int device, int64_t time_us) {
  weir__taken_annotation *annotation = ADD(s, annotations, annotation_count, annotation_room);
  if (annotation)
    *annotation = (weir__taken_annotation){s->pair_count, 0, device, time_us};
}

void weir__snapshot_add_pair(weir_snapshot *s, const char *key, const char *value) {
  weir__text_pair *pair = s->is_out_of_memory ? NULL : ADD(s, pairs, pair_count, pair_room);
  if (!pair)
    return;
  *pair = (weir__text_pair){add_text(s, key), add_text(s, value)};
  s->annotations[s->annotation_count - 1].pair_count++;
}

/* Copies the frames of a stack when it is first used. */
static void use_stack(weir_snapshot *s, const weir__history_source *source, uint32_t number) {
  weir__taken_stack *stack = &s->stacks[number];
  if (!number || stack->is_used)
    return;
  *stack = (weir__taken_stack){.first = s->frame_count, .is_used = 1};
  if (source->frames)
    source->frames(source->context, number, s);
  stack->count = (uint32_t)(s->frame_count - stack->first);
}

static void copy_context(weir_snapshot *s, const weir__history_source *source, uint32_t number) {
  weir__recorded_context from = {0};
  if (number && source->texts)
    from = source->texts(source->context, number);
  s->contexts[number] =
      (weir__taken_context){.phase = add_text(s, from.phase),
                            .compile_context = add_text(s, from.compile_context ? from.compile_context : "N/A"),
                            .user_metadata = add_text(s, from.user_metadata)};
}

static void include_number(size_t *count, uint32_t number) {
  if (number >= *count)
    *count = (size_t)number + 1;
}

static int by_number(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* The numbers of all pools in entries, sorted and without duplicates, 0 first. NULL if out of host memory. */
static uint32_t *list_pools(const weir_snapshot *s, size_t *count) {
  size_t events = 0, found = 1, different = 1;
  for (int d = 0; d < s->device_count; d++)
    events += s->devices[d].event_count;
  uint32_t *numbers = malloc((events + 1) * sizeof *numbers);
  if (!numbers)
    return NULL;
  numbers[0] = 0;
  for (int d = 0; d < s->device_count; d++)
    for (size_t i = 0; i < s->devices[d].event_count; i++)
      if (s->devices[d].events[i].pool != numbers[found - 1])
        numbers[found++] = s->devices[d].events[i].pool;
  qsort(numbers, found, sizeof *numbers, by_number);
  for (size_t i = 1; i < found; i++)
    if (numbers[i] != numbers[different - 1])
      numbers[different++] = numbers[i];
  *count = different;
  return numbers;
}

/* Copies the pools of entries. The number of a pool encodes its id and is not an index, so the entries get indices of
 * s->pools instead. */
static bool copy_pools(weir_snapshot *s, const weir__history_source *source) {
  uint32_t *numbers = list_pools(s, &s->pool_count);
  s->pools = numbers ? calloc(s->pool_count, sizeof *s->pools) : NULL;
  for (size_t i = 1; s->pools && source->pool && i < s->pool_count; i++)
    s->pools[i] = source->pool(source->context, numbers[i]);
  uint32_t index = 0;
  for (int d = 0; s->pools && d < s->device_count; d++)
    for (size_t i = 0; i < s->devices[d].event_count; i++) {
      uint32_t *pool = &s->devices[d].events[i].pool;
      if (numbers[index] != *pool)
        index = (uint32_t)((uint32_t *)bsearch(pool, numbers, s->pool_count, sizeof *numbers, by_number) - numbers);
      *pool = index;
    }
  free(numbers);
  return s->pools;
}

/* Copies what the numbers in entries, blocks and segments stand for. */
static void copy_meanings(weir_snapshot *s, const weir__history_source *source) {
  s->stack_count = s->context_count = 1;
  for (size_t i = 0; source->only_active && i < s->segment_count; i++)
    if (!s->segments[i].active)
      s->segments[i].stack = 0;
  for (int d = 0; d < s->device_count; d++)
    for (size_t i = 0; i < s->devices[d].event_count; i++) {
      include_number(&s->stack_count, s->devices[d].events[i].stack);
      include_number(&s->context_count, s->devices[d].events[i].context);
    }
  for (size_t i = 0; i < s->block_count; i++)
    include_number(&s->stack_count, s->blocks[i].stack);
  for (size_t i = 0; i < s->segment_count; i++)
    include_number(&s->stack_count, s->segments[i].stack);
  s->stacks = calloc(s->stack_count, sizeof *s->stacks);
  s->contexts = calloc(s->context_count, sizeof *s->contexts);
  if (!s->stacks || !s->contexts || !copy_pools(s, source)) {
    s->is_out_of_memory = true;
    return;
  }
  for (size_t i = 0; i < s->context_count; i++)
    copy_context(s, source, (uint32_t)i);
  for (int d = 0; d < s->device_count; d++)
    for (size_t i = 0; i < s->devices[d].event_count; i++)
      use_stack(s, source, s->devices[d].events[i].stack);
  for (size_t i = 0; i < s->block_count; i++)
    use_stack(s, source, s->blocks[i].stack);
  for (size_t i = 0; i < s->segment_count; i++)
    use_stack(s, source, s->segments[i].stack);
}

static bool copy_settings(weir_allocator *allocator, weir_snapshot *s) {
  s->settings = *atomic_load_explicit(&allocator->settings, memory_order_acquire);
  s->settings.older = NULL;
  size_t length = weir__settings_format(&s->settings, NULL, 0);
  char *text = malloc(length + 1);
  if (!text)
    return false;
  weir__settings_format(&s->settings, text, length + 1);
  s->conf = add_text(s, text);
  free(text);
  return !s->is_out_of_memory;
}

static weir_status no_memory(const char *caller) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the snapshot", caller);
}

/* Fills an empty snapshot. */
static weir_status collect(const char *caller, weir_allocator *allocator, const weir_snapshot_options *options,
                           const weir__history_source *source, weir_snapshot *s) {
  size_t room = 0;
  weir_status status = WEIR_OK;
  s->device = options->device;
  s->devices = calloc((size_t)allocator->heap_count, sizeof *s->devices);
  if (!s->devices)
    return no_memory(caller);
  s->device_count = allocator->heap_count;
  bool done = copy_settings(allocator, s);
  for (int i = 0; done && i < s->device_count; i++)
    if (s->device == -1 || s->device == i)
      done = take_device(&allocator->heaps[i], options->pool, s, &room, source);
  if (!done)
    return no_memory(caller);
  for (size_t i = 0; i < s->segment_count; i++)
    s->segments[i].blocks = s->blocks + (size_t)s->segments[i].blocks;
  for (int i = 0; !status && options->traces && source->events && i < s->device_count; i++)
    if (s->device == -1 || s->device == i)
      status =
          source->events(source->context, i, &s->devices[i].events, &s->devices[i].event_count, &s->devices[i].dropped);
  if (status)
    return status;
  copy_meanings(s, source);
  if (options->traces && source->annotations)
    source->annotations(source->context, s);
  return s->is_out_of_memory ? no_memory(caller) : WEIR_OK;
}

weir_status weir__snapshot_collect(const char *caller, weir_allocator *allocator, const weir_snapshot_options *given,
                                   const weir__history_source *source, weir_snapshot **out) {
  static const weir__history_source nothing;
  weir_snapshot_options options;
  weir_snapshot_options_init(&options);
  weir_status status = weir__allocator_check(caller, allocator);
  if (status)
    return status;
  if (!out)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the snapshot is NULL", caller);
  status = weir__read_options(caller, "options", &options, sizeof options, given);
  if (status)
    return status;
  if (options.device != -1 && !weir__heap_get(caller, allocator, options.device))
    return WEIR_ERROR_INVALID_DEVICE;
  weir_snapshot *s = calloc(1, sizeof *s);
  if (!s)
    return no_memory(caller);
  status = collect(caller, allocator, &options, source ? source : &nothing, s);
  if (status)
    weir_snapshot_destroy(s);
  else
    *out = s;
  return status;
}

/* ---- The allocator's recorder as the source ---- */

typedef struct live_source {
  weir_allocator *allocator;
  weir__recorder *history;
  uint64_t *cuts; /* for each device, in ticks: entries are read up to there */
} live_source;

static uint32_t live_block_stack(void *context, int device, uint64_t address) {
  const live_source *live = context;
  (void)device;
  const weir__arena *arena = weir__arena_of(live->allocator, address);
  return arena ? weir__writer_stack(arena->writer, address) : 0;
}

static uint32_t live_segment_stack(void *context, const weir__segment *segment) {
  (void)context;
  return segment->stack;
}

/* No arena can record now: all entries so far have an earlier time, and all others will have a later one. */
static void live_cut(void *context, int device, uint64_t active_bytes) {
  const live_source *live = context;
  live->cuts[device] = weir__clock_ticks();
  if (weir__recorder_is_on(live->history))
    weir__recorder_mark(live->history, device, WEIR_TRACE_SNAPSHOT, 0, active_bytes, 0);
}

static weir_status live_events(void *context, int device, weir__entry **events, size_t *count, uint64_t *dropped) {
  const live_source *live = context;
  weir__entry *all;
  size_t read;
  if (!weir__ring_read(&live->history->devices[device].ring, live->cuts[device], &all, &read, dropped))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "weir_snapshot_take: out of host memory for the events");
  weir__clock_line line = weir__clock_line_now();
  for (size_t i = 0; i < read; i++)
    all[i].time = (uint64_t)weir__clock_unix_us(&line, all[i].time);
  weir__entries_join(all, read, false);
  *events = all;
  *count = read;
  return WEIR_OK;
}

static void live_frames(void *context, uint32_t stack, weir_snapshot *to) {
  (void)context;
  weir__frame some[64], *frames = some;
  size_t count = weir__stack_frames(stack, some, WEIR_COUNT_OF(some));
  if (count > WEIR_COUNT_OF(some)) {
    frames = malloc(count * sizeof *frames);
    if (!frames) {
      to->is_out_of_memory = true;
      return;
    }
    weir__stack_frames(stack, frames, count);
  }
  for (size_t i = 0; i < count; i++)
    weir__snapshot_add_frame(to, frames[i].address, weir__text_of_number(frames[i].function),
                             weir__text_of_number(frames[i].file), frames[i].line);
  if (frames != some)
    free(frames);
}

static weir_pool_id live_pool(void *context, uint32_t number) {
  (void)context;
  return weir__pool_of_number(number);
}

static const char *text_or_null(uint32_t number) { return number ? weir__text_of_number(number) : NULL; }

static weir__recorded_context live_texts(void *context, uint32_t number) {
  (void)context;
  weir__entry_context of = weir__context_of_number(number);
  return (weir__recorded_context){text_or_null(of.phase), text_or_null(of.compile), text_or_null(of.metadata)};
}

static void add_annotation(void *context, const weir__annotation *annotation) {
  weir_snapshot *to = context;
  weir__clock_line line = weir__clock_line_now();
  if (to->device >= 0 && annotation->device != to->device)
    return;
  weir__snapshot_add_annotation(to, annotation->device, weir__clock_unix_us(&line, annotation->time));
  const char *key = annotation->texts;
  for (uint32_t i = 0; i < annotation->pair_count; i++) {
    const char *value = key + strlen(key) + 1;
    weir__snapshot_add_pair(to, key, value);
    key = value + strlen(value) + 1;
  }
}

static void live_annotations(void *context, weir_snapshot *to) {
  weir__recorder_annotations(((const live_source *)context)->history, add_annotation, to);
}

/* ---- The calls ---- */

weir_status weir_snapshot_take(weir_allocator *allocator, const weir_snapshot_options *options,
                               weir_snapshot **snapshot) {
  WEIR__CHECK_ALLOCATOR(allocator);
  live_source live = {allocator, atomic_load(&allocator->history), NULL};
  if (!live.history)
    return weir__snapshot_collect(__func__, allocator, options, NULL, snapshot);
  live.cuts = calloc((size_t)allocator->heap_count, sizeof *live.cuts);
  if (!live.cuts)
    return no_memory(__func__);
  const weir__history_source source = {.context = &live,
                                       .block_stack = live_block_stack,
                                       .segment_stack = live_segment_stack,
                                       .only_active =
                                           weir__rings_rules(&live.history->rings).context == WEIR_CONTEXT_STATE,
                                       .cut = live_cut,
                                       .events = live_events,
                                       .frames = live_frames,
                                       .pool = live_pool,
                                       .texts = live_texts,
                                       .annotations = live_annotations};
  weir_status status = weir__snapshot_collect(__func__, allocator, options, &source, snapshot);
  free(live.cuts);
  return status;
}

void weir_snapshot_destroy(weir_snapshot *s) {
  if (!s)
    return;
  for (int i = 0; i < s->device_count; i++)
    free(s->devices[i].events);
  free(s->devices);
  free(s->segments);
  free(s->blocks);
  free(s->host_segments);
  free(s->host_blocks);
  free(s->stacks);
  free(s->frames);
  free(s->pools);
  free(s->contexts);
  free(s->annotations);
  free(s->pairs);
  weir__text_set_clear(&s->texts);
  free(s);
}

weir_status weir_snapshot_segments(const weir_snapshot *snapshot, const weir_snapshot_segment **segments,
                                   size_t *count) {
  WEIR__CHECK_ARGUMENT(snapshot);
  WEIR__CHECK_ARGUMENT(segments);
  WEIR__CHECK_ARGUMENT(count);
  *segments = snapshot->segments;
  *count = snapshot->segment_count;
  return WEIR_OK;
}

weir_status weir_snapshot_entries(const weir_snapshot *snapshot, int device, uint64_t *count, uint64_t *dropped) {
  WEIR__CHECK_ARGUMENT(snapshot);
  WEIR__CHECK_ARGUMENT(count);
  WEIR__CHECK_ARGUMENT(dropped);
  if (device < 0 || device >= snapshot->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: device %d is out of range: the snapshot has %d", __func__, device,
                      snapshot->device_count);
  *count = snapshot->devices[device].event_count;
  *dropped = snapshot->devices[device].dropped;
  return WEIR_OK;
}

static const char *text_of(const weir_snapshot *snapshot, uint32_t number) { return snapshot->texts.at[number]; }

weir_status weir_snapshot_entry_at(const weir_snapshot *snapshot, int device, uint64_t index,
                                   weir_snapshot_entry *entry) {
  if (!snapshot || !entry || entry->size < sizeof entry->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL, or the entry's size is not set", __func__);
  if (device < 0 || device >= snapshot->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: device %d is out of range: the snapshot has %d", __func__, device,
                      snapshot->device_count);
  if (index >= snapshot->devices[device].event_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: entry %llu is out of range: the device has %zu", __func__,
                      (unsigned long long)index, snapshot->devices[device].event_count);
  const weir__entry *from = &snapshot->devices[device].events[index];
  const weir__taken_context *context = &snapshot->contexts[from->context];
  weir_snapshot_entry made = {.size = entry->size,
                              .action = from->action,
                              .stack = from->stack,
                              .address = from->address,
                              .bytes = from->bytes,
                              .time_us = (int64_t)from->time,
                              .stream = (weir_cu_stream)(uintptr_t)from->stream,
                              .pool = snapshot->pools[from->pool],
                              .phase = text_of(snapshot, context->phase),
                              .compile_context = text_of(snapshot, context->compile_context),
                              .user_metadata = text_of(snapshot, context->user_metadata)};
  weir__copy_sized(entry, entry->size, &made, sizeof made);
  return WEIR_OK;
}

weir_status weir_snapshot_annotations(const weir_snapshot *snapshot, size_t *count) {
  WEIR__CHECK_ARGUMENT(snapshot);
  WEIR__CHECK_ARGUMENT(count);
  *count = snapshot->annotation_count;
  return WEIR_OK;
}

weir_status weir_snapshot_annotation_at(const weir_snapshot *snapshot, size_t index,
                                        weir_snapshot_annotation *annotation) {
  if (!snapshot || !annotation || annotation->size < sizeof annotation->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL, or the annotation's size is not set",
                      __func__);
  if (index >= snapshot->annotation_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: annotation %zu is out of range: the snapshot has %zu", __func__,
                      index, snapshot->annotation_count);
  const weir__taken_annotation *from = &snapshot->annotations[index];
  weir_snapshot_annotation made = {annotation->size, from->device, from->time_us, from->pair_count};
  weir__copy_sized(annotation, annotation->size, &made, sizeof made);
  return WEIR_OK;
}

weir_status weir_snapshot_annotation_pair(const weir_snapshot *snapshot, size_t index, size_t pair, const char **key,
                                          const char **value) {
  WEIR__CHECK_ARGUMENT(snapshot);
  WEIR__CHECK_ARGUMENT(key);
  WEIR__CHECK_ARGUMENT(value);
  if (index >= snapshot->annotation_count || pair >= snapshot->annotations[index].pair_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: pair %zu of annotation %zu is out of range", __func__, pair,
                      index);
  const weir__text_pair *found = &snapshot->pairs[snapshot->annotations[index].first + pair];
  *key = text_of(snapshot, found->key);
  *value = text_of(snapshot, found->value);
  return WEIR_OK;
}
