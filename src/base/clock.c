#include "base/clock.h"

#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/base.h"
#include "base/thread.h"

bool weir__clock_has_counter;
static weir__clock_point first;
static weir__once_flag once = WEIR__ONCE_INIT;

uint64_t weir__realtime_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t weir__clock_system(void) { return weir__monotonic_ns(); }

weir__clock_point weir__clock_now(void) {
  /* A thread that is interrupted between the readings gets a wrong point, so the tightest of a few is taken. */
  weir__clock_point best = {0};
  uint64_t width = UINT64_MAX;
  for (int i = 0; i < 4; i++) {
    uint64_t before = weir__clock_ticks();
    int64_t monotonic = (int64_t)weir__monotonic_ns(), unix_ns = (int64_t)weir__realtime_ns();
    uint64_t after = weir__clock_ticks();
    if (after - before >= width)
      continue;
    width = after - before;
    best = (weir__clock_point){before + width / 2, monotonic, unix_ns};
  }
  return best;
}

static void start(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  weir__clock_has_counter =
      __get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1; /* the counter never changes its rate */
#endif
  first = weir__clock_now();
}

void weir__clock_start(void) { weir__once(&once, start); }

weir__clock_point weir__clock_first(void) {
  weir__clock_start();
  return first;
}

/* The rate is that of the monotonic clock, which is never set; the offset is that of the last point. */
weir__clock_line weir__clock_through(const weir__clock_point *from, const weir__clock_point *to) {
  uint64_t ticks = to->ticks - from->ticks;
  int64_t ns = to->monotonic_ns - from->monotonic_ns;
  bool known = to->ticks > from->ticks && ns > 0;
  return (weir__clock_line){to->ticks, to->unix_ns, known ? (double)ns / (double)ticks : 1};
}

weir__clock_line weir__clock_line_now(void) {
  enum { enough_ns = 10000000 };
  weir__clock_start();
  weir__clock_point now = weir__clock_now();
  int64_t missing = enough_ns - (now.monotonic_ns - first.monotonic_ns);
  if (missing > 0) {
    weir__sleep_ns((uint64_t)missing);
    now = weir__clock_now();
  }
  return weir__clock_through(&first, &now);
}

void weir__sleep_until_ns(uint64_t deadline_ns) {
  for (uint64_t now; (now = weir__monotonic_ns()) < deadline_ns;)
    weir__sleep_ns(deadline_ns - now);
}

void weir__sleep_ns(uint64_t ns) {
  const struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  nanosleep(&left, NULL);
}
