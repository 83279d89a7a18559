/*
 * Addresses to names: function, file and line, and the functions that were inlined there. libdw, from elfutils, reads the
 * program's debug information; it is opened when it is first asked for something, and where it is missing the dynamic linker
 * tells the function and the library.
 */
#ifndef WEIR_INSPECT_SYMBOLS_H
#define WEIR_INSPECT_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

#include "inspect/snapshot_texts.h"

/* A frame with names: of an address, or as a language runtime told it. */
typedef struct weir__symbol {
  uint32_t function, file; /* texts */
  int line;                /* 0: not known */
} weir__symbol;

typedef struct weir__symbols weir__symbols;

/* library NULL: libdw.so.1. NULL: no host memory. */
weir__symbols *weir__symbols_new(const char *library);

/* The same for a file that is not of this process: a program or library, and what is added to its addresses. `path` stays as long
 * as the symbols do. */
weir__symbols *weir__symbols_new_for(const char *library, const char *path, uint64_t base);
void weir__symbols_delete(weir__symbols *symbols);

/* Where a call returns to: the function that made it, and before that those that were inlined into it, the innermost first.
 * Returns how many, from number *first on; each address is looked up once. What is not known is "??". 0: no host memory. */
size_t weir__symbols_of(weir__symbols *symbols, uintptr_t address, size_t *first);

/* By number, as long as nothing is looked up. */
const weir__symbol *weir__symbols_at(const weir__symbols *symbols, size_t number);
const char *weir__symbols_text(const weir__symbols *symbols, uint32_t text);

/* A symbol's name as a person writes it, if it is one of C++; else as it is. Valid as long as the symbols are. */
const char *weir__symbols_name(weir__symbols *symbols, const char *symbol);

#endif
