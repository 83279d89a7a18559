/*
 * Where bytes come from: memory, or a file, plain or compressed with zstd (told by its first bytes, not by its name).
 */
#ifndef WEIR_OFFLINE_SOURCE_H
#define WEIR_OFFLINE_SOURCE_H

#include <stddef.h>
#include <stdint.h>

#include "weir/status.h"

typedef struct weir__source weir__source;

/* Reads a file, a pipe or a device from where it stands, to its end. */
weir_status weir__source_open(const char *path, weir__source **source);

/* Reads `data`, which stays the caller's; a zstd frame is recognised here too. `name` is for errors. */
weir_status weir__source_open_memory(const char *name, const void *data, size_t size, weir__source **source);

void weir__source_close(weir__source *source);

/* What errors call it. */
const char *weir__source_name(const weir__source *source);

/* Writes at most `room` bytes. *got is 0 at the end only. */
weir_status weir__source_read(weir__source *source, void *to, size_t room, size_t *got);

#endif
