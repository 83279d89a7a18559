/*
 * Sizes: rounding, the choice of the pool, and the size of a segment.
 */
#include "alloc/cache/sizes.h"
#include "support/alloc.h"

static weir__settings settings_of(const char *conf) {
  weir__settings settings;
  assert_ok(weir__settings_parse(NULL, conf, &settings));
  return settings;
}

static uint64_t rounded(const char *conf, uint64_t bytes) {
  weir__settings settings = settings_of(conf);
  return weir__round_bytes(&settings, bytes);
}

static uint64_t segment_for(const char *conf, uint64_t bytes) {
  weir__settings settings = settings_of(conf);
  return weir__segment_bytes(&settings, bytes);
}

TEST(rounds_to_512) {
  assert_int_equal(rounded("", 1), 512);
  assert_int_equal(rounded("", 511), 512);
  assert_int_equal(rounded("", 512), 512);
  assert_int_equal(rounded("", 513), 1024);
  assert_int_equal(rounded("", MIB), MIB);
  assert_int_equal(rounded("", MIB + 1), MIB + 512);
  assert_int_equal(rounded("", (1ull << 60) - 1), 1ull << 60);
}

/* The values of PyTorch's test_allocator_settings. */
TEST(power_of_two_divisions) {
  const char *four = "roundup_power2_divisions:4";
  assert_int_equal(rounded(four, 1200), 1536); /* too small for four divisions: rounded to 512 bytes */
  assert_int_equal(rounded(four, 2048), 2048);
  assert_int_equal(rounded(four, 2049), 2560);
  assert_int_equal(rounded(four, 189 * MIB), 192 * MIB); /* 128, 160, 192, 224, 256 */
  assert_int_equal(rounded(four, 192 * MIB), 192 * MIB);
  assert_int_equal(rounded(four, 192 * MIB + 1), 224 * MIB);
  assert_int_equal(rounded(four, 225 * MIB), 256 * MIB);
  assert_int_equal(rounded(four, 256 * MIB), 256 * MIB); /* a power of two is not changed */
  assert_int_equal(rounded("roundup_power2_divisions:1", 189 * MIB), 189 * MIB);
  assert_int_equal(rounded("roundup_power2_divisions:0", 189 * MIB), 189 * MIB);
  assert_int_equal(rounded("roundup_power2_divisions:2", 129 * MIB), 192 * MIB);
}

/* A request of up to 512 bytes per division is rounded to 512 bytes. */
TEST(divisions_begin_above_512_bytes_a_part) {
  assert_int_equal(rounded("roundup_power2_divisions:8", 8 * 512), 8 * 512);
  assert_int_equal(rounded("roundup_power2_divisions:8", 8 * 512 - 1), 8 * 512);
  assert_int_equal(rounded("roundup_power2_divisions:8", 8 * 512 + 1), 9 * 512);
  assert_int_equal(rounded("roundup_power2_divisions:8", 16 * 512 + 1), 18 * 512);
}

TEST(divisions_by_interval) {
  const char *list = "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]";
  assert_int_equal(rounded(list, 3 * MIB + 1), 3 * MIB + 256 * KIB); /* the first entry applies to everything below */
  assert_int_equal(rounded(list, 65 * MIB), 72 * MIB);               /* 64 to 128 MiB: 8 divisions */
  assert_int_equal(rounded(list, 129 * MIB), 192 * MIB);             /* 128 to 256 MiB: 2 */
  assert_int_equal(rounded(list, 257 * MIB), 320 * MIB);             /* 256 to 512 MiB: 4 */
  assert_int_equal(rounded(list, 513 * MIB), 768 * MIB);             /* 512 to 1024 MiB: 2 */
  assert_int_equal(rounded(list, 1025 * MIB), 1280 * MIB);           /* 1024 to 2048 MiB: 4 */
  assert_int_equal(rounded(list, 2049 * MIB), 2049 * MIB);           /* above: none */
  assert_int_equal(rounded(list, 200 * GIB + 1), 200 * GIB + 512);   /* also beyond the last interval */
}

