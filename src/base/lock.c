/*
 * The part of the lock that waits.
 */
#include "base/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How often to look before sleeping: what the lock guards takes some tens of nanoseconds. */
enum { spins = 100 };

static inline void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void weir__lock_wait(weir__lock *lock) {
  for (int i = 0; i < spins; i++) {
    unsigned expected = 0;
    if (atomic_load_explicit(&lock->word, memory_order_relaxed) == 0 &&
        atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire, memory_order_relaxed))
      return;
    pause_briefly();
  }
  /* From here on it is taken as "somebody sleeps": whoever gives it back wakes one, which may be one too many. */
  while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0)
    syscall(SYS_futex, &lock->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void weir__lock_wake(weir__lock *lock) { syscall(SYS_futex, &lock->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }
