#include "base/lock.h"

#include "base/thread.h"

#ifndef WEIR_SINGLE_THREADED

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The number of attempts before sleeping, and the longest break between two of them, in pauses; each break is `growth`
 * times the one before. What the lock guards takes some tens of nanoseconds, and its holder is fastest when no other
 * thread touches its cache line, so a waiter backs off quickly, to some tens of microseconds. It sleeps only after a
 * good part of a millisecond: that costs it and the thread that wakes it far more. */
enum { ATTEMPTS = 16, LONGEST_BREAK = 1024, GROWTH = 8 };

static const struct timespec nap = {.tv_nsec = 200000};

void weir__lock_wait(weir__lock *lock) {
  int pauses = 1;
  for (int i = 0; i < ATTEMPTS; i++) {
    if (atomic_load_explicit(&lock->word, memory_order_relaxed) == 0 && weir__lock_try(lock))
      return;
    for (int k = 0; k < pauses; k++)
      weir__pause();
    pauses = pauses * GROWTH < LONGEST_BREAK ? pauses * GROWTH : LONGEST_BREAK;
  }
  /* From here on it is taken in the state with sleepers: the holder wakes one thread, perhaps one too many. */
  while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
    syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, &nap, NULL, 0);
}

void weir__lock_wake(weir__lock *lock) {
  atomic_store_explicit(&lock->word, 0, memory_order_release);
  syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#else

/* The only thread holds it already: nothing could ever give it back. */
void weir__lock_wait(weir__lock *lock) {
  (void)lock;
  abort();
}

void weir__lock_wake(weir__lock *lock) { atomic_store_explicit(&lock->word, 0, memory_order_release); }

#endif
