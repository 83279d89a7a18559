/*
 * Out of memory: the status, the error text, the observers, and that the program can continue.
 */
#include <string.h>

#include "support/alloc.h"

static void refuse(size_t bytes, const char *words) {
  void *p = NULL;
  assert_error_says(OUT_OF_MEMORY, words, weir_allocator_alloc(allocator, 0, bytes, NULL, &p));
  assert_null(p);
  assert_valid();
}

/* ---- The text ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(text_accounts_for_all_memory) {
  alloc_open(NULL, GIB);
  void *p = get(900 * MIB, NULL), *q = get(2 * MIB, NULL), *s = get(MIB / 2, NULL), *r = NULL;
  weir_cu_deviceptr foreign = soft_alloc(100 * MIB);
  assert_error_says(OUT_OF_MEMORY,
                    "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 1024.00 MiB of "
                    "which 2.00 MiB is free. Of the allocated memory 902.50 MiB is allocated by Weir, and 19.50 MiB is "
                    "reserved by Weir but unallocated. ",
                    weir_allocator_alloc(allocator, 0, 30 * MIB + 1, NULL, &r));
  assert_non_null(strstr(weir_last_error(), "expandable_segments:True"));
  assert_null(strstr(weir_last_error(), "allowed;"));
  assert_null(strstr(weir_last_error(), "private pools"));
  assert_cu(d->MemFree(d, foreign));
  put(p);
  put(q);
  put(s);
  alloc_close();
}

/* The segment could not be allocated: 20 MiB for a request of 2 MiB. */
TEST(text_names_the_segment_size) {
  alloc_open(NULL, GIB);
  void *p = get(GIB - 2 * MIB, NULL), *q = get(512, NULL), *r;
  refuse(2 * MIB, "Tried to allocate 20.00 MiB.");
  refuse(MIB + 1, "Tried to allocate 20.00 MiB.");
  r = get(MIB, NULL);
  refuse(MIB, "Tried to allocate 2.00 MiB.");
  put(p);
  put(q);
  put(r);
  alloc_close();
}

TEST(text_names_the_limit) {
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.25));
  refuse(300 * MIB, "of which 1024.00 MiB is free. 256.00 MiB allowed; Of the allocated memory 0 bytes is allocated by "
                    "Weir, ");
  alloc_close();
}

/* Free memory of private pools is not available to others, so it counts as allocated. */
TEST(text_names_private_pools) {
  alloc_open(NULL, GIB);
  const weir_pool_id id = {0, 3};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *p = get(100 * MIB, NULL), *q = get(60 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  put(p);
  void *r = get(2 * MIB, NULL);
  refuse(GIB, "Of the allocated memory 162.00 MiB is allocated by Weir, with 100.00 MiB allocated in private pools "
              "(e.g., CUDA Graphs), and 18.00 MiB is reserved by Weir but unallocated.");
  put(q);
  put(r);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

/* The advice is given only if the setting is off. */
TEST(no_advice_with_expandable_segments) {
  alloc_open("expandable_segments:True", GIB);
  refuse(2 * GIB, "is reserved by Weir but unallocated.");
  assert_null(strstr(weir_last_error(), "expandable_segments:True"));
  alloc_close();
}

TEST(text_names_the_device) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  void *p = NULL;
  assert_error_says(OUT_OF_MEMORY, "GPU 1 has a total capacity", weir_allocator_alloc(allocator, 1, 2 * GIB, NULL, &p));
  alloc_close();
}

/* ---- Observers ---- */

static struct {
  int calls, device;
  size_t bytes, limit, free_bytes;
  int64_t ooms;
  bool works;
} seen;

static void observe(void *context, const weir_shortage *shortage) {
  assert_ptr_equal(context, &seen);
  seen.calls++;
  seen.device = shortage->device;
  seen.bytes = shortage->wanted;
  seen.limit = shortage->limit;
  seen.free_bytes = shortage->device_free;
  /* The observer may make any call: no lock is held. */
  seen.ooms = stats_of(shortage->device).num_ooms;
  void *p = NULL;
  seen.works = weir_allocator_alloc(allocator, shortage->device, 512, NULL, &p) == WEIR_OK &&
               weir_allocator_free(allocator, p) == WEIR_OK && weir_allocator_empty_cache(allocator) == WEIR_OK;
}

TEST(observer_is_called) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = observe, .context = &seen)));
  memset(&seen, 0, sizeof seen);
  void *kept = get_on(1, 100 * MIB, NULL), *p = NULL;
  /* The error text is not that of the observer. */
  assert_error_says(OUT_OF_MEMORY, "Tried to allocate 2.00 GiB",
                    weir_allocator_alloc(allocator, 1, 2 * GIB - 5, NULL, &p));
  assert_int_equal(seen.calls, 1);
  assert_int_equal(seen.device, 1);
  assert_int_equal(seen.bytes, 2 * GIB);
  assert_int_equal(seen.limit, GIB);
  assert_int_equal(seen.free_bytes, GIB - 100 * MIB);
  assert_int_equal(seen.ooms, 1); /* counted before the call */
  assert_true(seen.works);
  assert_ok(weir_allocator_set_fraction(allocator, 1, 0.25));
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 1, 200 * MIB, NULL, &p));
  assert_int_equal(seen.calls, 2);
  assert_int_equal(seen.limit, 256 * MIB); /* the limit, if there is one */
  put(kept);
  alloc_close();
}

