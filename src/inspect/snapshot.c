/*
 * Taking a snapshot.
 *
 * A device is copied at one moment: with its heap's lock, and then with the locks of all arenas that have memory, so that the
 * blocks agree with each other and with the events before the cut. Sorting, names and everything else come afterwards.
 */
#include "inspect/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/heap.h"
#include "inspect/snapshot_history.h"
#include "inspect/still.h"

const char *weir_block_state_name(weir_block_state state) {
  static const char *const names[] = {
#define X(name, text) text,
      WEIR_BLOCK_STATE_MAP(X)
#undef X
  };
  return (unsigned)state < WEIR_BLOCK_STATES ? names[state] : "unknown";
}

void weir_snapshot_options_init(weir_snapshot_options *options) {
  if (!options)
    return;
  *options = (weir_snapshot_options){.size = sizeof *options, .device = -1, .traces = 1};
}

bool weir__make_room(void *array, size_t *room, size_t need, size_t element) {
  void **at = array;
  if (need <= *room)
    return true;
  size_t more = *room + *room / 2 > need ? *room + *room / 2 : need + 16;
  void *grown = more <= SIZE_MAX / element ? realloc(*at, more * element) : NULL;
  if (!grown)
    return false;
  *at = grown;
  *room = more;
  return true;
}

/* ---- One device. The heap's lock is held ---- */

/* Locks the arenas of all parts. Returns how many mapped blocks they have. */
static size_t lock_and_count(const weir__still_part *parts, size_t count) {
  size_t blocks = 0;
  weir__still_lock(parts, count);
  for (size_t i = 0; i < count; i++)
    for (const weir__block *b = parts[i].segment->first; b; b = weir__block_next(b))
      blocks += weir__block_is_mapped(b);
  return blocks;
}

static const uint32_t states[] = {[WEIR__FREE] = WEIR_BLOCK_INACTIVE,
                                  [WEIR__ALLOCATED] = WEIR_BLOCK_ACTIVE_ALLOCATED,
                                  [WEIR__WAITING] = WEIR_BLOCK_ACTIVE_PENDING_FREE};

/* Copies the mapped blocks of a segment; there is room. Returns how many bytes are active. */
static uint64_t copy_blocks(weir_snapshot *snapshot, weir__still_part *p, int device,
                            const weir__history_source *source) {
  uint64_t active = 0;
  weir_snapshot_block *to = snapshot->blocks + snapshot->block_count;
  for (const weir__block *b = p->segment->first; b; b = weir__block_next(b)) {
    if (!weir__block_is_mapped(b))
      continue;
    bool is_active = weir__block_is_active(b);
    *to = (weir_snapshot_block){.address = b->address,
                                .bytes = weir__block_bytes(b),
                                .requested = is_active ? b->requested : 0,
                                .state = states[b->state]};
    if (is_active) {
      active += weir__block_bytes(b);
      if (source && source->block_stack)
        to->stack = source->block_stack(source->context, device, b->address);
    }
    to++;
  }
  p->first = snapshot->block_count;
  p->count = (size_t)(to - snapshot->blocks) - p->first;
  snapshot->block_count += p->count;
  return active;
}

/* Copies all blocks at one moment. What is copied to was touched before, so that the locks are not held while the system finds
 * memory for it. */
static bool copy_device(weir__heap *heap, weir_snapshot *snapshot, weir__still_part *parts, size_t count,
                        const weir__history_source *source) {
  size_t blocks = lock_and_count(parts, count);
  while (snapshot->block_room - snapshot->block_count < blocks) {
    weir__still_unlock(parts, count);
    size_t need = snapshot->block_count + blocks + blocks / 16 + 64;
    if (!weir__make_room(&snapshot->blocks, &snapshot->block_room, need, sizeof *snapshot->blocks))
      return false;
    memset(snapshot->blocks + snapshot->block_count, 0,
           (snapshot->block_room - snapshot->block_count) * sizeof *snapshot->blocks);
    blocks = lock_and_count(parts, count);
  }
  uint64_t active = 0;
  for (size_t i = 0; i < count; i++)
    active += copy_blocks(snapshot, &parts[i], heap->device, source);
  if (source && source->cut)
    source->cut(source->context, heap->device, active);
  weir__still_unlock(parts, count);
  return true;
}

