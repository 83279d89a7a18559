/*
 * A lock that one thread mostly takes, and others seldom: the one takes it and gives it back with plain loads and stores. Not
 * recursive.
 *
 * An atomic instruction costs as much as all else of a short operation. So a lock that the same thread took many times in a row
 * leans to it: its taking is to write down that it holds the lock, in its hand, and to look whether the lock still leans to it.
 * Who else wants it takes the word, which all others need anyway, ends the leaning, and has the kernel put a barrier into every
 * running thread; then either he sees what is in the hand, and waits, or its owner sees that the lock leans to nobody. That costs
 * microseconds, so if it did not lean for long, it takes twice as many turns in a row until it leans again.
 */
#ifndef WEIR_BIASED_H
#define WEIR_BIASED_H

#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"

typedef struct weir__biased_lock weir__biased_lock;

/* Of one thread, which alone writes it; read by all. When the thread ends, a new one may get its hand. */
typedef struct weir__hand {
  _Atomic(weir__biased_lock *)
      holds;               /* one that leans to the thread, and was taken plainly; or is being tried, for a moment */
  struct weir__hand *next; /* of those without a thread */
} weir__hand;

/* All zero is a free lock. */
struct weir__biased_lock {
  _Atomic(weir__hand *) leans_to; /* changed by who has the word; NULL: to nobody */
  weir__lock word;                /* for all others */
  uint32_t turns;                 /* this and the following are guarded by the word: of the last one, in a row */
  uint32_t doublings;             /* of the turns that it takes until it leans */
  const void *last;               /* who had the word last */
  weir__hand *favourite;          /* to whom it leans, or did last: he may still hold it */
  int64_t leant_at;               /* when that began, in ns */
};

/* That of the calling thread; one that no lock leans to, until one is about to. */
extern _Thread_local __attribute__((visibility("hidden"), tls_model("initial-exec"))) weir__hand *weir__my_hand;

/* Asks the kernel for the barrier; where it has none, locks lean to nobody. Before that they do not either. From here
 * on forks are waited for. Thread-safe. */
void weir__biased_prepare(void);

void weir__biased_take_word(weir__biased_lock *lock);

/* Without waiting for somebody who has it, oneself included. */
bool weir__biased_try(weir__biased_lock *lock);

/* Whoever ends the leaning is sure to see the store to the hand, or this to see what he stored, so a compiler's barrier is enough.
 * No acquire is needed either: what others did under the lock this thread has seen since it took the word to make the lock lean.
 * A hand holds one lock. */
static inline bool weir__biased_take_plainly(weir__biased_lock *lock) {
  weir__hand *mine = weir__my_hand;
  if (atomic_load_explicit(&lock->leans_to, memory_order_relaxed) != mine ||
      atomic_load_explicit(&mine->holds, memory_order_relaxed))
    return false;
  atomic_store_explicit(&mine->holds, lock, memory_order_relaxed);
  atomic_signal_fence(memory_order_seq_cst);
  if (__builtin_expect(atomic_load_explicit(&lock->leans_to, memory_order_relaxed) == mine, 1))
    return true;
  atomic_store_explicit(&mine->holds, NULL, memory_order_release);
  return false;
}

static inline void weir__biased_take(weir__biased_lock *lock) {
  if (__builtin_expect(!weir__biased_take_plainly(lock), 0))
    weir__biased_take_word(lock);
}

static inline void weir__biased_give(weir__biased_lock *lock) {
  weir__hand *mine = weir__my_hand;
  if (__builtin_expect(atomic_load_explicit(&mine->holds, memory_order_relaxed) == lock, 1))
    atomic_store_explicit(&mine->holds, NULL, memory_order_release);
  else
    weir__lock_give(&lock->word);
}

#endif
