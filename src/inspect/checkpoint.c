#include "inspect/checkpoint.h"

#include <stdlib.h>

#include "alloc/cache/move.h"
#include "base/thread.h"
#include "inspect/snapshot.h"

/* A checkpoint under construction in the file's draft buffer. Blocks that do not fit are only counted. */
typedef struct copy {
  weir__ring_file *file;
  const weir__recorder *history;
  uint64_t settings_time;
  char *conf;
  size_t conf_bytes, conf_room; /* filled up to a multiple of 8 */
  weir__frozen_segment *list;
  size_t pool_count, segment_count, block_count;
} copy;

static size_t bytes_of(const copy *c) {
  return sizeof(weir__ring_file_state) + c->conf_room + c->pool_count * sizeof(weir_pool_id) +
         c->segment_count * sizeof(weir__ring_file_segment) + c->block_count * sizeof(weir__ring_file_block);
}

/* Grows the draft for what was counted, with some slack for blocks that come before the next attempt. The memory is
 * touched here, so that no page fault happens under the locks. */
static bool make_room(copy *c) {
  size_t room = bytes_of(c) + bytes_of(c) / 8 + 4096;
  char *grown = realloc(c->file->draft, room);
  if (!grown)
    return false;
  memset(grown, 0, room);
  c->file->draft = grown;
  c->file->draft_room = room;
  return true;
}

static bool read_settings(copy *c, const weir_allocator *allocator) {
  c->settings_time = weir__clock_ticks();
  const weir__settings *settings = atomic_load_explicit(&allocator->settings, memory_order_acquire);
  c->conf_bytes = weir__settings_format(settings, NULL, 0);
  c->conf_room = (size_t)weir__round_up(c->conf_bytes, 8);
  c->conf = calloc(1, c->conf_room + 1);
  if (c->conf)
    weir__settings_format(settings, c->conf, c->conf_bytes + 1);
  return c->conf != NULL;
}

/* ---- With the locks of all arenas ---- */

static weir__ring_file_block block_of(const weir__arena *arena, const weir__piece *piece) {
  const weir__block *b = piece->block;
  weir__ring_file_block to = {.units = b->units ? (uint32_t)(piece->bytes / WEIR__UNIT) : 0, .rest = piece->state};
  if (weir__block_is_active(b)) {
    to.rest |= b->requested << 2;
    to.extra = weir__writer_stack(arena->writer, b->address);
  } else if (piece->state == WEIR__FREE) {
    uint32_t now = atomic_load_explicit(&arena->pool->searches, memory_order_relaxed);
    to.extra = b->has_age ? now - weir__block_cold_of(b)->idle_since : now;
  }
  return to;
}

static void copy_segment(copy *c, const weir__segment *segment, weir__ring_file_segment *to, char *blocks,
                         size_t room) {
  const weir__arena *arena = segment->arena;
  *to = (weir__ring_file_segment){.address = segment->memory.base,
                                  .bytes = segment->memory.bytes,
                                  .stream = (uint64_t)(uintptr_t)arena->stream,
                                  .page = segment->memory.slot,
                                  .stack = segment->stack,
                                  .is_small = arena->pool->is_small};
  if (arena->pool->owner) {
    to->pool[0] = arena->pool->owner->id.first;
    to->pool[1] = arena->pool->owner->id.second;
  }
  uint32_t count = 0, last = 0;
  for (weir__piece piece = {0}; weir__next_piece(segment, &piece); count++) {
    if (piece.state != WEIR__UNMAPPED) /* behind the last page there is only address space */
      last = count + 1;
    weir__ring_file_block made = block_of(arena, &piece);
    if (c->block_count + count < room)
      memcpy(blocks + (c->block_count + count) * sizeof made, &made, sizeof made);
  }
  count = last;
  to->block_count = count;
  c->block_count += count;
}

