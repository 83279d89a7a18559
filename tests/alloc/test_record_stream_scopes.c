/*
 * Memory that another stream uses while some scope of a pool or a capture is open somewhere on the device: the use
 * counts as always. PyTorch 2.11 files such a use under the capture or pool, and may drop it.
 */
#include <string.h>

#include "support/alloc.h"

enum { SIZE = 4096 };
static const weir_pool_id pool = {0, 7};

static int no_stream(void *context, weir_cu_stream stream) {
  (void)context, (void)stream;
  return 0;
}

/* Where the scope or the capture is while the block is used and freed. */
typedef enum place {
  OWN_POOL,      /* a scope that the requests themselves are in */
  OTHER_POOL,    /* a scope of other streams, as another thread opens it */
  OTHER_CAPTURE, /* a capture of another stream, by this thread or another one */
  PLACES
} place;

typedef enum part { USE, FREE, PARTS } part; /* what happens within it */

static weir_cu_stream captured;

static void enter(place where) {
  if (where == OTHER_CAPTURE) {
    assert_ok(weir_allocator_begin_capture(allocator, 0));
    assert_cu(d->StreamBeginCapture(d, captured, WEIR_CU_CAPTURE_RELAXED));
    return;
  }
  assert_ok(weir_pool_begin(allocator, 0, pool, where == OTHER_POOL ? no_stream : NULL, NULL));
}

static void leave(place where) {
  if (where == OTHER_CAPTURE) {
    weir_cu_graph graph;
    assert_cu(d->StreamEndCapture(d, captured, &graph));
    assert_cu(d->GraphDestroy(d, graph));
    assert_ok(weir_allocator_end_capture(allocator, 0));
    return;
  }
  assert_ok(weir_pool_end(allocator, 0, pool));
  assert_ok(weir_pool_release(allocator, 0, pool));
}

/* Whether the block is handed out again once all work is done. After a capture a request records the event, and the
 * next one polls it. */
static void check_reused(void *p, weir_cu_stream stream) {
  soft_step_all();
  for (int i = 0; i < 3; i++) {
    if (get(SIZE, stream) == p)
      return;
    soft_step_all();
  }
  fail_msg("the block is not used again");
}

/* A use in `where`, and the free there, or after it. Until the other stream has passed the use, the block is not
 * reused. */
static void check(const char *conf, place where, part last) {
  alloc_open(conf, GIB);
  weir_cu_stream mine = work_stream(), other = work_stream();
  captured = work_stream();
  void *p = get(SIZE, mine);
  enter(where);
  work(other);
  also_used_by(p, other);
  if (last == FREE)
    put(p);
  leave(where);
  if (last == USE)
    put(p);
  for (int i = 0; i < 3; i++)
    assert_ptr_not_equal(get(SIZE, mine), p);
  check_reused(p, mine);
  alloc_close();
}

/* The use and the free are in different places; the next use of the same block is outside of both. */
static void check_next_use(const char *conf, place where) {
  alloc_open(conf, GIB);
  weir_cu_stream mine = work_stream(), other = work_stream();
  captured = work_stream();
  void *p = get(SIZE, mine);
  enter(where);
  also_used_by(p, other);
  leave(where);
  put(p);
  check_reused(p, mine);
  work(other);
  also_used_by(p, other);
  enter(where);
  put(p);
  leave(where);
  for (int i = 0; i < 3; i++)
    assert_ptr_not_equal(get(SIZE, mine), p);
  check_reused(p, mine);
  alloc_close();
}

static const char *const settings[] = {NULL, "expandable_segments:True", "moving_pages:True",
                                       "graph_capture_record_stream_reuse:True"};

FIXTURE(.teardown = alloc_teardown)

TEST(use_in_a_scope) {
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    for (place where = 0; where < PLACES; where++)
      for (part last = 0; last < PARTS; last++)
        check(settings[i], where, last);
}

TEST(next_use_of_the_block) {
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    for (place where = 0; where < PLACES; where++)
      check_next_use(settings[i], where);
}

/* A pool may end while another pool is in use. */
TEST(pool_ends_beside_another) {
  alloc_open(NULL, GIB);
  const weir_pool_id second = {0, 8};
  assert_ok(weir_pool_begin(allocator, 0, pool, NULL, NULL));
  void *p = get(SIZE, NULL);
  assert_ok(weir_pool_end(allocator, 0, pool));
  assert_ok(weir_pool_begin(allocator, 0, second, NULL, NULL));
  void *q = get(SIZE, NULL);
  put(p);
  assert_ok(weir_pool_release(allocator, 0, pool));
  void *r = get(SIZE, NULL);
  assert_int_equal(pool_of(r).second, second.second);
  assert_ok(weir_pool_end(allocator, 0, second));
  put(q);
  put(r);
  assert_ok(weir_pool_release(allocator, 0, second));
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}
