/*
 * The emitter of pickles and JSON: values, texts that need escapes, references and line breaks.
 */
#include <math.h>
#include <stdlib.h>

#include "inspect/json.h"
#include "inspect/write_snapshot.h"
#include "support/check.h"

static weir__sink sink;
static FILE *file;
static char *written;
static size_t written_bytes;

static void begin(const weir__sink_format *format) {
  file = open_memstream(&written, &written_bytes);
  assert_non_null(file);
  weir__sink_begin(&sink, format, weir_write_file, file);
}

static void end(void) {
  assert_int_equal(weir__sink_end(&sink, "test"), WEIR_OK);
  assert_int_equal(fclose(file), 0);
}

static int teardown(void **state) {
  (void)state;
  free(written);
  written = NULL;
  return 0;
}

FIXTURE(.teardown = teardown)

static void check_text(const char *text, const char *expected) {
  begin(&weir__json_format);
  sink.format->text(&sink, text, NULL);
  end();
  assert_string_equal(written, expected);
  free(written);
  written = NULL;
}

/* Output must not control a terminal, and JSON must be UTF-8. */
TEST(json_texts) {
  check_text("", "\"\"\n");
  check_text("plain / text", "\"plain / text\"\n");
  check_text("a\"b\\c", "\"a\\\"b\\\\c\"\n");
  check_text("\n\t\x1b[31m\x7f", "\"\\u000a\\u0009\\u001b[31m\\u007f\"\n");
  check_text("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", "\"gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80\"\n");
  check_text("\xe2\x80\xae", "\"\\u202e\"\n");                              /* right-to-left override */
  check_text("\xff\xc3", "\"\xef\xbf\xbd\xef\xbf\xbd\"\n");                 /* not UTF-8 */
  check_text("\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"\n"); /* a surrogate */
}

static void write_one_of_each(void) {
  const weir__sink_format *to = sink.format;
  uint32_t memo = 0;
  weir__write_open_dict(&sink);
  to->key(&sink, "numbers", NULL);
  weir__write_open_list(&sink);
  to->natural(&sink, UINT64_MAX);
  to->integer(&sink, INT64_MIN);
  to->real(&sink, 0.1);
  to->real(&sink, 2);
  weir__write_close(&sink);
  to->key(&sink, "others", NULL);
  weir__write_open_list(&sink);
  to->boolean(&sink, true);
  to->null(&sink);
  to->pair(&sink, 1, 2);
  weir__write_close(&sink);
  to->key(&sink, "texts", NULL);
  weir__write_open_dict(&sink);
  to->key(&sink, "once", &memo);
  to->text(&sink, "once", &memo);
  weir__write_close(&sink);
  weir__write_close(&sink);
}

TEST(json_values) {
  begin(&weir__json_format);
  write_one_of_each();
  end();
  assert_string_equal(written, "{\"numbers\": [18446744073709551615, -9223372036854775808, 0.1, 2.0], "
                               "\"others\": [true, null, [1, 2]], \"texts\": {\"once\": \"once\"}}\n");
}

TEST(json_infinity_is_null) {
  begin(&weir__json_format);
  weir__write_open_list(&sink);
  sink.format->real(&sink, INFINITY);
  sink.format->real(&sink, NAN);
  weir__write_close(&sink);
  end();
  assert_string_equal(written, "[null, null]\n");
}

/* Lists and the outermost dict are broken into lines up to the requested depth; other dicts are not. */
TEST(json_lines) {
  begin(&weir__json_format);
  sink.line_depth = 2;
  write_one_of_each();
  end();
  assert_string_equal(written, "{\"numbers\": [18446744073709551615,\n-9223372036854775808,\n0.1,\n2.0],\n"
                               "\"others\": [true,\nnull,\n[1, 2]],\n\"texts\": {\"once\": \"once\"}}\n");
}

TEST(pickle_values) {
  begin(&weir__pickle_format);
  weir__write_open_list(&sink);
  uint32_t memo = 0;
  sink.format->null(&sink);
  sink.format->text(&sink, "ab", &memo);
  sink.format->text(&sink, "ab", &memo);
  sink.format->natural(&sink, 300);
  weir__write_close(&sink);
  end();
  static const unsigned char expected[] = {0x80, 2,   ']', '(', 'N', 'X', 2,  0, 0,   0,  'a',
                                           'b',  'q', 0,   'h', 0,   'M', 44, 1, 'e', '.'};
  assert_int_equal(written_bytes, sizeof expected);
  assert_memory_equal(written, expected, sizeof expected);
}
