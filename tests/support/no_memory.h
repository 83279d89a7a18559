/*
 * A host that runs out of memory: the test replaces malloc and related functions, and makes the allocation with a
 * chosen number fail. Only for programs with a single source file. Sanitizers replace malloc as well: then this header
 * defines NO_MEMORY_WAIVED and a main that waives the program.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/sanitized.h"
#include "weir/driver.h"

#ifdef SANITIZED
#define NO_MEMORY_WAIVED 1
#endif

/* Pieces of the region are counted too; the linker redirects the calls to these functions. */
void *__wrap_weir__region_alloc(size_t bytes);
void *__real_weir__region_alloc(size_t bytes);
void __wrap_weir__region_free(void *piece, size_t bytes);
void __real_weir__region_free(void *piece, size_t bytes);

#ifdef NO_MEMORY_WAIVED

void *__wrap_weir__region_alloc(size_t bytes) { return __real_weir__region_alloc(bytes); }
void __wrap_weir__region_free(void *piece, size_t bytes) { __real_weir__region_free(piece, bytes); }

int main(void) {
  puts("waived: a sanitizer replaces malloc");
  return 77;
}

#else

static bool counting;                         /* count allocations now; off while the test itself allocates */
static unsigned long made;                    /* allocations counted so far */
static unsigned long fail_at;                 /* the number of the allocation that fails; 0 for none */
static __attribute__((unused)) bool did_fail; /* an allocation has failed; reset by the test */
static long live;                             /* blocks not freed yet, including those of the test */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *block);

static bool fails(void) {
  if (!counting || ++made != fail_at)
    return false;
  did_fail = true;
  errno = ENOMEM;
  return true;
}

static void *counted(void *block) {
  live += block != NULL;
  return block;
}

void *malloc(size_t bytes) { return fails() ? NULL : counted(__libc_malloc(bytes)); }
void *calloc(size_t count, size_t bytes) { return fails() ? NULL : counted(__libc_calloc(count, bytes)); }

void *aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? NULL : counted(__libc_memalign(alignment, bytes));
}

void *realloc(void *old, size_t bytes) {
  if (fails())
    return NULL;
  void *block = __libc_realloc(old, bytes);
  return old ? block : counted(block);
}

void free(void *block) {
  live -= block != NULL;
  __libc_free(block);
}

void *__wrap_weir__region_alloc(size_t bytes) { return fails() ? NULL : counted(__real_weir__region_alloc(bytes)); }

void __wrap_weir__region_free(void *piece, size_t bytes) {
  live--;
  __real_weir__region_free(piece, bytes);
}

/* The first error of a thread allocates memory for its text, which is kept. This makes it happen before counting
 * starts. */
static __attribute__((unused)) int make_room_for_errors(void **state) {
  (void)state;
  weir_driver_open_ledger(NULL, NULL);
  return 0;
}

#endif
