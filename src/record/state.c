#include "record/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

void weir__state_clear(weir__state *state) {
  free(state->segments);
  free(state->blocks);
  free(state->pools);
  *state = (weir__state){0};
}

weir_status weir__state_make(size_t segments, size_t blocks, size_t pools, weir__state *state) {
  *state = (weir__state){.segments = malloc((segments + 1) * sizeof *state->segments),
                         .blocks = malloc((blocks + 1) * sizeof *state->blocks),
                         .pools = malloc((pools + 1) * sizeof *state->pools)};
  if (state->segments && state->blocks && state->pools)
    return WEIR_OK;
  weir__state_clear(state);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a state of %zu blocks", blocks);
}

weir_status weir__state_copy(const weir__state *from, weir__state *state) {
  weir_status status = weir__state_make(from->segment_count, from->block_count, from->pool_count, state);
  if (status)
    return status;
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

weir_status weir__state_sort(weir__state *state) {
  weir__state_block *sorted = malloc((state->block_count + 1) * sizeof *sorted);
  if (!sorted)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory to put a state in order");
  if (state->segment_count)
    qsort(state->segments, state->segment_count, sizeof *state->segments, by_address);
  size_t count = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    weir__state_segment *s = &state->segments[i];
    if (s->count)
      memcpy(sorted + count, state->blocks + s->first, s->count * sizeof *sorted);
    s->first = count;
    count += s->count;
  }
  free(state->blocks);
  state->blocks = sorted;
  return WEIR_OK;
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

weir__state_block *weir__state_find_block(const weir__state *state, uint64_t address) {
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
