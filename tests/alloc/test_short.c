/*
 * Out of memory: the steps, and their order, before a request fails.
 */
#include "support/alloc.h"

/* The segments that were released to the driver, by address; a new segment may have the same address. */
static uint64_t released[64];
static int release_count;

static void note_release(void *context, const weir_trace_entry *entry) {
  (void)context;
  if (entry->action == WEIR_TRACE_SEGMENT_FREE && release_count < 64)
    released[release_count++] = entry->address;
}

static void open(const char *conf) {
  alloc_open(conf, GIB);
  release_count = 0;
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = note_release)));
}

/* Whether the segment that began with this block was never released. */
static bool is_held(const void *p) {
  for (int i = 0; i < release_count; i++)
    if (released[i] == (uint64_t)p)
      return false;
  return true;
}

/* ---- Limits ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(fraction) {
  open(NULL);
  double fraction = 9;
  void *p, *q;
  assert_ok(weir_allocator_get_fraction(allocator, 0, &fraction));
  assert_true(fraction == 1);
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.5));
  assert_ok(weir_allocator_get_fraction(allocator, 0, &fraction));
  assert_true(fraction == 0.5);
  p = get(510 * MIB, NULL);
  assert_int_equal(try_get(4 * MIB, NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  q = get(MIB, NULL); /* exactly 2 MiB are left */
  assert_int_equal(reserved(), 512 * MIB);
  void *r = get(MIB, NULL), *s;
  assert_int_equal(try_get(512, NULL, &s), WEIR_ERROR_OUT_OF_MEMORY);
  put(r);
  s = get(512, NULL); /* cached memory is not limited */
  put(p);
  put(q);
  put(s);
  alloc_close();
}

/* PyTorch's test_set_per_process_memory_fraction: 0.499 of a half is available, 0.5 on top of the memory in use is not.
 * */
TEST(seed_fraction) {
  open(NULL);
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.5));
  void *p = get((size_t)(0.499 * GIB), NULL), *q;
  put(p);
  empty_cache();
  p = get(512, NULL);
  assert_int_equal(try_get((size_t)(0.5 * GIB), NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  put(p);
  alloc_close();
}

TEST(fraction_of_nothing) {
  open(NULL);
  void *p, *q;
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0));
  assert_int_equal(try_get(512, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(calls(WEIR_CALL_MemAlloc), 0); /* the driver is not called */
  assert_ok(weir_allocator_set_fraction(allocator, 0, 1));
  p = get(100 * MIB, NULL);
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.01)); /* below the memory in use, which is kept */
  put(p);
  q = get(100 * MIB, NULL);
  assert_ptr_equal(p, q);
  put(q);
  alloc_close();
}

/* Each device has its own limit. */
TEST(fraction_is_of_a_device) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  void *p = NULL;
  assert_ok(weir_allocator_set_fraction(allocator, 1, 0.25));
  put(get_on(0, 500 * MIB, NULL));
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 1, 500 * MIB, NULL, &p));
  put(get_on(1, 256 * MIB, NULL));
  alloc_close();
}

