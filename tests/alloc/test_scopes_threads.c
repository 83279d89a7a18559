/*
 * Scopes of threads that other threads close, by PyTorch's rules, while their threads allocate in them.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "support/alloc.h"
#include "support/length.h"

enum { THREADS = 3 };

static const weir_pool_id pool = {0, 21};
static atomic_bool stops;
static atomic_long opened, closed;

static void *allocate_in_scopes(void *unused) {
  (void)unused;
  for (int i = 0; !atomic_load(&stops); i++) {
    void *p = NULL;
    if (weir_pool_begin(allocator, 0, pool, NULL, NULL) == WEIR_OK) /* else the last one is still open */
      atomic_fetch_add(&opened, 1);
    for (int k = 0; k < 8; k++)
      if (weir_allocator_alloc(allocator, 0, 512u << k, NULL, &p) || weir_allocator_free(allocator, p))
        abort();
    if (i % 3 == 0 && weir_pool_end(allocator, 0, pool) == WEIR_OK)
      atomic_fetch_add(&closed, 1);
  }
  return NULL;
}

FIXTURE(.teardown = alloc_teardown)

TEST(scopes_are_closed_by_others) {
  pthread_t threads[THREADS];
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "";
  options.scopes_as_pytorch = 1;
  alloc_open_with(&options);
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, allocate_in_scopes, NULL), 0);
  const long most = usual_or_long(30, 2000);
  long by_others = 0;
  while (by_others < most) {
    if (weir_pool_end(allocator, 0, pool) != WEIR_OK)
      continue;
    by_others++;
    assert_ok(weir_allocator_empty_cache(allocator));
  }
  atomic_store(&stops, true);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0); /* the rest has ended with its threads */
  assert_true(closed + by_others <= opened);
  for (long i = 0; i < opened; i++)
    assert_ok(weir_pool_release(allocator, 0, pool));
  assert_ok(weir_allocator_empty_cache(allocator));
  int uses;
  assert_error(INVALID_ARGUMENT, weir_pool_use_count(allocator, 0, pool, &uses));
  alloc_close();
}
