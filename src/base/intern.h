/*
 * Byte strings, each stored once and known by a number from 1 on.
 *
 * A lookup takes no lock. Adding a string takes one, for as long as the copy takes. Strings are never removed, so a
 * number is valid until the whole interner is cleared. All strings together have a limit; a string beyond it gets
 * number 0.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"

enum { WEIR__INTERN_PAGE = 4096, WEIR__INTERN_PAGES = 4096 };

typedef struct weir__interned {
  uint32_t length;
  uint32_t hash;
  unsigned char bytes[];
} weir__interned;

typedef struct weir__intern_page {
  const weir__interned *strings[WEIR__INTERN_PAGE];
} weir__intern_page;

/* Replaced by a larger one when it is half full, and kept, because other threads may be reading it. */
typedef struct weir__intern_table {
  size_t mask;
  _Atomic uint64_t slots[]; /* the hash above the number; 0 if unused */
} weir__intern_table;

/* The head of each allocation, which keeps what follows aligned. */
typedef struct weir__intern_memory {
  _Alignas(16) struct weir__intern_memory *next;
} weir__intern_memory;

/* All zero but the limit is an empty interner. */
typedef struct weir__intern {
  size_t max_bytes; /* the limit, of strings and the tables that find them */
  _Atomic(weir__intern_table *) table;
  _Atomic(weir__intern_page *) pages[WEIR__INTERN_PAGES];
  atomic_uint count;
  atomic_ulong lost;           /* strings that got no number */
  weir__lock lock;             /* for adding; it guards what follows */
  char *fresh, *end;           /* the unused part of the newest chunk */
  weir__intern_memory *memory; /* all allocations */
  atomic_size_t bytes;         /* of these */
} weir__intern;

/* The number of a string, which is added if it is new. 0 if it is empty, or if there is no room. */
uint32_t weir__intern_put(weir__intern *intern, const void *bytes, size_t length);

/* The string of a number, aligned to 8 and followed by a 0; NULL and length 0 for number 0 and for unknown numbers. */
const void *weir__intern_get(const weir__intern *intern, uint32_t number, size_t *length);

/* Frees all strings. No other thread may use the interner meanwhile. */
void weir__intern_clear(weir__intern *intern);
