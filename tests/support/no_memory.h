/*
 * A host that runs out of memory: the test stands in for malloc and its like, and the allocation of a chosen number fails. For one
 * program, which includes this in its only file. The sanitizers stand in for malloc as well: with them there is nothing but a
 * main that says so, and NO_MEMORY_WAIVED is defined.
 */
#ifndef WEIR_TEST_NO_MEMORY_H
#define WEIR_TEST_NO_MEMORY_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/sanitized.h"
#include "weir/driver.h"

#ifdef SANITIZED
#define NO_MEMORY_WAIVED 1
#endif

/* For pieces of the region: the linker puts these in between. */
void *__wrap_weir__region_take(size_t bytes);
void *__real_weir__region_take(size_t bytes);
void __wrap_weir__region_give(void *piece, size_t bytes);
void __real_weir__region_give(void *piece, size_t bytes);

#ifdef NO_MEMORY_WAIVED

void *__wrap_weir__region_take(size_t bytes) { return __real_weir__region_take(bytes); }
void __wrap_weir__region_give(void *piece, size_t bytes) { __real_weir__region_give(piece, bytes); }

int main(void) {
  puts("waived: a sanitizer stands in for malloc");
  return 77;
}

#else

static bool counting;                         /* only what is made meanwhile counts, not the test's own */
static unsigned long made;                    /* allocations since then */
static unsigned long fail_at;                 /* the one that fails; 0: none */
static __attribute__((unused)) bool did_fail; /* it did; the test sets it back */
static long live;                             /* blocks that were not freed, the test's own included */

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

void *__wrap_weir__region_take(size_t bytes) { return fails() ? NULL : counted(__real_weir__region_take(bytes)); }

void __wrap_weir__region_give(void *piece, size_t bytes) {
  live--;
  __real_weir__region_give(piece, bytes);
}

/* The first error of a thread makes room for its text, for good. It comes before anybody counts. */
static __attribute__((unused)) int make_room_for_errors(void **state) {
  (void)state;
  weir_driver_open_ledger(NULL, NULL);
  return 0;
}

#endif
#endif
