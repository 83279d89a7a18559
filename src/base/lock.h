/*
 * A lock of one word. Taking it without contention is one atomic instruction, and giving it back is a plain store. A
 * thread that has to wait for long sleeps in the kernel. Not recursive.
 *
 * The price of the plain store: a thread that falls asleep at the very moment in which the lock is given back is not
 * woken. Therefore sleeps are short: the sleeper checks again after a fraction of a millisecond.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

/* 0: free; 1: taken; 2: taken, and there may be sleepers. All zero is a free lock. */
typedef struct weir__lock {
  atomic_uint word;
} weir__lock;

void weir__lock_wait(weir__lock *lock);
void weir__lock_wake(weir__lock *lock);

/* Lets the other threads of a core run while this one spins. */
static inline void weir__pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb"); /* "yield" does nothing on most, and takes no time */
#endif
}

static inline bool weir__lock_try(weir__lock *lock) {
  unsigned expected = 0;
  return atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire, memory_order_relaxed);
}

static inline void weir__lock_acquire(weir__lock *lock) {
  if (__builtin_expect(!weir__lock_try(lock), 0))
    weir__lock_wait(lock);
}

static inline void weir__lock_release(weir__lock *lock) {
  if (__builtin_expect(atomic_load_explicit(&lock->word, memory_order_relaxed) == 1, 1))
    atomic_store_explicit(&lock->word, 0, memory_order_release);
  else
    weir__lock_wake(lock);
}
