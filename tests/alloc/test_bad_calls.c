/*
 * Refused calls: their status, their error text, and that they change nothing.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "support/alloc.h"

static const weir_pool_id some_pool = {0, 77};

FIXTURE(.teardown = alloc_teardown)

TEST(zero_bytes) {
  alloc_open(NULL, GIB);
  void *p = &p;
  assert_ok(weir_allocator_alloc(allocator, 0, 0, NULL, &p));
  assert_null(p);
  put(p);
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].allocated, 0);
  assert_int_equal(calls(WEIR_CALL_MemAlloc), 0);
  alloc_close();
}

TEST(null) {
  alloc_open(NULL, GIB);
  void *p;
  size_t bytes;
  assert_error(INVALID_ARGUMENT, weir_allocator_alloc(NULL, 0, 512, NULL, &p));
  assert_error_says(INVALID_ARGUMENT, "pointer", weir_allocator_alloc(allocator, 0, 512, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_free(NULL, &p));
  assert_ok(weir_allocator_free(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_record_stream(NULL, &p, NULL));
  assert_ok(weir_allocator_record_stream(allocator, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_empty_cache(NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_empty_pool(NULL, some_pool));
  assert_error(INVALID_ARGUMENT, weir_allocator_largest_block(NULL, 0, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_largest_block(allocator, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(NULL, &p, &p, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(allocator, NULL, &p, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(allocator, &p, NULL, &bytes));
  assert_error(INVALID_ARGUMENT, weir_allocator_base(allocator, &p, &p, NULL));
  double fraction;
  assert_error(INVALID_ARGUMENT, weir_allocator_set_fraction(NULL, 0, 0.5));
  assert_error(INVALID_ARGUMENT, weir_allocator_get_fraction(NULL, 0, &fraction));
  assert_error(INVALID_ARGUMENT, weir_allocator_get_fraction(allocator, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_configure(NULL, ""));
  assert_error(INVALID_ARGUMENT, weir_allocator_configure(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_set_caching(NULL, 1));
  weir_allocator_stats stats = {.size = sizeof stats};
  assert_error(INVALID_ARGUMENT, weir_allocator_get_stats(NULL, 0, &stats));
  assert_error(INVALID_ARGUMENT, weir_allocator_get_stats(allocator, 0, NULL));
  stats.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_allocator_get_stats(allocator, 0, &stats));
  assert_error(INVALID_ARGUMENT, weir_allocator_reset_peak_stats(NULL, 0));
  assert_error(INVALID_ARGUMENT, weir_allocator_reset_accumulated_stats(NULL, 0));
  assert_error(INVALID_ARGUMENT, weir_allocator_attach(allocator, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_enable_peer_access(NULL, 0, 0));
  assert_error(INVALID_ARGUMENT, weir_allocator_copy_async(NULL, &p, 0, &p, 0, 1, NULL, 0));
  weir_allocator_destroy(NULL);
  assert_backend("native");
  alloc_close();
}

TEST(null_at_creation) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  weir_allocator *made = NULL;
  assert_error_says(INVALID_ARGUMENT, "driver", weir_allocator_create(NULL, NULL, &made));
  assert_error_says(INVALID_ARGUMENT, "allocator", weir_allocator_create(d, NULL, NULL));
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "max_split_size_mb:nine";
  assert_error_says(INVALID_ARGUMENT, "max_split_size_mb", weir_allocator_create(d, &options, &made));
  options.conf = "";
  options.devices = 2;
  assert_error_says(INVALID_ARGUMENT, "2 devices", weir_allocator_create(d, &options, &made));
  options.devices = -1;
  assert_error(INVALID_ARGUMENT, weir_allocator_create(d, &options, &made));
  assert_null(made);
  alloc_close();
}

TEST(no_such_device) {
  alloc_open(NULL, GIB);
  static const int numbers[] = {1, -1, INT_MAX, INT_MIN};
  for (int i = 0; i < 4; i++) {
    int number = numbers[i];
    void *p = NULL;
    size_t bytes;
    double fraction;
    weir_allocator_stats stats = {.size = sizeof stats};
    assert_error_says(INVALID_DEVICE, "there are 1", weir_allocator_alloc(allocator, number, 512, NULL, &p));
    assert_null(p);
    assert_error(INVALID_DEVICE, weir_allocator_largest_block(allocator, number, &bytes));
    assert_error(INVALID_DEVICE, weir_allocator_set_fraction(allocator, number, 0.5));
    assert_error(INVALID_DEVICE, weir_allocator_get_fraction(allocator, number, &fraction));
    assert_error(INVALID_DEVICE, weir_allocator_get_stats(allocator, number, &stats));
    assert_error(INVALID_DEVICE, weir_allocator_reset_peak_stats(allocator, number));
    assert_error(INVALID_DEVICE, weir_allocator_reset_accumulated_stats(allocator, number));
    assert_error(INVALID_DEVICE, weir_allocator_enable_peer_access(allocator, number, 0));
    assert_error(INVALID_DEVICE, weir_allocator_enable_peer_access(allocator, 0, number));
    assert_error(INVALID_DEVICE, weir_allocator_copy_async(allocator, &p, number, &p, 0, 1, NULL, 0));
    assert_error(INVALID_DEVICE, weir_allocator_copy_async(allocator, &p, 0, &p, number, 1, NULL, 0));
    assert_error(INVALID_DEVICE, weir_pool_create(allocator, number, some_pool, NULL));
    assert_error(INVALID_DEVICE, weir_pool_begin(allocator, number, some_pool, NULL, NULL));
  }
  alloc_close();
}

/* A device with more memory than one block can have: a request that is too large for a block is refused, and the rest
 * of the memory is available. */
