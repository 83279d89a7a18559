/*
 * A clock that is read in a few nanoseconds, and what its ticks are in Unix time.
 *
 * It is the processor's counter where that runs at one rate whatever the processor does, and the system's clock elsewhere.
 */
#ifndef WEIR_BASE_CLOCK_H
#define WEIR_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* The same moment on three clocks. */
typedef struct weir__clock_point {
  uint64_t ticks;
  int64_t monotonic_ns, unix_ns;
} weir__clock_point;

/* A straight line through two points. A later tick is never an earlier time. */
typedef struct weir__clock_line {
  uint64_t ticks;
  int64_t unix_ns;
  double ns_per_tick;
} weir__clock_line;

extern bool weir__clock_has_counter __attribute__((visibility("hidden"))); /* written once, by weir__clock_start */
uint64_t weir__clock_system(void);

static inline uint64_t weir__clock_ticks(void) {
#if defined(__x86_64__)
  if (__builtin_expect(weir__clock_has_counter, 1))
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
  return weir__clock_system();
}

/* Before the first reading: chooses the clock, and notes the first point. */
void weir__clock_start(void);

weir__clock_point weir__clock_now(void);
weir__clock_point weir__clock_first(void);
weir__clock_line weir__clock_through(const weir__clock_point *first, const weir__clock_point *last);

/* From the first point to now. In the first hundredth of a second it waits until that is over, to be exact enough. */
weir__clock_line weir__clock_line_now(void);

static inline int64_t weir__clock_unix_us(const weir__clock_line *line, uint64_t ticks) {
  return (line->unix_ns + (int64_t)((double)(int64_t)(ticks - line->ticks) * line->ns_per_tick)) / 1000;
}

#endif
