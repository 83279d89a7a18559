#include "base/biased_lock.h"

#include <stdlib.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/thread.h"

enum { FIRST_STREAK = 256, MAX_BACKOFF = 22, CACHE_LINE = 64 };

static const int64_t long_bias_ns = 10000000; /* the cost of revoking a bias that lasted this long is negligible */

/* ---- Records of threads ---- */

static weir__lock_owner no_owner;
static weir__lock_owner ended_owner; /* of threads that are about to end: they could not return another record */
_Thread_local weir__lock_owner *weir__this_lock_owner = &no_owner;

static weir__mutex unused_lock = WEIR__MUTEX_INIT;
static weir__lock_owner *unused; /* guarded by unused_lock */

/* Other threads may still read it, so it is never freed. */
static void return_owner(weir__lock_owner *owner) {
  weir__mutex_lock(&unused_lock);
  owner->next = unused;
  unused = owner;
  weir__mutex_unlock(&unused_lock);
}

static void end_thread(void *owner) {
  weir__this_lock_owner = &ended_owner;
  return_owner(owner);
}

WEIR__AT_THREAD_END(owner_key, end_thread)

/* The child of a fork finds the list as it was between two calls. */
static void lock_unused(void) { weir__mutex_lock(&unused_lock); }
static void unlock_unused(void) { weir__mutex_unlock(&unused_lock); }

WEIR__AT_LOAD(WEIR__LOAD_MEMORY) void watch_forks(void) { weir__at_fork(lock_unused, unlock_unused, unlock_unused); }

/* Gives the thread a record of its own, unless the host has no memory. */
static void get_owner(void) {
  weir__mutex_lock(&unused_lock);
  weir__lock_owner *mine = unused;
  if (mine)
    unused = mine->next;
  weir__mutex_unlock(&unused_lock);
  if (!mine && (mine = aligned_alloc(CACHE_LINE, CACHE_LINE)))
    atomic_init(&mine->holds, NULL);
  if (!mine)
    return;
  if (!has_owner_key || weir__thread_key_set(owner_key, mine))
    return_owner(mine);
  else
    weir__this_lock_owner = mine;
}

/* ---- The barrier ---- */

static atomic_bool has_barrier;

#ifndef WEIR_SINGLE_THREADED

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }
static bool register_barrier(void) { return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }
static bool run_barrier(void) {
  return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) || membarrier(MEMBARRIER_CMD_GLOBAL);
}

#else

static bool register_barrier(void) { return false; }
static bool run_barrier(void) { return true; }

#endif

void weir__biased_prepare(void) {
  if (!atomic_load_explicit(&has_barrier, memory_order_relaxed) && register_barrier())
    atomic_store_explicit(&has_barrier, true, memory_order_relaxed);
}

/* A sandbox that the program has entered since may refuse the barrier. Then it waits instead: stores become visible to
 * other processors long before the wait is over. No lock becomes biased again. */
static void barrier_everywhere(void) {
  if (run_barrier())
    return;
  atomic_store_explicit(&has_barrier, false, memory_order_relaxed);
  weir__sleep_until_ns(weir__monotonic_ns() + 10000000);
}

/* ---- With the word held ---- */

/* A bias towards the calling thread stays, although this once it took the word. */
static inline void revoke_other_bias(weir__biased_lock *lock) {
  weir__lock_owner *to = atomic_load_explicit(&lock->biased_to, memory_order_relaxed);
  if (!to || to == weir__this_lock_owner)
    return;
  atomic_store_explicit(&lock->biased_to, NULL, memory_order_relaxed);
  barrier_everywhere();
  if ((int64_t)weir__monotonic_ns() - lock->biased_at >= long_bias_ns)
    lock->backoff /= 2;
  else
    lock->backoff += lock->backoff < MAX_BACKOFF;
}

static inline bool is_held_by_owner(weir__biased_lock *lock) {
  return lock->owner && atomic_load_explicit(&lock->owner->holds, memory_order_acquire) == lock;
}

static void bias_to_this_thread(weir__biased_lock *lock) {
  if (!atomic_load_explicit(&has_barrier, memory_order_relaxed))
    return;
  if (weir__this_lock_owner == &no_owner)
    get_owner();
  if (weir__this_lock_owner == &no_owner || weir__this_lock_owner == &ended_owner)
    return;
  lock->biased_at = (int64_t)weir__monotonic_ns();
  lock->owner = weir__this_lock_owner;
  atomic_store_explicit(&lock->biased_to, weir__this_lock_owner, memory_order_relaxed);
}

static inline void count_acquisition(weir__biased_lock *lock) {
  const void *me = &weir__this_lock_owner;
  if (lock->last != me) {
    lock->last = me;
    lock->streak = 0;
  } else if (__builtin_expect(++lock->streak >= (uint32_t)FIRST_STREAK << lock->backoff, 0)) {
    lock->streak = 0;
    bias_to_this_thread(lock);
  }
}

bool weir__biased_try(weir__biased_lock *lock) {
  if (!weir__lock_try(&lock->word))
    return false;
  revoke_other_bias(lock);
  if (is_held_by_owner(lock)) {
    weir__lock_release(&lock->word);
    return false;
  }
  count_acquisition(lock);
  return true;
}

bool weir__biased_try_unbiased(weir__biased_lock *lock) {
  if (!weir__lock_try(&lock->word))
    return false;
  const weir__lock_owner *owner = atomic_load_explicit(&lock->biased_to, memory_order_relaxed);
  if ((!owner || owner == weir__this_lock_owner) && !is_held_by_owner(lock))
    return true;
  weir__lock_release(&lock->word);
  return false;
}

void weir__biased_acquire_word(weir__biased_lock *lock) {
  weir__lock_acquire(&lock->word);
  revoke_other_bias(lock);
  /* Usually the rest of a short operation; but the owner may wait for the driver, or not be running. */
  for (int checks = 1; is_held_by_owner(lock); checks += checks < 4096) {
    if (checks == 4096)
      weir__sleep_ns(200000);
    else if (checks % 64 == 0)
      weir__thread_yield();
    else
      weir__pause();
  }
  count_acquisition(lock);
}
