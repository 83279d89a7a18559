/*
 * Blocks: which free block serves a request, when it is split, and which blocks a free merges.
 */
#include "support/alloc.h"

/* ---- Best fit ---- */

/* Creates free blocks of these sizes in one segment, separated by small live blocks; holes[i] is the address of each.
 * */
static void make_holes(const size_t *sizes, int count, void **holes) {
  for (int i = 0; i < count; i++) {
    holes[i] = get(sizes[i], NULL);
    get(512, NULL); /* live until the close */
  }
  for (int i = 0; i < count; i++)
    put(holes[i]);
}

FIXTURE(.teardown = alloc_teardown)

TEST(smallest_that_fits) {
  alloc_open(NULL, GIB);
  void *holes[4];
  make_holes((const size_t[]){64 * KIB, 16 * KIB, 32 * KIB, 128 * KIB}, 4, holes);
  assert_ptr_equal(get(20 * KIB, NULL), holes[2]);
  assert_ptr_equal(get(16 * KIB, NULL), holes[1]);
  assert_ptr_equal(get(33 * KIB, NULL), holes[0]);
  assert_ptr_equal(get(65 * KIB, NULL), holes[3]);
  assert_int_equal(reserved(), 2 * MIB);
  alloc_close();
}

TEST(lowest_of_equal_size) {
  alloc_open(NULL, GIB);
  void *holes[4];
  make_holes((const size_t[]){32 * KIB, 32 * KIB, 32 * KIB, 32 * KIB}, 4, holes);
  for (int i = 0; i < 4; i++)
    assert_ptr_equal(get(32 * KIB, NULL), holes[i]);
  alloc_close();
}

/* The order of the frees does not matter. */
TEST(lowest_regardless_of_free_order) {
  alloc_open(NULL, GIB);
  void *a = get(4 * KIB, NULL), *b = get(512, NULL), *c = get(4 * KIB, NULL), *e = get(512, NULL);
  put(c);
  put(a);
  assert_ptr_equal(get(4 * KIB, NULL), a);
  assert_ptr_equal(get(4 * KIB, NULL), c);
  put(b);
  put(e);
  alloc_close();
}

TEST(never_from_another_stream) {
  alloc_open(NULL, GIB);
  weir_cu_stream one = work_stream(), two = work_stream();
  void *a = get(4 * KIB, one);
  put(a);
  void *b = get(4 * KIB, two);
  assert_int_equal(segments(), 2);
  assert_ptr_not_equal(a, b);
  void *c = get(4 * KIB, NULL);
  assert_int_equal(segments(), 3);
  assert_ptr_equal(get(4 * KIB, one), a);
  put(b);
  assert_ptr_equal(get(4 * KIB, two), b);
  put(c);
  alloc_close();
}

/* A freed block is reused on its stream at once and without driver calls, because the work of a stream is ordered. */
TEST(cached_path_makes_no_driver_calls) {
  alloc_open(NULL, GIB);
  weir_cu_stream stream = work_stream();
  void *p = get(5 * MIB, stream);
  work(stream);
  unsigned long before = calls(WEIR_CALL_COUNT);
  for (int i = 0; i < 10; i++) {
    put(p);
    assert_ptr_equal(get(5 * MIB, stream), p);
  }
  assert_int_equal(calls(WEIR_CALL_COUNT), before);
  assert_int_equal(soft_pending(stream), 1);
  put(p);
  soft_step_all();
  alloc_close();
}

/* ---- Splitting ---- */

/* A free block of 20 MiB in the large pool. */
static void *free_20m(weir_cu_stream stream) {
  void *p = get(2 * MIB, stream);
  put(p);
  assert_layout(p, "20M");
  return p;
}

TEST(large_splits_above_one_mib) {
  alloc_open(NULL, GIB);
  void *p = free_20m(NULL);
  assert_ptr_equal(get(19 * MIB, NULL), p); /* not split for a remainder of 1 MiB */
  assert_layout(p, "20M*");
  assert_int_equal(allocated(), 20 * MIB);
  put(p);
  assert_ptr_equal(get(19 * MIB - 512, NULL), p);
  assert_layout(p, "19922432* 1049088");
  assert_int_equal(allocated(), 19 * MIB - 512);
  put(p);
  assert_layout(p, "20M");
  alloc_close();
}

