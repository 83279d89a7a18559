#include "base/biased.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FIRST_TURNS = 256, MOST_DOUBLINGS = 22, CACHE_LINE = 64 };

/* ---- Hands ---- */

static weir__hand nobodys;
_Thread_local weir__hand *weir__my_hand = &nobodys;

static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static weir__hand *idle;   /* guarded by idle_lock */
static pthread_key_t ends; /* its destructor tells that a thread ends */
static pthread_once_t made_key = PTHREAD_ONCE_INIT;
static bool has_key;

/* Others may still look at it, so it is never freed. */
static void give_back(void *hand) {
  weir__hand *mine = hand;
  weir__my_hand = &nobodys;
  pthread_mutex_lock(&idle_lock);
  mine->next = idle;
  idle = mine;
  pthread_mutex_unlock(&idle_lock);
}

static void make_key(void) { has_key = pthread_key_create(&ends, give_back) == 0; }

/* Without host memory it stays nobody's. */
static void get_hand(void) {
  pthread_once(&made_key, make_key);
  pthread_mutex_lock(&idle_lock);
  weir__hand *mine = idle;
  if (mine)
    idle = mine->next;
  pthread_mutex_unlock(&idle_lock);
  if (!mine && (mine = aligned_alloc(CACHE_LINE, CACHE_LINE)))
    atomic_init(&mine->holds, NULL);
  if (!mine)
    return;
  if (!has_key || pthread_setspecific(ends, mine))
    give_back(mine);
  else
    weir__my_hand = mine;
}

/* ---- The barrier ---- */

static atomic_bool has_barrier;

static long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

void weir__biased_prepare(void) {
  if (!atomic_load_explicit(&has_barrier, memory_order_relaxed) &&
      membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0)
    atomic_store_explicit(&has_barrier, true, memory_order_relaxed);
}

/* A process that was forked may have to ask for the fast one again. The slow one needs no asking, and cannot fail where there is a
 * fast one. */
static void barrier_everywhere(void) {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) &&
      (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)))
    membarrier(MEMBARRIER_CMD_GLOBAL);
}

/* ---- By the word. We have it ---- */

/* To another one. If it leans to us, we have it by the word this once. */
static inline void end_leaning(weir__biased_lock *lock) {
  weir__hand *to = atomic_load_explicit(&lock->leans_to, memory_order_relaxed);
  if (!to || to == weir__my_hand)
    return;
  atomic_store_explicit(&lock->leans_to, NULL, memory_order_relaxed);
  barrier_everywhere();
  lock->revoked += lock->revoked < MOST_DOUBLINGS;
}

static inline bool is_held(weir__biased_lock *lock) {
  return lock->favourite && atomic_load_explicit(&lock->favourite->holds, memory_order_acquire) == lock;
}

static void lean(weir__biased_lock *lock) {
  if (!atomic_load_explicit(&has_barrier, memory_order_relaxed))
    return;
  if (weir__my_hand == &nobodys)
    get_hand();
  if (weir__my_hand == &nobodys)
    return;
  lock->favourite = weir__my_hand;
  atomic_store_explicit(&lock->leans_to, weir__my_hand, memory_order_relaxed);
}

/* And with it the lock. */
static inline void count_turn(weir__biased_lock *lock) {
  const void *me = &weir__my_hand;
  if (lock->last != me) {
    lock->last = me;
    lock->turns = 0;
  } else if (__builtin_expect(++lock->turns >= (uint32_t)FIRST_TURNS << lock->revoked, 0)) {
    lock->turns = 0;
    lean(lock);
  }
}

bool weir__biased_try_word(weir__biased_lock *lock) {
  if (!weir__lock_try(&lock->word))
    return false;
  end_leaning(lock);
  if (is_held(lock)) {
    weir__lock_give(&lock->word);
    return false;
  }
  count_turn(lock);
  return true;
}

void weir__biased_take_word(weir__biased_lock *lock) {
  weir__lock_take(&lock->word);
  end_leaning(lock);
  for (int i = 1; is_held(lock); i++) { /* for what is left of one operation, unless its thread does not run */
    if (i % 64 == 0)
      sched_yield();
    weir__pause();
  }
  count_turn(lock);
}
