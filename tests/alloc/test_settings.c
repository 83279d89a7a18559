#include <locale.h>

#include "alloc/settings_fixture.h"

/* The error for an unknown key that is not similar to any other. */
#define KEYS                                                                                                           \
  "; allowed: backend, max_split_size_mb, max_non_split_rounding_mb, large_segment_size_mb, "                          \
  "garbage_collection_threshold, roundup_power2_divisions, expandable_segments, expandable_segments_reserve, "         \
  "expandable_segments_reserve_by_class, moving_pages, moving_pages_max_aliases, moving_pages_completed_only, "        \
  "moving_pages_across_streams, moving_pages_min_capability, moving_pages_slack, release_lock_on_cudamalloc, "         \
  "graph_capture_record_stream_reuse, "                                                                                \
  "per_process_memory_fraction, throw_on_cudamalloc_oom, guard, pinned_use_cuda_host_register, "                       \
  "pinned_num_register_threads, pinned_register_min_mb, pinned_register_piece_mb, pinned_use_background_threads, "     \
  "pinned_reserve_segment_size_mb, "                                                                                   \
  "pinned_max_round_threshold_mb, pinned_max_cached_size_mb, pinned_free_catch_all"

#define MIB (1ull << 20)
#define MAX "8796093022207"

static void assert_refused_over(const weir__settings *base, const char *text, const char *error) {
  weir__settings out, before;
  memset(&out, 0x5a, sizeof out);
  before = out;
  assert_int_equal(weir__settings_parse(base, text, &out), WEIR_ERROR_INVALID_ARGUMENT);
  assert_string_equal(weir_last_error(), error);
  assert_memory_equal(&out, &before, sizeof out);
}

static void assert_refused(const char *text, const char *error) { assert_refused_over(NULL, text, error); }

static void assert_formatted(const weir__settings *settings, const char *expected) {
  char text[1024];
  assert_int_equal(weir__settings_format(settings, text, sizeof text), strlen(expected));
  assert_string_equal(text, expected);
}

static void assert_divisions(const weir__settings *settings, const unsigned *expected) {
  for (size_t i = 0; i < WEIR__ROUNDUP_INTERVALS; i++) {
    unsigned log = settings->roundup_divisions[i];
    unsigned divisions = log == 0 ? 0 : 1u << (log - 1);
    if (divisions != expected[i])
      fail_msg("interval %zu has %u divisions, not %u", i, divisions, expected[i]);
  }
}

/* ---- The keys ---- */

TEST(defaults) {
  weir__settings settings;
  memset(&settings, 0xff, sizeof settings);
  weir__settings_default(&settings);
  assert_int_equal(settings.backend, WEIR__BACKEND_NATIVE);
  assert_true(settings.max_split_size == UINT64_MAX);
  assert_int_equal(settings.max_non_split_rounding, 20 * MIB);
  assert_false(settings.max_non_split_rounding_set);
  assert_int_equal(settings.large_segment_size, 20 * MIB);
  assert_true(settings.garbage_collection_threshold == 0);
  assert_divisions(&settings, (unsigned[WEIR__ROUNDUP_INTERVALS]){0});
  assert_false(settings.expandable_segments);
  assert_int_equal(settings.expandable_segments_reserve.bytes, 0);
  assert_true(settings.expandable_segments_reserve.fraction == 0);
  assert_int_equal(settings.expandable_segments_reserve_by_class[0].name[0], '\0');
  assert_false(settings.release_lock_on_malloc);
  assert_false(settings.graph_capture_record_stream_reuse);
  assert_true(settings.memory_fraction == 1);
  assert_false(settings.throw_on_oom);
  assert_int_equal(settings.guard, WEIR__GUARD_OFF);
  assert_false(settings.pinned_use_host_register);
  assert_int_equal(settings.pinned_num_register_threads, 1);
  assert_false(settings.pinned_use_background_threads);
  assert_int_equal(settings.pinned_reserve_segment_size, 0);
  assert_true(settings.pinned_max_round_threshold == UINT64_MAX);
  assert_true(settings.pinned_max_cached_size == UINT64_MAX);
  assert_false(settings.pinned_free_catch_all);
  assert_null(settings.older);
  assert_formatted(&settings, "");
}

/* Each key with a value, the text that is written back ("" for the default), and the field. The size of the field gives
 * its type. */
#define FIELD(field) offsetof(weir__settings, field)

