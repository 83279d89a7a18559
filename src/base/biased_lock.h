/*
 * A lock that is biased towards its owner thread: the owner takes it and gives it back with plain loads and stores. For
 * locks that one thread takes most of the time, and others seldom. Not recursive.
 *
 * An atomic instruction costs as much as the rest of a short operation. So a lock that one thread took many times in a
 * row becomes biased towards it: to acquire the lock, the owner notes in its own record that it holds the lock, then
 * checks that the lock is still biased towards it. Any other thread takes the word, which all non-owners need, revokes
 * the bias and makes the kernel execute a memory barrier in every running thread. After that, either the revoking
 * thread sees the owner's note and waits, or the owner sees that the bias is gone. A revocation costs microseconds, so
 * a lock whose bias did not last long needs twice as many acquisitions in a row until it becomes biased again.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"

typedef struct weir__biased_lock weir__biased_lock;

/* The record of one thread, which alone writes it; all threads read it. A new thread may reuse that of one that
 * ended. */
typedef struct weir__lock_owner {
  _Atomic(weir__biased_lock *) holds; /* a lock that it took, or is trying to take, by its bias */
  struct weir__lock_owner *next;      /* in the list of unused records */
} weir__lock_owner;

/* All zero is a free lock. */
struct weir__biased_lock {
  _Atomic(weir__lock_owner *) biased_to; /* changed by the holder of the word; NULL if it is biased to no thread */
  weir__lock word;                       /* for all other threads; it guards what follows */
  uint32_t streak;                       /* acquisitions of the word by `last`, in a row */
  uint32_t backoff;                      /* how often the streak that makes it biased was doubled */
  const void *last;                      /* the thread that took the word last */
  weir__lock_owner *owner;               /* of the bias, or of the last one: it may still hold the lock */
  int64_t biased_at;                     /* when the bias began, in ns */
};

/* The calling thread's record; until a lock is about to become biased towards the thread, one that no lock refers
 * to. */
extern _Thread_local __attribute__((visibility("hidden"), tls_model("initial-exec")))
weir__lock_owner *weir__this_lock_owner;

/* Asks the kernel for the barrier. Before that, and where there is none, locks never become biased. Also registers the
 * handlers of fork. Thread-safe. */
void weir__biased_prepare(void);

void weir__biased_acquire_word(weir__biased_lock *lock);

/* Ends the bias of a lock that no thread takes any more: in the child of a fork, where other threads do not exist. */
static inline void weir__biased_forget(weir__biased_lock *lock) {
  atomic_store_explicit(&lock->biased_to, NULL, memory_order_relaxed);
}

/* Acquires the lock unless any thread, the calling one included, holds it. */
bool weir__biased_try(weir__biased_lock *lock);

/* The same, unless the lock is biased towards another thread. Revokes nothing, and does not count as an acquisition
 * that ends the streak of another thread. */
bool weir__biased_try_unbiased(weir__biased_lock *lock);

/* A thread that revokes the bias is sure to see the note in the record, or this thread to see the revocation, so a
 * compiler barrier is enough. No acquire is needed either: this thread has seen what others did under the lock since it
 * took the word to make the lock biased. A record notes one lock at a time. `mine` is
 * weir__this_lock_owner, which the compiler would load again after every store. */
static inline bool weir__biased_acquire_fast(weir__biased_lock *lock, weir__lock_owner *mine) {
  if (atomic_load_explicit(&lock->biased_to, memory_order_relaxed) != mine ||
      atomic_load_explicit(&mine->holds, memory_order_relaxed))
    return false;
  atomic_store_explicit(&mine->holds, lock, memory_order_relaxed);
  atomic_signal_fence(memory_order_seq_cst);
  if (__builtin_expect(atomic_load_explicit(&lock->biased_to, memory_order_relaxed) == mine, 1))
    return true;
  atomic_store_explicit(&mine->holds, NULL, memory_order_release);
  return false;
}

static inline void weir__biased_acquire(weir__biased_lock *lock) {
  if (__builtin_expect(!weir__biased_acquire_fast(lock, weir__this_lock_owner), 0))
    weir__biased_acquire_word(lock);
}

/* Releases a lock that weir__biased_acquire_fast acquired. */
static inline void weir__biased_release_fast(weir__lock_owner *mine) {
  atomic_store_explicit(&mine->holds, NULL, memory_order_release);
}

static inline void weir__biased_release(weir__biased_lock *lock) {
  weir__lock_owner *mine = weir__this_lock_owner;
  if (__builtin_expect(atomic_load_explicit(&mine->holds, memory_order_relaxed) == lock, 1))
    atomic_store_explicit(&mine->holds, NULL, memory_order_release);
  else
    weir__lock_release(&lock->word);
}
