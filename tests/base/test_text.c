#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "support/check.h"

TEST(bytes_for_people) {
  static const struct {
    unsigned long long bytes;
    const char *text, *as_pytorch;
  } cases[] = {
      {0, "0 bytes", "0 bytes"},
      {512, "512 bytes", "512 bytes"},
      {1023, "1023 bytes", "1023 bytes"},
      {1024, "1.00 KiB", "1024 bytes"},
      {1025, "1.00 KiB", "1.00 KiB"},
      {1536, "1.50 KiB", "1.50 KiB"},
      {(1ull << 20) - 1, "1.00 MiB", "1024.00 KiB"},
      {1ull << 20, "1.00 MiB", "1024.00 KiB"},
      {(1ull << 20) + 1, "1.00 MiB", "1.00 MiB"},
      {2ull << 20, "2.00 MiB", "2.00 MiB"},
      {1023ull << 20, "1023.00 MiB", "1023.00 MiB"},
      {1ull << 30, "1.00 GiB", "1024.00 MiB"},
      {80ull << 30, "80.00 GiB", "80.00 GiB"},
      {3ull << 40, "3.00 TiB", "3072.00 GiB"},
      {UINT64_MAX, "16777216.00 TiB", "17179869184.00 GiB"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    char text[32];
    assert_ptr_equal(weir__format_bytes(cases[i].bytes, text), text);
    assert_string_equal(text, cases[i].text);
    assert_ptr_equal(weir__format_bytes_as_pytorch(cases[i].bytes, text), text);
    assert_string_equal(text, cases[i].as_pytorch);
  }
}

TEST(sizes_that_can_be_read) {
  static const struct {
    const char *text;
    unsigned long long bytes;
  } cases[] = {
      {"0", 0},
      {"1024", 1024},
      {"100B", 100},
      {"80GiB", 80ull << 30},
      {"80G", 80ull << 30},
      {"512 MB", 512000000},
      {" 3 KiB ", 3072},
      {"3K", 3072},
      {"3KB", 3000},
      {"2T", 2ull << 40},
      {"2TB", 2000000000000ull},
      {"50gb", 50000000000ull},
      {"1gib", 1ull << 30},
      {"1.5GiB", 3ull << 29},
      {"0.25K", 256},
      {"0.000001MB", 1},
      {"18446744073709551615", UINT64_MAX},
      {"16777215T", 16777215ull << 40},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    unsigned long long bytes = 1;
    if (!weir__parse_bytes(cases[i].text, &bytes))
      fail_msg("\"%s\" was not understood", cases[i].text);
    assert_int_equal(bytes, cases[i].bytes);
  }
}

TEST(invalid_sizes_change_nothing) {
  static const char *const texts[] = {
      "",
      " ",
      "GiB",
      "-1",
      "+1",
      "x",
      "1x",
      "1 2",
      "1GiBx",
      "1Gi",
      "1iB",
      "1P",
      "1.GiB",
      ".5G",
      "1.5",
      "1.0000001G",
      "0x10",
      "18446744073709551616",
      "16777216T",
      "1.2.3G",
      "1e3",
      "16777215.9999999T",
      "99999999999999999999999",
      "1 G iB",
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(texts); i++) {
    unsigned long long bytes = 42;
    if (weir__parse_bytes(texts[i], &bytes))
      fail_msg("\"%s\" was read as %llu", texts[i], bytes);
    assert_int_equal(bytes, 42);
  }
}

TEST(rounding_up) {
  assert_int_equal(weir__round_up(0, 512), 0);
  assert_int_equal(weir__round_up(1, 512), 512);
  assert_int_equal(weir__round_up(512, 512), 512);
  assert_int_equal(weir__round_up(513, 512), 1024);
  assert_int_equal(weir__round_up(10, 3), 12);
}

struct old {
  size_t size;
  int a;
};

struct new {
  size_t size;
  int a;
  int b;
};

TEST(an_older_caller_gets_defaults_for_newer_fields) {
  struct new ours = {sizeof ours, 1, 2};
  const struct old theirs = {sizeof theirs, 10};
  weir__copy_sized(&ours, sizeof ours, &theirs, offsetof(struct old, a) + sizeof theirs.a);
  assert_int_equal(ours.a, 10);
  assert_int_equal(ours.b, 2);
}

TEST(unknown_fields_of_a_newer_caller_are_ignored) {
  struct {
    struct old ours;
    int after;
  } box = {{sizeof box.ours, 1}, 77};
  const struct new theirs = {sizeof theirs, 10, 20};
  weir__copy_sized(&box.ours, offsetof(struct old, a) + sizeof box.ours.a, &theirs, sizeof theirs);
  assert_int_equal(box.ours.a, 10);
  assert_int_equal(box.after, 77);
}

TEST(texts_for_terminals) {
  static const struct {
    const char *text, *shown;
  } cases[] = {
      {"", ""},
      {"forward (net.py:12) \\ \"é 漢 \U0001f600\"", "forward (net.py:12) \\ \"é 漢 \U0001f600\""},
      {"\x1b]0;title\a\x1b[31m", "\\x1b]0;title\\a\\x1b[31m"},
      {"one\ntwo\r\tthree", "one\\ntwo\\r\\tthree"},
      {"\x01\x1f\x7f", "\\x01\\x1f\\x7f"},
      {"\xc2\x9b"
       "31m\xc2\x80\xc2\xa0",
       "\\u009b31m\\u0080\xc2\xa0"}, /* C1 controls, and the first character after them */
      {"\u202e\u2066\u2028\u200f\ufeff", "\\u202e\\u2066\\u2028\\u200f\\ufeff"},
      {"\xff\xc3", "\\xff\\xc3"},
      {"\xed\xb2\x80", "\\xed\\xb2\\x80"}, /* a surrogate */
      {"\xc0\x80\xe0\x80\x80\xf4\x90\x80\x80", "\\xc0\\x80\\xe0\\x80\\x80\\xf4\\x90\\x80\\x80"},
      {"\xe6\xbc", "\\xe6\\xbc"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    char shown[128], again[128];
    assert_int_equal(weir__escape_text(cases[i].text, strlen(cases[i].text), shown, sizeof shown),
                     strlen(cases[i].shown));
    assert_string_equal(shown, cases[i].shown);
    weir__escape_text(shown, strlen(shown), again, sizeof again); /* escaping is idempotent */
    assert_string_equal(again, shown);
    for (size_t size = 1; size < sizeof shown; size++) { /* truncated after whole characters and escapes */
      char cut[128];
      size_t length = weir__escape_text(cases[i].text, strlen(cases[i].text), cut, size);
      assert_true(length < size && strlen(cut) == length);
      assert_memory_equal(cut, cases[i].shown, length);
      uint32_t code;
      for (size_t at = 0, bytes; at < length; at += bytes)
        assert_true((bytes = weir__utf8_length(cut + at, &code)) > 0);
    }
  }
  char part[16];
  weir__escape_text("ab\xe6\xbc\xa2", 4, part, sizeof part); /* does not read beyond the length */
  assert_string_equal(part, "ab\\xe6\\xbc");
}

TEST(errors_have_no_control_characters) {
  weir__fail(WEIR_ERROR_SYSTEM, "%s: open: no such file", "a\x1b[31m\nb\xff");
  assert_string_equal(weir_last_error(), "a\\x1b[31m\\nb\\xff: open: no such file");
  weir__fail(WEIR_ERROR_SYSTEM, "first: %s", weir_last_error());
  assert_string_equal(weir_last_error(), "first: a\\x1b[31m\\nb\\xff: open: no such file");
  weir__fail(WEIR_ERROR_SYSTEM, "lines:\n%s", "one\x1b\ntwo"); /* newlines of the message are kept */
  assert_string_equal(weir_last_error(), "lines:\none\\x1b\ntwo");
  char longest[WEIR__TEXT_SIZE];
  memset(longest, 0x1b, sizeof longest - 1);
  longest[sizeof longest - 1] = 0;
  weir__fail(WEIR_ERROR_SYSTEM, "%s", longest);
  assert_in_range(strlen(weir_last_error()), WEIR__TEXT_SIZE - 8, WEIR__TEXT_SIZE - 1);
  assert_null(strchr(weir_last_error(), 0x1b));
}

static const char *nearest_of(const char *word) {
  static const char *const names[] = {"explain", "export", "info", "tune"};
  weir__nearest nearest = {.word = word, .length = strlen(word)};
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++)
    weir__nearest_compare(&nearest, names[i]);
  return nearest.name;
}

TEST(misspelled_names) {
  assert_string_equal(nearest_of("explian"), "explain");
  assert_string_equal(nearest_of("EXPLAIN"), "explain");
  assert_string_equal(nearest_of("exprt"), "export");
  assert_string_equal(nearest_of("inof"), "info");
  assert_string_equal(nearest_of("tun"), "tune");
  assert_null(nearest_of(""));
  assert_null(nearest_of("frobnicate"));
  assert_null(nearest_of("tuxx\xff\xff"));
  char longest[100] = "explain";
  memset(longest + 7, 'n', sizeof longest - 8);
  assert_null(nearest_of(longest));
}
