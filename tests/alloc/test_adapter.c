/*
 * The witness, which is called inside each operation, and the calls that never wait.
 */
#include "weir/adapter.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/alloc.h"

static char seen[256];

static void write_down(void *context, const weir_trace_entry *entry) {
  static const char letters[] = "afcAFMUo";
  size_t length = strlen(seen);
  assert_ptr_equal(context, seen);
  if (length + 1 < sizeof seen)
    seen[length] = letters[entry->action];
}

FIXTURE(.teardown = alloc_teardown)

TEST(witness) {
  alloc_open(NULL, GIB);
  memset(seen, 0, sizeof seen);
  put(get(512, NULL));
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_ALL));
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_ALL));
  void *p = get(512, NULL), *large = get(3 * MIB, NULL);
  put(p);
  put(large);
  empty_cache();
  assert_string_equal(seen, "aAafcfcFF");

  weir_cu_stream side = work_stream();
  memset(seen, 0, sizeof seen);
  p = get(512, NULL);
  also_used_by(p, side);
  work(side);
  put(p);
  assert_string_equal(seen, "Aaf");
  assert_ok(weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL));
  put(get(512, NULL));
  assert_string_equal(seen, "Aaf");
  assert_int_equal(weir_allocator_set_witness(NULL, write_down, seen, WEIR_WITNESS_ALL), WEIR_ERROR_INVALID_ARGUMENT);
  alloc_close();
}

/* A witness for segments only: cached allocations and frees stay on the fast path and do not call it. */
TEST(witness_of_segments) {
  alloc_open(NULL, GIB);
  memset(seen, 0, sizeof seen);
  put(get(512, NULL));
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_SEGMENTS));
  put(get(512, NULL));
  assert_string_equal(seen, "");
  void *large = get(3 * MIB, NULL);
  assert_int_equal(seen[0], 'A');
  put(large);
  memset(seen, 0, sizeof seen);
  empty_cache();
  assert_string_equal(seen, "FF");
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_ALL));
  memset(seen, 0, sizeof seen);
  put(get(512, NULL));
  assert_string_equal(seen, "Aafc");
  assert_int_equal(weir_allocator_set_witness(allocator, write_down, seen, (weir_witness_scope)2),
                   WEIR_ERROR_INVALID_ARGUMENT);
  assert_ok(weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL));
  alloc_close();
}

TEST(one_witness) {
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_ALL));
  assert_int_equal(weir_allocator_set_witness(allocator, write_down, NULL, WEIR_WITNESS_ALL), WEIR_ERROR_BAD_STATE);
  assert_ok(weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL));
  alloc_close();
}

#define assert_refused(call) assert_int_equal(call, WEIR_ERROR_NOT_READY)

static int64_t stat(const char *name) {
  int64_t value = -1;
  assert_ok(weir_allocator_stat(allocator, 0, name, &value));
  return value;
}

