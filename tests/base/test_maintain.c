/*
 * Tasks: stepped by hand, on the worker, and in the child of a fork.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/maintain.h"
#include "support/check.h"
#include "support/test.h"
#include "weir/maintain.h"

typedef struct counter {
  weir__task task;
  atomic_int runs;
  uint64_t last, every; /* every 0: only when it is woken */
} counter;

static uint64_t count(void *context, uint64_t now) {
  counter *c = context;
  c->last = now;
  atomic_fetch_add(&c->runs, 1);
  return c->every ? now + c->every : WEIR__NO_DEADLINE;
}

static counter make(uint64_t every) { return (counter){.task = {.run = count}, .every = every}; }

static void add(counter *c) {
  c->task.context = c;
  assert_true(weir__task_add(&c->task));
}

static int threads_now(void) {
  char line[128];
  int threads = 0;
  FILE *status = fopen("/proc/self/status", "r");
  assert_non_null(status);
  while (fgets(line, sizeof line, status))
    sscanf(line, "Threads: %d", &threads);
  fclose(status);
  return threads;
}

/* A thread that was joined may be listed for a moment. */
static void expect_threads(int count) {
  for (int i = 0; i < 5000 && threads_now() != count; i++)
    usleep(1000);
  assert_int_equal(threads_now(), count);
}

static int with_worker(void **state) {
  (void)state;
  weir_maintain_set_worker(1);
  return 0;
}

FIXTURE(.teardown = with_worker)

/* ---- Stepped ---- */

TEST(steps) {
  weir_maintain_set_worker(0);
  int threads = threads_now();
  counter often = make(10), rare = make(35), asleep = make(0);
  add(&often);
  add(&rare);
  add(&asleep);
  assert_int_equal(threads_now(), threads);
  assert_int_equal(weir__tasks_run(1000), WEIR__NO_DEADLINE); /* none was woken */
  weir__task_wake(&often.task);
  weir__task_wake(&rare.task);
  assert_int_equal(weir__tasks_run(1000), 1010);
  assert_int_equal(weir__tasks_run(1005), 1010);
  for (uint64_t now = 1010; now <= 1100; now += 10)
    weir__tasks_run(now);
  assert_int_equal(often.runs, 11);
  assert_int_equal(rare.runs, 3); /* at 1000, 1040 and 1080 */
  assert_int_equal(rare.last, 1080);
  assert_int_equal(asleep.runs, 0);
  weir__task_wake(&asleep.task);
  weir__tasks_run(1101);
  assert_int_equal(asleep.runs, 1);
  weir__task_remove(&often.task);
  assert_int_equal(weir__tasks_run(2000), 2035);
  assert_int_equal(often.runs, 11);
  weir__task_remove(&often.task); /* it is not there any more */
  weir__task_remove(&rare.task);
  weir__task_remove(&asleep.task);
  assert_int_equal(weir__tasks_run(3000), WEIR__NO_DEADLINE);
}

/* A task that is woken while it runs is called again, but in the next pass. */
static uint64_t wake_itself(void *context, uint64_t now) {
  counter *c = context;
  weir__task_wake(&c->task);
  return count(context, now);
}

TEST(woken_while_it_runs) {
  weir_maintain_set_worker(0);
  counter c = make(1000);
  c.task.run = wake_itself;
  add(&c);
  weir__task_wake(&c.task);
  for (int i = 1; i <= 5; i++) {
    assert_int_equal(weir__tasks_run(7), 0);
    assert_int_equal(c.runs, i);
  }
  weir__task_remove(&c.task);
}

/* ---- On the worker ---- */

static void wait_for(atomic_int *value, int least) {
  for (int i = 0; i < 20000 && atomic_load(value) < least; i++)
    usleep(1000);
  assert_true(atomic_load(value) >= least);
}

TEST(worker) {
  int threads = threads_now();
  for (int round = 0; round < 3; round++) {
    counter often = make(100000), asleep = make(0);
    add(&often);
    add(&asleep);
    expect_threads(threads + 1); /* one for both */
    weir__task_wake(&often.task);
    wait_for(&often.runs, 20);
    assert_int_equal(asleep.runs, 0);
    weir__task_wake(&asleep.task);
    wait_for(&asleep.runs, 1);
    weir__task_remove(&often.task);
    int runs = often.runs;
    weir__task_wake(&asleep.task);
    wait_for(&asleep.runs, 2);
    assert_int_equal(often.runs, runs);
    weir__task_remove(&asleep.task);
    expect_threads(threads); /* it ends with the last task */
  }
}

/* ---- Forks ---- */

static int in_child(counter *of_parent) {
  int runs = atomic_load(&of_parent->runs);
  counter own = make(0);
  own.task.context = &own;
  if (threads_now() != 1 || !weir__task_add(&own.task) || threads_now() != 2)
    return 2;
  weir__task_wake(&own.task);
  for (int i = 0; i < 20000 && !atomic_load(&own.runs); i++)
    usleep(1000);
  weir__task_remove(&of_parent->task);
  weir__task_remove(&own.task);
  return own.runs == 1 && atomic_load(&of_parent->runs) == runs ? 0 : 3;
}

TEST(forks) {
  for (int round = 0; round < 10; round++) {
    counter often = make(20000);
    add(&often);
    weir__task_wake(&often.task);
    wait_for(&often.runs, 3);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
      _exit(in_child(&often));
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    wait_for(&often.runs, often.runs + 2);
    weir__task_remove(&often.task);
  }
}