TEST(fraction_from_the_settings) {
  open("per_process_memory_fraction:0.25");
  double fraction = 9;
  void *p;
  assert_ok(weir_allocator_get_fraction(allocator, 0, &fraction));
  assert_true(fraction == 0.25);
  put(get(256 * MIB, NULL));
  assert_int_equal(try_get(257 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  alloc_close();
}

/* The lock is released around the driver call; two concurrent requests still do not exceed the limit. */
static weir_cu_result (*inner_alloc)(weir_driver *, weir_cu_deviceptr *, size_t);
static weir_status second_status;

static void *second_thread(void *unused) {
  (void)unused;
  void *p = NULL;
  second_status = weir_allocator_alloc(allocator, 0, 300 * MIB, WEIR_CU_STREAM_LEGACY, &p);
  return NULL;
}

static weir_cu_result alloc_with_company(weir_driver *self, weir_cu_deviceptr *pointer, size_t bytes) {
  faults->MemAlloc = inner_alloc;
  on_thread(second_thread, NULL);
  return inner_alloc(self, pointer, bytes);
}

TEST(limit_while_the_lock_is_released) {
  open("release_lock_on_cudamalloc:True");
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.5));
  inner_alloc = faults->MemAlloc;
  faults->MemAlloc = alloc_with_company;
  second_status = WEIR_OK;
  void *p = get(300 * MIB, NULL);
  assert_int_equal(second_status, WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(reserved(), 300 * MIB);
  put(p);
  alloc_close();
}

/* ---- Callbacks ---- */

static struct {
  int calls, answer, device;
  void *hoard;
} host;

static int give_up_hoard(void *context, int device) {
  assert_ptr_equal(context, &host);
  host.calls++;
  host.device = device;
  if (host.hoard)
    assert_ok(weir_allocator_free(allocator, host.hoard)); /* no lock is held */
  host.hoard = NULL;
  return host.answer;
}

TEST(callback_frees_memory) {
  open(NULL);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = give_up_hoard, .context = &host)));
  host.calls = 0;
  host.answer = 1;
  host.hoard = NULL;
  void *hoard = get(100 * MIB, NULL);
  assert_int_equal(host.calls, 1); /* before a new segment is created */
  host.hoard = hoard;
  void *p = get(100 * MIB, NULL);
  assert_int_equal(host.calls, 2);
  assert_int_equal(host.device, 0);
  assert_ptr_equal(p, hoard);
  assert_int_equal(reserved(), 100 * MIB);
  put(p);
  put(get(100 * MIB, NULL)); /* not if a cached block fits */
  assert_int_equal(host.calls, 2);
  alloc_close();
}

/* A callback that freed nothing is trusted. */
TEST(callback_that_frees_nothing) {
  open(NULL);
  host.hoard = get(100 * MIB, NULL);
  void *hoard = host.hoard;
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = give_up_hoard, .context = &host)));
  host.calls = host.answer = 0;
  void *p = get(100 * MIB, NULL);
  assert_int_equal(host.calls, 1);
  assert_ptr_not_equal(p, hoard);
  put(p);
  alloc_close();
}

static int count_call(void *context, int device) {
  (void)device;
  ++*(int *)context;
  return *(int *)context == 1;
}

TEST(all_callbacks_run) {
  open(NULL);
  int counts[WEIR__MAX_OBSERVERS - 1] = {0}, more = 0;
  for (size_t i = 0; i < WEIR_COUNT_OF(counts); i++)
    assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = count_call, .context = &counts[i])));
  assert_error(BAD_STATE, weir_allocator_attach(allocator, OBSERVER(.free_memory = count_call, .context = &more)));
  put(get(512, NULL));
  for (size_t i = 0; i < WEIR_COUNT_OF(counts); i++)
    assert_int_equal(counts[i], 1);
  alloc_close();
}

/* ---- Collection by age ---- */

/* The age counts the searches of the large pool. The first call creates the segment that the others find. */
static void grow_older(int searches) {
  for (int i = 0; i < searches; i++)
    put(get(2 * MIB, WEIR_CU_STREAM_LEGACY));
}

TEST(collects_the_oldest) {
  open("garbage_collection_threshold:0.5");
  assert_ok(weir_allocator_set_limit(allocator, 0, GIB));
  grow_older(1);
  void *a = get(200 * MIB, NULL), *b = get(200 * MIB, NULL), *c = get(200 * MIB, NULL);
  put(a);
  grow_older(10);
  put(b);
  assert_int_equal(reserved(), 620 * MIB);
  void *p = get(250 * MIB, NULL); /* 108 MiB above the threshold */
  assert_false(is_held(a));
  assert_true(is_held(b));
  assert_int_equal(reserved(), 670 * MIB);
  assert_int_equal(stats_of(0).num_alloc_retries, 0);
  put(c);
  put(p);
  alloc_close();
}

TEST(collects_until_below_the_threshold) {
  open("garbage_collection_threshold:0.1");
  grow_older(1);
  void *p[4];
  for (int i = 0; i < 4; i++)
    p[i] = get(100 * MIB, NULL);
  assert_ok(weir_allocator_set_limit(allocator, 0, GIB)); /* set now, so that nothing was collected before */
  for (int i = 0; i < 4; i++) {
    put(p[i]);
    grow_older(5);
  }
  put(get(150 * MIB, NULL)); /* 420 MiB are cached and 102.4 are allowed: 317.6 must be released */
  for (int i = 0; i < 4; i++)
    assert_false(is_held(p[i]));
  alloc_close();
}