/* The moment of the checkpoint. Events recorded after it get a later time, even if their thread read the clock before
 * it waited for the arena's lock. Arenas without segments record only under the heap's lock, which is held here. */
static uint64_t cut(const copy *c) {
  uint64_t time = weir__clock_ticks();
  for (int pass = 0; pass < 2; pass++)
    for (size_t i = 0; i < c->segment_count; i++) {
      weir__writer *writer = c->list[i].segment->arena->writer;
      if (!writer || !weir__is_first_of_arena(c->list, i))
        continue;
      if (pass)
        writer->last = time + 1;
      else if (writer->last > time)
        time = writer->last;
    }
  while (weir__clock_ticks() <= time)
    weir__pause();
  return time;
}

/* A released pool without memory is dropped with the next release of memory, so a replay does not need it. */
static bool is_kept(const weir__private_pool *pool) { return pool->segments || !pool->is_released; }

/* The heap lists the newest pool first; the file has the oldest first. */
static void copy_pools(const weir__heap *heap, char *end) {
  for (const weir__private_pool *pool = heap->private_pools; pool; pool = pool->next)
    if (is_kept(pool))
      memcpy(end -= sizeof pool->id, &pool->id, sizeof pool->id);
}

/* false: the draft is too small. */
static bool copy_all(copy *c, const weir__heap *heap, weir__ring_file_state *state) {
  c->block_count = 0;
  size_t before = bytes_of(c), room = 0;
  if (c->file->draft_room >= before)
    room = (c->file->draft_room - before) / sizeof(weir__ring_file_block);
  else
    return false;
  char *segments = c->file->draft + sizeof *state + c->conf_room + c->pool_count * sizeof(weir_pool_id);
  copy_pools(heap, segments);
  for (size_t i = 0; i < c->segment_count; i++) {
    weir__ring_file_segment made;
    copy_segment(c, c->list[i].segment, &made, c->file->draft + before, room);
    memcpy(segments + i * sizeof made, &made, sizeof made);
  }
  if (c->block_count > room)
    return false;
  state->time = cut(c);
  state->limit = heap->accounts.device.limit[WEIR__LIMIT_HARD];
  state->pool_count = c->pool_count;
  state->segment_count = c->segment_count;
  state->block_count = c->block_count;
  weir__ring_file_cut(c->file, heap->device, c->block_count);
  return true;
}

/* ---- The whole ---- */

/* The heap's lock is held. */
static bool copy_heap(copy *c, weir__heap *heap, weir__ring_file_state *state) {
  bool done = false;
  weir_allocator_stats stats = {.size = sizeof stats};
  if (!weir__frozen_list(heap, (weir_pool_id){0, 0}, &c->list, &c->segment_count))
    return false;
  for (const weir__private_pool *pool = heap->private_pools; pool; pool = pool->next)
    c->pool_count += is_kept(pool);
  weir__accounts_read(&heap->accounts, &stats);
  state->peak_allocated = (uint64_t)stats.allocated_bytes[WEIR_STAT_ALL].peak;
  state->peak_reserved = (uint64_t)stats.reserved_bytes[WEIR_STAT_ALL].peak;
  for (bool is_possible = true; is_possible && !done;) {
    weir__freeze(c->list, c->segment_count);
    done = copy_all(c, heap, state);
    weir__unfreeze(c->list, c->segment_count);
    if (!done)
      is_possible = make_room(c);
  }
  return done;
}

static bool write_draft(copy *c, int device, const weir__ring_file_state *state) {
  memcpy(c->file->draft, state, sizeof *state);
  memcpy(c->file->draft + sizeof *state, c->conf, c->conf_room);
  weir__ring_file_sync(c->file); /* stacks of blocks, which no event may have had */
  if (weir__ring_file_put(c->file, device, (const weir__ring_file_state *)(const void *)c->file->draft, bytes_of(c)))
    return true;
  if (!c->file->has_warned)
    weir__log(
        WEIR_LOG_WARN,
        "%s: a checkpoint of %zu blocks takes %zu bytes, and there is room for %llu: once old entries are dropped, "
        "the state before the rest will be unknown; set WEIR_RECORD_MB to make the file larger",
        c->file->path, c->block_count, bytes_of(c), (unsigned long long)weir__ring_file_room(c->file));
  c->file->has_warned = true;
  return false;
}

