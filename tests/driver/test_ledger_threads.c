/*
 * Hundreds of ledgers at once, one per thread: they are independent, and the same calls have the same results.
 */
#include <pthread.h>

#include "support/ledger.h"

enum { THREADS = 16, LEDGERS = 16, LIVE = 32, STEPS = 500 };

typedef struct book {
  weir_driver *d;
  uint64_t random, digest;
  weir_cu_deviceptr pointers[LIVE], va;
  weir_cu_mem_handle handles[LIVE];
  weir_cu_event events[LIVE];
} book;

typedef struct worker {
  book books[LEDGERS];
  weir_cu_result failed; /* assertions work on the main thread only */
} worker;

static bool good(worker *w, weir_cu_result result) {
  if (result != WEIR_CU_SUCCESS)
    w->failed = result;
  return result == WEIR_CU_SUCCESS;
}

static void note(book *b, uint64_t value) { b->digest = (b->digest ^ value) * 0x100000001b3; }

/* Replaces one object of each kind. */
static void step(worker *w, book *b) {
  weir_driver *d = b->d;
  uint64_t r = next_random(&b->random);
  int i = (int)(r % LIVE);
  size_t bytes = 1 + (r >> 8) % (30 * PAGE), free_now = 0, total = 0;
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mem_access access = access_of(0, WEIR_CU_ACCESS_READWRITE);
  weir_cu_deviceptr at = b->va + (weir_cu_deviceptr)i * PAGE;

  good(w, d->MemFree(d, b->pointers[i]));
  good(w, d->MemAlloc(d, &b->pointers[i], bytes));
  if (b->handles[i] != 0) {
    good(w, d->MemUnmap(d, at, PAGE));
    good(w, d->MemRelease(d, b->handles[i]));
    good(w, d->EventDestroy(d, b->events[i]));
  }
  good(w, d->MemCreate(d, &b->handles[i], PAGE, &prop, 0));
  good(w, d->MemMap(d, at, PAGE, 0, b->handles[i], 0));
  good(w, d->MemSetAccess(d, at, PAGE, &access, 1));
  good(w, d->EventCreate(d, &b->events[i], 0));
  good(w, d->EventRecord(d, b->events[i], NULL));
  good(w, d->MemGetInfo(d, &free_now, &total));
  note(b, b->pointers[i]);
  note(b, b->handles[i]);
  note(b, (uintptr_t)b->events[i]);
  note(b, free_now);
}

static void *work(void *data) {
  worker *w = data;
  weir_cu_context context;
  for (int k = 0; k < LEDGERS; k++) {
    book *b = &w->books[k];
    b->random = (uint64_t)k;
    if (weir_driver_open_ledger(NULL, &b->d) != WEIR_OK || !good(w, b->d->Init(b->d, 0)) ||
        !good(w, b->d->DevicePrimaryCtxRetain(b->d, &context, 0)) || !good(w, b->d->CtxSetCurrent(b->d, context)) ||
        !good(w, b->d->MemAddressReserve(b->d, &b->va, LIVE * PAGE, 0, 0, 0)))
      return NULL;
  }
  for (int n = 0; n < STEPS; n++)
    for (int k = 0; k < LEDGERS; k++)
      step(w, &w->books[k]);
  return NULL;
}

TEST(hundreds_of_ledgers_at_once) {
  static worker workers[THREADS];
  pthread_t threads[THREADS];
  for (int t = 0; t < THREADS; t++)
    assert_int_equal(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
  for (int t = 0; t < THREADS; t++)
    pthread_join(threads[t], NULL);
  for (int t = 0; t < THREADS; t++) {
    assert_int_equal(workers[t].failed, WEIR_CU_SUCCESS);
    for (int k = 0; k < LEDGERS; k++) {
      assert_int_equal(workers[t].books[k].digest, workers[0].books[k].digest);
      weir_driver_close(workers[t].books[k].d);
    }
  }
  assert_int_not_equal(workers[0].books[0].digest, workers[0].books[1].digest);
}

/* Created on one thread, used on another, closed on a third: a ledger only needs one thread at a time. */
static void *use_once(void *data) {
  weir_driver *d = data;
  weir_cu_deviceptr p;
  return (void *)(intptr_t)(d->MemAlloc(d, &p, 100) == WEIR_CU_SUCCESS);
}

TEST(a_ledger_may_move_between_threads) {
  weir_driver *d = open_ledger(1, 1000);
  for (int i = 0; i < 10; i++) {
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, use_once, d), 0);
    pthread_join(thread, &result);
    assert_non_null(result); /* the current context belongs to the ledger */
  }
  assert_int_equal(free_bytes(d), 0);
  weir_driver_close(d);
}
