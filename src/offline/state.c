#include "offline/state.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/replay_port.h"
#include "offline/byte_reader.h"
#include "offline/replay_streams.h"

void weir__state_clear(weir__state *state) {
  free(state->segments);
  free(state->blocks);
  free(state->pools);
  *state = (weir__state){0};
}

static weir_status make_room(weir__state *state, size_t segments, size_t blocks) {
  *state = (weir__state){0};
  state->segments = malloc((segments + 1) * sizeof *state->segments);
  state->blocks = malloc((blocks + 1) * sizeof *state->blocks);
  if (state->segments && state->blocks)
    return WEIR_OK;
  weir__state_clear(state);
  return weir__not_ok(weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory for a state of %zu blocks", blocks));
}

weir_status weir__state_copy(const weir__state *from, weir__state *state) {
  weir_status status = make_room(state, from->segment_count, from->block_count);
  if (status)
    return status;
  state->pools = malloc((from->pool_count + 1) * sizeof *state->pools);
  if (!state->pools) {
    weir__state_clear(state);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory for a state of %zu pools", from->pool_count);
  }
  if (from->pool_count)
    memcpy(state->pools, from->pools, from->pool_count * sizeof *state->pools);
  if (from->segment_count)
    memcpy(state->segments, from->segments, from->segment_count * sizeof *state->segments);
  if (from->block_count)
    memcpy(state->blocks, from->blocks, from->block_count * sizeof *state->blocks);
  state->pool_count = from->pool_count;
  state->segment_count = from->segment_count;
  state->block_count = from->block_count;
  state->reserved = from->reserved;
  return WEIR_OK;
}

static int by_address(const void *a, const void *b) {
  uint64_t x = ((const weir__state_segment *)a)->address, y = ((const weir__state_segment *)b)->address;
  return (x > y) - (x < y);
}

/* Puts the segments in order, and their blocks too. false if there is no host memory. */
static bool sort(weir__state *state) {
  weir__state_block *sorted = malloc((state->block_count + 1) * sizeof *sorted);
  if (!sorted)
    return false;
  qsort(state->segments, state->segment_count, sizeof *state->segments, by_address);
  size_t count = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    weir__state_segment *s = &state->segments[i];
    for (size_t k = 0; k < s->count; k++)
      sorted[count + k] = state->blocks[s->first + k];
    s->first = count;
    count += s->count;
  }
  free(state->blocks);
  state->blocks = sorted;
  return true;
}

static weir_status finish(weir__state *state) {
  if (sort(state))
    return WEIR_OK;
  weir__state_clear(state);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory to put a state in order");
}

weir_status weir__state_of_replay(const weir__recording *recording, weir_allocator *allocator, weir__state *state) {
  size_t segments, blocks;
  weir__replay_streams streams;
  weir__port_count_state(allocator, &segments, &blocks);
  weir_status status = make_room(state, segments, blocks);
  if (status)
    return status;
  status = weir__replay_streams_make(recording, &streams);
  if (status) {
    weir__state_clear(state);
    return status;
  }
  weir__port_read_state(allocator, state);
  for (size_t i = 0; i < state->segment_count; i++) {
    weir_cu_stream handle = (weir_cu_stream)(uintptr_t)state->segments[i].stream;
    state->segments[i].stream = weir__replay_stream_raw(&streams, handle);
  }
  weir__replay_streams_clear(&streams);
  for (size_t i = 0; i < state->block_count; i++)
    state->blocks[i].event = WEIR__NO_ENTRY;
  return finish(state);
}

weir_status weir__state_of_file(const weir__recording *recording, const weir__recording_device *device,
                                weir__state *state) {
  size_t blocks = 0;
  for (size_t i = 0; i < device->segment_count; i++)
    blocks += device->segments[i].block_count;
  weir_status status = make_room(state, device->segment_count, blocks);
  if (status)
    return status;
  for (size_t i = 0; i < device->segment_count; i++) {
    const weir__recording_segment *from = &device->segments[i];
    const int64_t *pool = recording->pools[from->pool].id;
    state->segments[state->segment_count++] = (weir__state_segment){.address = from->address,
                                                                    .size = from->size,
                                                                    .stream = recording->streams[from->stream],
                                                                    .pool = {pool[0], pool[1]},
                                                                    .first = state->block_count,
                                                                    .count = from->block_count,
                                                                    .is_small = !from->is_large,
                                                                    .is_expandable = from->is_expandable};
    state->reserved += from->size;
    for (size_t k = 0; k < from->block_count; k++) {
      const weir__recording_block *b = &from->blocks[k];
      bool is_active = b->state != WEIR_BLOCK_INACTIVE;
      state->blocks[state->block_count++] = (weir__state_block){.address = b->address,
                                                                .size = b->size,
                                                                .requested = is_active ? b->requested : 0,
                                                                .event = WEIR__NO_ENTRY,
                                                                .stack = b->stack,
                                                                .state = b->state};
    }
  }
  return finish(state);
}

const weir__state_segment *weir__state_find(const weir__state *state, uint64_t address) {
  size_t low = 0, high = state->segment_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (state->segments[middle].address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  const weir__state_segment *found = low ? &state->segments[low - 1] : NULL;
  return found && address - found->address < found->size ? found : NULL;
}

/* The block that begins at an address; NULL if there is none. Blocks of segments that overlap, as in a damaged file,
 * may not be found. */
static weir__state_block *find_block(const weir__state *state, uint64_t address) {
  const weir__state_segment *s = weir__state_find(state, address);
  if (!s)
    return NULL;
  size_t low = s->first, high = s->first + s->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (state->blocks[middle].address < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low < s->first + s->count && state->blocks[low].address == address ? &state->blocks[low] : NULL;
}

void weir__state_find_events(weir__state *state, const weir__recording_entry *events, size_t last) {
  size_t missing = 0;
  for (size_t i = 0; i < state->block_count; i++)
    missing += weir__state_is_active(&state->blocks[i]);
  for (size_t i = last + 1; i-- > 0 && missing;) {
    if (events[i].action != WEIR_TRACE_ALLOC)
      continue;
    weir__state_block *b = find_block(state, events[i].address);
    if (!b || !weir__state_is_active(b) || b->event != WEIR__NO_ENTRY)
      continue;
    b->event = i;
    if (events[i].stack)
      b->stack = events[i].stack;
    missing--;
  }
}

void weir__state_take_stacks(weir__state *state, const weir__state *from) {
  for (size_t i = 0; i < state->block_count; i++) {
    weir__state_block *b = &state->blocks[i];
    const weir__state_block *known =
        weir__state_is_active(b) && b->event == WEIR__NO_ENTRY ? find_block(from, b->address) : NULL;
    if (known)
      b->stack = known->stack;
  }
}