/* Copies the state of a device and writes it to the file, whose checkpoint_lock is held. `deadline_ns`
 * (weir__monotonic_ns, or WEIR__NO_DEADLINE) bounds the wait for the heap's lock. Warns once if the file has no room.
 * */
static bool write_checkpoint(weir__heap *heap, weir__recorder *history, weir__ring_file *file, uint64_t deadline_ns) {
  copy c = {.file = file, .history = history};
  weir__ring_file_state state = {.device = (uint32_t)heap->device};
  bool done = false;
  if (read_settings(&c, heap->allocator) && weir__mutex_lock_until(&heap->lock, deadline_ns)) {
    state.settings_time = c.settings_time;
    state.conf_bytes = (uint32_t)c.conf_bytes;
    done = copy_heap(&c, heap, &state);
    weir__mutex_unlock(&heap->lock);
  }
  done = done && write_draft(&c, heap->device, &state);
  free(c.list);
  free(c.conf);
  return done;
}

/* ---- When ---- */

/* The file of a device; NULL if there is none, or if it belongs to the parent of a fork. */
weir__ring_file *weir__checkpoint_file(const weir__heap *heap, weir__recorder **history) {
  *history = atomic_load_explicit(&heap->allocator->history, memory_order_acquire);
  return *history ? (*history)->devices[heap->device].ring.file : NULL;
}

static void take_checkpoint(weir__heap *heap, weir__recorder *history, weir__ring_file *file, uint64_t deadline_ns) {
  write_checkpoint(heap, history, file, deadline_ns);
  atomic_store(&file->is_due[heap->device], false);
  weir__slow_reason_set(heap, WEIR__SLOW_CHECKPOINT, false);
}

/* Back-pressure: an allocating thread takes the checkpoint if the service thread is late, and others wait meanwhile,
 * since their events would push the last checkpoint out of the ring. The wait is bounded, because the caller may hold a
 * lock of the program that the service thread needs. */
void weir__checkpoint_take_due(weir__heap *heap) {
  enum { most_ns = 100000000 };
  weir__recorder *history;
  weir__ring_file *file = weir__checkpoint_file(heap, &history);
  uint64_t deadline_ns = weir__monotonic_ns() + most_ns;
  if (!file || !weir__mutex_lock_until(&file->checkpoint_lock, deadline_ns)) {
    weir__slow_reason_set(heap, WEIR__SLOW_CHECKPOINT, false); /* the next chunk will ask again */
    return;
  }
  if (weir__slow_reasons(heap) & WEIR__SLOW_CHECKPOINT)
    take_checkpoint(heap, history, file, deadline_ns);
  weir__mutex_unlock(&file->checkpoint_lock);
}

/* Takes the checkpoints that are due, or all. */
void weir__checkpoints_take(weir_allocator *allocator, bool all) {
  for (int i = 0; i < allocator->heap_count; i++) {
    weir__recorder *history;
    weir__ring_file *file = weir__checkpoint_file(&allocator->heaps[i], &history);
    if (!file || !file->due)
      continue;
    weir__mutex_lock(&file->checkpoint_lock);
    if (all || atomic_load(&file->is_due[i]))
      take_checkpoint(&allocator->heaps[i], history, file, WEIR__NO_DEADLINE);
    weir__mutex_unlock(&file->checkpoint_lock);
  }
}

void weir__checkpoint_begin(weir_allocator *allocator) {
  const weir__recorder *history = atomic_load(&allocator->history);
  if (history && weir__recorder_is_on(history))
    weir__checkpoints_take(allocator, true);
}
