/*
 * Guard mode while several threads allocate, write and free: nothing is found where nothing is wrong, each planted bug
 * is found, and the thread sanitizer finds no race.
 */
#include <pthread.h>
#include <stdlib.h>

#include "support/alloc.h"
#include "weir/guard.h"
#include "weir/history.h"

enum { THREADS = 4, STREAMS = 3, KEPT = 8, ROUNDS = 200 };

static weir_cu_stream streams[STREAMS];
static atomic_uint planted, failed;
static bool plants;

/* Native stacks would be unwound by a library that the sanitizer does not know. */
static size_t stack_hook(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  if (room)
    frames[0] = (weir_stack_frame){weir_history_text("test.c"), weir_history_text("thread"), 1};
  return 1;
}

static void *work_on_blocks(void *data) {
  uint64_t random = (uint64_t)(uintptr_t)data;
  struct {
    void *memory;
    uint64_t bytes;
    weir_cu_stream stream;
  } kept[KEPT] = {{0}};
  d->CtxSetCurrent(d, contexts[0]);
  for (int i = 0; i < ROUNDS; i++) {
    size_t at = soft_random_r(&random, KEPT);
    if (kept[at].memory) {
      bool is_bug = plants && soft_random_r(&random, 20) == 0;
      uint64_t offset = is_bug ? kept[at].bytes : kept[at].bytes - 1;
      atomic_fetch_add(&planted, is_bug);
      if (d->MemsetD8Async(d, (uint64_t)kept[at].memory + offset, 1, 1, kept[at].stream) ||
          weir_allocator_free(allocator, kept[at].memory))
        atomic_fetch_add(&failed, 1);
      kept[at].memory = NULL;
      continue;
    }
    kept[at].stream = streams[soft_random_r(&random, STREAMS)];
    kept[at].bytes = 1 + soft_random_r(&random, 1ull << (6 + soft_random_r(&random, 12)));
    if (weir_allocator_alloc(allocator, 0, kept[at].bytes, kept[at].stream, &kept[at].memory))
      atomic_fetch_add(&failed, 1);
    if (i % 50 == 49 && weir_guard_check(allocator, NULL))
      atomic_fetch_add(&failed, 1);
  }
  for (int i = 0; i < KEPT; i++)
    if (kept[i].memory && weir_allocator_free(allocator, kept[i].memory))
      atomic_fetch_add(&failed, 1);
  return NULL;
}

static void run(bool with_bugs) {
  pthread_t threads[THREADS];
  uint64_t found;
  weir_stack_set_hook(stack_hook, NULL);
  setenv("WEIR_GUARD_QUARANTINE", "256KiB", 1);
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, "guard:light");
  unsetenv("WEIR_GUARD_QUARANTINE");
  for (int i = 0; i < STREAMS; i++)
    streams[i] = work_stream();
  plants = with_bugs;
  atomic_store(&planted, 0);
  atomic_store(&failed, 0);
  for (uintptr_t i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, work_on_blocks, (void *)(i + 1)), 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(atomic_load(&failed), 0);
  assert_ok(weir_guard_check(allocator, &found));
  assert_int_equal(found, atomic_load(&planted));
  assert_true(with_bugs == (found > 0));
  assert_valid();
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(clean) { run(false); }

TEST(with_bugs) { run(true); }