TEST(flags) {
  static const struct {
    const char *key, *alias;
    size_t offset;
  } cases[] = {
      {"expandable_segments", NULL, FIELD(expandable_segments)},
      {"release_lock_on_cudamalloc", "release_lock_on_hipmalloc", FIELD(release_lock_on_malloc)},
      {"graph_capture_record_stream_reuse", NULL, FIELD(graph_capture_record_stream_reuse)},
      {"throw_on_cudamalloc_oom", NULL, FIELD(throw_on_oom)},
      {"pinned_use_cuda_host_register", "pinned_use_hip_host_register", FIELD(pinned_use_host_register)},
      {"pinned_use_background_threads", NULL, FIELD(pinned_use_background_threads)},
      {"pinned_free_catch_all", NULL, FIELD(pinned_free_catch_all)},
  };
  static const char *const wrong[] = {"true", "TRUE", "1", "0", "false", "yes", "Truee", "Tru"};
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    const char *keys[] = {cases[i].key, cases[i].alias};
    for (size_t j = 0; j < WEIR_COUNT_OF(keys) && keys[j] != NULL; j++) {
      char text[128], error[256];
      snprintf(text, sizeof text, "%s:True", keys[j]);
      weir__settings on = parsed(text);
      assert_true(*((const bool *)((const char *)&on + cases[i].offset)));
      snprintf(text, sizeof text, "%s:True", cases[i].key);
      assert_formatted(&on, text);
      snprintf(text, sizeof text, "%s:False", keys[j]);
      weir__settings off = parsed_over(&on, text);
      assert_false(*((const bool *)((const char *)&off + cases[i].offset)));
      assert_formatted(&off, "");
      snprintf(text, sizeof text, "%s:default", keys[j]);
      off = parsed_over(&on, text);
      assert_formatted(&off, "");
      for (size_t k = 0; k < WEIR_COUNT_OF(wrong); k++) {
        snprintf(text, sizeof text, "%s:%s", keys[j], wrong[k]);
        snprintf(error, sizeof error, "settings: column %zu: %s: '%s' is not a boolean; allowed: True or False",
                 strlen(keys[j]) + 2, keys[j], wrong[k]);
        assert_refused(text, error);
      }
    }
  }
}

TEST(numbers) {
  static const struct {
    const char *key;
    size_t offset;
    unsigned long long least, most, unit;
    const char *allowed;
  } cases[] = {
      {"max_split_size_mb", FIELD(max_split_size), 20, MAX_MIB, MIB,
       "a whole number of MiB, at least large_segment_size_mb and at most " MAX},
      {"max_non_split_rounding_mb", FIELD(max_non_split_rounding), 20, MAX_MIB, MIB,
       "a whole number of MiB, at least large_segment_size_mb and at most " MAX},
      {"large_segment_size_mb", FIELD(large_segment_size), 11, MAX_MIB, MIB, "a whole number of MiB, 11 to " MAX},
      {"pinned_num_register_threads", FIELD(pinned_num_register_threads), 1, 128, 1, "a power of two, 1 to 128"},
      {"pinned_reserve_segment_size_mb", FIELD(pinned_reserve_segment_size), 1, MAX_MIB, MIB,
       "a whole number of MiB, 1 to " MAX},
      {"pinned_max_round_threshold_mb", FIELD(pinned_max_round_threshold), 0, MAX_MIB, MIB,
       "a whole number of MiB, 0 to " MAX},
      {"pinned_max_cached_size_mb", FIELD(pinned_max_cached_size), 0, MAX_MIB, MIB, "a whole number of MiB, 0 to " MAX},
  };
  static const char *const wrong[] = {"-1", "+1", "64MB", "64.0", "1e3", "0x40", "unlimited", "64/"};
  static const char *const large[] = {"8796093022208", "18446744073709551615", "18446744073709551616",
                                      "99999999999999999999999999999"};
  weir__settings plain;
  weir__settings_default(&plain);
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    char text[128], error[512];
    unsigned long long good[] = {cases[i].least, cases[i].most, 32};
    for (size_t j = 0; j < WEIR_COUNT_OF(good); j++) {
      snprintf(text, sizeof text, "%s:%llu", cases[i].key, good[j]);
      weir__settings settings = parsed(text);
      uint64_t number;
      memcpy(&number, (const char *)&settings + cases[i].offset, sizeof number);
      assert_int_equal(number, good[j] * cases[i].unit);
      weir__settings again;
      char written[128];
      weir__settings_format(&settings, written, sizeof written);
      again = parsed(written);
      assert_true(weir__settings_equal(&settings, &again));
      snprintf(text, sizeof text, "%s:default", cases[i].key);
      again = parsed_over(&settings, text);
      assert_true(weir__settings_equal(&again, &plain));
    }
    for (size_t j = 0; j < WEIR_COUNT_OF(wrong); j++) {
      snprintf(text, sizeof text, "%s:%s", cases[i].key, wrong[j]);
      snprintf(error, sizeof error, "settings: column %zu: %s: '%s' is not a whole number; allowed: %s",
               strlen(cases[i].key) + 2, cases[i].key, wrong[j], cases[i].allowed);
      assert_refused(text, error);
    }
    for (size_t j = 0; j < WEIR_COUNT_OF(large); j++) {
      snprintf(text, sizeof text, "%s:%s", cases[i].key, large[j]);
      snprintf(error, sizeof error, "settings: column %zu: %s: '%s' is out of range; allowed: %s",
               strlen(cases[i].key) + 2, cases[i].key, large[j], cases[i].allowed);
      assert_refused(text, error);
    }
  }
  assert_refused("large_segment_size_mb:10",
                 "settings: column 23: large_segment_size_mb: '10' is out of range; allowed: a "
                 "whole number of MiB, 11 to " MAX);
  assert_refused("pinned_reserve_segment_size_mb:0",
                 "settings: column 32: pinned_reserve_segment_size_mb: '0' is out of "
                 "range; allowed: a whole number of MiB, 1 to " MAX);
  assert_refused("pinned_num_register_threads:0",
                 "settings: column 29: pinned_num_register_threads: '0' is out of range; "
                 "allowed: a power of two, 1 to 128");
  assert_refused("pinned_num_register_threads:129", "settings: column 29: pinned_num_register_threads: '129' is out of "
                                                    "range; allowed: a power of two, 1 to 128");
  assert_refused("pinned_num_register_threads:12",
                 "settings: column 29: pinned_num_register_threads: '12' is not a power "
                 "of two; allowed: a power of two, 1 to 128");
}

