/*
 * Figures of reports, and how they read.
 */
#pragma once

#include <stdint.h>

typedef enum weir__unit {
  WEIR__UNIT_COUNT,
  WEIR__UNIT_BYTES,
  WEIR__UNIT_SHARE,
  WEIR__UNIT_NS,
  WEIR__UNIT_SECONDS,
  WEIR__UNIT_US,          /* an integer */
  WEIR__UNIT_THOUSANDTHS, /* a natural number */
  WEIR__UNIT_ADDRESS,
  WEIR__UNIT_FILE,  /* a text: the name of an input, in which - is the standard input */
  WEIR__UNIT_PLAIN, /* a text that needs no escapes */
} weir__unit;

/* A figure that tables, JSON and the page show alike. `label` is for people, and `key` for JSON. The value is a range
 * if its ends differ. */
typedef struct weir__row {
  const char *label, *key;
  weir__unit unit;
  double value, other;
} weir__row;

enum { WEIR__ROW_TEXT = 80 };

/* "1.82 GiB", "11.3 %", "7.57 ms", "194". Returns `text`, as do all of these. */
const char *weir__unit_text(weir__unit unit, double value, char text[WEIR__ROW_TEXT]);

/* "1 block", "2 entries", from a noun in the singular. */
const char *weir__count_text(uint64_t count, const char *noun, char text[WEIR__ROW_TEXT]);

/* "12.15 to 13.64 GiB", from two texts and " to ", or one of them if both read the same. */
const char *weir__range_text(const char *least, const char *to, const char *most, char text[WEIR__ROW_TEXT]);

/* The value of a row: a range, the smaller end first, or one number. */
const char *weir__row_text(const weir__row *row, char text[WEIR__ROW_TEXT]);