TEST(more_than_a_block) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open(expandable ? "expandable_segments:True" : "", 8192 * GIB);
    void *p = NULL;
    assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 3072 * GIB, NULL, &p));
    assert_null(p);
    assert_valid();
    assert_int_equal(reserved(), 0);
    void *a = get(GIB, NULL), *b = get(4096, NULL);
    assert_valid();
    put(a);
    put(b);
    empty_cache();
    assert_int_equal(reserved(), 0);
    alloc_close();
  }
}

/* The error texts that PyTorch's test_out_of_memory expects. */
TEST(absurd_sizes) {
  alloc_open(NULL, GIB);
  void *kept = get(1024, NULL), *p = NULL;
  assert_error_says(OUT_OF_MEMORY,
                    "CUDA out of memory. Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of 1024.00 MiB",
                    weir_allocator_alloc(allocator, 0, 800000000 * GIB, NULL, &p));
  static const char more[] = "CUDA out of memory. Tried to allocate more than 1EB memory.";
  assert_error_says(OUT_OF_MEMORY, more, weir_allocator_alloc(allocator, 0, 8000000000 * GIB, NULL, &p));
  assert_error_says(OUT_OF_MEMORY, more, weir_allocator_alloc(allocator, 0, 1ull << 60, NULL, &p));
  assert_error_says(OUT_OF_MEMORY, more, weir_allocator_alloc(allocator, 0, SIZE_MAX, NULL, &p));
  assert_error_says(OUT_OF_MEMORY, "Tried to allocate 1073741824.00 GiB",
                    weir_allocator_alloc(allocator, 0, (1ull << 60) - 1, NULL, &p));
  configure("roundup_power2_divisions:8");
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, (1ull << 60) - 1, NULL, &p));
  configure("expandable_segments:True");
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, (1ull << 60) - 1, NULL, &p));
  assert_null(p);
  assert_valid();
  /* The device still works. */
  assert_cu(d->MemsetD8Async(d, (weir_cu_deviceptr)kept, 7, 1024, NULL));
  soft_step_all();
  put(kept);
  put(get(1024, NULL));
  alloc_close();
}

TEST(double_free) {
  alloc_open(NULL, GIB);
  void *p = get(4 * KIB, NULL), *q = get(4 * KIB, NULL);
  char words[64];
  snprintf(words, sizeof words, "invalid device pointer: %p", p);
  put(p);
  assert_error_says(INVALID_ARGUMENT, words, weir_allocator_free(allocator, p));
  assert_non_null(strstr(weir_last_error(), "it was already freed"));
  put(q); /* merged: there is no block at q any more */
  assert_error_says(INVALID_ARGUMENT, "it was already freed", weir_allocator_free(allocator, q));
  assert_error_says(INVALID_ARGUMENT, "it was already freed",
                    weir_allocator_record_stream(allocator, q, work_stream()));
  empty_cache();
  assert_error_says(INVALID_ARGUMENT, "freed and returned to the driver", weir_allocator_free(allocator, p));
  assert_valid();
  alloc_close();
}

