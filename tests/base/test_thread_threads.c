/*
 * Threads and locks of src/base.
 */
#include <stdatomic.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/thread.h"
#include "support/check.h"

typedef struct shared {
  weir__mutex lock;
  weir__cond changed;
  int stage; /* guarded by the lock */
  weir__thread_id self;
} shared;

static void move_to(shared *s, int stage) {
  weir__mutex_lock(&s->lock);
  s->stage = stage;
  weir__cond_broadcast(&s->changed);
  weir__mutex_unlock(&s->lock);
}

static void wait_for(shared *s, int stage) {
  weir__mutex_lock(&s->lock);
  while (s->stage < stage)
    weir__cond_wait(&s->changed, &s->lock);
  weir__mutex_unlock(&s->lock);
}

static void *take_part(void *argument) {
  shared *s = argument;
  s->self = weir__thread_self();
  move_to(s, 1);
  wait_for(s, 2);
  return NULL;
}

TEST(thread) {
  shared s = {.lock = WEIR__MUTEX_INIT};
  weir__thread_id thread;
  weir__cond_init(&s.changed);
  assert_int_equal(weir__thread_start(&thread, take_part, &s), 0);
  wait_for(&s, 1);
  assert_true(weir__thread_equal(s.self, thread));
  assert_false(weir__thread_equal(s.self, weir__thread_self()));
  assert_true(weir__processor_count() >= 1);
  move_to(&s, 2);
  weir__thread_join(thread);
  weir__cond_destroy(&s.changed);
  weir__mutex_destroy(&s.lock);
}

static void *find_locked(void *lock) {
  assert_false(weir__mutex_trylock(lock));
  uint64_t begin = weir__monotonic_ns();
  assert_false(weir__mutex_lock_until(lock, begin + 20000000));
  assert_true(weir__monotonic_ns() - begin >= 15000000);
  assert_false(weir__mutex_lock_until(lock, begin)); /* the deadline has passed */
  return NULL;
}

TEST(deadlines) {
  weir__mutex lock;
  weir__cond cond;
  weir__thread_id thread;
  weir__mutex_init(&lock);
  weir__cond_init(&cond);
  assert_true(weir__mutex_trylock(&lock));
  assert_int_equal(weir__thread_start(&thread, find_locked, &lock), 0);
  weir__thread_join(thread);
  uint64_t until = weir__monotonic_ns() + 20000000;
  while (weir__cond_wait_until(&cond, &lock, until)) {
  }
  assert_true(weir__monotonic_ns() >= until);
  weir__mutex_unlock(&lock);
  assert_true(weir__mutex_lock_until(&lock, WEIR__NO_DEADLINE));
  weir__mutex_unlock(&lock);
  weir__sleep_until_ns(until + 20000000);
  assert_true(weir__monotonic_ns() >= until + 20000000);
  weir__cond_destroy(&cond);
  weir__mutex_destroy(&lock);
}

static weir__thread_key key;
static atomic_int destroyed, once_count;

static void on_thread_end(void *value) { atomic_fetch_add(&destroyed, *(int *)value); }

static void count_once(void) { atomic_fetch_add(&once_count, 1); }

static void *set_key(void *value) {
  static weir__once_flag once = WEIR__ONCE_INIT;
  weir__once(&once, count_once);
  assert_null(weir__thread_key_get(key));
  assert_int_equal(weir__thread_key_set(key, value), 0);
  assert_ptr_equal(weir__thread_key_get(key), value);
  return NULL;
}

TEST(keys_and_once) {
  int values[3] = {1, 20, 300};
  weir__thread_id threads[3];
  assert_int_equal(weir__thread_key_create(&key, on_thread_end), 0);
  for (int i = 0; i < 3; i++)
    assert_int_equal(weir__thread_start(&threads[i], set_key, &values[i]), 0);
  for (int i = 0; i < 3; i++)
    weir__thread_join(threads[i]);
  assert_int_equal(atomic_load(&destroyed), 321);
  assert_int_equal(atomic_load(&once_count), 1);
  weir__thread_key_delete(key);
}

static void *post_twice(void *semaphore) {
  weir__semaphore_post(semaphore);
  weir__semaphore_post(semaphore);
  return NULL;
}

TEST(semaphore) {
  weir__semaphore semaphore;
  weir__thread_id thread;
  weir__semaphore_init(&semaphore);
  assert_int_equal(weir__thread_start(&thread, post_twice, &semaphore), 0);
  weir__semaphore_wait(&semaphore);
  weir__semaphore_wait(&semaphore);
  weir__thread_join(thread);
}

TEST(stack) {
  uintptr_t begin, end, here = (uintptr_t)__builtin_frame_address(0);
  assert_true(weir__thread_stack(&begin, &end));
  assert_true(begin < here && here < end);
}

static int before_count, parent_count, child_count;
static void before(void) { before_count++; }
static void in_parent(void) { parent_count++; }
static void in_child(void) { child_count++; }

TEST(fork) {
  int id = weir__process_id();
  weir__at_fork(before, in_parent, in_child);
  pid_t child = fork();
  if (!child)
    _exit(before_count == 1 && !parent_count && child_count == 1 && weir__process_id() != id ? 0 : 1);
  assert_int_equal(child_outcome(child), 0);
  assert_true(before_count == 1 && parent_count == 1 && !child_count);
}
