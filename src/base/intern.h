/*
 * Byte strings, each stored once and known by a number from 1 on.
 *
 * What is there is found without a lock. A new string is added under one, for as long as the copy takes. Nothing goes away
 * again, so a number is good for the life of the process; there is a limit for all strings together, and what comes after it
 * gets number 0.
 */
#ifndef WEIR_BASE_INTERN_H
#define WEIR_BASE_INTERN_H

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

typedef struct weir__intern_table {
  struct weir__intern_table *older; /* somebody may still look there */
  size_t mask;
  _Atomic uint64_t slots[]; /* the hash above the number; 0: empty */
} weir__intern_table;

/* All zero but the limit is an empty one. */
typedef struct weir__intern {
  size_t most_bytes; /* of all strings and what finds them */
  _Atomic(weir__intern_table *) table;
  _Atomic(weir__intern_page *) pages[WEIR__INTERN_PAGES];
  atomic_uint count;
  atomic_ulong lost;   /* strings for which there was no room */
  weir__lock lock;     /* of what follows, and of adding */
  char *fresh, *end;   /* room in the newest chunk */
  atomic_size_t bytes; /* taken from the host so far */
} weir__intern;

/* 0: the string is empty, or there is no room. */
uint32_t weir__intern_put(weir__intern *intern, const void *bytes, size_t length);

/* NULL and 0 for number 0, and for one that was never given out. The bytes are aligned to 8, and a 0 follows them. */
const void *weir__intern_get(const weir__intern *intern, uint32_t number, size_t *length);

#endif