/* The limit is rounded, not truncated. */
TEST(limit_is_rounded) {
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = observe, .context = &seen)));
  void *p = NULL;
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.3)); /* of 1073741824: 322122547.2 */
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, GIB, NULL, &p));
  assert_int_equal(seen.limit, 322122547);
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.7)); /* 751619276.8 */
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, GIB, NULL, &p));
  assert_int_equal(seen.limit, 751619277);
  alloc_close();
}

static void count_call(void *context, const weir_shortage *shortage) {
  (void)shortage;
  ++*(int *)context;
}

TEST(all_observers_are_called) {
  alloc_open(NULL, GIB);
  int counts[WEIR__MAX_OBSERVERS] = {0};
  for (int i = 0; i < WEIR__MAX_OBSERVERS; i++)
    assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = count_call, .context = &counts[i])));
  assert_error(BAD_STATE,
               weir_allocator_attach(allocator, OBSERVER(.out_of_memory = count_call, .context = &counts[0])));
  refuse(2 * GIB, "");
  for (int i = 0; i < WEIR__MAX_OBSERVERS; i++)
    assert_int_equal(counts[i], 1);
  refuse(SIZE_MAX, ""); /* larger than any device, so observers are not called */
  for (int i = 0; i < WEIR__MAX_OBSERVERS; i++)
    assert_int_equal(counts[i], 1);
  alloc_close();
}

static void detach_itself(void *context, const weir_shortage *shortage) {
  ++*(int *)context;
  if (!shortage->is_rejection)
    assert_ok(weir_allocator_detach(allocator, OBSERVER(.out_of_memory = detach_itself, .context = context)));
}

TEST(detached_observers_are_not_called) {
  alloc_open(NULL, GIB);
  int first = 0, second = 0;
  const weir_observer *one = OBSERVER(.out_of_memory = count_call, .context = &first);
  assert_ok(weir_allocator_attach(allocator, one));
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = detach_itself, .context = &second)));
  refuse(2 * GIB, "");
  assert_ok(weir_allocator_detach(allocator, one));
  refuse(2 * GIB, "");
  assert_int_equal(first, 1);
  assert_int_equal(second, 1);
  assert_error_says(INVALID_ARGUMENT, "no observer", weir_allocator_detach(allocator, one));
  for (int i = 0; i < WEIR__MAX_OBSERVERS; i++) /* both places are free again */
    assert_ok(weir_allocator_attach(allocator, one));
  alloc_close();
}

/* ---- The facts ---- */

TEST(last_shortage) {
  weir_shortage shortage;
  weir_shortage_init(&shortage);
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_set_limit(allocator, 0, 512 * MIB));
  void *kept = get(100 * MIB, NULL), *p;
  put(get(30 * MIB, NULL));
  refuse(600 * MIB - 5, "");
  assert_ok(weir_last_shortage(&shortage));
  assert_int_equal(shortage.device, 0);
  assert_false(shortage.is_rejection);
  assert_int_equal(shortage.requested, 600 * MIB);
  assert_int_equal(shortage.wanted, 600 * MIB);
  assert_int_equal(shortage.limit, 512 * MIB);
  assert_int_equal(shortage.total, GIB);
  assert_int_equal(shortage.allocated, 100 * MIB);
  assert_int_equal(shortage.reserved, 100 * MIB); /* the rest was released before the request failed */
  assert_int_equal(shortage.device_free, GIB - 100 * MIB);
  assert_int_equal(shortage.free_in_private_pools, 0);
  put(kept);
  assert_ok(weir_last_shortage(&shortage)); /* calls that succeed do not change it */
  assert_error(INVALID_DEVICE, weir_allocator_alloc(allocator, 7, 512, NULL, &p));
  assert_error(BAD_STATE, weir_last_shortage(&shortage));
  refuse(SIZE_MAX, "");
  assert_error(BAD_STATE, weir_last_shortage(&shortage)); /* larger than any device: there are no facts */
  alloc_close();
}

/* The names in the text are those of the program that uses the allocator. */
TEST(owner_and_advice) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "";
  options.owner = "Program";
  options.advice = " Buy a larger device.";
  alloc_open_with(&options);
  refuse(2 * GIB, "allocated by Program, and 0 bytes is reserved by Program but unallocated. Buy a larger device.");
  assert_null(strstr(weir_last_error(), "Weir"));
  alloc_close();
}

/* ---- Continuing ---- */

