/*
 * Resolves addresses to function, file and line, including inlined functions. libdw, from elfutils, reads the debug
 * information of the program. It is loaded on first use; without it, the dynamic linker provides the function and the
 * library.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "inspect/snapshot_texts.h"
#include "weir/history.h"

/* A resolved frame. */
typedef struct weir__symbol {
  uint32_t function, file; /* texts */
  int line;                /* 0 if not known */
} weir__symbol;

typedef struct weir__symbols weir__symbols;

/* `library` is NULL for libdw.so.1. Returns NULL if out of host memory. */
weir__symbols *weir__symbols_new(const char *library);

/* The same for a program or library that is not part of this process, with the base that is added to its addresses.
 * `path` must stay valid as long as the symbols. */
weir__symbols *weir__symbols_new_for(const char *library, const char *path, uint64_t base);
void weir__symbols_delete(weir__symbols *symbols);

/* Resolves a return address to the calling function, preceded by the functions inlined into it, the innermost first.
 * Returns the number of symbols, which start at *first; unknown names are "??". Each address is looked up once. 0 if
 * the process is out of host memory. */
size_t weir__symbols_of(weir__symbols *symbols, uintptr_t address, size_t *first);

/* weir_stack_visit with symbols that the caller keeps for several stacks. */
weir_status weir__symbols_visit(const char *caller, weir__symbols *symbols, uint32_t stack, weir_frame_fn visit,
                                void *context);

/* Valid until the next lookup. */
const weir__symbol *weir__symbols_at(const weir__symbols *symbols, size_t number);
const char *weir__symbols_text(const weir__symbols *symbols, uint32_t text);

/* Demangles a C++ name; other names are returned as they are. Valid as long as the symbols. */
const char *weir__symbols_name(weir__symbols *symbols, const char *symbol);
