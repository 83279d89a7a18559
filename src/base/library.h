/*
 * Shared libraries: loading them, and what the process has loaded. No other folder includes dlfcn.h or link.h.
 * On a system without shared libraries (WASI) nothing can be loaded and nothing is listed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Loads a library by name or path with all of its symbols bound; NULL if it cannot. */
void *weir__library_open(const char *name);

/* Why the last call failed in this thread; NULL if that is not known. */
const char *weir__library_error(void);

/* The address of an exported symbol, or NULL. A NULL library searches everything that the process has loaded. */
void *weir__library_symbol(void *library, const char *name);

void weir__library_close(void *library);

/* The exported function (NULL if there is none) and the file at an address; false if no loaded file contains it. */
bool weir__library_at(uint64_t address, const char **function, const char **file);

/* The program, or a library that it has loaded. Addresses are those of the process. */
typedef struct weir__image {
  const char *path;              /* "" for the program */
  uint64_t base;                 /* added to the addresses in the file */
  uint64_t begin, end;           /* where it is mapped; begin > end if nowhere */
  uint64_t code_begin, code_end; /* the executable part */
  const void *build_id;          /* NULL if it has none */
  size_t build_id_bytes;
} weir__image;

void weir__images_each(void (*each)(void *context, const weir__image *image), void *context);

/* How many libraries the process has loaded since it began: if that is unchanged, no image was added. */
unsigned long long weir__images_loaded(void);
