/*
 * The output of --json: one object at a time on the standard output, through the emitter of the library.
 *
 *   weir_cli_json_begin(0);
 *   WEIR_CLI_JSON(JSON_TEXT("file", name), JSON_OBJECT("peak"), JSON_NATURAL("bytes", bytes), JSON_CLOSE);
 *   weir_cli_json_end();
 *
 * A key is NULL for an item of a list.
 */
#ifndef WEIR_CLI_JSON_H
#define WEIR_CLI_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum weir_cli_json_kind {
  WEIR_CLI_JSON_OBJECT,
  WEIR_CLI_JSON_LIST,
  WEIR_CLI_JSON_CLOSE,
  WEIR_CLI_JSON_TEXT,
  WEIR_CLI_JSON_BOOL,
  WEIR_CLI_JSON_INTEGER,
  WEIR_CLI_JSON_NATURAL,
  WEIR_CLI_JSON_REAL,
  WEIR_CLI_JSON_NULL
} weir_cli_json_kind;

typedef struct weir_cli_json_item {
  weir_cli_json_kind kind;
  const char *key;
  int decimals; /* REAL: it is rounded to so many; 0 writes an integer */
  union {
    const char *text;
    int64_t integer;
    uint64_t natural;
    double real;
  };
} weir_cli_json_item;

#define JSON_OBJECT(name)                                                                                              \
  {                                                                                                                    \
    WEIR_CLI_JSON_OBJECT, name, 0, { 0 }                                                                               \
  }
#define JSON_LIST(name)                                                                                                \
  {                                                                                                                    \
    WEIR_CLI_JSON_LIST, name, 0, { 0 }                                                                                 \
  }
#define JSON_CLOSE                                                                                                     \
  {                                                                                                                    \
    WEIR_CLI_JSON_CLOSE, NULL, 0, { 0 }                                                                                \
  }
#define JSON_NULL(name)                                                                                                \
  {                                                                                                                    \
    WEIR_CLI_JSON_NULL, name, 0, { 0 }                                                                                 \
  }
#define JSON_TEXT(name, value)                                                                                         \
  {                                                                                                                    \
    WEIR_CLI_JSON_TEXT, name, 0, { .text = (value) }                                                                   \
  } /* NULL is written as null */
#define JSON_BOOL(name, value)                                                                                         \
  {                                                                                                                    \
    WEIR_CLI_JSON_BOOL, name, 0, { .integer = (value) != 0 }                                                           \
  }
#define JSON_INTEGER(name, value)                                                                                      \
  {                                                                                                                    \
    WEIR_CLI_JSON_INTEGER, name, 0, { .integer = (value) }                                                             \
  }
#define JSON_NATURAL(name, value)                                                                                      \
  {                                                                                                                    \
    WEIR_CLI_JSON_NATURAL, name, 0, { .natural = (uint64_t)(value) }                                                   \
  }
#define JSON_REAL(name, value, places)                                                                                 \
  {                                                                                                                    \
    WEIR_CLI_JSON_REAL, name, places, { .real = (value) }                                                              \
  }

/* A number, or null if it is not known. */
#define JSON_NATURAL_IF(is_known, name, value)                                                                         \
  {                                                                                                                    \
    (is_known) ? WEIR_CLI_JSON_NATURAL : WEIR_CLI_JSON_NULL, name, 0, { .natural = (uint64_t)(value) }                 \
  }
#define JSON_REAL_IF(is_known, name, value, places)                                                                    \
  {                                                                                                                    \
    (is_known) ? WEIR_CLI_JSON_REAL : WEIR_CLI_JSON_NULL, name, places, { .real = (value) }                            \
  }

/* Writes items in order. */
#define WEIR_CLI_JSON(...)                                                                                             \
  weir_cli_json_write((const weir_cli_json_item[]){__VA_ARGS__},                                                       \
                      sizeof((const weir_cli_json_item[]){__VA_ARGS__}) / sizeof(weir_cli_json_item))

/* Begins an object, and ends it with a newline. The members of that object and the items of lists are each on a line of
 * their own where they are nested at most `line_depth` deep; 0 writes one line. */
void weir_cli_json_begin(int line_depth);
void weir_cli_json_end(void);
void weir_cli_json_write(const weir_cli_json_item *items, size_t count);

#endif
