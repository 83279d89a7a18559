/*
 * A reader of pickles that executes nothing. It knows the opcodes of all protocols (0 to 5), accepts those that make
 * plain data, and refuses the others by name; it has no code to run them.
 *
 * It reads a stream, a buffer at a time, and keeps little:
 *
 * - A value is one word: a tag and a payload. Small integers are stored in the word itself; texts are interned; lists,
 *   tuples, dicts and sets are "boxes", known by number.
 * - A box is sealed when it is put into another one, and cannot change afterwards. So the result has no cycles, and the
 *   depth of a box is known when it is sealed.
 * - A complete dict is offered to the consumer's hook. If the hook puts an object of its own in the dict's place, the
 *   memory of the dict is reused. So a history of millions of entries, each a dict, is read in the space of one. The
 *   same holds for lists of such objects that are put into a dict: stacks.
 *
 * Everything a file can ask for is limited: see weir__pickle_limits. Every error says what is wrong, and at which byte.
 *
 * A reader is used by one thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "offline/read/budget.h"
#include "offline/read/input.h"

/* 0 in a field stands for the default. */
typedef struct weir__pickle_limits {
  uint64_t input; /* bytes of pickle, decompressed: 64 GiB */
  uint64_t
      memory;     /* bytes that reading takes, including what the consumer keeps: 4 GiB; see also WEIR__READER_FACTOR */
  size_t objects; /* boxes that are kept, and different texts: 2^27 */
  size_t string;  /* bytes of one text or bytes object: 64 MiB */
  size_t depth;   /* boxes within boxes: 100 */
} weir__pickle_limits;

typedef uint64_t weir__pickle_value;

typedef enum weir__pickle_tag {
  WEIR__PICKLE_NOTHING, /* the value 0: no value at all */
  WEIR__PICKLE_NONE,
  WEIR__PICKLE_BOOL,
  WEIR__PICKLE_INT,       /* in the word itself: 59 bits */
  WEIR__PICKLE_WIDE_INT,  /* other signed integers of 64 bits */
  WEIR__PICKLE_WIDE_UINT, /* from 2^63 on */
  WEIR__PICKLE_FLOAT,
  WEIR__PICKLE_STR,
  WEIR__PICKLE_BYTES,       /* a bytearray too */
  WEIR__PICKLE_OBJECT,      /* what the hook put there */
  WEIR__PICKLE_LIST = 0x10, /* from here on: boxes */
  WEIR__PICKLE_TUPLE,
  WEIR__PICKLE_DICT,
  WEIR__PICKLE_SET,
  WEIR__PICKLE_FROZENSET
} weir__pickle_tag;

enum { WEIR__PICKLE_TAG_BITS = 5 };

static inline weir__pickle_tag weir__pickle_tag_of(weir__pickle_value value) {
  return (weir__pickle_tag)(value & ((1u << WEIR__PICKLE_TAG_BITS) - 1));
}

static inline uint64_t weir__pickle_payload(weir__pickle_value value) { return value >> WEIR__PICKLE_TAG_BITS; }

static inline weir__pickle_value weir__pickle_make(weir__pickle_tag tag, uint64_t payload) {
  return payload << WEIR__PICKLE_TAG_BITS | tag;
}

/* One bit, so that many values can be tested at once. */
static inline bool weir__pickle_is_box(weir__pickle_value value) { return value & WEIR__PICKLE_LIST; }

/* "a str", "a list", ... */
const char *weir__pickle_kind(weir__pickle_value value);

typedef struct weir__pickle weir__pickle;

/* The caller closes the input. `limits` may be NULL. */
weir_status weir__pickle_open(weir__input *source, const weir__pickle_limits *limits, weir__pickle **pickle);
void weir__pickle_close(weir__pickle *pickle);

/* Gets a complete dict: `pair_count` pairs of a key and a value, in the order in which they were set (a repeated key
 * replaces the earlier one). It may put an object into *taken, which is 0 at the call; then the dict is freed, and only
 * boxes among its values stay. If it fails, it has called weir__pickle_fail. */
typedef weir_status (*weir__pickle_hook)(void *context, weir__pickle *pickle, const weir__pickle_value *pairs,
                                         size_t pair_count, weir__pickle_value *taken);

/* The same for a list that holds objects only and goes into a dict; `items` are `count` values. Set before reading. */
void weir__pickle_set_list_hook(weir__pickle *pickle, weir__pickle_hook hook);

/* Reads the whole pickle; nothing may follow its end. `hook` may be NULL. Once per reader. */
weir_status weir__pickle_read(weir__pickle *pickle, weir__pickle_hook hook, void *context, weir__pickle_value *root);

/* "NAME: byte N: ...", with the reader's position. */
weir_status weir__pickle_fail(weir__pickle *pickle, const char *format, ...) WEIR_PRINTF(2, 3);

/* The same for a failed allocation: the limit was reached, or the host has no memory. */
weir_status weir__pickle_fail_memory(weir__pickle *pickle);

weir__budget *weir__pickle_budget(weir__pickle *pickle);

/* The number of bytes read so far. */
uint64_t weir__pickle_size(const weir__pickle *pickle);

/* The texts, by number. The consumer may add its own, and may take all of them by leaving an empty table in place. */
weir__strings *weir__pickle_strings(weir__pickle *pickle);

/* The number of a text that the consumer wants to recognise. */
weir_status weir__pickle_intern(weir__pickle *pickle, const char *text, uint32_t *id);

/* false if it is no integer, or does not fit. A bool is an integer, as in Python. */
bool weir__pickle_int64_slow(const weir__pickle *pickle, weir__pickle_value value, int64_t *out);
bool weir__pickle_uint64_slow(const weir__pickle *pickle, weir__pickle_value value, uint64_t *out);

static inline bool weir__pickle_int64(const weir__pickle *pickle, weir__pickle_value value, int64_t *out) {
  if (weir__pickle_tag_of(value) != WEIR__PICKLE_INT)
    return weir__pickle_int64_slow(pickle, value, out);
  *out = (int64_t)value >> WEIR__PICKLE_TAG_BITS;
  return true;
}

static inline bool weir__pickle_uint64(const weir__pickle *pickle, weir__pickle_value value, uint64_t *out) {
  if (weir__pickle_tag_of(value) != WEIR__PICKLE_INT || (int64_t)value < 0)
    return weir__pickle_uint64_slow(pickle, value, out);
  *out = weir__pickle_payload(value);
  return true;
}

bool weir__pickle_double(const weir__pickle *pickle, weir__pickle_value value, double *out); /* an integer too */
weir__string weir__pickle_string(const weir__pickle *pickle, weir__pickle_value value);      /* of a STR or BYTES */

/* What a box holds; a dict has keys and values in turn, and `count` counts both. */
const weir__pickle_value *weir__pickle_items(const weir__pickle *pickle, weir__pickle_value box, size_t *count);

/* A note of the consumer's for a sealed box; 0 at first. */
uint32_t *weir__pickle_note(weir__pickle *pickle, weir__pickle_value box);