/* Freed and waiting for another stream, so the caller no longer owns it. */
TEST(double_free_of_a_waiting_block) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  void *p = get(4 * KIB, NULL);
  work(other);
  also_used_by(p, other);
  put(p);
  assert_error_says(INVALID_ARGUMENT, "it was already freed, and waits for other streams",
                    weir_allocator_free(allocator, p));
  assert_error(INVALID_ARGUMENT, weir_allocator_record_stream(allocator, p, NULL));
  assert_valid();
  soft_step_all();
  alloc_close();
}

TEST(foreign_and_interior_pointers) {
  alloc_open(NULL, GIB);
  char *p = get(4 * KIB, NULL);
  weir_cu_deviceptr driver_memory = soft_alloc(4096);
  int on_stack;
  void *foreign[] = {p + 1,
                     p + 512,
                     p + 4 * KIB,
                     p + 2 * MIB,
                     p - 1,
                     &on_stack,
                     (void *)1,
                     (void *)(uintptr_t)driver_memory,
                     (void *)(1ull << 60),
                     (void *)UINTPTR_MAX};
  for (size_t i = 0; i < WEIR_COUNT_OF(foreign); i++) {
    void *base = p;
    size_t bytes = 1;
    assert_error_says(INVALID_ARGUMENT, "invalid device pointer", weir_allocator_free(allocator, foreign[i]));
    assert_error_says(INVALID_ARGUMENT, "invalid device pointer",
                      weir_allocator_record_stream(allocator, foreign[i], work_stream()));
    assert_error_says(INVALID_ARGUMENT, "invalid device pointer",
                      weir_allocator_base(allocator, foreign[i], &base, &bytes));
    assert_ptr_equal(base, p);
  }
  assert_error_says(INVALID_ARGUMENT, "it is 512 bytes into the live allocation at",
                    weir_allocator_free(allocator, foreign[1]));
  assert_error_says(INVALID_ARGUMENT, "never allocated: the memory there is free",
                    weir_allocator_free(allocator, foreign[2]));
  assert_error_says(INVALID_ARGUMENT, "this allocator has no memory there", weir_allocator_free(allocator, &on_stack));
  assert_cu(d->MemFree(d, driver_memory));
  assert_valid();
  put(p);
  alloc_close();
}

/* A double free in an expandable segment, whose pages may be unmapped. */
TEST(double_free_in_an_expandable_segment) {
  alloc_open("expandable_segments:True", GIB);
  void *p = get(40 * MIB, NULL), *q = get(40 * MIB, NULL);
  put(q);
  assert_error_says(INVALID_ARGUMENT, "it was already freed", weir_allocator_free(allocator, q));
  empty_cache();
  assert_error_says(INVALID_ARGUMENT, "freed and returned to the driver", weir_allocator_free(allocator, q));
  put(p);
  alloc_close();
}

/* Each of two allocators knows only its own memory. */
TEST(pointer_of_another_allocator) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  weir_allocator *one = alloc_create(NULL), *two = alloc_create("expandable_segments:True");
  void *p, *q;
  assert_ok(weir_allocator_alloc(one, 0, 512, NULL, &p));
  assert_ok(weir_allocator_alloc(two, 0, 512, NULL, &q));
  assert_error(INVALID_ARGUMENT, weir_allocator_free(two, p));
  assert_error(INVALID_ARGUMENT, weir_allocator_free(one, q));
  assert_ok(weir_allocator_free(one, p));
  assert_ok(weir_allocator_free(two, q));
  weir_allocator_destroy(one);
  weir_allocator_destroy(two);
  alloc_close();
}

TEST(bad_fractions) {
  alloc_open(NULL, GIB);
  static const double bad[] = {-0.1, 1.0001, 2, -INFINITY, INFINITY, NAN};
  double fraction = 9;
  for (size_t i = 0; i < WEIR_COUNT_OF(bad); i++)
    assert_error_says(INVALID_ARGUMENT, "invalid fraction:", weir_allocator_set_fraction(allocator, 0, bad[i]));
  assert_error_says(INVALID_ARGUMENT, "invalid fraction:2. Please set within [0, 1].",
                    weir_allocator_set_fraction(allocator, 0, 2));
  assert_ok(weir_allocator_get_fraction(allocator, 0, &fraction));
  assert_true(fraction == 1);
  alloc_close();
}

