#include "offline/replay/states.h"

#include "alloc/replay_port.h"
#include "offline/replay/streams.h"

weir_status weir__state_of_replay(const weir__recording *recording, weir_allocator *allocator, weir__state *state) {
  size_t segments, blocks;
  weir__replay_streams streams;
  weir__port_count_state(allocator, &segments, &blocks);
  weir_status status = weir__state_make(segments, blocks, 0, state);
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
  status = weir__state_sort(state);
  if (status)
    weir__state_clear(state);
  return status;
}

weir_status weir__state_of_file(const weir__recording *recording, const weir__recording_device *device,
                                weir__state *state) {
  size_t blocks = 0;
  for (size_t i = 0; i < device->segment_count; i++)
    blocks += device->segments[i].block_count;
  weir_status status = weir__state_make(device->segment_count, blocks, 0, state);
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
  status = weir__state_sort(state);
  if (status)
    weir__state_clear(state);
  return status;
}

void weir__state_find_events(weir__state *state, const weir__recording_entry *events, size_t last) {
  size_t missing = 0;
  for (size_t i = 0; i < state->block_count; i++)
    missing += weir__state_is_active(&state->blocks[i]);
  for (size_t i = last + 1; i-- > 0 && missing;) {
    if (events[i].action != WEIR_TRACE_ALLOC)
      continue;
    weir__state_block *b = weir__state_find_block(state, events[i].address);
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
        weir__state_is_active(b) && b->event == WEIR__NO_ENTRY ? weir__state_find_block(from, b->address) : NULL;
    if (known)
      b->stack = known->stack;
  }
}
