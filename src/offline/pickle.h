/*
 * A reader of pickles that executes nothing. It knows the opcodes of all protocols (0 to 5), accepts those that make plain
 * data, and refuses the others by name: there is no code behind them that could run.
 *
 * It reads a stream, a buffer at a time, and keeps little:
 *
 * - A value is one word: a tag and a payload. Small integers lie in the word itself; texts are kept once each and known by
 *   number; lists, tuples, dicts and sets are "boxes", also known by number.
 * - A box is sealed when it is put into another one, and cannot change from then on. So what is read has no cycles, and a
 *   box's depth is known when it is sealed; nothing here, and nothing that walks the result, can be led round in circles.
 * - A dict that is complete is offered to the consumer's hook. If the hook keeps what it needs and puts an object of its own
 *   in the dict's place, the dict's memory is used for the next one. That is how a history of millions of entries, each a
 *   dict, goes through in the space of one. So are lists of such objects, when they are put into a dict: the stacks.
 *
 * Everything a file can ask for is limited: see weir__pickle_limits. Every error says what, and at which byte.
 *
 * One thread at a time may use a reader.
 */
#ifndef WEIR_OFFLINE_PICKLE_H
#define WEIR_OFFLINE_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "offline/budget.h"
#include "offline/input.h"

/* 0 in a field: the default. */
typedef struct weir__pickle_limits {
  uint64_t input;  /* bytes of pickle, decompressed: 64 GiB */
  uint64_t memory; /* bytes that reading takes, what the consumer keeps included: 4 GiB; see also WEIR__WINDOW_FACTOR */
  size_t objects;  /* boxes that are kept, and different texts: 2^27 */
  size_t string;   /* bytes of one text or bytes object: 64 MiB */
  size_t depth;    /* boxes within boxes: 100 */
} weir__pickle_limits;

typedef uint64_t weir__pickle_value;

typedef enum weir__pickle_tag {
  WEIR__PICKLE_NOTHING, /* the value 0: no value at all */
  WEIR__PICKLE_NONE,
  WEIR__PICKLE_BOOL,
  WEIR__PICKLE_INT,       /* in the word itself: 59 bits */
  WEIR__PICKLE_WIDE_INT,  /* the rest of 64 bits; signed ... */
  WEIR__PICKLE_WIDE_UINT, /* ... and from 2^63 on */
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

/* One bit, so that many values can be asked at once. */
static inline bool weir__pickle_is_box(weir__pickle_value value) { return value & WEIR__PICKLE_LIST; }

/* "a str", "a list", ... */
const char *weir__pickle_kind(weir__pickle_value value);

typedef struct weir__pickle weir__pickle;

/* The source stays the caller's. `limits` may be NULL. */
weir_status weir__pickle_open(weir__input *source, const weir__pickle_limits *limits, weir__pickle **pickle);
void weir__pickle_close(weir__pickle *pickle);

/* Looks at a complete dict: `pair_count` times a key and a value, in the order in which they were set (a key that comes
 * again replaces the one before). It may put an object into *taken, which is 0 at the call, and the dict is gone: only
 * boxes among its values stay. Where it fails, it has called weir__pickle_fail. */
typedef weir_status (*weir__pickle_hook)(void *context, weir__pickle *pickle, const weir__pickle_value *pairs,
                                         size_t pair_count, weir__pickle_value *taken);

/* The same for a list that holds objects only and goes into a dict; `items` are `count` values. Set before reading. */
void weir__pickle_set_list_hook(weir__pickle *pickle, weir__pickle_hook hook);

/* Reads the whole pickle; behind its end there must be nothing. `hook` may be NULL. Once per reader. */
weir_status weir__pickle_read(weir__pickle *pickle, weir__pickle_hook hook, void *context, weir__pickle_value *root);

/* "NAME: byte N: ...": where the reader stands. */
weir_status weir__pickle_fail(weir__pickle *pickle, const char *format, ...) WEIR_PRINTF(2, 3);

/* The same when memory could not be had: the limit, or the host's. */
weir_status weir__pickle_fail_memory(weir__pickle *pickle);

weir__budget *weir__pickle_budget(weir__pickle *pickle);

/* How many bytes have come so far. */
uint64_t weir__pickle_size(const weir__pickle *pickle);

/* The texts, by number. The consumer may add its own, and may take them all over by leaving an empty one in place. */
weir__strings *weir__pickle_strings(weir__pickle *pickle);

/* The number of a text that the consumer wants to recognise. */
weir_status weir__pickle_intern(weir__pickle *pickle, const char *text, uint32_t *id);

/* false: it is no integer, or does not fit. A bool is an integer, as in Python. */
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

/* A number that the consumer may keep with a sealed box; 0 until then. */
uint32_t *weir__pickle_note(weir__pickle *pickle, weir__pickle_value box);

#endif
