/*
 * The streams of a recording in a replay.
 *
 * A recorded handle has 64 bits. In a replay, streams are pointers, which have 32 bits on WebAssembly, so each stream
 * gets a small handle of its own. The order of handles is kept, since the allocator goes through streams in it. The
 * handles 0, 1 and 2 have a meaning of their own in CUDA and stay.
 */
#pragma once

#include "offline/read/recording.h"

typedef struct weir__replay_streams {
  weir_cu_stream *handles; /* in the replay, by the recording's number */
  uint16_t *numbers;       /* the recording's number, by rank; 0 for a stream that only the recorded start has */
  int64_t *raw;            /* the recorded handles, by rank: those of the history and of the recorded starts */
  size_t count;
} weir__replay_streams;

/* WEIR_ERROR_HOST_OUT_OF_MEMORY. */
weir_status weir__replay_streams_make(const weir__recording *recording, weir__replay_streams *streams);
void weir__replay_streams_clear(weir__replay_streams *streams);

/* The recording's number of a stream of the replay; 0 for a handle that is none. */
uint16_t weir__replay_stream_number(const weir__replay_streams *streams, weir_cu_stream handle);

/* The recorded handle of a stream of the replay; 0 for a handle that is none. */
int64_t weir__replay_stream_raw(const weir__replay_streams *streams, weir_cu_stream handle);

/* The handle in the replay of a recorded one, which the recording has; NULL otherwise. */
weir_cu_stream weir__replay_stream_of(const weir__replay_streams *streams, int64_t raw);