TEST(small_splits_to_the_last_unit) {
  alloc_open(NULL, GIB);
  void *p = get(MIB, NULL), *q = get(MIB - 512, NULL);
  assert_layout(p, "1M* 1048064* 512");
  void *r = get(1, NULL);
  assert_layout(p, "1M* 1048064* 512*");
  put(p);
  put(q);
  put(r);
  assert_layout(p, "2M");
  alloc_close();
}

TEST(max_split_size) {
  alloc_open("max_split_size_mb:40", GIB);
  void *p = get(40 * MIB, NULL);
  assert_int_equal(stats_of(0).max_split_size, 40 * MIB);
  put(p);
  /* A request below the limit does not use a block above it ... */
  void *q = get(30 * MIB, NULL);
  assert_ptr_not_equal(q, p);
  assert_int_equal(reserved(), 70 * MIB);
  put(q);
  /* ... and a block below the limit is split as usual. */
  void *r = get(20 * MIB, NULL);
  assert_ptr_equal(r, q);
  assert_layout(r, "20M* 10M");
  put(r);
  alloc_close();
}

TEST(oversize_is_never_split) {
  alloc_open("max_split_size_mb:40", GIB);
  void *p = get(60 * MIB, NULL);
  put(p);
  assert_ptr_equal(get(50 * MIB, NULL), p);
  assert_layout(p, "60M*");
  assert_int_equal(allocated(), 60 * MIB);
  void *q = get(50 * MIB, NULL);
  put(q);
  assert_ptr_equal(get(40 * MIB, NULL), q); /* the limit itself counts as oversize */
  assert_layout(q, "50M*");
  put(p);
  put(q);
  alloc_close();
}

/* An oversize request uses a cached block only if it wastes less than max_non_split_rounding, which defaults to the
 * size of a large segment. */
TEST(oversize_waste_is_limited) {
  alloc_open("max_split_size_mb:40", GIB);
  void *p = get(60 * MIB, NULL);
  put(p);
  void *q = get(40 * MIB, NULL);
  assert_ptr_not_equal(q, p);
  void *r = get(40 * MIB + 512, NULL); /* the search uses the size of the block */
  assert_ptr_equal(r, p);
  put(q);
  put(r);
  configure("max_non_split_rounding_mb:40");
  void *s = get(100 * MIB, NULL), *t;
  put(s);
  t = get(61 * MIB, NULL);
  assert_ptr_equal(t, s);
  put(t);
  configure("max_non_split_rounding_mb:39");
  t = get(61 * MIB, NULL);
  assert_ptr_not_equal(t, s);
  put(t);
  alloc_close();
}

TEST(oversize_is_counted) {
  alloc_open("max_split_size_mb:40", GIB);
  void *p = get(50 * MIB, NULL), *q = get(38 * MIB, NULL), *r = get(40 * MIB, NULL);
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(s.oversize_allocations.current, 2);
  assert_int_equal(s.oversize_segments.current, 2);
  /* A block leaves the statistics as it entered them, even if the limit has changed in between. */
  configure("max_split_size_mb:100");
  put(p);
  assert_int_equal(stats_of(0).oversize_allocations.current, 1);
  configure("max_split_size_mb:20");
  put(q);
  put(r);
  assert_int_equal(stats_of(0).oversize_allocations.current, 0);
  empty_cache();
  s = stats_of(0);
  assert_int_equal(s.oversize_segments.current, 0);
  assert_int_equal(s.oversize_allocations.peak, 2);
  assert_int_equal(s.oversize_segments.freed, 2);
  alloc_close();
}

/* ---- Merging ---- */

