/*
 * The engine of reports: rows as JSON, and sentences that name them.
 */
#include "offline/render/report.h"

#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "support/test.h"

static char *json, *text;
static size_t json_size, text_size;

static void keep_command(const char *command, const char *options, const char *file) {
  assert_string_equal(command, "replay");
  assert_string_equal(options, "--check");
  assert_string_equal(file, "a b");
}

static const weir__report_style style = {"<", ">", "", keep_command};

/* Writes a report both ways, and clears it. */
static void write_report(weir__report *r) {
  static weir__sink sink;
  FILE *out = open_memstream(&json, &json_size);
  assert_ok(weir__report_status(r));
  weir__sink_begin(&sink, &weir__json_format, weir_write_file, out);
  weir__report_json(r, &sink, NULL);
  assert_ok(weir__sink_end(&sink, NULL));
  fclose(out);
  out = open_memstream(&text, &text_size);
  bool is_whole = weir__report_text(r, out, &style);
  fclose(out);
  assert_int_equal(is_whole, !strstr(text, "{list.y}"));
  weir__report_clear(r);
}

static int forget(void **state) {
  (void)state;
  free(json);
  free(text);
  json = text = NULL;
  return 0;
}

FIXTURE(.teardown = forget)

TEST(values_read_as_their_units_say) {
  weir__report r;
  weir__report_begin(&r);
  WEIR__ROWS(&r, ROW_BYTES("bytes", 3 << 20), ROW_BYTES_IF(false, "none", 7), JSON_NATURAL("blocks", 2),
             JSON_INTEGER("step", -1), ROW_REAL(true, "rate", 1023.6, 1, WEIR__UNIT_BYTES),
             ROW_REAL(true, "less", -2048, 0, WEIR__UNIT_BYTES), ROW_REAL(true, "share", 0.125, 3, WEIR__UNIT_SHARE),
             ROW_REAL(true, "seconds", 1.5, 3, WEIR__UNIT_SECONDS), ROW_US(true, "us", 3400),
             JSON_REAL("real", 2.345, 2), ROW_ADDRESS("address", 0x7f00), ROW_FILE("file", "-"),
             JSON_TEXT("name", "a\033b"), JSON_TEXT("null", NULL));
  weir__say(&r,
            "{bytes}|{none}|{blocks}|{blocks entry}|{step}|{rate}|{less:+}|{share}|{share:.0}|{seconds}|{us}|{real}|"
            "{real:+.1}|{address}|{file}|{name}|{null}|{bytes:10}|{bytes:-10}|");
  write_report(&r);
  assert_string_equal(text, "3.00 MiB|not known|2|2 entries|-1|1.00 KiB|-2.00 KiB|12.5 %|12 %|1.50 s|3.4 ms|2.345|+2.3|"
                            "0x7f00|standard input|a\\x1bb|not known|  3.00 MiB|3.00 MiB  |");
  assert_string_equal(json, "{\"bytes\": 3145728, \"none\": null, \"blocks\": 2, \"step\": -1, \"rate\": 1023.6, "
                            "\"less\": -2048, \"share\": 0.125, \"seconds\": 1.5, \"us\": 3400, \"real\": 2.35, "
                            "\"address\": 32512, \"file\": \"-\", \"name\": \"a\\u001bb\", \"null\": null}\n");
}

TEST(ranges_read_as_one_number_if_their_ends_do) {
  weir__report r;
  weir__report_begin(&r);
  WEIR__ROWS(&r, ROW_BYTES("a", 1 << 20), ROW_BYTES("b", 2 << 20), ROW_BYTES("c", (1 << 20) + 1), JSON_OBJECT("figure"),
             JSON_NATURAL("least", 1), JSON_NATURAL("most", 4096), JSON_CLOSE);
  weir__say(&r, "{a~b}|{a~c}|{b~a}|{a&b}|{a&c}|{figure}|{figure=}");
  write_report(&r);
  assert_string_equal(
      text, "1.00 to 2.00 MiB|1.00 MiB|1.00 to 2.00 MiB|between 1.00 and 2.00 MiB|1.00 MiB|up to 4.00 KiB|2.00 KiB");
}

TEST(cells_of_a_table_are_aligned) {
  static const char *const cells[][2] = {{"  a", "of"}, {"12345", "1"}, {"7", "10 %"}};
  weir__report r;
  weir__report_begin(&r);
  WEIR__ROWS(&r, JSON_NATURAL("_count", 1500), JSON_LIST("lines"));
  const size_t list = r.open;
  for (size_t i = 0; i < 3; i++) {
    WEIR__ROWS(&r, JSON_OBJECT(NULL), JSON_LIST("_cells"), ROW_TEXT(NULL, cells[i][0], WEIR__UNIT_PLAIN),
               ROW_TEXT(NULL, cells[i][1], WEIR__UNIT_PLAIN), JSON_CLOSE, JSON_NATURAL("n", i));
    weir__say(&r, "{_cells}|{n}\n");
    WEIR__ROWS(&r, JSON_CLOSE);
  }
  WEIR__ROWS(&r, JSON_CLOSE, ROW_NATURAL(true, "rate", 1540, WEIR__UNIT_THOUSANDTHS));
  size_t item = weir__report_first(list);
  for (size_t i = 0; i < 3; i++, item = weir__report_next(&r, item)) {
    r.scope = item;
    weir__say(&r, "{n},");
  }
  r.scope = 0;
  weir__say(&r, "{rate},{rate:.2}");
  write_report(&r);
  assert_string_equal(text, "    a   of |0\n12345    1 |1\n    7 10 % |2\n0,1,2,1.5,1.54");
  assert_string_equal(json, "{\"lines\": [{\"n\": 0}, {\"n\": 1}, {\"n\": 2}], \"rate\": 1540}\n");
}

TEST(names_are_found_in_the_object_of_a_sentence_and_around_it) {
  weir__report r;
  weir__report_begin(&r);
  weir__say(&r, "{later.in.x} {x}\n"); /* what comes later */
  WEIR__ROWS(&r, JSON_NATURAL("x", 1), JSON_LIST("list"));
  for (size_t i = 0; i < 3; i++) {
    WEIR__ROWS(&r, JSON_OBJECT(weir__item_key(i, 2)), JSON_NATURAL("y", i));
    weir__say_of(&r, "y", "{x} {$} {later.in.$}\n");
    WEIR__ROWS(&r, JSON_CLOSE);
  }
  WEIR__ROWS(&r, JSON_CLOSE, JSON_OBJECT("later"), JSON_OBJECT("in"), JSON_NATURAL("x", 5), JSON_NATURAL("y", 6),
             JSON_CLOSE, JSON_CLOSE, JSON_NATURAL("_own", 9));
  weir__say(&r, "*{_own}* ** {{ {list.y}");
  r.is_silent = true;
  weir__say(&r, "silent");
  r.is_silent = false;
  weir__say_command(&r, "replay", "--check", "a b");
  write_report(&r);
  assert_string_equal(text, "5 1\n1 0 6\n1 1 6\n1 2 6\n<9> * { {list.y}");
  assert_string_equal(json,
                      "{\"x\": 1, \"list\": [{\"y\": 0}, {\"y\": 1}], \"later\": {\"in\": {\"x\": 5, \"y\": 6}}}\n");
}
