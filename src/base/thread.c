#include "base/thread.h"

#include "base/base.h"
#include "base/clock.h"

#ifndef WEIR_SINGLE_THREADED
#include <signal.h>
#endif

#ifndef WEIR_SINGLE_THREADED

static struct timespec timespec_of(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* pthread_mutex_timedlock has the system's clock, which may be set meanwhile: then the wait is shorter or longer. */
bool weir__mutex_lock_until(weir__mutex *mutex, uint64_t deadline_ns) {
  if (deadline_ns == WEIR__NO_DEADLINE)
    return pthread_mutex_lock(mutex) == 0;
  uint64_t now = weir__monotonic_ns();
  const struct timespec at = timespec_of(weir__realtime_ns() + (deadline_ns > now ? deadline_ns - now : 0));
  return pthread_mutex_timedlock(mutex, &at) == 0;
}

void weir__cond_init(weir__cond *cond) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attributes);
  pthread_condattr_destroy(&attributes);
}

bool weir__cond_wait_until(weir__cond *cond, weir__mutex *mutex, uint64_t deadline_ns) {
  if (deadline_ns == WEIR__NO_DEADLINE)
    return pthread_cond_wait(cond, mutex) == 0;
  const struct timespec at = timespec_of(deadline_ns);
  return pthread_cond_timedwait(cond, mutex, &at) != ETIMEDOUT;
}

int weir__thread_start_quiet(weir__thread_id *thread, void *(*run)(void *), void *argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = weir__thread_start(thread, run, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

#endif

#if defined(__linux__) && !defined(WEIR_SINGLE_THREADED)

unsigned weir__processor_count(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

bool weir__thread_stack(uintptr_t *begin, uintptr_t *end) {
  pthread_attr_t attributes;
  void *lowest = NULL;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0)
    return false;
  bool is_known = pthread_attr_getstack(&attributes, &lowest, &bytes) == 0 && bytes;
  pthread_attr_destroy(&attributes);
  if (is_known) {
    *begin = (uintptr_t)lowest;
    *end = (uintptr_t)lowest + bytes;
  }
  return is_known;
}

#else

unsigned weir__processor_count(void) { return 1; }

bool weir__thread_stack(uintptr_t *begin, uintptr_t *end) {
  (void)begin;
  (void)end;
  return false;
}

#endif