TEST(fractions) {
  static const struct {
    const char *text;
    double threshold, fraction;
  } good[] = {
      {"garbage_collection_threshold:0.6", 0.6, 1},
      {"garbage_collection_threshold:.5", 0.5, 1},
      {"garbage_collection_threshold:1e-3", 1e-3, 1},
      {"garbage_collection_threshold:0.9999999999999999", 0.9999999999999999, 1},
      {"garbage_collection_threshold:0.5E+0", 0.5, 1},
      {"per_process_memory_fraction:0", 0, 0},
      {"per_process_memory_fraction:1.", 0, 1},
      {"per_process_memory_fraction:1.0", 0, 1},
      {"per_process_memory_fraction:0.3333333333333333", 0, 1.0 / 3},
      {"per_process_memory_fraction:0.12", 0, 0.12},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(good); i++) {
    weir__settings settings = parsed(good[i].text);
    assert_memory_equal(&settings.garbage_collection_threshold, &good[i].threshold, sizeof(double));
    assert_memory_equal(&settings.memory_fraction, &good[i].fraction, sizeof(double));
  }
  static const char *const wrong[] = {"-0.5", "+0.5", "half", "nan", "inf", "0x1p-1", "0.5GB", ".", "1e", "1e+", "e5"};
  for (size_t i = 0; i < WEIR_COUNT_OF(wrong); i++) {
    char text[128], error[256];
    snprintf(text, sizeof text, "garbage_collection_threshold:%s", wrong[i]);
    snprintf(
        error, sizeof error,
        "settings: column 30: garbage_collection_threshold: '%s' is not a number; allowed: a number greater than 0 "
        "and less than 1",
        wrong[i]);
    assert_refused(text, error);
  }
  static const char *const outside[] = {"0", "0.0", "1", "1.0", "2", "1e400", "1e-400"};
  for (size_t i = 0; i < WEIR_COUNT_OF(outside); i++) {
    char text[128], error[256];
    snprintf(text, sizeof text, "garbage_collection_threshold:%s", outside[i]);
    snprintf(
        error, sizeof error,
        "settings: column 30: garbage_collection_threshold: '%s' is out of range; allowed: a number greater than 0 "
        "and less than 1",
        outside[i]);
    assert_refused(text, error);
  }
  assert_refused(
      "garbage_collection_threshold:0,5",
      "settings: column 30: garbage_collection_threshold: '0' is out of range; allowed: a number greater than "
      "0 and less than 1");
  assert_refused(
      "per_process_memory_fraction:1.0000001",
      "settings: column 29: per_process_memory_fraction: '1.0000001' is out of range; allowed: a number from 0 "
      "to 1");
  weir__settings settings = parsed("garbage_collection_threshold:0.8,per_process_memory_fraction:0.12");
  assert_formatted(&settings, "garbage_collection_threshold:0.8,per_process_memory_fraction:0.12");
  settings = parsed_over(&settings, "garbage_collection_threshold:default,per_process_memory_fraction:default");
  assert_formatted(&settings, "");
}

TEST(backend) {
  weir__settings settings = parsed("backend:cudaMallocAsync");
  assert_int_equal(settings.backend, WEIR__BACKEND_CUDA_MALLOC_ASYNC);
  assert_formatted(&settings, "backend:cudaMallocAsync");
  settings = parsed_over(&settings, "backend:native");
  assert_int_equal(settings.backend, WEIR__BACKEND_NATIVE);
  assert_formatted(&settings, "");
  assert_refused("backend:async",
                 "settings: column 9: backend: there is no backend 'async'; allowed: native or cudaMallocAsync");
}

