/*
 * Reads a ring file, the recording that a process left behind (record/ring_file.h): the history from the oldest usable
 * checkpoint on, the stacks and the settings, without a list of segments. Native frames have names if their program or
 * library is still there; otherwise they have its path and the offset in it.
 */
#pragma once

#include "offline/read/recording.h"
#include "offline/read/ring_areas.h"

/* Whether a file begins as a ring file. A file that cannot be read does not. */
bool weir__ring_file_is(const char *path);

/* WEIR_ERROR_BAD_DATA, with the byte, if it is not a ring file. */
weir_status weir__ring_file_load(const char *path, const weir__recording_limits *limits, weir__recording **recording);

/* Whether data that begin with these bytes are a ring file. */
bool weir__ring_file_begins(const void *bytes, size_t size);

/* Reads one from an input without random access, such as a pipe or a compressed file. The caller closes it. */
weir_status weir__ring_file_read(weir__input *source, const weir__recording_limits *limits,
                                 weir__recording **recording);

/* A recording without its entries, for a reader that takes them one by one. */
typedef struct weir__ring_loader weir__ring_loader;

/* `path` is for errors. The descriptor stays the caller's. */
weir_status weir__ring_loader_open(const char *path, int descriptor, const weir__recording_limits *limits,
                                   weir__ring_loader **loader);
void weir__ring_loader_close(weir__ring_loader *loader); /* with its recording; NULL is allowed */
weir__ring_areas *weir__ring_loader_file(weir__ring_loader *loader);
weir__recording *weir__ring_loader_recording(weir__ring_loader *loader);

/* Converts an entry at a byte of the file. Not all are used: some were dropped. An annotation becomes an entry with
 * WEIR__ACTION_PAIRS, whose remark is its number in the recording. */
weir_status weir__ring_loader_convert(weir__ring_loader *loader, const weir__entry *entry, uint64_t at,
                                      weir__recording_entry *to, bool *is_used);