/* The mean of the ages is not rounded: of two that differ by one, the older is released, which is enough. */
TEST(mean_age_is_exact) {
  open("garbage_collection_threshold:0.3");
  assert_ok(weir_allocator_set_limit(allocator, 0, GIB));
  put(get(20 * MIB, WEIR_CU_STREAM_LEGACY));
  void *a = get(200 * MIB, NULL), *b = get(200 * MIB, NULL);
  put(a);
  void *c = get(20 * MIB, WEIR_CU_STREAM_LEGACY); /* one search */
  put(b);
  void *p = get(250 * MIB, NULL);
  assert_false(is_held(a));
  assert_true(is_held(b));
  put(c);
  put(p);
  alloc_close();
}

/* A single block has the mean age. */
/* A block freed before collection began is older than one freed after it, even if nothing has happened in its arena
 * since. The calls are direct, because get and put would inspect it. */
TEST(age_from_before_the_limit) {
  open("garbage_collection_threshold:0.3");
  weir_cu_stream other = work_stream();
  void *a = NULL, *b = get(200 * MIB, other), *p = NULL;
  put(get(20 * MIB, WEIR_CU_STREAM_LEGACY));
  put(get(200 * MIB, NULL));
  assert_ok(weir_allocator_alloc(allocator, 0, 200 * MIB, NULL, &a));
  assert_ok(weir_allocator_free(allocator, a));
  assert_ok(weir_allocator_set_limit(allocator, 0, GIB));
  for (int i = 0; i < 5; i++) {
    assert_ok(weir_allocator_alloc(allocator, 0, 20 * MIB, WEIR_CU_STREAM_LEGACY, &p));
    assert_ok(weir_allocator_free(allocator, p));
  }
  assert_ok(weir_allocator_free(allocator, b));
  assert_ok(weir_allocator_alloc(allocator, 0, 250 * MIB, NULL, &p));
  assert_false(is_held(a));
  assert_true(is_held(b));
  put(p);
  alloc_close();
}

TEST(collects_a_single_block) {
  open("garbage_collection_threshold:0.1");
  assert_ok(weir_allocator_set_limit(allocator, 0, GIB));
  void *a = get(200 * MIB, NULL);
  put(a);
  void *p = get(250 * MIB, NULL);
  assert_false(is_held(a));
  put(p);
  alloc_close();
}

TEST(collects_only_with_a_fraction) {
  open("garbage_collection_threshold:0.1");
  void *a = get(400 * MIB, NULL);
  put(a);
  void *p = get(500 * MIB, NULL);
  assert_true(is_held(a));
  put(p);
  alloc_close();
}

