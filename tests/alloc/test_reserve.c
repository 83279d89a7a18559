/*
 * The address space that expandable segments reserve, and requests that are refused without a driver call.
 */
#include <string.h>

#include "support/alloc.h"

FIXTURE(.teardown = alloc_teardown)

TEST(part_of_the_device) {
  alloc_open("expandable_segments:True,expandable_segments_reserve:0.5", GIB);
  void *p = get(2 * MIB, NULL);
  assert_layout(p, "2M* 18M 500M-"); /* 512 MiB, in pages of 20 */
  void *s = get(512, NULL);
  assert_layout(s, "512* 2096640 510M-");
  put(p);
  put(s);
  alloc_close();
}

TEST(bytes) {
  alloc_open("expandable_segments:True,expandable_segments_reserve:2G", 4 * GIB);
  void *p = get(20 * MIB, NULL);
  assert_layout(p, "20M* 2040M-");
  put(p);
  alloc_close();
}

/* At most 9/8 of the device: more cannot be mapped. */
TEST(at_most_nine_eighths) {
  static const char *const confs[] = {"expandable_segments:True,expandable_segments_reserve:400G",
                                      "expandable_segments:True,expandable_segments_reserve:3",
                                      "expandable_segments:True,expandable_segments_reserve:1e300"};
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    alloc_open(confs[i], GIB);
    void *p = get(20 * MIB, NULL);
    assert_layout(p, "20M* 1140M-");
    put(p);
    alloc_close();
  }
}

/* One reservation is full, and the stream gets another one. */
TEST(more_reservations) {
  alloc_open("expandable_segments:True,expandable_segments_reserve:0.1", GIB);
  void *p[7];
  for (int i = 0; i < 7; i++)
    p[i] = get(20 * MIB, NULL);
  assert_layout(p[0], "20M* 20M* 20M* 20M* 20M* 20M*");
  assert_layout(p[6], "20M* 100M-");
  assert_int_equal(soft_census().reservations, 2);
  for (int i = 0; i < 7; i++)
    put(p[i]);
  empty_cache();
  assert_int_equal(soft_census().reservations, 0);
  alloc_close();
}

TEST(larger_than_a_reservation) {
  alloc_open("expandable_segments:True,expandable_segments_reserve:0.1", GIB);
  void *p = NULL;
  assert_error_says(OUT_OF_MEMORY, "exceeds the expandable-segment reserve of 102.40 MiB",
                    weir_allocator_alloc(allocator, 0, 200 * MIB, NULL, &p));
  assert_non_null(strstr(weir_last_error(), "at least 200.00 MiB"));
  assert_valid();
  put(get(100 * MIB, NULL));
  alloc_close();
}

TEST(classes_of_streams) {
  alloc_open("expandable_segments:True,expandable_segments_reserve:0.25,"
             "expandable_segments_reserve_by_class:[narrow:0.1,wide:0.5]",
             GIB);
  weir_cu_stream plain = work_stream(), narrow = work_stream(), wide = work_stream(), lost = work_stream();
  assert_ok(weir_allocator_set_reserve_class(allocator, 0, narrow, "narrow"));
  assert_ok(weir_allocator_set_reserve_class(allocator, 0, wide, "narrow"));
  assert_ok(weir_allocator_set_reserve_class(allocator, 0, wide, "wide")); /* the last call counts */
  assert_ok(weir_allocator_set_reserve_class(allocator, 0, lost, "unheard-of"));
  assert_layout(get(20 * MIB, plain), "20M* 240M-");
  assert_layout(get(20 * MIB, narrow), "20M* 100M-");
  assert_layout(get(20 * MIB, wide), "20M* 500M-");
  assert_layout(get(20 * MIB, lost), "20M* 240M-"); /* as for the other streams */
  assert_ok(weir_allocator_set_reserve_class(allocator, 0, narrow, NULL));
  assert_ok(weir_allocator_set_reserve_class(allocator, 0, wide, ""));
  assert_layout(get(512, narrow), "512* 2096640 254M-"); /* from the next reservation on */
  assert_layout(get(512, wide), "512* 2096640 254M-");
  assert_ok(weir_allocator_set_reserve_class(allocator, 0, plain, NULL)); /* it had none */
  assert_error(INVALID_ARGUMENT, weir_allocator_set_reserve_class(NULL, 0, plain, "narrow"));
  assert_error(INVALID_DEVICE, weir_allocator_set_reserve_class(allocator, 1, plain, "narrow"));
  assert_error_says(INVALID_ARGUMENT, "31 bytes",
                    weir_allocator_set_reserve_class(allocator, 0, plain, "a-name-that-is-longer-than-any-class"));
  alloc_close();
}

/* ---- throw_on_cudamalloc_oom ---- */

static int observed;
static void observe(void *context, const weir_shortage *shortage) {
  (void)context, (void)shortage;
  observed++;
}

/* A request above the limit is refused at once: nothing is released, the driver is not called, and it does not count as
 * an out of memory. */
TEST(refused_before_the_driver) {
  alloc_open("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5", GIB);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = observe)));
  observed = 0;
  void *cached = get(400 * MIB, NULL), *p = NULL;
  put(cached);
  unsigned long before = calls(WEIR_CALL_MemAlloc);
  assert_error_says(OUT_OF_MEMORY,
                    "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                    "per_process_memory_fraction limit. Requested size: 450.00 MiB",
                    weir_allocator_alloc(allocator, 0, 450 * MIB, NULL, &p));
  assert_null(p);
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(s.num_oom_rejections, 1);
  assert_int_equal(s.num_ooms, 0);
  assert_int_equal(s.num_alloc_retries, 0);
  assert_int_equal(observed, 0);
  assert_int_equal(calls(WEIR_CALL_MemAlloc), before);
  assert_int_equal(reserved(), 400 * MIB);
  assert_ptr_equal(get(300 * MIB, NULL), cached); /* cached memory is used */
  put(get(112 * MIB, WEIR_CU_STREAM_LEGACY));     /* exactly the limit */
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 512, NULL, &p));
  assert_ok(weir_allocator_reset_accumulated_stats(allocator, 0));
  assert_int_equal(stats_of(0).num_oom_rejections, 0);
  alloc_close();
}

TEST(not_refused_otherwise) {
  alloc_open("per_process_memory_fraction:0.5", GIB);
  put(get(400 * MIB, NULL));
  put(get(450 * MIB, NULL)); /* the cached segment was released for it */
  assert_int_equal(stats_of(0).num_alloc_retries, 1);
  assert_int_equal(stats_of(0).num_oom_rejections, 0);
  alloc_close();
}
