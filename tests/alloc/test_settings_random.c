/*
 * Random settings: any set of settings survives a round trip through its text, and no text does harm.
 */
#include "alloc/settings_fixture.h"
#include "support/length.h"

static uint64_t seed;

static uint64_t random_below(uint64_t n) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed % n;
}

/* Any value in any notation. The segment size is 11 to 40, and values that must not be below it are at least 40. */
static void random_value(size_t key, char *text) {
  static const char *const keys[] = {"backend",
                                     "max_split_size_mb",
                                     "max_non_split_rounding_mb",
                                     "large_segment_size_mb",
                                     "garbage_collection_threshold",
                                     "roundup_power2_divisions",
                                     "expandable_segments",
                                     "expandable_segments_reserve",
                                     "expandable_segments_reserve_by_class",
                                     "release_lock_on_cudamalloc",
                                     "graph_capture_record_stream_reuse",
                                     "per_process_memory_fraction",
                                     "throw_on_cudamalloc_oom",
                                     "pinned_use_hip_host_register",
                                     "pinned_num_register_threads",
                                     "pinned_use_background_threads",
                                     "pinned_reserve_segment_size_mb",
                                     "pinned_max_round_threshold_mb",
                                     "pinned_max_cached_size_mb",
                                     "pinned_free_catch_all"};
  assert_int_equal(WEIR_COUNT_OF(keys), 20);
  text += sprintf(text, "%s:", keys[key]);
  if (random_below(10) == 0) {
    sprintf(text, "default");
    return;
  }
  double fraction = (double)(1 + random_below((1ull << 53) - 1)) / 0x1p53;
  unsigned long long mib = 40 + random_below(random_below(2) ? 1000 : MAX_MIB - 40);
  switch (key) {
  case 0:
    sprintf(text, "%s", random_below(2) ? "native" : "cudaMallocAsync");
    break;
  case 3:
    sprintf(text, "%u", 12 + 2 * (unsigned)random_below(15));
    break;
  case 4:
  case 11:
    sprintf(text, random_below(2) ? "%.17g" : "%.17e", fraction);
    break;
  case 5: {
    if (random_below(4) == 0) {
      sprintf(text, "%u", 1u << random_below(31));
      break;
    }
    text += sprintf(text, "[");
    unsigned entries = 0;
    for (unsigned i = 0; i < 16; i++) {
      if (random_below(2))
        text += sprintf(text, "%s%u:%u", entries++ ? "," : "", 1u << i, random_below(3) ? 1u << random_below(9) : 0u);
    }
    if (entries > 0 && random_below(2))
      text += sprintf(text, ",>:%u", 1u << random_below(31));
    sprintf(text, "]");
    break;
  }
  case 7:
    sprintf(text, random_below(2) ? "%.17gG" : "%.17g", fraction * (double)(1 + random_below(1ull << 32)));
    break;
  case 8: {
    unsigned entries = (unsigned)random_below(WEIR__RESERVE_CLASSES + 1);
    text += sprintf(text, "[");
    for (unsigned i = 0; i < entries; i++)
      text +=
          sprintf(text, "class%u:%.17g%s,", i, fraction * (double)(1 + random_below(1000)), random_below(2) ? "" : "G");
    sprintf(text, "]");
    break;
  }
  case 14:
    sprintf(text, "%u", 1u << random_below(8));
    break;
  case 1:
  case 2:
  case 16:
  case 17:
  case 18:
    sprintf(text, "%llu", mib);
    break;
  default:
    sprintf(text, "%s", random_below(2) ? "True" : "False");
  }
}

/* Parsed settings are written as a text that parses to the same settings; blanks and the order of keys do not matter.
 * */