TEST(bad_settings_change_nothing) {
  alloc_open("max_split_size_mb:64", GIB);
  char before[256], after[256];
  weir_allocator_settings(allocator, before, sizeof before, NULL);
  assert_error_says(INVALID_ARGUMENT, "no_such_key",
                    weir_allocator_configure(allocator, "max_split_size_mb:128,no_such_key:1"));
  assert_error_says(INVALID_ARGUMENT, "expandable_segments",
                    weir_allocator_configure(allocator, "max_split_size_mb:128,expandable_segments:yes"));
  weir_allocator_settings(allocator, after, sizeof after, NULL);
  assert_string_equal(before, after);
  assert_int_equal(stats_of(0).max_split_size, 64 * MIB);
  configure("expandable_segments:True"); /* one key leaves the others unchanged */
  assert_int_equal(stats_of(0).max_split_size, 64 * MIB);
  alloc_close();
}

static void free_nothing(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)pointer, (void)bytes, (void)device, (void)stream;
}

TEST(bad_pool_calls) {
  alloc_open(NULL, GIB);
  const weir_pool_id none = {0, 0};
  int number;
  assert_error(INVALID_ARGUMENT, weir_pool_create(NULL, 0, some_pool, NULL));
  assert_error_says(INVALID_ARGUMENT, "default pool", weir_pool_create(allocator, 0, none, NULL));
  assert_error_says(INVALID_ARGUMENT, "default pool", weir_pool_begin(allocator, 0, none, NULL, NULL));
  static const char lost[] = "Could not find pool of id {0, 77}";
  assert_error_says(INVALID_ARGUMENT, lost, weir_pool_release(allocator, 0, some_pool));
  assert_error_says(INVALID_ARGUMENT, lost, weir_pool_use_count(allocator, 0, some_pool, &number));
  assert_error(INVALID_ARGUMENT, weir_pool_use_count(allocator, 0, some_pool, NULL));
  assert_error_says(INVALID_ARGUMENT, lost, weir_pool_set_use_on_oom(allocator, 0, some_pool, 1));
  assert_error_says(INVALID_ARGUMENT, lost, weir_pool_has_exactly(allocator, 0, some_pool, NULL, 0, &number));
  assert_error(INVALID_ARGUMENT, weir_pool_has_exactly(allocator, 0, some_pool, NULL, 1, &number));
  assert_error(INVALID_ARGUMENT, weir_pool_has_exactly(allocator, 0, some_pool, NULL, 0, NULL));
  weir_checkpoint *checkpoint = NULL;
  assert_error_says(INVALID_ARGUMENT, lost, weir_pool_checkpoint(allocator, 0, some_pool, &checkpoint));
  assert_error(INVALID_ARGUMENT, weir_pool_checkpoint(allocator, 0, some_pool, NULL));
  assert_null(checkpoint);
  weir_checkpoint_delta delta = {.size = sizeof delta};
  assert_error(INVALID_ARGUMENT, weir_pool_restore(allocator, NULL, &delta));
  assert_error_says(BAD_STATE, "not currently recording to mempool_id", weir_pool_end(allocator, 0, some_pool));
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.free = free_nothing;
  assert_error_says(INVALID_ARGUMENT, "must be given together", weir_pool_create(allocator, 0, some_pool, &options));
  assert_ok(weir_pool_begin(allocator, 0, some_pool, NULL, NULL));
  assert_error_says(BAD_STATE, "already recording to mempool_id {0, 77}",
                    weir_pool_begin(allocator, 0, some_pool, NULL, NULL));
  assert_ok(weir_pool_end(allocator, 0, some_pool));
  assert_ok(weir_pool_release(allocator, 0, some_pool));
  assert_error_says(INVALID_ARGUMENT, lost, weir_pool_release(allocator, 0, some_pool)); /* it has no holder */
  weir_checkpoint_destroy(NULL);
  weir_checkpoint_delta_clear(NULL);
  alloc_close();
}
