/*
 * Input in a build without libzstd and zlib, which this file compiles: compressed files are refused.
 */
#undef WEIR_HAVE_ZSTD
#undef WEIR_HAVE_ZLIB
#include "../../src/offline/read/input.c"

#include "support/check.h"
#include "support/test.h"

static const char zstd[] = {0x28, (char)0xb5, 0x2f, (char)0xfd, 0x20}, gzip[] = {0x1f, (char)0x8b, 8, 0};

static void check_refused(const char *name, const char *bytes, size_t size, const char *error) {
  weir__input *input = NULL;
  assert_int_equal(weir__input_open_memory(name, bytes, size, &input), WEIR_ERROR_NOT_SUPPORTED);
  assert_null(input);
  if (strncmp(weir_last_error(), error, strlen(error)) != 0)
    fail_msg("%s", weir_last_error());
}

TEST(compressed) {
  check_refused("a.zst", zstd, sizeof zstd,
                "a.zst: it is compressed with zstd, and this Weir was built without libzstd; decompress the file first "
                "(zstd -d), or install libzstd-dev");
  check_refused("a.gz", gzip, sizeof gzip,
                "a.gz: it is compressed with gzip, and this Weir was built without zlib; decompress the file first "
                "(gzip -d), or install zlib1g-dev");
}

TEST(plain) {
  weir__input *input;
  char to[8];
  size_t got;
  assert_ok(weir__input_open_memory("plain", "abcdef", 6, &input));
  assert_ok(weir__input_peek(input, to, 4, &got));
  assert_int_equal(got, 4);
  assert_memory_equal(to, "abcd", 4);
  assert_ok(weir__input_read(input, to, sizeof to, &got));
  assert_int_equal(got, 4);
  assert_ok(weir__input_read(input, to, sizeof to, &got));
  assert_int_equal(got, 2);
  assert_memory_equal(to, "ef", 2);
  weir__input_close(input);
}
