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
