#include "offline/ages.h"

#include <stdlib.h>

#include "base/base.h"

/* A free segment that collection by age may take. */
typedef struct idle {
  const weir__state_segment *segment;
  weir__state_block *block;
} idle;

static int by_event(const void *a, const void *b) {
  size_t x = ((const idle *)a)->block->event, y = ((const idle *)b)->block->event;
  return (x > y) - (x < y);
}

/* Collection goes through free segments by stream, size and address, and takes those that are older than the mean; and again,
 * until it has enough. */
static bool is_of_same_round(const weir__recording_entry *events, const idle *last, const idle *next) {
  const weir__state_segment *x = last->segment, *y = next->segment;
  for (size_t i = last->block->event; i < next->block->event; i++)
    if (events[i].action != WEIR_TRACE_SEGMENT_FREE)
      return false;
  if (x->stream != y->stream)
    return x->stream < y->stream;
  return x->size != y->size ? x->size < y->size : x->address < y->address;
}

bool weir__guess_ages(const weir__recording_entry *events, int guess, weir__state *start) {
  static const struct {
    uint32_t first; /* of what goes in the first round ... */
    uint8_t shift;  /* ... and with each round so many bits less */
  } guesses[WEIR__AGE_GUESSES] = {{0, 0},        {1u << 7, 1},  {1u << 10, 1}, {1u << 13, 1},
                                  {1u << 16, 1}, {1u << 19, 1}, {1u << 31, 7}};
  size_t count = 0;
  unsigned round = 0;
  idle *all = malloc((start->segment_count + 1) * sizeof *all);
  if (!all)
    return false;
  for (size_t i = 0; i < start->segment_count; i++) {
    const weir__state_segment *s = &start->segments[i];
    weir__state_block *b = &start->blocks[s->first];
    if (s->count == 1 && !s->is_small && !s->is_expandable && b->state == WEIR_BLOCK_INACTIVE &&
        b->event != WEIR__NO_ENTRY)
      all[count++] = (idle){s, b};
  }
  qsort(all, count, sizeof *all, by_event);
  for (size_t i = 0; i < count; i++) {
    round += i && !is_of_same_round(events, &all[i - 1], &all[i]);
    unsigned bits = round * guesses[guess].shift;
    all[i].block->age = bits < 32 ? guesses[guess].first >> bits : 0;
  }
  free(all);
  return count > 0;
}
