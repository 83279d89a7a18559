/*
 * A recording whose entries are read one after the other. Of a ring file, the memory that this takes does not depend on
 * the number of entries, unless the file went round: then 16 bytes for 64 entries. A pickle has to be read as a whole.
 */
#pragma once

#include "offline/read/recording.h"

typedef struct weir__recording_stream weir__recording_stream;

typedef struct weir__streamed_entry {
  weir__recording_entry entry; /* or an annotation: WEIR__ACTION_PAIRS, and `remark` is its number */
  int device;
} weir__streamed_entry;

/* Opens a file, a pipe or, for "-", the standard input, plain or compressed. A ring file that is not a plain regular
 * file is copied to `spool`, an empty file that the caller closes; -1 for a file in memory. */
weir_status weir__recording_stream_open(const char *path, int spool, const weir__recording_limits *limits,
                                        weir__recording_stream **stream);
void weir__recording_stream_close(weir__recording_stream *stream); /* NULL is allowed */

/* The recording: without entries, if it is a ring file. Streams, pools, remarks and annotations are added as they are
 * read. */
weir__recording *weir__recording_stream_recording(weir__recording_stream *stream);

/* How many entries there are at most. */
uint64_t weir__recording_stream_entries(const weir__recording_stream *stream);

/* Entries for which the file had no room. */
uint64_t weir__recording_stream_lost(weir__recording_stream *stream);

/* Whether all entries and annotations are in the recording from the beginning. */
bool weir__recording_stream_is_whole(const weir__recording_stream *stream);

/* Reads at most `room` entries, of all devices in the order of time, or, of a whole recording, one device after the
 * other and without annotations. *count is 0 only at the end. */
weir_status weir__recording_stream_read(weir__recording_stream *stream, weir__streamed_entry *to, size_t room,
                                        size_t *count);

/* From the next read on, annotations are valid until the one after it, so that they take no more memory. */
void weir__recording_stream_forget(weir__recording_stream *stream);
