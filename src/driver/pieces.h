/*
 * Host memory that was registered with the driver in several pieces. Devices can access all of it, but one copy or fill
 * of the driver must stay within one registration. Weir's copies and fills end at the seams and go on behind them.
 *
 * All calls are thread-safe. Programs without such memory pay for one load.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number of such ranges in the process. */
extern atomic_size_t weir__pieced_ranges;

/* Notes that [base, base + bytes) is registered in pieces of this size. False if out of host memory. */
bool weir__pieces_add(const void *base, uint64_t bytes, uint64_t piece);
void weir__pieces_remove(const void *base);

/* How many of the bytes at an address come before the next seam: all of them if there is none. */
uint64_t weir__pieces_search(const void *at, uint64_t bytes);
static inline uint64_t weir__pieces_run(const void *at, uint64_t bytes) {
  return __builtin_expect(atomic_load_explicit(&weir__pieced_ranges, memory_order_relaxed) == 0, 1)
             ? bytes
             : weir__pieces_search(at, bytes);
}