TEST(counts_and_continues) {
  alloc_open(NULL, GIB);
  void *p = get(600 * MIB, NULL);
  for (int i = 0; i < 5; i++)
    refuse(600 * MIB, "");
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(s.num_ooms, 5);
  assert_int_equal(s.num_alloc_retries, 5);
  assert_int_equal(s.allocation[WEIR_STAT_ALL].current, 1);
  void *q = get(400 * MIB, NULL);
  put(p);
  put(q);
  put(get(1000 * MIB, NULL));
  alloc_close();
}

/* PyTorch's test_raises_oom, both ways, and test_notifies_oom. */
TEST(seed_raises_oom) {
  for (int i = 0; i < 2; i++) {
    alloc_open(i ? "max_split_size_mb:1024" : NULL, GIB);
    assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = observe, .context = &seen)));
    memset(&seen, 0, sizeof seen);
    empty_cache();
    refuse(4096 * GIB, "Tried to allocate 4096.00 GiB");
    assert_int_equal(seen.calls, 1);
    alloc_close();
  }
}

/* ---- Trackers ---- */

enum { MAX = 64 };
static weir_trace_entry entries[MAX];
static int entry_count;

static void track(void *context, const weir_trace_entry *entry) {
  (void)context;
  if (entry_count < MAX)
    entries[entry_count++] = *entry;
}

static void expect_entry(int at, weir_trace_action action, const void *address, uint64_t bytes, weir_cu_stream stream) {
  assert_true(at < entry_count);
  assert_int_equal(entries[at].action, action);
  assert_int_equal(entries[at].address, (uint64_t)address);
  assert_int_equal(entries[at].bytes, bytes);
  assert_ptr_equal(entries[at].stream, stream);
}

TEST(tracker_sees_all_in_order) {
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = track)));
  entry_count = 0;
  weir_cu_stream stream = work_stream(), other = work_stream();
  void *p = get(1000, stream);
  also_used_by(p, other);
  put(p);
  soft_step_all();
  void *q = get(1000, stream), *r;
  put(q);
  empty_cache();
  assert_int_equal(try_get(2 * GIB - 100, stream, &r), WEIR_ERROR_OUT_OF_MEMORY);
  assert_ptr_equal(p, q);
  expect_entry(0, WEIR_TRACE_SEGMENT_ALLOC, p, 2 * MIB, stream);
  expect_entry(1, WEIR_TRACE_ALLOC, p, 1000, stream);
  expect_entry(2, WEIR_TRACE_FREE_REQUESTED, p, 1000, stream);
  expect_entry(3, WEIR_TRACE_FREE_COMPLETED, p, 1000, stream);
  expect_entry(4, WEIR_TRACE_ALLOC, p, 1000, stream);
  expect_entry(5, WEIR_TRACE_FREE_REQUESTED, p, 1000, stream);
  expect_entry(6, WEIR_TRACE_FREE_COMPLETED, p, 1000, stream);
  expect_entry(7, WEIR_TRACE_SEGMENT_FREE, p, 2 * MIB, stream);
  /* The address is the free memory of the device, and the size is rounded. */
  expect_entry(8, WEIR_TRACE_OOM, (void *)(uintptr_t)GIB, 2 * GIB, stream);
  assert_int_equal(entry_count, 9);
  for (int i = 0; i < 9; i++) {
    assert_int_equal(entries[i].device, 0);
    assert_int_equal(entries[i].pool.first, 0);
    assert_int_equal(entries[i].pool.second, 0);
  }
  alloc_close();
}

TEST(tracker_of_pages_and_pools) {
  alloc_open("expandable_segments:True", GIB);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = track)));
  entry_count = 0;
  const weir_pool_id id = {7, 0};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  char *p = get(30 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  put(p);
  assert_ok(weir_pool_release(allocator, 0, id));
  empty_cache();
  expect_entry(0, WEIR_TRACE_SEGMENT_MAP, p, 40 * MIB, NULL);
  expect_entry(1, WEIR_TRACE_ALLOC, p, 30 * MIB, NULL);
  expect_entry(2, WEIR_TRACE_FREE_REQUESTED, p, 30 * MIB, NULL);
  expect_entry(3, WEIR_TRACE_FREE_COMPLETED, p, 30 * MIB, NULL);
  expect_entry(4, WEIR_TRACE_SEGMENT_UNMAP, p, 40 * MIB, NULL);
  assert_int_equal(entry_count, 5);
  for (int i = 0; i < 5; i++)
    assert_int_equal(entries[i].pool.first, 7);
  alloc_close();
}

TEST(tracker_limit) {
  alloc_open(NULL, GIB);
  for (int i = 0; i < WEIR__MAX_OBSERVERS; i++)
    assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = track)));
  assert_error(BAD_STATE, weir_allocator_attach(allocator, OBSERVER(.entry = track)));
  entry_count = 0;
  put(get(512, NULL));
  assert_int_equal(entry_count, 4 * WEIR__MAX_OBSERVERS);
  alloc_close();
}
