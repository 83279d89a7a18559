/*
 * Compiled code on disk: a file for each key, in WEIR_CACHE_DIR, $XDG_CACHE_HOME/weir or ~/.cache/weir.
 *
 * A file appears as a whole (it is renamed into place), so several processes can share the folder. It contains its key
 * and a checksum, and one that is damaged, or that another user could have written, is ignored and replaced. Once the
 * folder exceeds WEIR_CACHE_SIZE, 1 GiB by default, the files that were not used for longest are removed. A cache that
 * cannot be read or written costs time only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that grow, for keys and contents. */
typedef struct weir__bytes {
  unsigned char *data;
  size_t count, room;
  bool failed; /* the host had no memory */
} weir__bytes;

void weir__bytes_add(weir__bytes *bytes, const void *data, size_t count);
/* The length, and the data. */
void weir__bytes_add_sized(weir__bytes *bytes, const void *data, size_t count);
void weir__bytes_add_text(weir__bytes *bytes, const char *text); /* sized; NULL is as "" */
void weir__bytes_end(weir__bytes *bytes);

uint64_t weir__hash_bytes(uint64_t seed, const void *data, size_t count);

/* The contents of a key, in memory of malloc. False if there are none. */
bool weir__cache_read(const weir__bytes *key, unsigned char **data, size_t *count);

void weir__cache_write(const weir__bytes *key, const void *data, size_t count);

/* Writes the folder of the cache; false if there is none. */
bool weir__cache_folder(char *path, size_t size);
