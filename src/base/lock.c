/*
 * The part of the lock that waits.
 */
#include "base/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* How often to look before sleeping, and how long to leave the lock alone in between at most, in pauses; a break is so many times
 * the one before. What it guards takes some tens of nanoseconds, and whoever has it gets most done when nobody touches its cache
 * line: so who finds it taken a few times stays away for long, some tens of microseconds in the end. It takes a good part of a
 * millisecond until one sleeps, which costs him and his waker far more. */
enum { looks = 16, longest_break = 1024, growth = 8 };

static const struct timespec nap = {.tv_nsec = 200000};

void weir__lock_wait(weir__lock *lock) {
  int pauses = 1;
  for (int i = 0; i < looks; i++) {
    if (atomic_load_explicit(&lock->word, memory_order_relaxed) == 0 && weir__lock_try(lock))
      return;
    for (int k = 0; k < pauses; k++)
      weir__pause();
    pauses = pauses * growth < longest_break ? pauses * growth : longest_break;
  }
  /* From here on it is taken as "somebody sleeps": whoever gives it back wakes one, which may be one too many. */
  while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
    syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, &nap, NULL, 0);
}

void weir__lock_wake(weir__lock *lock) {
  atomic_store_explicit(&lock->word, 0, memory_order_release);
  syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