TEST(segment_sizes) {
  assert_int_equal(segment_for("", 512), 2 * MIB);
  assert_int_equal(segment_for("", MIB), 2 * MIB);
  assert_int_equal(segment_for("", MIB + 512), 20 * MIB);
  assert_int_equal(segment_for("", 10 * MIB - 512), 20 * MIB);
  assert_int_equal(segment_for("", 10 * MIB), 10 * MIB);
  assert_int_equal(segment_for("", 10 * MIB + 512), 12 * MIB);
  assert_int_equal(segment_for("", 100 * MIB), 100 * MIB);
  assert_int_equal(segment_for("large_segment_size_mb:64", MIB), 2 * MIB);
  assert_int_equal(segment_for("large_segment_size_mb:64", MIB + 512), 64 * MIB);
  assert_int_equal(segment_for("large_segment_size_mb:64", 10 * MIB), 10 * MIB);
}

/* The rounded size selects the pool: 1 MiB is the largest small size. */
TEST_SETUP(pools_by_size, NULL, alloc_teardown) {
  alloc_open(NULL, GIB);
  void *small = get(MIB, NULL), *large = get(MIB + 1, NULL);
  assert_layout(small, "1M* 1M");
  assert_layout(large, "1049088* 19922432");
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_SMALL_POOL].current, 2 * MIB);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_LARGE_POOL].current, 20 * MIB);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_SMALL_POOL].current, MIB);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_LARGE_POOL].current, MIB + 512);
  put(small);
  put(large);
  alloc_close();
}

/* A free block of the other pool is not used, however well it fits. */
TEST_SETUP(pools_do_not_lend, NULL, alloc_teardown) {
  alloc_open(NULL, GIB);
  void *large = get(2 * MIB, NULL);
  put(large);
  void *small = get(MIB, NULL);
  assert_int_equal(segments(), 2);
  put(small);
  alloc_close();
}

TEST_SETUP(requested_bytes_are_not_rounded, NULL, alloc_teardown) {
  alloc_open("roundup_power2_divisions:4", GIB);
  void *p = get(129 * MIB, NULL);
  assert_int_equal(stats_of(0).requested_bytes[WEIR_STAT_ALL].current, 129 * MIB);
  assert_int_equal(allocated(), 160 * MIB);
  assert_int_equal(reserved(), 160 * MIB);
  put(p);
  assert_int_equal(stats_of(0).requested_bytes[WEIR_STAT_ALL].current, 0);
  alloc_close();
}

TEST_SETUP(large_segment_size, NULL, alloc_teardown) {
  alloc_open("large_segment_size_mb:32", GIB);
  void *a = get(9 * MIB, NULL), *b = get(9 * MIB, NULL), *c = get(9 * MIB, NULL);
  assert_layout(a, "9M* 9M* 9M* 5M");
  assert_int_equal(reserved(), 32 * MIB);
  put(a), put(b), put(c);
  configure("large_segment_size_mb:11");
  void *whole = get(20 * MIB, NULL); /* the existing segment, split differently */
  assert_ptr_equal(whole, a);
  assert_layout(whole, "20M* 12M");
  void *d1 = get(2 * MIB, work_stream());
  assert_layout(d1, "2M* 9M");
  put(whole), put(d1);
  alloc_close();
}

/* Fills segments, with the values of PyTorch's test_cuda: a segment is used up before the next one is created. */
TEST_SETUP(segments_fill_up, NULL, alloc_teardown) {
  alloc_open(NULL, GIB);
  void *p[9];
  for (int i = 0; i < 4; i++)
    p[i] = get(512 * KIB, NULL);
  assert_int_equal(reserved(), 2 * MIB);
  for (int i = 4; i < 9; i++)
    p[i] = get(512 * KIB, NULL);
  assert_int_equal(reserved(), 6 * MIB);
  for (int i = 0; i < 9; i++)
    put(p[i]);
  alloc_close();
}
