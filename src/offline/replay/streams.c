#include "offline/replay/streams.h"

#include <stdlib.h>

#include "base/base.h"
#include "offline/read/recording.h"

enum {
  OWN = 3,   /* handles below it have a meaning of their own */
  FIRST = 16 /* the handle of rank 0. All are far below those that a driver makes: driver/model/handles.h */
};

typedef struct ranked {
  uint64_t raw;
  uint16_t number;
  bool is_of_start;
} ranked;

static int by_handle(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  return x->raw != y->raw ? (x->raw > y->raw) - (x->raw < y->raw) : x->is_of_start - y->is_of_start;
}

/* Lists the streams of the history and of the starts. */
static size_t list_streams(const weir__recording *recording, ranked *list) {
  size_t count = 0;
  for (; count < recording->stream_count; count++)
    list[count] = (ranked){(uint64_t)recording->streams[count], (uint16_t)count, false};
  for (size_t d = 0; d < recording->device_count; d++) {
    const weir__state *start = recording->devices[d].start;
    for (size_t i = 0; start && i < start->segment_count; i++)
      list[count++] = (ranked){(uint64_t)start->segments[i].stream, 0, true};
  }
  return count;
}

weir_status weir__replay_streams_make(const weir__recording *recording, weir__replay_streams *streams) {
  size_t most = recording->stream_count, count;
  for (size_t d = 0; d < recording->device_count; d++)
    most += recording->devices[d].start ? recording->devices[d].start->segment_count : 0;
  ranked *list = malloc((most + 1) * sizeof *list);
  *streams = (weir__replay_streams){.handles = malloc((recording->stream_count + 1) * sizeof *streams->handles),
                                    .numbers = malloc((most + 1) * sizeof *streams->numbers),
                                    .raw = malloc((most + 1) * sizeof *streams->raw)};
  if (!list || !streams->handles || !streams->numbers || !streams->raw) {
    free(list);
    weir__replay_streams_clear(streams);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu streams", most);
  }
  count = list_streams(recording, list);
  qsort(list, count, sizeof *list, by_handle);
  for (size_t i = 0; i < count; i++) {
    size_t rank = streams->count;
    if (list[i].is_of_start && rank && (uint64_t)streams->raw[rank - 1] == list[i].raw)
      continue;
    streams->raw[rank] = (int64_t)list[i].raw;
    streams->numbers[rank] = list[i].number;
    if (!list[i].is_of_start)
      streams->handles[list[i].number] = (weir_cu_stream)(uintptr_t)(list[i].raw < OWN ? list[i].raw : FIRST + rank);
    streams->count++;
  }
  free(list);
  return WEIR_OK;
}

void weir__replay_streams_clear(weir__replay_streams *streams) {
  free(streams->handles);
  free(streams->numbers);
  free(streams->raw);
  *streams = (weir__replay_streams){0};
}

/* The rank of a recorded handle; the number of streams if it is none. */
static size_t rank_of_raw(const weir__replay_streams *streams, uint64_t raw) {
  size_t low = 0, high = streams->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if ((uint64_t)streams->raw[middle] < raw)
      low = middle + 1;
    else
      high = middle;
  }
  return low < streams->count && (uint64_t)streams->raw[low] == raw ? low : streams->count;
}

/* The rank of a stream of the replay; the number of streams if it is none. */
static size_t rank_of(const weir__replay_streams *streams, weir_cu_stream handle) {
  uintptr_t value = (uintptr_t)handle;
  size_t rank = value < OWN ? rank_of_raw(streams, value) : value - FIRST;
  return rank < streams->count ? rank : streams->count;
}

uint16_t weir__replay_stream_number(const weir__replay_streams *streams, weir_cu_stream handle) {
  size_t rank = rank_of(streams, handle);
  return rank < streams->count ? streams->numbers[rank] : 0;
}

int64_t weir__replay_stream_raw(const weir__replay_streams *streams, weir_cu_stream handle) {
  size_t rank = rank_of(streams, handle);
  return rank < streams->count ? streams->raw[rank] : 0;
}

weir_cu_stream weir__replay_stream_of(const weir__replay_streams *streams, int64_t raw) {
  size_t rank = rank_of_raw(streams, (uint64_t)raw);
  if ((uint64_t)raw < OWN)
    return (weir_cu_stream)(uintptr_t)raw;
  return rank < streams->count ? (weir_cu_stream)(uintptr_t)(FIRST + rank) : NULL;
}
