/*
 * Reports as rows: the figures that tables, JSON and the page show alike.
 */
#pragma once

typedef enum weir__unit { WEIR__UNIT_COUNT, WEIR__UNIT_BYTES, WEIR__UNIT_SHARE, WEIR__UNIT_NS } weir__unit;

/* `label` is for people, and `key` for JSON. The value is a range if its ends differ. */
typedef struct weir__row {
  const char *label, *key;
  weir__unit unit;
  double value, other;
} weir__row;

enum { WEIR__ROW_TEXT = 80 };

/* "1.82 GiB", "11.3 %", "7.57 ms", "194". Returns `text`. */
const char *weir__unit_text(weir__unit unit, double value, char text[WEIR__ROW_TEXT]);

/* "12.15 to 13.64 GiB", from two texts and " to ", or one of them if both read the same. Returns `text`. */
const char *weir__range_text(const char *least, const char *to, const char *most, char text[WEIR__ROW_TEXT]);

/* The value of a row for people: a range, the smaller end first, or one number. Returns `text`. */
const char *weir__row_text(const weir__row *row, char text[WEIR__ROW_TEXT]);
