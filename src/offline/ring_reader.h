/*
 * Reads a recording that a process left in a file (record/ring_file.h) as a snapshot: with the history from the oldest
 * usable checkpoint on, the stacks and the settings, and without a list of segments. Native frames have names where
 * their program or library is still there; else they are the program or library, and the address in it.
 */
#ifndef WEIR_OFFLINE_RING_READER_H
#define WEIR_OFFLINE_RING_READER_H

#include "offline/recording.h"

/* Whether a file begins as such a recording does. A file that cannot be read does not. */
bool weir__ring_file_is(const char *path);

/* WEIR_ERROR_BAD_DATA, with the byte, when it is none. */
weir_status weir__ring_file_load(const char *path, const weir__recording_limits *limits, weir__recording **recording);

/* Whether data that begin with these bytes are such a recording. */
bool weir__ring_file_begins(const void *bytes, size_t size);

/* Reads one from a source that cannot be read at any place, as a pipe or a compressed file; it stays the caller's. */
weir_status weir__ring_file_read(weir__input *source, const weir__recording_limits *limits,
                                 weir__recording **recording);

#endif
