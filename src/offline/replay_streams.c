#include "offline/replay_streams.h"

#include <stdlib.h>

#include "base/base.h"
#include "base/system.h"

enum {
  OWN = 3,   /* handles below it have a meaning of their own */
  FIRST = 16 /* the handle of rank 0. All are far below those that a driver makes: driver/model/handles.h */
};

static int by_handle(const void *a, const void *b, void *raw) {
  uint64_t x = (uint64_t)((const int64_t *)raw)[*(const uint16_t *)a];
  uint64_t y = (uint64_t)((const int64_t *)raw)[*(const uint16_t *)b];
  return (x > y) - (x < y);
}

weir_status weir__replay_streams_make(const weir__recording *recording, weir__replay_streams *streams) {
  size_t count = recording->stream_count;
  *streams = (weir__replay_streams){.handles = malloc((count + 1) * sizeof *streams->handles),
                                    .numbers = malloc((count + 1) * sizeof *streams->numbers),
                                    .raw = recording->streams,
                                    .count = count};
  if (!streams->handles || !streams->numbers) {
    weir__replay_streams_clear(streams);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory for %zu streams", count);
  }
  for (size_t i = 0; i < count; i++)
    streams->numbers[i] = (uint16_t)i;
  weir__sort(streams->numbers, count, sizeof *streams->numbers, by_handle, recording->streams);
  for (size_t rank = 0; rank < count; rank++) {
    uint64_t raw = (uint64_t)recording->streams[streams->numbers[rank]];
    streams->handles[streams->numbers[rank]] = (weir_cu_stream)(uintptr_t)(raw < OWN ? raw : FIRST + rank);
  }
  return WEIR_OK;
}

void weir__replay_streams_clear(weir__replay_streams *streams) {
  free(streams->handles);
  free(streams->numbers);
  *streams = (weir__replay_streams){0};
}

/* The rank of a recorded handle; the number of streams if the recording does not have it. */
static size_t rank_of(const weir__replay_streams *streams, uint64_t raw) {
  size_t low = 0, high = streams->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if ((uint64_t)streams->raw[streams->numbers[middle]] < raw)
      low = middle + 1;
    else
      high = middle;
  }
  return low < streams->count && (uint64_t)streams->raw[streams->numbers[low]] == raw ? low : streams->count;
}

uint16_t weir__replay_stream_number(const weir__replay_streams *streams, weir_cu_stream handle) {
  uintptr_t value = (uintptr_t)handle;
  size_t rank = value < OWN ? rank_of(streams, value) : value - FIRST;
  return rank < streams->count ? streams->numbers[rank] : 0;
}

weir_cu_stream weir__replay_stream_of(const weir__replay_streams *streams, int64_t raw) {
  size_t rank = rank_of(streams, (uint64_t)raw);
  return rank < streams->count ? streams->handles[streams->numbers[rank]] : NULL;
}
