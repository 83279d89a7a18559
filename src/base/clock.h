/*
 * A clock that is read in a few nanoseconds, the conversion of its ticks to Unix time, and sleeping.
 *
 * It is the processor's counter where that has a constant rate, and the system's monotonic clock elsewhere.
 */
#pragma once

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

/* Chooses the clock and notes the first point. Called before the first reading. */
void weir__clock_start(void);

weir__clock_point weir__clock_now(void);
weir__clock_point weir__clock_first(void);
weir__clock_line weir__clock_through(const weir__clock_point *first, const weir__clock_point *last);

/* The line from the first point to now. Within 10 ms of the first point it waits for the rest of them, to be exact. */
weir__clock_line weir__clock_line_now(void);

static inline int64_t weir__clock_unix_us(const weir__clock_line *line, uint64_t ticks) {
  return (line->unix_ns + (int64_t)((double)(int64_t)(ticks - line->ticks) * line->ns_per_tick)) / 1000;
}

/* A signal may end it early. */
void weir__sleep_ns(uint64_t ns);

/* Sleeps until weir__monotonic_ns reaches this time. */
void weir__sleep_until_ns(uint64_t deadline_ns);

/* The system's clock, in Unix time. */
uint64_t weir__realtime_ns(void);
