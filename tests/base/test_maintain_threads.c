/*
 * Tasks that threads add, wake and remove at the same time.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/maintain.h"
#include "support/length.h"
#include "support/test.h"

enum { THREADS = 4 };

typedef struct counter {
  weir__task task;
  atomic_int runs;
  bool repeats;
} counter;

static uint64_t count(void *context, uint64_t now) {
  counter *c = context;
  atomic_fetch_add(&c->runs, 1);
  return c->repeats ? now + 1000 : WEIR__NO_DEADLINE;
}

static void *add_and_remove(void *argument) {
  (void)argument;
  for (int i = 0; i < usual_or_long(300, 3000); i++) {
    counter c = {.task = {.run = count, .context = &c}, .repeats = i % 3 == 0};
    if (!weir__task_add(&c.task))
      return "not added";
    for (int k = 0; k < 1 + i % 4; k++)
      weir__task_wake(&c.task);
    for (int k = 0; k < 100000 && i % 2 && !atomic_load(&c.runs); k++)
      usleep(10);
    weir__task_remove(&c.task); /* `c` is gone from here on */
    if (i % 2 && !atomic_load(&c.runs))
      return "woken, and not called";
  }
  return NULL;
}

TEST(add_wake_remove) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, add_and_remove, NULL), 0);
  for (int i = 0; i < THREADS; i++) {
    void *wrong;
    pthread_join(threads[i], &wrong);
    if (wrong)
      fail_msg("%s", (const char *)wrong);
  }
}
