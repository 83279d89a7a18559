/*
 * Writes JSON as a list of items:
 *
 *   WEIR__JSON(sink, JSON_TEXT("file", name), JSON_OBJECT("peak"), JSON_NATURAL("bytes", bytes), JSON_CLOSE);
 *
 * A key is NULL for an item of a list.
 */
#pragma once

#include "base/sink.h"

extern const weir__sink_format weir__json_format;

typedef enum weir__json_kind {
  WEIR__JSON_OBJECT,
  WEIR__JSON_LIST,
  WEIR__JSON_CLOSE,
  WEIR__JSON_TEXT,
  WEIR__JSON_BOOL,
  WEIR__JSON_INTEGER,
  WEIR__JSON_NATURAL,
  WEIR__JSON_REAL,
  WEIR__JSON_NULL
} weir__json_kind;

typedef struct weir__json_item {
  weir__json_kind kind;
  const char *key;
  short decimals; /* REAL: it is rounded to so many; 0 writes an integer */
  short unit;     /* for people (weir__unit of offline/analyse/rows.h): JSON has the number alone */
  union {
    const char *text;
    int64_t integer;
    uint64_t natural;
    double real;
  };
} weir__json_item;

#define JSON_OBJECT(name)                                                                                              \
  {                                                                                                                    \
    WEIR__JSON_OBJECT, name, 0, 0, { 0 }                                                                               \
  }
#define JSON_LIST(name)                                                                                                \
  {                                                                                                                    \
    WEIR__JSON_LIST, name, 0, 0, { 0 }                                                                                 \
  }
#define JSON_CLOSE                                                                                                     \
  {                                                                                                                    \
    WEIR__JSON_CLOSE, NULL, 0, 0, { 0 }                                                                                \
  }
#define JSON_NULL(name)                                                                                                \
  {                                                                                                                    \
    WEIR__JSON_NULL, name, 0, 0, { 0 }                                                                                 \
  }
#define JSON_TEXT(name, value)                                                                                         \
  {                                                                                                                    \
    WEIR__JSON_TEXT, name, 0, 0, { .text = (value) }                                                                   \
  } /* NULL is written as null */
#define JSON_BOOL(name, value)                                                                                         \
  {                                                                                                                    \
    WEIR__JSON_BOOL, name, 0, 0, { .integer = (value) != 0 }                                                           \
  }
#define JSON_INTEGER(name, value)                                                                                      \
  {                                                                                                                    \
    WEIR__JSON_INTEGER, name, 0, 0, { .integer = (value) }                                                             \
  }
#define JSON_NATURAL(name, value)                                                                                      \
  {                                                                                                                    \
    WEIR__JSON_NATURAL, name, 0, 0, { .natural = (uint64_t)(value) }                                                   \
  }
#define JSON_REAL(name, value, places)                                                                                 \
  {                                                                                                                    \
    WEIR__JSON_REAL, name, places, 0, { .real = (value) }                                                              \
  }

/* A number, or null if it is not known. */
#define JSON_NATURAL_IF(is_known, name, value)                                                                         \
  {                                                                                                                    \
    (is_known) ? WEIR__JSON_NATURAL : WEIR__JSON_NULL, name, 0, 0, { .natural = (uint64_t)(value) }                    \
  }
#define JSON_REAL_IF(is_known, name, value, places)                                                                    \
  {                                                                                                                    \
    (is_known) ? WEIR__JSON_REAL : WEIR__JSON_NULL, name, places, 0, { .real = (value) }                               \
  }

#define WEIR__JSON(sink, ...)                                                                                          \
  weir__json_write(sink, (const weir__json_item[]){__VA_ARGS__},                                                       \
                   sizeof((const weir__json_item[]){__VA_ARGS__}) / sizeof(weir__json_item))

void weir__json_write(weir__sink *sink, const weir__json_item *items, size_t count);
