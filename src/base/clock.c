#include "base/clock.h"

#include <pthread.h>
#include <time.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

bool weir__clock_has_counter;
static weir__clock_point first;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int64_t read_ns(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

uint64_t weir__clock_system(void) { return (uint64_t)read_ns(CLOCK_MONOTONIC); }

weir__clock_point weir__clock_now(void) {
  /* Whoever is interrupted between the readings gets a wrong point: the tightest of a few is taken. */
  weir__clock_point best = {0};
  uint64_t width = UINT64_MAX;
  for (int i = 0; i < 4; i++) {
    uint64_t before = weir__clock_ticks();
    int64_t monotonic = read_ns(CLOCK_MONOTONIC), unix_ns = read_ns(CLOCK_REALTIME);
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

void weir__clock_start(void) { pthread_once(&once, start); }

weir__clock_point weir__clock_first(void) {
  weir__clock_start();
  return first;
}

/* The rate is that of the monotonic clock, which nobody sets; the place is that of the last point. */
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
    struct timespec nap = {.tv_nsec = missing};
    nanosleep(&nap, NULL);
    now = weir__clock_now();
  }
  return weir__clock_through(&first, &now);
}
