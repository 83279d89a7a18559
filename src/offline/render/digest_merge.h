/*
 * The union of digests: each document once, by rank, device and bytes. So it is the same in whatever order, and over
 * whatever intermediate unions, it is made.
 */
#pragma once

#include "offline/render/digest_json.h"

typedef struct weir__digest_document {
  int64_t rank;
  uint64_t device;
  char *text; /* without a newline */
  size_t size;
} weir__digest_document;

/* All zero is empty. */
typedef struct weir__digest_union {
  weir__digest_document *items;
  size_t count, room;
  weir__digest_line line;
} weir__digest_union;

weir_status weir__digest_union_add(weir__digest_union *all, const weir__digest *digest);

/* Puts the documents in order, and leaves one of those that are equal. */
void weir__digest_union_finish(weir__digest_union *all);
void weir__digest_union_clear(weir__digest_union *all);
