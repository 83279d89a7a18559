/*
 * A lock of one word: taking and giving it back, when nobody else wants it, is one atomic instruction each. Who has to wait
 * for longer sleeps in the kernel. Not recursive.
 */
#ifndef WEIR_LOCK_H
#define WEIR_LOCK_H

#include <stdatomic.h>

/* 0: free; 1: taken; 2: taken, and somebody sleeps. All zero is a free lock. */
typedef struct weir__lock {
  atomic_uint word;
} weir__lock;

void weir__lock_wait(weir__lock *lock);
void weir__lock_wake(weir__lock *lock);

static inline void weir__lock_take(weir__lock *lock) {
  unsigned expected = 0;
  if (!atomic_compare_exchange_strong_explicit(&lock->word, &expected, 1, memory_order_acquire, memory_order_relaxed))
    weir__lock_wait(lock);
}

static inline void weir__lock_give(weir__lock *lock) {
  if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2)
    weir__lock_wake(lock);
}

#endif
