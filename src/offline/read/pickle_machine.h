/*
 * The state of the reader, shared by its files: pickle.c has the opcodes, and what they do with lists, tuples, dicts
 * and sets; pickle_scalar.c pushes numbers and texts; pickle_access.c has the calls of the consumer.
 */
#pragma once

#include "offline/read/byte_reader.h"
#include "offline/read/pickle.h"

enum {
  HEAP_ITEMS = 4096, /* from this number on, a box's items have memory of their own and can grow in place */
  TUPLES = 256
};

#define NO_MEMO UINT32_MAX

typedef weir__pickle_value value;

typedef struct box {
  value *items;   /* on the heap from HEAP_ITEMS on, in the chunks below it */
  uint32_t count; /* of a dict: keys and values together */
  uint32_t capacity;
  uint32_t memo;    /* its memo entry, if it has exactly one; otherwise NO_MEMO */
  uint32_t note;    /* the consumer's; of a free box: the next free box + 1 */
  uint16_t depth;   /* 1 + that of the deepest box inside */
  bool is_sealed;   /* it is part of another box */
  bool is_shared;   /* there may be more references than one on the stack and one in the memo */
  bool was_offered; /* the hook has seen it */
} box;

struct weir__pickle {
  weir__pickle_limits limits;
  weir__budget budget;

  weir__byte_reader in; /* begins at the current opcode */
  uint64_t frame_end;   /* offset; 0 before the first frame */

  value *stack;
  size_t stack_capacity;
  value *top;      /* one above the top */
  value *last_box; /* no box may be deeper */
  size_t *marks;   /* heights of the stack */
  size_t mark_count, mark_capacity;
  size_t fence; /* the top mark: nothing below may be used */

  value *memo; /* 0 if it is unused */
  size_t memo_count, memo_capacity;
  size_t memo_filled; /* of memo_count */

  box *boxes;
  size_t box_count, box_capacity;
  uint32_t free_box; /* + 1; 0 if there is none */
  weir__chunks items;
  value tuples[TUPLES]; /* recent small tuples by hash, so that equal ones are shared */

  uint64_t *wide; /* bits of wide integers and floats */
  size_t wide_count, wide_capacity;
  weir__strings strings;
  uint64_t recent_word; /* a recent short text: its bytes, */
  size_t recent_size;   /* its length, and its number. Entries of a history repeat the same texts */
  uint32_t recent_id;
  char *scratch;
  size_t scratch_capacity;

  weir__pickle_hook hook, list_hook;
  void *context;
};

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_status status_ = (call);                                                                                      \
    if (status_)                                                                                                       \
      return status_;                                                                                                  \
  } while (0)

#define FAIL(p, ...) weir__not_ok(weir__pickle_fail(p, __VA_ARGS__))
#define FAIL_MEMORY(p) weir__not_ok(weir__byte_reader_fail_memory(&(p)->in))
#define FAIL_END(p) weir__not_ok(weir__byte_reader_fail_end(&(p)->in))

static inline box *box_of(const weir__pickle *p, value v) { return &p->boxes[weir__pickle_payload(v)]; }

static inline value small_int(int64_t n) { return weir__pickle_make(WEIR__PICKLE_INT, (uint64_t)n); }

static inline weir_status check_objects(weir__pickle *p) {
  if (p->box_count + p->strings.count < p->limits.objects)
    return WEIR_OK;
  return FAIL(p, "there are more objects than the limit of %zu", p->limits.objects);
}

/* Adds a new text. */
weir_status weir__pickle_add_str(weir__pickle *p, uint32_t hash, const char *text, size_t size, uint32_t *id);

static inline weir_status push_str(weir__pickle *p, const char *text, size_t size) {
  uint32_t hash = weir__strings_hash(&p->strings, text, size);
  uint32_t id = weir__strings_find(&p->strings, hash, text, size);
  if (id == WEIR__TABLE_END)
    TRY(weir__pickle_add_str(p, hash, text, size, &id));
  *p->top++ = weir__pickle_make(WEIR__PICKLE_STR, id);
  return WEIR_OK;
}

/* A little-endian number of `size` bytes. */
static inline uint64_t load(const unsigned char *at, size_t size) {
  uint64_t word = 0;
  for (size_t i = size; i-- > 0;)
    word = word << 8 | at[i];
  return word;
}

/* Each reads its argument and pushes one value, for which there is room. */
weir_status weir__pickle_push_wide(weir__pickle *p, weir__pickle_tag tag, uint64_t bits);
weir_status weir__pickle_push_number_line(weir__pickle *p, unsigned char op);
weir_status weir__pickle_push_unescaped(weir__pickle *p, size_t (*decode)(const char *, size_t, char *));
weir_status weir__pickle_push_sized(weir__pickle *p, unsigned char op, size_t length_size);

/* The number of a memo entry, as a line. */
weir_status weir__pickle_take_index(weir__pickle *p, uint64_t *index);