TEST(roundup) {
  static const struct {
    const char *text;
    unsigned divisions[WEIR__ROUNDUP_INTERVALS];
    const char *written; /* if it differs from the text */
  } good[] = {
      {"4", {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, NULL},
      {"1", {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, NULL},
      {"1073741824",
       {1u << 30, 1u << 30, 1u << 30, 1u << 30, 1u << 30, 1u << 30, 1u << 30, 1u << 30, 1u << 30, 1u << 30, 1u << 30,
        1u << 30, 1u << 30, 1u << 30, 1u << 30, 1u << 30},
       NULL},
      {"0", {0}, ""},
      {"[]", {0}, ""},
      {"[256:1,512:2,1024:4,>:8]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}, NULL},
      {"[64:8,128:2,256:4,512:2,1024:4,>:1]", {8, 8, 8, 8, 8, 8, 8, 2, 4, 2, 4, 1, 1, 1, 1, 1}, NULL},
      {"[32:256,64:128,256:64,>:32]",
       {256, 256, 256, 256, 256, 256, 128, 0, 64, 32, 32, 32, 32, 32, 32, 32},
       "[32:256,64:128,128:0,256:64,>:32]"},
      /* Intervals between two boundaries have no value. */
      {"[128:8,256:16,512:1,2048:8,>:2]",
       {8, 8, 8, 8, 8, 8, 8, 8, 16, 1, 0, 8, 2, 2, 2, 2},
       "[128:8,256:16,512:1,1024:0,2048:8,>:2]"},
      {"[1:2]", {2}, "[1:2,>:0]"},
      {"[1:2,]", {2}, "[1:2,>:0]"},
      {"[16:0,>:4]", {0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, NULL},
      /* The first entry of the list, not the smallest, applies to everything below. */
      {"[4:2,1:8]", {8, 2, 2}, "[1:8,2:2,4:2,>:0]"},
      /* The last interval has no upper end, so a later boundary refers to it. */
      {"[32768:4]", {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, "4"},
      {"[16384:1,65536:4]", {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4}, "[16384:1,>:4]"},
      {"[9223372036854775808:2,>:8]", {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, "2"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(good); i++) {
    char text[256];
    snprintf(text, sizeof text, "roundup_power2_divisions:%s", good[i].text);
    weir__settings settings = parsed(text);
    assert_divisions(&settings, good[i].divisions);
    if (good[i].written != NULL && good[i].written[0] != '\0')
      snprintf(text, sizeof text, "roundup_power2_divisions:%s", good[i].written);
    assert_formatted(&settings, good[i].written != NULL && good[i].written[0] == '\0' ? "" : text);
    /* No entry of an older list is kept. */
    weir__settings other = parsed("roundup_power2_divisions:[1:2,2:4,4:8,8:16,16:32,>:64]");
    snprintf(text, sizeof text, "roundup_power2_divisions:%s", good[i].text);
    other = parsed_over(&other, text);
    assert_true(weir__settings_equal(&settings, &other));
  }

  static const struct {
    const char *text;
    size_t column;
    const char *why;
    bool allowed;
  } bad[] = {
      {"3", 26, "'3' cannot be the number of divisions", true},
      {"2147483648", 26, "'2147483648' cannot be the number of divisions", true},
      {"99999999999999999999", 26, "'99999999999999999999' cannot be the number of divisions", true},
      {"four", 26, "'four' cannot be the number of divisions", true},
      {"", 26, "a value is missing before the end", true},
      {"[256:3]", 31, "'3' cannot be the number of divisions", true},
      {"[300:4]", 27, "the boundary '300' is not a power of two", true},
      {"[0:4]", 27, "the boundary '0' is not a power of two", true},
      {"[99999999999999999999:4]", 27, "the boundary '99999999999999999999' is not a power of two", true},
      {"[<:4]", 27, "the boundary '<' is not a power of two", true},
      {"[256:1,256:2]", 33, "the list has the interval of '256' already", false},
      {"[32768:1,65536:2]", 35, "the list has the interval of '65536' already", false},
      {"[>:8]", 27, "'>' must follow a boundary", true},
      {"[1:1,>:8,2:2]", 35, "'>' must come last", true},
      {"[1:1,>:8,>:8]", 35, "'>' must come last", true},
      {"[256:1", 32, "',' is missing before the end", false},
      {"[256:1,", 33, "an entry or ']' is missing before the end", true},
      {"[", 27, "an entry or ']' is missing before the end", true},
      {"[256", 30, "':' is missing before the end", false},
      {"[256:", 31, "a value is missing before the end", true},
      {"[256:]", 31, "a value is missing before ']'", true},
      {"[256,1]", 30, "':' is missing before ','", false},
      {"[256:1:512:2]", 32, "',' is missing before ':'", false},
      {"[256:1 512:2]", 33, "',' is missing before '512'", false},
      {"[,256:1]", 27, "an entry or ']' is missing before ','", true},
      {"[256:1,,]", 33, "an entry or ']' is missing before ','", true},
      {"[[256:1]]", 27, "an entry or ']' is missing before '['", true},
      {"[256:1]]", 33, "',' is missing before ']'", false},
      {"[256:1]4", 33, "',' is missing before '4'", false},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(bad); i++) {
    char text[256], error[512];
    snprintf(text, sizeof text, "roundup_power2_divisions:%s", bad[i].text);
    snprintf(error, sizeof error, "settings: column %zu: roundup_power2_divisions: %s%s", bad[i].column, bad[i].why,
             bad[i].allowed ? "; allowed: 0 or a power of two up to 1073741824, or a list of those by powers of two in "
                              "MiB such as [256:1,512:2,1024:4,>:8]"
                            : "");
    assert_refused(text, error);
  }
}

TEST(reserves) {
  static const struct {
    const char *text;
    weir__reserve reserve;
  } good[] = {
      {"0.5", {0, 0.5}},
      {"1.125", {0, 1.125}},
      {"2", {0, 2}},
      {"40G", {40ull << 30, 0}},
      {"1.5G", {3ull << 29, 0}},
      {"1e-3G", {1073741, 0}},
      {"8589934591G", {8589934591ull << 30, 0}},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(good); i++) {
    char text[256];
    snprintf(text, sizeof text, "expandable_segments_reserve:%s", good[i].text);
    weir__settings settings = parsed(text);
    assert_memory_equal(&settings.expandable_segments_reserve, &good[i].reserve, sizeof(weir__reserve));
    char written[256];
    weir__settings_format(&settings, written, sizeof written);
    weir__settings again = parsed(written);
    assert_true(weir__settings_equal(&settings, &again));
    again = parsed_over(&settings, "expandable_segments_reserve:default");
    assert_formatted(&again, "");
  }
  weir__settings settings = parsed("expandable_segments_reserve:40.0G");
  assert_formatted(&settings, "expandable_segments_reserve:40G");

  static const struct {
    const char *text, *why;
  } bad[] = {
      {"G", "'G' is neither a number nor GiB"},
      {"40g", "'40g' is neither a number nor GiB"},
      {"40GB", "'40GB' is neither a number nor GiB"},
      {"40M", "'40M' is neither a number nor GiB"},
      {"-1", "'-1' is neither a number nor GiB"},
      {"nan", "'nan' is neither a number nor GiB"},
      {"0", "'0' is out of range"},
      {"0G", "'0G' is out of range"},
      {"1e-10G", "'1e-10G' is out of range"},
      {"8589934592G", "'8589934592G' is out of range"},
      {"1e400", "'1e400' is out of range"},
      {"1e400G", "'1e400G' is out of range"},
      {"[a:1]", "a value is missing before '['"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(bad); i++) {
    char text[256], error[512];
    snprintf(text, sizeof text, "expandable_segments_reserve:%s", bad[i].text);
    snprintf(
        error, sizeof error,
        "settings: column 29: expandable_segments_reserve: %s; allowed: a part of the device's memory such as 0.5, "
        "or GiB such as 40G",
        bad[i].why);
    assert_refused(text, error);
  }
}

TEST(reserves_by_class) {
  weir__settings settings = parsed("expandable_segments_reserve_by_class:[ prefetch : 0.25 , graphs:40G, ]");
  const weir__reserve_class *classes = settings.expandable_segments_reserve_by_class;
  assert_string_equal(classes[0].name, "prefetch");
  assert_true(classes[0].reserve.fraction == 0.25);
  assert_string_equal(classes[1].name, "graphs");
  assert_int_equal(classes[1].reserve.bytes, 40ull << 30);
  assert_string_equal(classes[2].name, "");
  assert_formatted(&settings, "expandable_segments_reserve_by_class:[prefetch:0.25,graphs:40G]");
  weir__settings fewer = parsed_over(&settings, "expandable_segments_reserve_by_class:[x:1]");
  assert_formatted(&fewer, "expandable_segments_reserve_by_class:[x:1]");
  fewer = parsed_over(&settings, "expandable_segments_reserve_by_class:[]");
  assert_formatted(&fewer, "");
  fewer = parsed_over(&settings, "expandable_segments_reserve_by_class:default");
  assert_formatted(&fewer, "");

#define ALLOWED "; allowed: a list such as [prefetch:0.25,graphs:40G], of at most 16 names of at most 31 bytes"
#define WHERE(column) "settings: column " #column ": expandable_segments_reserve_by_class: "
  assert_refused("expandable_segments_reserve_by_class:0.5", WHERE(38) "'0.5' is not a list" ALLOWED);
  assert_refused("expandable_segments_reserve_by_class:[a:1,b:x]", WHERE(45) "'x' is neither a number nor GiB" ALLOWED);
  assert_refused("expandable_segments_reserve_by_class:[a:1,a:2]", WHERE(43) "the list has 'a' already");
  assert_refused("expandable_segments_reserve_by_class:[a:1", WHERE(42) "',' is missing before the end");

  char text[512] = "expandable_segments_reserve_by_class:[a123456789012345678901234567890:1]", *end;
  settings = parsed(text);
  assert_string_equal(settings.expandable_segments_reserve_by_class[0].name, "a123456789012345678901234567890");
  assert_refused("expandable_segments_reserve_by_class:[a1234567890123456789012345678901:1]",
                 WHERE(39) "the name 'a1234567890123456789012345678901' is too long" ALLOWED);
  end = text + sprintf(text, "expandable_segments_reserve_by_class:[");
  for (int i = 0; i < WEIR__RESERVE_CLASSES; i++)
    end += sprintf(end, "%c:1,", 'a' + i);
  sprintf(end, "]");
  settings = parsed(text);
  assert_string_equal(settings.expandable_segments_reserve_by_class[15].name, "p");
  sprintf(end, "q:1]");
  assert_refused(text, WHERE(103) "'q' is one name too many" ALLOWED);
#undef ALLOWED
#undef WHERE
}

/* ---- Several keys ---- */

TEST(grammar) {
  static const char *const nothing[] = {"", " ", " \t\r\n\v\f"};
  for (size_t i = 0; i < WEIR_COUNT_OF(nothing); i++) {
    weir__settings settings = parsed(nothing[i]);
    assert_formatted(&settings, "");
  }
  static const char *const same[] = {
      "max_split_size_mb:512,expandable_segments:True",
      "expandable_segments:True,max_split_size_mb:512",
      "expandable_segments:True,max_split_size_mb:512,",
      " expandable_segments :\tTrue ,\n  max_split_size_mb: 512 , ",
      "expandable_segments:True,max_split_size_mb:00000000000000000000000512",
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(same); i++) {
    weir__settings settings = parsed(same[i]);
    assert_formatted(&settings, "max_split_size_mb:512,expandable_segments:True");
  }

  static const struct {
    const char *text, *error;
  } bad[] = {
      {",", "settings: column 1: a key is missing before ','"},
      {",backend:native", "settings: column 1: a key is missing before ','"},
      {"backend:native,,", "settings: column 16: a key is missing before ','"},
      {":native", "settings: column 1: a key is missing before ':'"},
      {"  [backend:native]", "settings: column 3: a key is missing before '['"},
      {"backend", "settings: column 8: backend: ':' is missing before the end"},
      {"backend,native", "settings: column 8: backend: ':' is missing before ','"},
      {"backend native", "settings: column 9: backend: ':' is missing before 'native'"},
      {"backend=native", "settings: column 1: there is no key 'backend=native'" KEYS},
      {"backend:",
       "settings: column 9: backend: a value is missing before the end; allowed: native or cudaMallocAsync"},
      {"backend: ,", "settings: column 10: backend: a value is missing before ','; allowed: native or cudaMallocAsync"},
      {"backend::native",
       "settings: column 9: backend: a value is missing before ':'; allowed: native or cudaMallocAsync"},
      {"backend:[native]",
       "settings: column 9: backend: a value is missing before '['; allowed: native or cudaMallocAsync"},
      {"backend:native:expandable_segments:True", "settings: column 15: backend: ',' is missing before ':'"},
      {"backend:native expandable_segments:True",
       "settings: column 16: backend: ',' is missing before 'expandable_segments'"},
      {"backend:native;expandable_segments:True",
       "settings: column 9: backend: there is no backend 'native;expandable_segments'; allowed: native or "
       "cudaMallocAsync"},
      /* A blank ends a word. */
      {"max_split_size_mb:5 12", "settings: column 21: max_split_size_mb: ',' is missing before '12'"},
      {"expandable_segments:Tr ue",
       "settings: column 21: expandable_segments: 'Tr' is not a boolean; allowed: True or False"},
      /* Error texts are escaped for terminals and limited in length. */
      {"a\x1b[31m:1", "settings: column 1: there is no key 'a\\x1b'" KEYS},
      {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff:1",
       "settings: column 1: there is no key '\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff...'" KEYS},
      {"\xff\x80z:1", "settings: column 1: there is no key '\\xff\\x80z'" KEYS},
      {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:1",
       "settings: column 1: there is no key 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'" KEYS},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(bad); i++)
    assert_refused(bad[i].text, bad[i].error);
}

TEST(a_key_is_given_once) {
  assert_refused("backend:native,backend:native",
                 "settings: column 16: backend: the text has this key already, with its value at column 9");
  assert_refused(
      "release_lock_on_cudamalloc:True,release_lock_on_hipmalloc:True",
      "settings: column 33: release_lock_on_hipmalloc: the text has this key already, with its value at column "
      "28");
}

TEST(unknown_keys) {
  static const struct {
    const char *key, *meant; /* NULL if no key is similar */
  } cases[] = {
      {"max_split_size", "max_split_size_mb"},
      {"MAX_SPLIT_SIZE_MB", "max_split_size_mb"},
      {"max_splt_size_mb", "max_split_size_mb"},
      {"expandable_segment", "expandable_segments"},
      {"expandable-segments", "expandable_segments"},
      {"garbage_collect_threshold", "garbage_collection_threshold"},
      {"release_lock_on_hip_malloc", "release_lock_on_hipmalloc"},
      {"pinned_use_host_register", "pinned_use_hip_host_register"},
      {"bakend", "backend"},
      {"expandable_segments_handle_type", NULL},
      {"x", NULL},
      {"mb", NULL},
      {"segments", NULL},
      {"max_split_size_mb_max_split_size_mb_max_split_size_mb_max_split_", NULL},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    char text[256], error[1024], shown[64];
    snprintf(text, sizeof text, "backend:native, %s:1", cases[i].key);
    snprintf(shown, sizeof shown, strlen(cases[i].key) > 40 ? "%.37s..." : "%s", cases[i].key);
    if (cases[i].meant != NULL)
      snprintf(error, sizeof error, "settings: column 17: there is no key '%s'; did you mean '%s'?", shown,
               cases[i].meant);
    else
      snprintf(error, sizeof error, "settings: column 17: there is no key '%s'" KEYS, shown);
    assert_refused(text, error);
  }
}

TEST(moving_pages_imply_expandable_segments) {
  weir__settings settings = parsed("moving_pages:True");
  assert_true(settings.moving_pages && settings.expandable_segments);
  assert_int_equal(settings.moving_pages_max_aliases, 8192);
  assert_refused("expandable_segments:False,moving_pages:True",
                 "settings: column 40: moving_pages: it implies expandable_segments:True");
  assert_refused("moving_pages_max_aliases:-1",
                 "settings: column 26: moving_pages_max_aliases: '-1' is not a whole number; allowed: a whole number, "
                 "0 to 1048576");

  /* Each turns the other on or off if it comes later. */
  weir__settings later;
  assert_ok(weir__settings_parse(&settings, "expandable_segments:False", &later));
  assert_false(later.moving_pages || later.expandable_segments);
  assert_ok(weir__settings_parse(&settings, "moving_pages:False", &later));
  assert_true(!later.moving_pages && later.expandable_segments);
  assert_ok(weir__settings_parse(&later, "moving_pages:True", &later));
  assert_true(later.moving_pages && later.expandable_segments);
}

TEST(keys_against_each_other) {
#define ALLOWED "; allowed: a whole number of MiB, at least large_segment_size_mb and at most " MAX
  weir__settings settings;
  assert_refused("max_split_size_mb:19",
                 "settings: column 19: max_split_size_mb: 19 is less than large_segment_size_mb, "
                 "which is 20" ALLOWED);
  assert_refused("max_non_split_rounding_mb:0", "settings: column 27: max_non_split_rounding_mb: 0 is less than "
                                                "large_segment_size_mb, which is 20" ALLOWED);

  /* In any order. */
  settings = parsed("max_split_size_mb:12,large_segment_size_mb:12");
  assert_int_equal(settings.max_split_size, 12 * MIB);
  assert_int_equal(settings.max_non_split_rounding, 12 * MIB);
  settings = parsed("large_segment_size_mb:12,max_split_size_mb:12");
  assert_int_equal(settings.max_split_size, 12 * MIB);
  assert_refused("max_split_size_mb:30,large_segment_size_mb:31",
                 "settings: column 19: max_split_size_mb: 30 is less than large_segment_size_mb, which is 31" ALLOWED);
  assert_refused("large_segment_size_mb:31,max_split_size_mb:30",
                 "settings: column 44: max_split_size_mb: 30 is less than large_segment_size_mb, which is 31" ALLOWED);

  /* Compared with an earlier setting. */
  settings = parsed("max_split_size_mb:30,max_non_split_rounding_mb:40");
  assert_refused_over(&settings, "large_segment_size_mb:32",
                      "settings: column 23: large_segment_size_mb: 32 is more than max_split_size_mb, which is 30");
  assert_refused_over(
      &settings, "large_segment_size_mb:42,max_split_size_mb:default",
      "settings: column 23: large_segment_size_mb: 42 is more than max_non_split_rounding_mb, which is 40");
  settings = parsed("large_segment_size_mb:32");
  assert_refused_over(
      &settings, "max_split_size_mb:31",
      "settings: column 19: max_split_size_mb: 31 is less than large_segment_size_mb, which is 32" ALLOWED);
#undef ALLOWED

  /* The rounding follows the segment size until it is set. */
  assert_int_equal(settings.max_non_split_rounding, 32 * MIB);
  settings = parsed_over(&settings, "large_segment_size_mb:12");
  assert_int_equal(settings.max_non_split_rounding, 12 * MIB);
  assert_formatted(&settings, "large_segment_size_mb:12");
  settings = parsed_over(&settings, "max_non_split_rounding_mb:12");
  assert_formatted(&settings, "max_non_split_rounding_mb:12,large_segment_size_mb:12");
  settings = parsed_over(&settings, "large_segment_size_mb:11");
  assert_int_equal(settings.max_non_split_rounding, 12 * MIB);
  settings = parsed_over(&settings, "max_non_split_rounding_mb:default");
  assert_int_equal(settings.max_non_split_rounding, 11 * MIB);
  assert_formatted(&settings, "large_segment_size_mb:11");

  assert_refused(
      "large_segment_size_mb:21,expandable_segments:True",
      "settings: column 23: large_segment_size_mb: 21 is odd, and expandable_segments:True maps memory in units "
      "of 2 MiB");
  assert_refused_over(
      &settings, "expandable_segments:True",
      "settings: column 21: large_segment_size_mb: 11 is odd, and expandable_segments:True maps memory in "
      "units of 2 MiB");
  parsed("large_segment_size_mb:22,expandable_segments:True");
}

TEST(other_keys_stay) {
  const char *all =
      "backend:cudaMallocAsync,max_split_size_mb:512,max_non_split_rounding_mb:64,large_segment_size_mb:32,"
      "garbage_collection_threshold:0.6,roundup_power2_divisions:[256:1,512:2,1024:4,>:8],"
      "expandable_segments:True,expandable_segments_reserve:0.5,"
      "expandable_segments_reserve_by_class:[a:1,b:2G],moving_pages_max_aliases:16,"
      "moving_pages_completed_only:True,moving_pages_across_streams:True,moving_pages_min_capability:75,moving_pages_"
      "slack:0.1,release_lock_"
      "on_cudamalloc:True,"
      "graph_capture_record_stream_reuse:True,per_process_memory_fraction:0.9,throw_on_cudamalloc_oom:True,guard:light,"
      "pinned_use_cuda_host_register:True,pinned_num_register_threads:8,pinned_use_background_threads:True,"
      "pinned_reserve_segment_size_mb:128,pinned_max_round_threshold_mb:16,pinned_max_cached_size_mb:32,"
      "pinned_free_catch_all:True";
  weir__settings base = parsed(all);
  assert_formatted(&base, all);
  weir__settings same = parsed_over(&base, "");
  assert_true(weir__settings_equal(&base, &same));

  /* Removing a key leaves the text without that key; for each key. */
  char left[1024];
  snprintf(left, sizeof left, "%s", all);
  weir__settings now = base;
  size_t keys = 0;
  while (left[0] != '\0') {
    char key[64], change[128];
    sscanf(left, "%63[^:]", key);
    snprintf(change, sizeof change, "%s:default", key);
    /* The end of its value: a comma that is not in a list. */
    char *end = left;
    for (int depth = 0; *end != '\0' && (*end != ',' || depth > 0); end++)
      depth += (*end == '[') - (*end == ']');
    memmove(left, *end == ',' ? end + 1 : end, strlen(*end == ',' ? end + 1 : end) + 1);
    assert_int_equal(weir__settings_parse(&now, change, &now), WEIR_OK);
    assert_formatted(&now, left);
    assert_false(weir__settings_equal(&now, &base));
    keys++;
  }
  assert_int_equal(keys, 26); /* all but moving_pages, which another key turns off */

  weir__settings older;
  base.older = &older;
  same = parsed_over(&base, "");
  assert_null(same.older);
  assert_true(weir__settings_equal(&base, &same));
  assert_ptr_equal(base.older, &older);
}

TEST(formatting_into_too_little_room) {
  const char *whole = "max_split_size_mb:512,roundup_power2_divisions:[256:1,>:8],expandable_segments:True";
  weir__settings settings = parsed(whole);
  assert_int_equal(weir__settings_format(&settings, NULL, 0), strlen(whole));
  for (size_t size = 1; size <= strlen(whole) + 2; size++) {
    char *text = malloc(size); /* exact size, so that the sanitizer detects reads beyond its end */
    assert_non_null(text);
    assert_int_equal(weir__settings_format(&settings, text, size), strlen(whole));
    size_t kept = size - 1 < strlen(whole) ? size - 1 : strlen(whole);
    assert_int_equal(strlen(text), kept);
    assert_memory_equal(text, whole, kept);
    free(text);
  }
}

/* ---- Sources of settings ---- */

static const char *const variables[] = {"WEIR_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
                                        "PYTORCH_ALLOC_CONF"};

TEST(environment) {
  for (size_t i = 0; i < WEIR_COUNT_OF(variables); i++)
    unsetenv(variables[i]);
  weir__settings settings;
  const char *source = "unchanged";
  assert_int_equal(weir__settings_from_env(&settings, &source), WEIR_OK);
  assert_null(source);
  assert_formatted(&settings, "");

  /* From last to first: each takes precedence over the later ones. */
  for (size_t i = WEIR_COUNT_OF(variables); i-- > 0;) {
    char text[64], error[256];
    snprintf(text, sizeof text, "max_split_size_mb:%zu", 100 + i);
    setenv(variables[i], text, 1);
    assert_int_equal(weir__settings_from_env(&settings, &source), WEIR_OK);
    assert_string_equal(source, variables[i]);
    assert_formatted(&settings, text);
    assert_int_equal(weir__settings_from_env(&settings, NULL), WEIR_OK);

    setenv(variables[i], "", 1);
    assert_int_equal(weir__settings_from_env(&settings, &source), WEIR_OK);
    assert_string_equal(source, variables[i]);
    assert_formatted(&settings, "");

    setenv(variables[i], "backend:native,expandable_segments:true", 1);
    memset(&settings, 0x5a, sizeof settings);
    weir__settings before = settings;
    source = "unchanged";
    assert_int_equal(weir__settings_from_env(&settings, &source), WEIR_ERROR_INVALID_ARGUMENT);
    assert_string_equal(source, "unchanged");
    assert_memory_equal(&settings, &before, sizeof settings);
    snprintf(error, sizeof error, "%s: column 36: expandable_segments: 'true' is not a boolean; allowed: True or False",
             variables[i]);
    assert_string_equal(weir_last_error(), error);
  }
  for (size_t i = 0; i < WEIR_COUNT_OF(variables); i++)
    unsetenv(variables[i]);
}

TEST(languages_with_a_comma) {
  static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR.utf8"};
  const char *found = NULL;
  for (size_t i = 0; i < WEIR_COUNT_OF(names) && found == NULL; i++)
    found = setlocale(LC_ALL, names[i]);
  if (found == NULL) {
    print_message("no language with a decimal comma is installed\n");
    skip();
  }
  assert_string_equal(localeconv()->decimal_point, ",");
  const char *text = "garbage_collection_threshold:0.625,expandable_segments_reserve:1.5G";
  weir__settings settings = parsed(text);
  assert_true(settings.garbage_collection_threshold == 0.625);
  assert_int_equal(settings.expandable_segments_reserve.bytes, 3ull << 29);
  assert_formatted(&settings, text);
  assert_string_equal(localeconv()->decimal_point, ",");
  setlocale(LC_ALL, "C");
}

/* ---- Help ---- */

static char *help(weir__help_form form) {
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  assert_non_null(file);
  weir__settings_help(file, form);
  fclose(file);
  return text;
}

TEST(help_as_text) {
  char *text = help(WEIR__HELP_TEXT);
  assert_non_null(strstr(text, "\nrelease_lock_on_cudamalloc or release_lock_on_hipmalloc\n    Other threads can"));
  assert_non_null(strstr(text, "\n    Default: 1. Allowed: a power of two, 1 to 128.\n"));
  assert_non_null(strstr(text, "\n    Default: unlimited. Allowed: a whole number of MiB, at least"));
  assert_non_null(strstr(text, "\n    Default: False. Allowed: True or False.\n"));
  assert_non_null(strstr(text, "\n    Default: off. Allowed: a number greater than 0 and less than 1.\n"));
  size_t keys = 0;
  for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    if (strlen(line) > 96)
      fail_msg("too long: %s", line);
    keys += line[0] != ' ';
  }
  assert_int_equal(keys, 29);
  free(text);
}

/* docs/tools/settings.md contains the table as the program prints it. */
TEST(the_page_has_the_table) {
  FILE *file = fopen(WEIR_TEST_DATA "/../../docs/tools/settings.md", "r");
  assert_non_null(file);
  static char page[1 << 16];
  size_t length = fread(page, 1, sizeof page - 1, file);
  fclose(file);
  page[length] = '\0';
  char *table = help(WEIR__HELP_MARKDOWN);
  if (strstr(page, table) == NULL)
    fail_msg("the table in docs/tools/settings.md is not this:\n%s", table);
  free(table);
}
