/*
 * The page is written while other threads allocate, and while allocators come and go.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inspect/publish.h"
#include "record/live_page.h"
#include "support/alloc.h"
#include "support/check.h"

enum { THREADS = 4, ROUNDS = 2000, HELD = 8 };

static atomic_bool is_over; /* of the recording */

static char folder[] = "/tmp/weir-pages-XXXXXX";
static weir_cu_stream streams[THREADS];
static atomic_int running;
static pthread_barrier_t barrier;
static uint64_t held_bytes[THREADS];

static int begin(void **state) {
  (void)state;
  strcpy(folder, "/tmp/weir-pages-XXXXXX");
  assert_non_null(mkdtemp(folder));
  return setenv("WEIR_STATS_PAGE", folder, 1);
}

static int end(void **state) {
  int code = alloc_teardown(state);
  rmdir(folder);
  return code;
}

FIXTURE(.setup = begin, .teardown = end)

static void *churn(void *argument) {
  int number = *(int *)argument;
  uint64_t random = (uint64_t)number + 3, held[HELD] = {0};
  void *p[HELD] = {0};
  bool is_good = true;
  for (int i = 0; i < ROUNDS; i++) {
    int k = (int)soft_random_r(&random, HELD);
    if (p[k])
      is_good &= !weir_allocator_free(allocator, p[k]);
    held[k] = soft_random_r(&random, 3) ? 512 * (1 + soft_random_r(&random, 4096)) : 0;
    p[k] = NULL;
    if (held[k])
      is_good &= !weir_allocator_alloc(allocator, 0, held[k], streams[number], &p[k]);
  }
  for (int k = 0; k < HELD; k++)
    held_bytes[number] += held[k];
  if (!is_good)
    held_bytes[number] = UINT64_MAX;
  atomic_fetch_sub(&running, 1);
  pthread_barrier_wait(&barrier); /* the page is compared here */
  pthread_barrier_wait(&barrier);
  for (int k = 0; k < HELD; k++)
    weir_allocator_free(allocator, p[k]);
  return NULL;
}

static weir__page_view view;

static const weir__page_row *look(void) {
  weir__publish_now();
  weir__page_view_clear(&view);
  weir__page_read(weir__publish_path(), &view);
  assert_int_equal(view.life, WEIR__PAGE_ALIVE);
  return view.rows;
}

TEST(page_beside_allocations) {
  pthread_t threads[THREADS];
  int numbers[THREADS];
  alloc_open_on(WEIR_SOFT_THREADS, 1, 8 * GIB, NULL);
  put(get(100, NULL));
  pthread_barrier_init(&barrier, NULL, THREADS + 1);
  atomic_store(&running, THREADS);
  for (int i = 0; i < THREADS; i++) {
    streams[i] = work_stream();
    numbers[i] = i;
    assert_int_equal(pthread_create(&threads[i], NULL, churn, &numbers[i]), 0);
  }
  while (atomic_load(&running)) {
    const weir__page_row *row = look();
    assert_true(row->count[WEIR__PAGE_RESERVED] <= row->count[WEIR__PAGE_PEAK_RESERVED]);
    assert_true(row->count[WEIR__PAGE_ALLOCATED] <= (uint64_t)THREADS * HELD * 2 * MIB);
  }
  pthread_barrier_wait(&barrier);
  /* No operation is under way: the page is exact, and no quota was revoked for it. */
  uint64_t sum = 0;
  for (int i = 0; i < THREADS; i++)
    sum += held_bytes[i];
  const weir__page_row *row = look();
  const weir_allocator_stats exact = stats_of(0);
  assert_int_equal(row->count[WEIR__PAGE_REQUESTED], sum);
  assert_int_equal(row->count[WEIR__PAGE_ALLOCATED], exact.allocated_bytes[0].current);
  assert_int_equal(row->count[WEIR__PAGE_ALLOCATIONS], exact.allocation[0].allocated);
  pthread_barrier_wait(&barrier);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&barrier);
  weir__page_view_clear(&view);
  alloc_close();
}

static void *come_and_go(void *unused) {
  (void)unused;
  for (int i = 0; i < 60; i++) {
    weir_allocator *made;
    void *p;
    if (weir_allocator_create(d, NULL, &made) || weir_allocator_alloc(made, 0, 4096, NULL, &p))
      return "failed";
    weir__publish_now();
    weir_allocator_free(made, p);
    weir_allocator_destroy(made);
  }
  return NULL;
}

TEST(allocators_that_come_and_go) {
  pthread_t threads[THREADS];
  alloc_open_devices(WEIR_SOFT_THREADS, 1, 8 * GIB);
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
  for (int i = 0; i < THREADS; i++) {
    void *failure;
    pthread_join(threads[i], &failure);
    assert_null(failure);
  }
  assert_null(weir__publish_path());
  alloc_close();
}

static void *go_on(void *argument) {
  weir_cu_stream stream = *(weir_cu_stream *)argument;
  void *p[HELD];
  while (!atomic_load(&is_over)) {
    for (int k = 0; k < HELD; k++)
      if (weir_allocator_alloc(allocator, 0, (uint64_t)(k + 1) * 300000, stream, &p[k]))
        return "failed";
    for (int k = 0; k < HELD; k++)
      weir_allocator_free(allocator, p[k]);
  }
  return NULL;
}

static uint32_t state_after(const weir__page_requests *requests, uint32_t state) {
  for (int i = 0; i < 20000 && atomic_load(&requests->record.state) == state; i++)
    usleep(1000);
  return atomic_load(&requests->record.state);
}

/* Another process asks for a recording, and for its end, while all threads allocate. */
TEST(recording_on_request) {
  pthread_t threads[THREADS];
  weir__page_mailbox mailbox;
  char path[128];
  alloc_open_on(WEIR_SOFT_THREADS, 1, 8 * GIB, NULL);
  put(get(100, NULL));
  atomic_store(&is_over, false);
  for (int i = 0; i < THREADS; i++) {
    streams[i] = work_stream();
    assert_int_equal(pthread_create(&threads[i], NULL, go_on, &streams[i]), 0);
  }
  snprintf(path, sizeof path, "%s/on_request.ring", folder);
  assert_true(weir__page_mailbox_open(weir__publish_path(), &mailbox));
  weir__page_requests *asked = mailbox.requests;
  asked->record.bytes = 4 * MIB;
  snprintf(asked->record.path, sizeof asked->record.path, "%s", path);
  atomic_store(&asked->record.state, WEIR__PAGE_RECORD_ASKED);
  assert_int_equal(state_after(asked, WEIR__PAGE_RECORD_ASKED), WEIR__PAGE_RECORD_RUNS);
  usleep(50000);
  atomic_store(&asked->record.stop, 1);
  assert_int_equal(state_after(asked, WEIR__PAGE_RECORD_RUNS), WEIR__PAGE_RECORD_DONE);
  usleep(50000); /* it is off now */
  atomic_store(&is_over, true);
  for (int i = 0; i < THREADS; i++) {
    void *failure;
    pthread_join(threads[i], &failure);
    assert_null(failure);
  }
  assert_int_equal(is_recording(allocator), 0);
  weir__page_mailbox_close(&mailbox);
  alloc_close();
  assert_int_equal(access(path, R_OK), 0);
  assert_int_equal(unlink(path), 0);
}
