/*
 * Many digests at once: the files that the user names, and those in folders that the user names, on all cores. A file
 * that cannot be read, or read to its end, is reported, and does not keep the others from being read.
 */
#pragma once

#include "offline/read/digest.h"

/* The files of a list of files and folders: in a folder all that end in .json or .json.zst, in the order of names. */
typedef struct weir__digest_paths {
  char **items;
  size_t count, room;
} weir__digest_paths;

weir_status weir__digest_paths_add(weir__digest_paths *paths, const char *path);
void weir__digest_paths_clear(weir__digest_paths *paths);