/* Only what the cache serves at once; everything else leaves no trace, not even in the last error. */
TEST(try) {
  alloc_open(NULL, GIB);
  void *p = NULL, *untouched = &p, *q = untouched;
  assert_refused(weir_allocator_try_alloc(allocator, 0, 512, NULL, &q));
  assert_int_equal(weir_allocator_free(allocator, &p), WEIR_ERROR_INVALID_ARGUMENT);
  char *before = strdup(weir_last_error());
  assert_refused(weir_allocator_try_alloc(allocator, 0, 512, NULL, &q));
  assert_refused(weir_allocator_try_alloc(allocator, 9, 512, NULL, &q));
  assert_refused(weir_allocator_try_alloc(allocator, -1, 512, NULL, &q));
  assert_refused(weir_allocator_try_alloc(allocator, 0, 0, NULL, &q));
  assert_refused(weir_allocator_try_alloc(allocator, 0, UINT64_MAX, NULL, &q));
  assert_refused(weir_allocator_try_alloc(NULL, 0, 512, NULL, &q));
  assert_refused(weir_allocator_try_alloc(allocator, 0, 512, NULL, NULL));
  assert_refused(weir_allocator_try_free(allocator, &p));
  assert_refused(weir_allocator_try_free(allocator, NULL));
  assert_refused(weir_allocator_try_free(NULL, &p));
  assert_string_equal(weir_last_error(), before);
  free(before);
  assert_ptr_equal(q, untouched);
  assert_int_equal(stat("allocation.all.allocated"), 0);

  put(get(512, NULL));
  assert_ok(weir_allocator_try_alloc(allocator, 0, 512, NULL, &p));
  assert_ok(weir_allocator_try_alloc(allocator, 0, 1000, NULL, &q));
  assert_ptr_not_equal(p, q);
  assert_int_equal(stat("allocation.all.current"), 2);
  assert_int_equal(stat("requested_bytes.all.current"), 1512);
  assert_refused(weir_allocator_try_free(allocator, (char *)p + 512 + 1024));
  assert_ok(weir_allocator_try_free(allocator, p));
  assert_refused(weir_allocator_try_free(allocator, p));
  assert_ok(weir_allocator_try_free(allocator, q));
  assert_int_equal(stat("allocation.all.current"), 0);
  assert_int_equal(stat("requested_bytes.all.current"), 0);
  alloc_close();
}

static void count(void *context, const weir_trace_entry *entry) {
  (void)entry;
  ++*(int *)context;
}

/* A free that must wait for a stream, and an observer of any kind, need the plain calls. */
TEST(try_is_not_for_everything) {
  alloc_open(NULL, GIB);
  int calls = 0;
  void *p = get(512, NULL), *q = get(512, NULL);
  weir_cu_stream side = work_stream();
  also_used_by(p, side);
  work(side);
  assert_refused(weir_allocator_try_free(allocator, p));
  put(p);
  weir_allocator_attach(allocator, OBSERVER(.entry = count, .context = &calls));
  void *r = NULL;
  assert_refused(weir_allocator_try_alloc(allocator, 0, 512, NULL, &r));
  assert_refused(weir_allocator_try_free(allocator, q));
  assert_int_equal(calls, 0);
  put(q);
  assert_int_not_equal(calls, 0);
  alloc_close();
}

static atomic_int phase;

static void hold_lock(void *context, const weir_trace_entry *entry) {
  (void)context, (void)entry;
  atomic_store(&phase, 1);
  while (atomic_load(&phase) == 1)
    sched_yield();
}

static void *free_it(void *pointer) {
  put(pointer);
  return NULL;
}

/* A thread that holds the arena's lock does not delay the calls. */
TEST(try_does_not_wait) {
  alloc_open(NULL, GIB);
  void *p = get(512, NULL), *q = get(512, NULL);
  put(get(512, NULL));
  atomic_store(&phase, 0);
  assert_ok(weir_allocator_set_witness(allocator, hold_lock, NULL, WEIR_WITNESS_ALL));
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, free_it, p), 0);
  while (!atomic_load(&phase))
    sched_yield();
  void *r = NULL;
  assert_refused(weir_allocator_try_alloc(allocator, 0, 512, NULL, &r)); /* the witness alone rules it out */
  assert_refused(weir_allocator_try_free(allocator, q));                 /* acquires the lock first */
  assert_int_equal(atomic_load(&phase), 1);
  assert_ok(weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL));
  assert_refused(weir_allocator_try_alloc(allocator, 0, 512, NULL, &r));
  assert_refused(weir_allocator_try_free(allocator, q));
  atomic_store(&phase, 2);
  pthread_join(thread, NULL);
  assert_ok(weir_allocator_try_alloc(allocator, 0, 512, NULL, &r));
  assert_ok(weir_allocator_try_free(allocator, r));
  assert_ok(weir_allocator_try_free(allocator, q));
  alloc_close();
}