/* A segment for each run of blocks without a gap: a fixed segment is one run. */
static bool make_runs(weir__heap *heap, weir_snapshot *snapshot, size_t *room, const weir__still_part *p,
                      const weir__history_source *source) {
  const weir__arena *arena = p->segment->arena;
  weir_snapshot_segment *run = NULL;
  for (size_t i = p->first; i < p->first + p->count; i++) {
    const weir_snapshot_block *b = &snapshot->blocks[i];
    if (!run || run->address + run->bytes != b->address) {
      if (!weir__make_room(&snapshot->segments, room, snapshot->segment_count + 1, sizeof *snapshot->segments))
        return false;
      run = &snapshot->segments[snapshot->segment_count++];
      *run = (weir_snapshot_segment){.address = b->address,
                                     .blocks = (const weir_snapshot_block *)i, /* until the array moves no more */
                                     .stream = arena->stream,
                                     .device = heap->device,
                                     .is_large = !arena->pool->is_small,
                                     .is_expandable = p->segment->page != 0};
      if (arena->pool->owner)
        run->pool = arena->pool->owner->id;
      if (source && source->segment_stack)
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
  weir__still_part *parts;
  size_t count, before = snapshot->segment_count;
  pthread_mutex_lock(&heap->lock);
  bool done = weir__still_list(heap, pool, &parts, &count) && copy_device(heap, snapshot, parts, count, source);
  for (size_t i = 0; done && i < count; i++)
    done = make_runs(heap, snapshot, room, &parts[i], source);
  pthread_mutex_unlock(&heap->lock);
  if (done && snapshot->segment_count > before)
    qsort(snapshot->segments + before, snapshot->segment_count - before, sizeof *snapshot->segments, by_address);
  free(parts);
  return done;
}

/* ---- What was recorded ---- */

static bool add_text(weir_snapshot *snapshot, const char *text, uint32_t *number) {
  *number = weir__text_set_add(&snapshot->texts, text);
  return *number != WEIR__NO_TEXT;
}

static bool copy_frames(weir_snapshot *snapshot, const weir__history_source *source, uint32_t stack) {
  weir__recorded_frame some[64], *frames = some;
  size_t count = source->frames(source->context, stack, frames, WEIR_COUNT_OF(some));
  bool done = true;
  if (count > WEIR_COUNT_OF(some)) {
    frames = malloc(count * sizeof *frames);
    size_t now = frames ? source->frames(source->context, stack, frames, count) : 0;
    done = frames != NULL;
    count = now < count ? now : count;
  }
  done = done && weir__make_room(&snapshot->frames, &snapshot->frame_room, snapshot->frame_count + count,
                                 sizeof *snapshot->frames);
  snapshot->stacks[stack].first = snapshot->frame_count;
  for (size_t i = 0; done && i < count; i++) {
    weir__taken_frame *to = &snapshot->frames[snapshot->frame_count++];
    *to = (weir__taken_frame){.address = frames[i].address, .line = frames[i].line};
    if (!to->address)
      done = add_text(snapshot, frames[i].function, &to->function) && add_text(snapshot, frames[i].file, &to->file);
    snapshot->stacks[stack].count++;
  }
  if (frames != some)
    free(frames);
  return done;
}

static bool use_stack(weir_snapshot *snapshot, const weir__history_source *source, uint32_t stack) {
  if (!stack || snapshot->stacks[stack].is_used)
    return true;
  snapshot->stacks[stack].is_used = 1;
  return !source->frames || copy_frames(snapshot, source, stack);
}

static bool copy_context(weir_snapshot *snapshot, const weir__history_source *source, uint32_t number) {
  weir__recorded_context from = {0};
  weir__taken_context *to = &snapshot->contexts[number];
  if (number && source->texts)
    from = source->texts(source->context, number);
  return add_text(snapshot, from.phase, &to->phase) &&
         add_text(snapshot, from.compile_context ? from.compile_context : "N/A", &to->compile_context) &&
         add_text(snapshot, from.user_metadata, &to->user_metadata);
}

static void include_number(size_t *count, uint32_t number) {
  if (number >= *count)
    *count = (size_t)number + 1;
}

static int by_number(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* The sorted numbers of all pools that events name, each once, and 0 first. NULL: no host memory. */
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

/* Copies the pools that events name. A pool's number says its id in its upper bits, so it is no index: the events get the indices
 * of s->pools in its place. */
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

/* Copies what the numbers in events, blocks and segments stand for. */
static bool copy_meanings(weir_snapshot *s, const weir__history_source *source) {
  s->stack_count = s->context_count = 1;
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
  if (!s->stacks || !s->contexts)
    return false;

  bool done = copy_pools(s, source);
  for (size_t i = 0; done && i < s->context_count; i++)
    done = copy_context(s, source, (uint32_t)i);
  for (int d = 0; d < s->device_count; d++)
    for (size_t i = 0; done && i < s->devices[d].event_count; i++)
      done = use_stack(s, source, s->devices[d].events[i].stack);
  for (size_t i = 0; done && i < s->block_count; i++)
    done = use_stack(s, source, s->blocks[i].stack);
  for (size_t i = 0; done && i < s->segment_count; i++)
    done = use_stack(s, source, s->segments[i].stack);
  return done;
}

static bool copy_annotations(weir_snapshot *s, const weir__history_source *source, int device) {
  weir__recorded_annotation from;
  for (size_t n = 0; source->annotation && source->annotation(source->context, n, &from); n++) {
    if (device >= 0 && from.device != device)
      continue;
    if (!weir__make_room(&s->annotations, &s->annotation_room, s->annotation_count + 1, sizeof *s->annotations) ||
        !weir__make_room(&s->pairs, &s->pair_room, s->pair_count + from.pair_count, sizeof *s->pairs))
      return false;
    s->annotations[s->annotation_count++] =
        (weir__taken_annotation){s->pair_count, from.pair_count, from.device, from.time_us};
    for (size_t i = 0; i < from.pair_count; i++, s->pair_count++)
      if (!add_text(s, from.pairs[i].key, &s->pairs[s->pair_count].key) ||
          !add_text(s, from.pairs[i].value, &s->pairs[s->pair_count].value))
        return false;
  }
  return true;
}

/* ---- The calls ---- */

static bool copy_settings(weir_allocator *allocator, weir_snapshot *snapshot) {
  snapshot->settings = *atomic_load_explicit(&allocator->settings, memory_order_acquire);
  snapshot->settings.older = NULL;
  size_t length = weir__settings_format(&snapshot->settings, NULL, 0);
  char *text = malloc(length + 1);
  if (!text)
    return false;
  weir__settings_format(&snapshot->settings, text, length + 1);
  bool done = add_text(snapshot, text, &snapshot->conf);
  free(text);
  return done;
}

static weir_status no_memory(const char *who) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory for the copy", who);
}

weir_status weir__snapshot_collect(const char *who, weir_allocator *allocator, const weir_snapshot_options *given,
                                   const weir__history_source *source, weir_snapshot **out) {
  static const weir__history_source nothing;
  weir_snapshot_options options;
  weir_snapshot_options_init(&options);
  weir_status status = weir__allocator_check(who, allocator);
  if (status)
    return status;
  if (!out)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the snapshot is NULL", who);
  status = weir__read_options(who, "options", &options, sizeof options, given);
  if (status)
    return status;
  if (options.device != -1 && !weir__heap_get(who, allocator, options.device))
    return WEIR_ERROR_INVALID_DEVICE;

  size_t room = 0;
  const weir__history_source *known = source ? source : &nothing;
  weir_snapshot *s = calloc(1, sizeof *s);
  if (!s)
    return no_memory(who);
  s->devices = calloc((size_t)allocator->heap_count, sizeof *s->devices);
  s->device_count = s->devices ? allocator->heap_count : 0;
  bool done = s->devices && copy_settings(allocator, s);
  for (int i = 0; done && i < allocator->heap_count; i++)
    if (options.device == -1 || options.device == i)
      done = take_device(&allocator->heaps[i], options.pool, s, &room, known);
  for (size_t i = 0; done && i < s->segment_count; i++)
    s->segments[i].blocks = s->blocks + (size_t)s->segments[i].blocks;
  for (int i = 0; done && !status && options.traces && known->events && i < allocator->heap_count; i++)
    if (options.device == -1 || options.device == i)
      status =
          known->events(known->context, i, &s->devices[i].events, &s->devices[i].event_count, &s->devices[i].dropped);
  if (done && !status)
    done = copy_meanings(s, known) && (!options.traces || copy_annotations(s, known, options.device));
  if (!done)
    status = no_memory(who);
  if (status)
    weir_snapshot_destroy(s);
  else
    *out = s;
  return status;
}

weir_status weir_snapshot_take(weir_allocator *allocator, const weir_snapshot_options *options,
                               weir_snapshot **snapshot) {
  weir__history_source source;
  weir__recorded recorded;
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!atomic_load(&allocator->history))
    return weir__snapshot_collect(__func__, allocator, options, NULL, snapshot);
  weir_status status = weir__recorded_begin(&recorded, allocator, &source)
                           ? weir__snapshot_collect(__func__, allocator, options, &source, snapshot)
                           : no_memory(__func__);
  weir__recorded_clear(&recorded);
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
  if (!snapshot || !segments || !count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL", __func__);
  *segments = snapshot->segments;
  *count = snapshot->segment_count;
  return WEIR_OK;
}

weir_status weir_snapshot_events(const weir_snapshot *snapshot, int device, uint64_t *count, uint64_t *dropped) {
  if (!snapshot || !count || !dropped)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL", __func__);
  if (device < 0 || device >= snapshot->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: device %d, there are %d", __func__, device,
                      snapshot->device_count);
  *count = snapshot->devices[device].event_count;
  *dropped = snapshot->devices[device].dropped;
  return WEIR_OK;
}

/* A text of its own, which is there. */
static const char *text_of(const weir_snapshot *snapshot, uint32_t number) { return snapshot->texts.at[number]; }

void weir_snapshot_event_init(weir_snapshot_event *event) {
  if (event)
    *event = (weir_snapshot_event){.size = sizeof *event};
}

weir_status weir_snapshot_event_at(const weir_snapshot *snapshot, int device, uint64_t index,
                                   weir_snapshot_event *event) {
  if (!snapshot || !event || event->size < sizeof event->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL, or the event's size is not set", __func__);
  if (device < 0 || device >= snapshot->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: device %d, there are %d", __func__, device,
                      snapshot->device_count);
  if (index >= snapshot->devices[device].event_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: event %llu, there are %zu", __func__, (unsigned long long)index,
                      snapshot->devices[device].event_count);
  const weir__entry *from = &snapshot->devices[device].events[index];
  const weir__taken_context *context = &snapshot->contexts[from->context];
  weir_snapshot_event made = {.size = event->size,
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
  weir__copy_sized(event, event->size, &made, sizeof made);
  return WEIR_OK;
}

void weir_snapshot_annotation_init(weir_snapshot_annotation *annotation) {
  if (annotation)
    *annotation = (weir_snapshot_annotation){.size = sizeof *annotation};
}

size_t weir_snapshot_annotation_count(const weir_snapshot *snapshot) {
  return snapshot ? snapshot->annotation_count : 0;
}

weir_status weir_snapshot_annotation_at(const weir_snapshot *snapshot, size_t index,
                                        weir_snapshot_annotation *annotation) {
  if (!snapshot || !annotation || annotation->size < sizeof annotation->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL, or the annotation's size is not set",
                      __func__);
  if (index >= snapshot->annotation_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: annotation %zu, there are %zu", __func__, index,
                      snapshot->annotation_count);
  const weir__taken_annotation *from = &snapshot->annotations[index];
  weir_snapshot_annotation made = {annotation->size, from->device, from->time_us, from->pair_count};
  weir__copy_sized(annotation, annotation->size, &made, sizeof made);
  return WEIR_OK;
}

weir_status weir_snapshot_annotation_pair(const weir_snapshot *snapshot, size_t index, size_t pair, const char **key,
                                          const char **value) {
  if (!snapshot || !key || !value)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL", __func__);
  if (index >= snapshot->annotation_count || pair >= snapshot->annotations[index].pair_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there is no pair %zu of annotation %zu", __func__, pair, index);
  const weir__text_pair *found = &snapshot->pairs[snapshot->annotations[index].first + pair];
  *key = text_of(snapshot, found->key);
  *value = text_of(snapshot, found->value);
  return WEIR_OK;
}