/* A fraction of 1 disables it, also after a smaller one. */
TEST(collects_nothing_with_a_fraction_of_1) {
  open("garbage_collection_threshold:0.1");
  double fraction = 9;
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.5));
  assert_ok(weir_allocator_set_fraction(allocator, 0, 1));
  assert_ok(weir_allocator_get_fraction(allocator, 0, &fraction));
  assert_true(fraction == 1);
  void *a = get(400 * MIB, NULL);
  put(a);
  void *p = get(500 * MIB, NULL), *q;
  assert_true(is_held(a));
  assert_int_equal(try_get(600 * MIB, NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  assert_null(strstr(weir_last_error(), "allowed"));
  put(p);
  alloc_close();
}

TEST(collects_nothing_below_the_threshold) {
  open("garbage_collection_threshold:0.5");
  assert_ok(weir_allocator_set_limit(allocator, 0, GIB));
  void *a = get(512 * MIB, NULL); /* exactly the threshold */
  put(a);
  void *p = get(100 * MIB, WEIR_CU_STREAM_LEGACY);
  assert_true(is_held(a));
  put(p);
  alloc_close();
}

/* Partly used segments, small blocks, expandable segments and private pools are not collected. */
TEST(collects_whole_large_segments_only) {
  open("garbage_collection_threshold:0.01");
  assert_ok(weir_allocator_set_limit(allocator, 0, GIB));
  const weir_pool_id id = {0, 5};
  void *half = get(4 * MIB, NULL), *other_half = get(4 * MIB, NULL), *small = get(512, NULL);
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *private_block = get(30 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  configure("expandable_segments:True");
  void *page = get(20 * MIB, NULL);
  configure("expandable_segments:False");
  grow_older(1);
  put(half);
  put(small);
  put(private_block);
  put(page);
  grow_older(20);
  void *p = get(100 * MIB, NULL);
  assert_true(is_held(half) && is_held(small) && is_held(private_block) && is_held(page));
  put(other_half);
  put(p);
  alloc_close();
}

static weir_cu_result free_nothing(weir_driver *self, weir_cu_deviceptr pointer) {
  (void)self, (void)pointer;
  return WEIR_CU_UNKNOWN;
}

/* A driver that refuses every release: the collection still ends. */
TEST(collection_with_a_driver_that_fails) {
  open("garbage_collection_threshold:0.1");
  grow_older(1);
  void *p[3];
  for (int i = 0; i < 3; i++)
    p[i] = get(100 * MIB, NULL);
  assert_ok(weir_allocator_set_limit(allocator, 0, GIB)); /* set now, so that nothing was collected before */
  for (int i = 0; i < 3; i++) {
    put(p[i]);
    grow_older(3);
  }
  weir_cu_result (*free_memory)(weir_driver *, weir_cu_deviceptr) = faults->MemFree;
  faults->MemFree = free_nothing;
  void *q = get(150 * MIB, NULL);
  for (int i = 0; i < 3; i++)
    assert_true(is_held(p[i]));
  faults->MemFree = free_memory;
  put(q);
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* ---- Oversize blocks ---- */

/* Caches blocks of these sizes on the legacy stream and allocates the rest of the gigabyte. */
static void *fill_with_oversize(const size_t *sizes, int count, void **blocks) {
  size_t sum = 0;
  for (int i = 0; i < count; i++) {
    blocks[i] = get(sizes[i], NULL);
    sum += sizes[i];
  }
  void *rest = get(GIB - sum, WEIR_CU_STREAM_LEGACY);
  for (int i = 0; i < count; i++)
    put(blocks[i]);
  assert_int_equal(reserved(), GIB);
  return rest;
}

TEST(releases_the_smallest_sufficient_block) {
  open("max_split_size_mb:40");
  void *b[3];
  void *rest = fill_with_oversize((const size_t[]){150 * MIB, 100 * MIB, 50 * MIB}, 3, b);
  void *p = get(70 * MIB, NULL); /* 100 MiB is too large to serve 70, but can be released */
  assert_false(is_held(b[1]));
  assert_true(is_held(b[0]) && is_held(b[2]));
  assert_int_equal(stats_of(0).num_alloc_retries, 0); /* not everything was released */
  assert_int_equal(reserved(), GIB - 30 * MIB);
  put(p);
  put(rest);
  alloc_close();
}

TEST(releases_several_the_largest_first) {
  open("max_split_size_mb:40");
  void *b[4];
  void *rest = fill_with_oversize((const size_t[]){100 * MIB, 60 * MIB, 90 * MIB, 50 * MIB}, 4, b);
  void *p = get(180 * MIB, NULL);
  assert_int_equal(stats_of(0).num_alloc_retries, 0);
  assert_int_equal(reserved(), GIB - 10 * MIB); /* 100 and 90 were released */
  assert_true(is_held(b[1]) && is_held(b[3]));
  put(p);
  put(rest);
  alloc_close();
}

/* A request below the limit releases one block above it. */
TEST(releases_for_a_small_request) {
  open("max_split_size_mb:40");
  void *b[2];
  void *rest = fill_with_oversize((const size_t[]){60 * MIB, 50 * MIB}, 2, b);
  void *p = get(2 * MIB, NULL);
  assert_int_equal(stats_of(0).num_alloc_retries, 0);
  assert_true(is_held(b[0]));
  assert_int_equal(reserved(), GIB - 30 * MIB); /* 50 were released, 20 allocated */
  put(p);
  put(rest);
  alloc_close();
}

/* Only blocks of the requesting stream; if they are not enough, everything is released. */
TEST(oversize_of_another_stream) {
  open("max_split_size_mb:40");
  void *b[1];
  void *rest = fill_with_oversize((const size_t[]){100 * MIB}, 1, b);
  void *p = get(70 * MIB, work_stream());
  assert_int_equal(stats_of(0).num_alloc_retries, 1);
  put(p);
  put(rest);
  alloc_close();
}

/* The limit was set after a segment was split: a free part that is larger than the limit is not a whole segment. */
TEST(split_block_above_a_new_limit) {
  open(NULL);
  void *a = get(500 * MIB, NULL), *rest = get(524 * MIB, WEIR_CU_STREAM_LEGACY), *p;
  put(a);
  a = get(100 * MIB, NULL);
  assert_layout(a, "100M* 400M");
  ((char *)a)[0] = 1;
  configure("max_split_size_mb:40");
  assert_int_equal(try_get(300 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(try_get(30 * MIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  ((char *)a)[100 * MIB - 1] = 1; /* still mapped */
  assert_layout(a, "100M* 400M");
  p = get(390 * MIB, NULL);
  assert_layout(a, "100M* 400M*");
  put(p);
  put(a);
  put(rest);
  alloc_close();
}

/* ---- Everything ---- */

TEST(releases_everything_and_retries) {
  open(NULL);
  void *a = get(300 * MIB, NULL), *b = get(300 * MIB, work_stream()), *s = get(512, NULL);
  void *half = get(2 * MIB, NULL), *other_half = get(2 * MIB, NULL);
  put(a);
  put(b);
  put(s);
  put(half);
  void *p = get(900 * MIB, NULL);
  assert_false(is_held(a));
  assert_true(is_held(half)); /* partly in use */
  weir_allocator_stats stats = stats_of(0);
  assert_int_equal(stats.num_alloc_retries, 1);
  assert_int_equal(stats.num_sync_all_streams, 1);
  assert_int_equal(stats.num_device_free, 3);
  assert_int_equal(stats.num_ooms, 0);
  assert_int_equal(reserved(), 920 * MIB);
  put(other_half);
  put(p);
  alloc_close();
}

/* PyTorch's issue 189504: waiting for the events frees the requested block, but its segment is in use, so the driver
 * has no more memory than before. The allocator must search again. */
TEST(searches_again_after_the_events) {
  for (int expandable = 0; expandable < 2; expandable++) {
    open(expandable ? "expandable_segments:True" : NULL);
    weir_cu_stream other = work_stream();
    void *anchor = get(2 * MIB, NULL), *p = get(9 * MIB, NULL);
    void *rest = get(1000 * MIB, WEIR_CU_STREAM_LEGACY);
    work(other);
    also_used_by(p, other);
    put(p);
    void *fill = get(9 * MIB, NULL); /* the rest of the 20 MiB */
    void *q = get(9 * MIB, NULL);
    assert_ptr_equal(q, p);
    assert_int_equal(stats_of(0).num_ooms, 0);
    assert_int_equal(stats_of(0).num_alloc_retries, 1);
    put(anchor);
    put(rest);
    put(fill);
    put(q);
    alloc_close();
  }
}

/* PyTorch's test_out_of_memory_retry. */
TEST(seed_out_of_memory_retry) {
  open(NULL);
  size_t size = (size_t)(0.51 * GIB);
  void *a = get(size, NULL), *b;
  assert_int_equal(try_get(size, NULL, &b), WEIR_ERROR_OUT_OF_MEMORY);
  put(a);
  b = get(size, NULL);
  put(b);
  empty_cache();
  alloc_close();
}

/* Memory of other programs on the device counts as well. */
TEST(memory_of_other_programs) {
  open(NULL);
  weir_cu_deviceptr foreign = soft_alloc(900 * MIB);
  void *p = NULL;
  assert_error_says(OUT_OF_MEMORY, "of which 124.00 MiB is free",
                    weir_allocator_alloc(allocator, 0, 200 * MIB, NULL, &p));
  assert_cu(d->MemFree(d, foreign));
  put(get(200 * MIB, NULL));
  alloc_close();
}
