/*
 * An interner of texts as valid UTF-8: invalid bytes become U+FFFD, so that every reader of JSON and of pickles accepts
 * them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/hash_map.h"

typedef struct weir__text_set {
  char **at;
  size_t count, room;
  weir__hash_map numbers; /* by the hash of the text */
} weir__text_set;

#define WEIR__NO_TEXT UINT32_MAX

/* The number of a text; NULL is "". WEIR__NO_TEXT if out of host memory. */
uint32_t weir__text_set_add(weir__text_set *texts, const char *text);
void weir__text_set_clear(weir__text_set *texts);