TEST(any_settings_come_back) {
  for (int round = 0; round < repetitions(5000, 50000); round++) {
    seed = 0x9e3779b97f4a7c15ull * (uint64_t)(round + 1);
    char pairs[20][1024], text[8192], shuffled[16384], written[8192];
    size_t count = 0, length = 0, at = 0;
    for (size_t key = 0; key < 20; key++) {
      if (random_below(2))
        random_value(key, pairs[count++]);
    }
    text[0] = shuffled[0] = '\0';
    for (size_t i = 0; i < count; i++)
      length += (size_t)sprintf(text + length, "%s%s", i ? "," : "", pairs[i]);
    for (size_t i = count; i > 1; i--) {
      char pair[1024];
      size_t j = random_below(i);
      memcpy(pair, pairs[j], sizeof pair);
      memcpy(pairs[j], pairs[i - 1], sizeof pair);
      memcpy(pairs[i - 1], pair, sizeof pair);
    }
    for (size_t i = 0; i < count; i++) {
      for (const char *from = pairs[i]; *from != '\0'; from++) {
        bool separator = strchr(",:[]", *from) != NULL;
        at += (size_t)sprintf(shuffled + at, "%s%c%s", separator && random_below(4) == 0 ? "\t" : "", *from,
                              separator && random_below(4) == 0 ? " " : "");
      }
      at += (size_t)sprintf(shuffled + at, "%s", i + 1 < count || random_below(2) ? " ," : "");
    }
    weir__settings a = parsed(text), b = parsed(shuffled);
    if (!weir__settings_equal(&a, &b))
      fail_msg("these two differ:\n%s\n%s", text, shuffled);
    assert_in_range(weir__settings_format(&a, written, sizeof written), 0, sizeof written - 1);
    b = parsed(written);
    if (!weir__settings_equal(&a, &b))
      fail_msg("read and written:\n%s\n%s", text, written);

    /* One more key changes only that key. */
    char one[1024], again[1024], expected[8192];
    size_t key = random_below(20);
    random_value(key, one);
    weir__settings c = parsed_over(&a, one);
    random_value(key, again);
    weir__settings d = parsed_over(&c, again), e = parsed_over(&a, again);
    weir__settings_format(&d, written, sizeof written);
    weir__settings_format(&e, expected, sizeof expected);
    assert_string_equal(written, expected);
  }
}

/* Valid texts with changed bytes, and random bytes: an error, or settings that survive a round trip. */
TEST(garbage) {
  static const char *const alphabet[] = {",",
                                         ":",
                                         "[",
                                         "]",
                                         ">",
                                         " ",
                                         "0",
                                         "1",
                                         "512",
                                         "True",
                                         "default",
                                         "1e9",
                                         ".",
                                         "G",
                                         "backend",
                                         "max_split_size_mb",
                                         "roundup_power2_divisions",
                                         "\xff",
                                         "\x01",
                                         "expandable_segments_reserve_by_class",
                                         "garbage_collection_threshold"};
  size_t accepted = 0;
  for (int round = 0; round < repetitions(25000, 250000); round++) {
    seed = 0xd1342543de82ef95ull * (uint64_t)(round + 1);
    char text[4096], written[4096];
    size_t length = 0;
    switch (random_below(3)) {
    case 0: /* words in any order */
      for (size_t i = 0, words = random_below(12); i < words; i++)
        length += (size_t)sprintf(text + length, "%s", alphabet[random_below(WEIR_COUNT_OF(alphabet))]);
      break;
    case 1: /* a few bytes changed */
      random_value(random_below(20), text);
      length = strlen(text);
      for (size_t i = 0, changes = random_below(3); i < changes; i++)
        text[random_below(length)] = random_below(2) ? (char)(1 + random_below(255)) : ",:[]>0 "[random_below(7)];
      length = random_below(4) == 0 ? random_below(length + 1) : length;
      break;
    default: /* anything */
      length = random_below(40);
      for (size_t i = 0; i < length; i++)
        text[i] = (char)(1 + random_below(255));
    }
    char *exact = malloc(length + 1); /* exact size, so that the sanitizer detects reads beyond its end */
    assert_non_null(exact);
    memcpy(exact, text, length);
    exact[length] = '\0';
    weir__settings settings;
    weir_status status = weir__settings_parse(NULL, exact, &settings);
    if (status == WEIR_OK) {
      weir__settings_format(&settings, written, sizeof written);
      weir__settings again = parsed(written);
      assert_true(weir__settings_equal(&settings, &again));
      accepted++;
    } else {
      size_t column;
      assert_int_equal(status, WEIR_ERROR_INVALID_ARGUMENT);
      assert_int_equal(sscanf(weir_last_error(), "settings: column %zu: ", &column), 1);
      assert_in_range(column, 1, length + 1);
      for (const char *c = weir_last_error(); *c != '\0'; c++)
        assert_in_range(*c, ' ', '~');
    }
    free(exact);
  }
  assert_in_range(accepted, 1000, 99000);
}
