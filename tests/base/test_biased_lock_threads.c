/*
 * The lock that is biased towards a thread.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/biased_lock.h"
#include "support/check.h"

enum { TURNS = 300 }; /* enough for a new lock to become biased */

static bool is_biased(weir__biased_lock *lock) { return atomic_load(&lock->biased_to) != NULL; }

static bool is_biased_to_us(weir__biased_lock *lock) { return atomic_load(&lock->biased_to) == weir__this_lock_owner; }

static void take_turns(weir__biased_lock *lock, int turns) {
  for (int i = 0; i < turns; i++) {
    weir__biased_acquire(lock);
    weir__biased_release(lock);
  }
}

static void *take_once(void *lock) {
  take_turns(lock, 1);
  return NULL;
}

static void *take_many(void *lock) {
  take_turns(lock, TURNS);
  return NULL;
}

static void *try_once(void *lock) {
  bool got = weir__biased_try(lock);
  if (got)
    weir__biased_release(lock);
  return got ? lock : NULL;
}

static void *in_thread(void *(*what)(void *), void *argument) {
  pthread_t thread;
  void *result;
  assert_int_equal(pthread_create(&thread, NULL, what, argument), 0);
  assert_int_equal(pthread_join(thread, &result), 0);
  return result;
}

/* A thread that acquires the lock many times in a row becomes its owner, until another thread takes it. If that happens
 * soon, the next bias takes longer. */
TEST(bias) {
  weir__biased_lock lock = {.streak = 0};
  take_turns(&lock, 10);
  assert_false(is_biased(&lock));
  take_turns(&lock, TURNS);
  assert_true(is_biased_to_us(&lock));
  lock.biased_at = INT64_MAX / 2; /* as if no time passed, even on a slow machine */
  in_thread(take_once, &lock);
  assert_false(is_biased(&lock));
  assert_int_equal(lock.backoff, 1);
  take_turns(&lock, TURNS);
  assert_false(is_biased(&lock));
  take_turns(&lock, 2 * TURNS);
  assert_true(is_biased_to_us(&lock));
  lock.biased_at = 0;
  in_thread(take_once, &lock);
  assert_int_equal(lock.backoff, 0);
  take_turns(&lock, TURNS);
  assert_true(is_biased_to_us(&lock));
}

/* An owner record holds one lock without atomics; a second lock is acquired through its word and stays biased. */
TEST(two) {
  weir__biased_lock a = {.streak = 0}, b = {.streak = 0};
  take_turns(&a, TURNS);
  take_turns(&b, TURNS);
  assert_true(is_biased_to_us(&a) && is_biased_to_us(&b));
  for (int round = 0; round < 4; round++) {
    weir__biased_lock *first = round % 2 ? &b : &a, *second = round % 2 ? &a : &b;
    weir__biased_acquire(first);
    weir__biased_acquire(second);
    assert_null(in_thread(try_once, &a));
    assert_null(in_thread(try_once, &b));
    assert_false(weir__biased_try(&a));
    assert_false(weir__biased_try(&b));
    weir__biased_release(round < 2 ? first : second);
    assert_false(weir__biased_try(round < 2 ? second : first));
    weir__biased_release(round < 2 ? second : first);
    assert_non_null(in_thread(try_once, &a));
    assert_non_null(in_thread(try_once, &b));
    take_turns(&a, TURNS << 5);
    take_turns(&b, TURNS << 5);
    assert_true(is_biased_to_us(&a) && is_biased_to_us(&b));
  }
}

TEST(try) {
  weir__biased_lock lock = {.streak = 0};
  for (int round = 0; round < 3; round++) { /* unbiased, biased to this thread, and biased again */
    weir__biased_acquire(&lock);
    assert_false(weir__biased_try(&lock));
    assert_null(in_thread(try_once, &lock));
    weir__biased_release(&lock);
    assert_true(weir__biased_try(&lock));
    weir__biased_release(&lock);
    assert_non_null(in_thread(try_once, &lock));
    take_turns(&lock, round == 0 ? 2 * TURNS : 1);
  }
}

/* The owner thread has exited, or is missing in a forked child. */
TEST(owner_has_exited) {
  weir__biased_lock lock = {.streak = 0};
  in_thread(take_many, &lock);
  assert_true(is_biased(&lock));
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    take_turns(&lock, 4 * TURNS);
    _exit(is_biased_to_us(&lock) ? 0 : 1);
  }
  assert_int_equal(child_outcome(child), 0);
  take_turns(&lock, 4 * TURNS);
  assert_true(is_biased_to_us(&lock));
}

/* Destructors of other keys can use locks, before and after the thread returns its record. */
static weir__biased_lock late;

static void prepare(void) {
  weir__biased_lock lock = {.streak = 0};
  weir__biased_prepare();
  take_turns(&lock, TURNS);
  if (!is_biased(&lock)) {
    printf("waived: this kernel has no membarrier, so locks are never biased\n");
    exit(WAIVED);
  }
}

FIXTURE(.prepare = prepare)

static pthread_key_t last_key;

static void use_late(void *left) {
  take_turns(&late, 2 * TURNS);
  if (--*(int *)left)
    pthread_setspecific(last_key, left);
}

static void *end_late(void *left) {
  take_turns(&late, 2 * TURNS);
  return pthread_setspecific(last_key, left) ? left : NULL;
}

TEST(thread_exit) {
  assert_int_equal(pthread_key_create(&last_key, use_late), 0);
  for (int i = 0; i < 20; i++) {
    int left = 3;
    late.backoff = 0;
    assert_null(in_thread(end_late, &left));
    assert_int_equal(left, 0);
    assert_true(weir__biased_try(&late));
    weir__biased_release(&late);
  }
  assert_int_equal(pthread_key_delete(last_key), 0);
}

/* ---- Many threads ---- */

enum { THREADS = 4, BURSTS = 2000 };

static struct {
  weir__biased_lock lock;
  long count, biases; /* guarded only by the lock */
} shared;

/* Acquires the lock in bursts about as long as a bias needs, so that biases begin and end as often as possible. */
static void *work(void *of) {
  unsigned seed = (unsigned)(uintptr_t)of + 1;
  for (int burst = 0; burst < BURSTS; burst++) {
    int turns = 1 + rand_r(&seed) % 600;
    for (int i = 0; i < turns; i++) {
      if (rand_r(&seed) % 64)
        weir__biased_acquire(&shared.lock);
      else
        while (!weir__biased_try(&shared.lock))
          sched_yield();
      long count = shared.count;
      if (rand_r(&seed) % 16 == 0)
        weir__pause();
      shared.count = count + 1;
      shared.biases += i == turns - 1 && is_biased(&shared.lock);
      /* Held through the lock word, which guards this counter. */
      if (atomic_load(&weir__this_lock_owner->holds) != &shared.lock)
        shared.lock.backoff = 0;
      weir__biased_release(&shared.lock);
    }
    *(long *)of += turns;
    if (burst % 4 == 0)
      usleep(50);
  }
  return NULL;
}

TEST(mutual_exclusion) {
  pthread_t threads[THREADS];
  long turns[THREADS] = {0}, all = 0;
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, work, &turns[i]), 0);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    all += turns[i];
  }
  assert_int_equal(shared.count, all);
  assert_true(shared.biases > 10);
}
