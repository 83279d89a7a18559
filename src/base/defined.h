/*
 * Whether memory was ever written: known where the program runs under valgrind's memcheck, and elsewhere taken to be.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#if defined __has_include
#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#endif
#endif

#ifdef VALGRIND_MAKE_MEM_UNDEFINED
/* The bytes count as never written. */
static inline void weir__mark_undefined(uint64_t base, uint64_t bytes) {
  (void)base, (void)bytes; /* the macros are empty on systems without valgrind */
  if (RUNNING_ON_VALGRIND)
    VALGRIND_MAKE_MEM_UNDEFINED(base, bytes);
}

/* The address of the first byte that was never written; 0 if there is none. Reports nothing. */
static inline uint64_t weir__find_undefined(uint64_t base, uint64_t bytes) {
  enum { PIECE = 256 };
  unsigned char bits[PIECE] = {0};
  if (!RUNNING_ON_VALGRIND)
    return 0;
  for (uint64_t at = 0; at < bytes; at += PIECE) {
    uint64_t count = bytes - at < PIECE ? bytes - at : PIECE;
    if (VALGRIND_GET_VBITS(base + at, bits, count) != 1)
      return 0; /* not all of it is memory */
    for (uint64_t i = 0; i < count; i++)
      if (bits[i])
        return base + at + i;
  }
  return 0;
}

/* How often memcheck has seen something depend on such bytes so far. */
static inline unsigned weir__undefined_uses(void) { return RUNNING_ON_VALGRIND ? VALGRIND_COUNT_ERRORS : 0; }
#else
static inline void weir__mark_undefined(uint64_t base, uint64_t bytes) { (void)base, (void)bytes; }
static inline uint64_t weir__find_undefined(uint64_t base, uint64_t bytes) {
  (void)base, (void)bytes;
  return 0;
}
static inline unsigned weir__undefined_uses(void) { return 0; }
#endif
