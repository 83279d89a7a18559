#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "support/check.h"

enum { THREADS = 8, ROUNDS = 2000 };

static void *fail_often(void *argument) {
  int number = *(int *)argument;
  for (int i = 0; i < ROUNDS; i++) {
    char expected[64];
    snprintf(expected, sizeof expected, "thread %d round %d", number, i);
    weir__fail_result(WEIR_ERROR_SYSTEM, number, "thread %d round %d", number, i);
    if (strcmp(weir_last_error(), expected) != 0 || weir_last_driver_result() != number)
      return "another thread's error";
  }
  return NULL;
}

TEST(each_thread_has_its_own_last_error) {
  pthread_t threads[THREADS];
  int numbers[THREADS];
  weir__fail(WEIR_ERROR_BAD_STATE, "mine");
  for (int i = 0; i < THREADS; i++) {
    numbers[i] = i + 1;
    assert_int_equal(pthread_create(&threads[i], NULL, fail_often, &numbers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    void *complaint;
    assert_int_equal(pthread_join(threads[i], &complaint), 0);
    assert_null(complaint);
  }
  assert_string_equal(weir_last_error(), "mine");
}

struct ear {
  int alive; /* written by the main thread while no message is delivered */
  int count; /* not atomic: messages are delivered one at a time */
};

static void hear(void *context, weir_log_level level, const char *message) {
  (void)level;
  (void)message;
  struct ear *ear = context;
  if (ear->alive)
    ear->count++;
}

static atomic_int said;

static void *say_often(void *argument) {
  (void)argument;
  for (int i = 0; i < ROUNDS; i++) {
    weir__log(WEIR_LOG_WARN, "round %d", i);
    atomic_fetch_add(&said, 1);
  }
  return NULL;
}

TEST(a_replaced_sink_is_not_called) {
  struct ear ears[2] = {{1, 0}, {1, 0}};
  pthread_t threads[THREADS];
  weir_log_set_sink(hear, &ears[0]);
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, say_often, NULL), 0);
  while (atomic_load(&said) < ROUNDS)
    usleep(100);
  weir_log_set_sink(hear, &ears[1]);
  ears[0].alive = 0;
  int count = ears[0].count;
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_join(threads[i], NULL), 0);
  weir_log_set_sink(NULL, NULL);
  assert_int_equal(ears[0].count, count);
  assert_int_equal(ears[0].count + ears[1].count, THREADS * ROUNDS);
}

static atomic_int in_sink;

static void sleep_in_sink(void *context, weir_log_level level, const char *message) {
  (void)context;
  (void)level;
  (void)message;
  atomic_store(&in_sink, 1);
  usleep(100000);
}

static void *say_once(void *argument) {
  weir__log(WEIR_LOG_WARN, "slowly");
  return argument;
}

TEST(a_child_does_not_wait_for_threads_of_its_parent) {
  pthread_t thread;
  weir_log_set_sink(sleep_in_sink, NULL);
  assert_int_equal(pthread_create(&thread, NULL, say_once, NULL), 0);
  while (!atomic_load(&in_sink))
    usleep(100);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(30);
    weir_log_set_sink(NULL, NULL);
    _exit(7);
  }
  int outcome = child_outcome(child);
  assert_int_equal(pthread_join(thread, NULL), 0);
  weir_log_set_sink(NULL, NULL);
  assert_int_equal(outcome, 7);
}
