#include "base/biased_lock.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

enum { FIRST_TURNS = 256, MOST_DOUBLINGS = 22, CACHE_LINE = 64 };

static const int64_t long_enough = 10000000; /* ns of leaning, beside which its end costs nothing */

/* ---- Hands ---- */

static weir__hand nobodys;
static weir__hand
    of_the_ended; /* of threads that are about to end: they get no other, which they might not give back */
_Thread_local weir__hand *weir__my_hand = &nobodys;

static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static weir__hand *idle;   /* guarded by idle_lock */
static pthread_key_t ends; /* its destructor tells that a thread ends */
static pthread_once_t made_key = PTHREAD_ONCE_INIT;
static bool has_key;

/* Others may still look at it, so it is never freed. */
static void give_back(weir__hand *hand) {
  pthread_mutex_lock(&idle_lock);
  hand->next = idle;
  idle = hand;
  pthread_mutex_unlock(&idle_lock);
}

static void end_thread(void *hand) {
  weir__my_hand = &of_the_ended;
  give_back(hand);
}

/* A child finds the list as it was between two calls. */
static void hold(void) { pthread_mutex_lock(&idle_lock); }
static void let_go(void) { pthread_mutex_unlock(&idle_lock); }

static void make_key(void) {
  has_key = pthread_key_create(&ends, end_thread) == 0;
  pthread_atfork(hold, let_go, let_go);
}

/* A library that is unloaded takes the destructor's code along. */
static __attribute__((destructor)) void forget_key(void) {
  if (has_key)
    pthread_key_delete(ends);
}

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
  pthread_once(&made_key, make_key);
  if (!atomic_load_explicit(&has_barrier, memory_order_relaxed) &&
      membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0)
    atomic_store_explicit(&has_barrier, true, memory_order_relaxed);
}

/* A sandbox that the program has entered since may refuse it. Then time has to do: what a processor has stored, others see long
 * before this is over; and no lock leans again. */
static void barrier_everywhere(void) {
  if (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) || !membarrier(MEMBARRIER_CMD_GLOBAL))
    return;
  atomic_store_explicit(&has_barrier, false, memory_order_relaxed);
  struct timespec left = {.tv_nsec = 10000000};
  while (nanosleep(&left, &left)) {
  }
}

/* ---- By the word. We have it ---- */

/* If it leans to us, it may go on: this once we have it by the word. */
static inline void end_leaning_to_another(weir__biased_lock *lock) {
  weir__hand *to = atomic_load_explicit(&lock->leans_to, memory_order_relaxed);
  if (!to || to == weir__my_hand)
    return;
  atomic_store_explicit(&lock->leans_to, NULL, memory_order_relaxed);
  barrier_everywhere();
  if ((int64_t)weir__monotonic_ns() - lock->leant_at >= long_enough)
    lock->doublings /= 2;
  else
    lock->doublings += lock->doublings < MOST_DOUBLINGS;
}

static inline bool is_held(weir__biased_lock *lock) {
  return lock->favourite && atomic_load_explicit(&lock->favourite->holds, memory_order_acquire) == lock;
}

static void lean(weir__biased_lock *lock) {
  if (!atomic_load_explicit(&has_barrier, memory_order_relaxed))
    return;
  if (weir__my_hand == &nobodys)
    get_hand();
  if (weir__my_hand == &nobodys || weir__my_hand == &of_the_ended)
    return;
  lock->leant_at = (int64_t)weir__monotonic_ns();
  lock->favourite = weir__my_hand;
  atomic_store_explicit(&lock->leans_to, weir__my_hand, memory_order_relaxed);
}

/* The lock is ours now. */
static inline void count_turn(weir__biased_lock *lock) {
  const void *me = &weir__my_hand;
  if (lock->last != me) {
    lock->last = me;
    lock->turns = 0;
  } else if (__builtin_expect(++lock->turns >= (uint32_t)FIRST_TURNS << lock->doublings, 0)) {
    lock->turns = 0;
    lean(lock);
  }
}

bool weir__biased_try(weir__biased_lock *lock) {
  if (!weir__lock_try(&lock->word))
    return false;
  end_leaning_to_another(lock);
  if (is_held(lock)) {
    weir__lock_give(&lock->word);
    return false;
  }
  count_turn(lock);
  return true;
}

void weir__biased_take_word(weir__biased_lock *lock) {
  static const struct timespec nap = {.tv_nsec = 200000};
  weir__lock_take(&lock->word);
  end_leaning_to_another(lock);
  /* Mostly for what is left of a short operation; but it may wait for the driver, or its thread does not run. */
  for (int looks = 1; is_held(lock); looks += looks < 4096) {
    if (looks == 4096)
      nanosleep(&nap, NULL);
    else if (looks % 64 == 0)
      sched_yield();
    else
      weir__pause();
  }
  count_turn(lock);
}