TEST(merges_with_both_neighbours) {
  alloc_open(NULL, GIB);
  void *p[5];
  for (int i = 0; i < 5; i++)
    p[i] = get(100 * KIB, NULL);
  assert_layout(p[0], "100K* 100K* 100K* 100K* 100K* 1548K");
  put(p[1]);
  put(p[3]);
  assert_layout(p[0], "100K* 100K 100K* 100K 100K* 1548K");
  assert_int_equal(stats_of(0).inactive_split[WEIR_STAT_ALL].current, 3);
  put(p[2]);
  assert_layout(p[0], "100K* 300K 100K* 1548K");
  put(p[4]);
  assert_layout(p[0], "100K* 1948K");
  assert_int_equal(stats_of(0).inactive_split[WEIR_STAT_ALL].current, 1);
  put(p[0]);
  assert_layout(p[0], "2M");
  assert_int_equal(stats_of(0).inactive_split[WEIR_STAT_ALL].current, 0);
  alloc_close();
}

TEST(merged_block_serves_a_larger_request) {
  alloc_open(NULL, GIB);
  void *a = get(512 * KIB, NULL), *b = get(512 * KIB, NULL), *c = get(MIB, NULL);
  put(a);
  put(b);
  assert_ptr_equal(get(MIB, NULL), a);
  assert_layout(a, "1M* 1M*");
  put(c);
  alloc_close();
}

/* Adjacent segments are not merged. */
TEST(segments_do_not_merge) {
  alloc_open(NULL, GIB);
  void *p[4];
  for (int i = 0; i < 4; i++)
    p[i] = get(2 * MIB, work_stream());
  for (int i = 0; i < 4; i++)
    put(p[i]);
  for (int i = 0; i < 4; i++)
    assert_layout(p[i], "20M");
  assert_int_equal(segments(), 4);
  alloc_close();
}

/* ---- Between finding a block and returning it ---- */

/* A request that the index cannot serve takes its block, releases the arena and restores the context of the thread.
 * Meanwhile another thread may free a neighbour; here the driver call does so. */
static void *neighbour;
static weir_cu_result (*inner_set_current)(weir_driver *, weir_cu_context);

static weir_cu_result free_neighbour(weir_driver *self, weir_cu_context context) {
  if (!context && neighbour) {
    assert_ok(weir_allocator_free(allocator, neighbour));
    neighbour = NULL;
  }
  return inner_set_current(self, context);
}

static void *get_while_neighbour_goes(size_t bytes, void *goes) {
  void *p = NULL;
  inner_set_current = faults->CtxSetCurrent;
  faults->CtxSetCurrent = free_neighbour;
  neighbour = goes;
  assert_cu(d->CtxSetCurrent(d, NULL));
  assert_ok(weir_allocator_alloc(allocator, 0, bytes, NULL, &p));
  soft_use(0);
  faults->CtxSetCurrent = inner_set_current;
  assert_null(neighbour);
  assert_valid();
  return p;
}

TEST(new_pages_and_their_neighbour) {
  alloc_open("expandable_segments:True", GIB);
  void *a = get(10 * MIB, NULL), *b = get(10 * MIB, NULL);
  void *p = get_while_neighbour_goes(30 * MIB, b);
  assert_ptr_equal(p, (char *)a + 20 * MIB);
  assert_layout(a, "10M* 10M 30M* 10M 1100M-");
  put(a);
  put(p);
  alloc_close();
}

static void *hoard;
static int free_hoard(void *context, int device) {
  (void)context, (void)device;
  void *p = hoard;
  hoard = NULL;
  return p && weir_allocator_free(allocator, p) == WEIR_OK;
}

TEST(found_block_and_its_neighbours) {
  for (int which = 0; which < 2; which++) {
    alloc_open(NULL, GIB);
    void *a = get(9 * MIB, NULL), *b = get(9 * MIB, NULL), *c = get(2 * MIB, NULL);
    assert_layout(a, "9M* 9M* 2M*");
    hoard = b;
    assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = free_hoard)));
    void *p = get_while_neighbour_goes(9 * MIB, which ? a : c);
    assert_ptr_equal(p, b);
    assert_layout(b, which ? "9M 9M* 2M*" : "9M* 9M* 2M");
    put(which ? c : a);
    put(p);
    assert_layout(a, "20M");
    alloc_close();
  }
}
