/*
 * The machine: a stack, marks into it, a memo, and boxes. The loop in weir__pickle_read has the opcodes that histories are
 * made of and keeps its place in registers; `rare` has the others. Nothing here calls itself.
 */
#include "offline/pickle.h"

#include <stdlib.h>
#include <string.h>

#include "offline/pickle_opcode.h"
#include "offline/pickle_text.h"
#include "offline/window.h"

enum {
  AHEAD = 272, /* the longest opcode of the loop: a text of 255 bytes */
  LONGEST_NUMBER = 128,
  HEAP_ITEMS = 4096, /* from here on a box's items have memory of their own and can grow in place */
  TUPLES = 256,
  MEMO_GAP = 1024
};

#define NO_MEMO UINT32_MAX

typedef weir__pickle_value value;

typedef struct box {
  value *items;   /* on the heap from HEAP_ITEMS on, in the chunks below it */
  uint32_t count; /* of a dict: keys and values together */
  uint32_t capacity;
  uint32_t memo;    /* where the memo has it, if at one place only; NO_MEMO */
  uint32_t note;    /* the consumer's; while it is free: the next free box + 1 */
  uint16_t depth;   /* 1 + that of the deepest box inside */
  bool is_sealed;   /* it is inside another one */
  bool is_shared;   /* there may be more references than one on the stack and one in the memo */
  bool was_offered; /* the hook has seen it */
} box;

struct weir__pickle {
  weir__pickle_limits limits;
  weir__budget budget;

  weir__window in;    /* begins at the opcode that is being carried out */
  uint64_t frame_end; /* offset; 0 before the first frame */

  value *stack;
  size_t stack_capacity;
  value *top;      /* one above the highest */
  value *last_box; /* no box is above it */
  size_t *marks;   /* heights of the stack */
  size_t mark_count, mark_capacity;
  size_t fence; /* the highest mark: what is below belongs to others */

  value *memo; /* 0: nothing there */
  size_t memo_count, memo_capacity;
  size_t memo_filled; /* of memo_count */

  box *boxes;
  size_t box_count, box_capacity;
  uint32_t free_box; /* + 1; 0: none */
  weir__chunks items;
  value tuples[TUPLES]; /* small tuples of late, by hash: equal ones are one */

  uint64_t *wide; /* bits of wide integers and floats */
  size_t wide_count, wide_capacity;
  weir__strings strings;
  uint64_t recent_word; /* a short text of late: its bytes, ... */
  size_t recent_size;   /* ... how many, and its number. Histories repeat one in every entry */
  uint32_t recent_id;
  char *scratch;
  size_t scratch_capacity;

  weir__pickle_hook hook;
  void *context;
};

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_status status_ = (call);                                                                                      \
    if (status_ != WEIR_OK)                                                                                            \
      return status_;                                                                                                  \
  } while (0)

#define FAIL(p, ...) weir__not_ok(weir__pickle_fail(p, __VA_ARGS__))
#define FAIL_MEMORY(p) weir__not_ok(weir__window_fail_memory(&(p)->in))
#define FAIL_END(p) weir__not_ok(weir__window_fail_end(&(p)->in))

/* ---- Errors ---- */

weir_status weir__pickle_fail(weir__pickle *p, const char *format, ...) {
  va_list args;
  va_start(args, format);
  weir_status status = weir__window_fail_args(&p->in, format, args);
  va_end(args);
  return status;
}

weir_status weir__pickle_fail_memory(weir__pickle *p) { return weir__window_fail_memory(&p->in); }

static weir_status fail_underflow(weir__pickle *p) { return FAIL(p, "the stack has too few values for this opcode"); }

static weir_status fail_memo(weir__pickle *p, uint64_t index) {
  return FAIL(p, "the memo has no entry %llu", (unsigned long long)index);
}

static const char *const kinds[] = {
    [WEIR__PICKLE_NOTHING] = "nothing", [WEIR__PICKLE_NONE] = "None",       [WEIR__PICKLE_BOOL] = "a bool",
    [WEIR__PICKLE_INT] = "an int",      [WEIR__PICKLE_WIDE_INT] = "an int", [WEIR__PICKLE_WIDE_UINT] = "an int",
    [WEIR__PICKLE_FLOAT] = "a float",   [WEIR__PICKLE_STR] = "a str",       [WEIR__PICKLE_BYTES] = "bytes",
    [WEIR__PICKLE_OBJECT] = "a record", [WEIR__PICKLE_LIST] = "a list",     [WEIR__PICKLE_TUPLE] = "a tuple",
    [WEIR__PICKLE_DICT] = "a dict",     [WEIR__PICKLE_SET] = "a set",       [WEIR__PICKLE_FROZENSET] = "a frozenset"};

const char *weir__pickle_kind(weir__pickle_value v) {
  weir__pickle_tag tag = weir__pickle_tag_of(v);
  return tag < WEIR_COUNT_OF(kinds) ? kinds[tag] : "nothing";
}

static weir_status fail_opcode(weir__pickle *p, unsigned char op) {
  const char *name;
  const char *why = weir__pickle_refused(op, &name);
  if (why == NULL)
    return FAIL(p, "0x%02x is not an opcode of a pickle", op);
  return FAIL(p, "opcode %s is refused: %s; only plain data are read", name, why);
}

/* ---- Input ---- */

static uint64_t load(const unsigned char *at, size_t size) {
  uint64_t word = 0;
  for (size_t i = size; i-- > 0;)
    word = word << 8 | at[i];
  return word;
}

/* A number of `size` bytes that says how long something is. */
static weir_status take_length(weir__pickle *p, size_t size, size_t *length) {
  const unsigned char *bytes;
  TRY(weir__window_take(&p->in, size, &bytes));
  uint64_t claimed = load(bytes, size);
  if (claimed > p->limits.string)
    return FAIL(p, "a length of %llu bytes is beyond the limit of %zu", (unsigned long long)claimed, p->limits.string);
  *length = (size_t)claimed;
  return WEIR_OK;
}

/* ---- Stack and memo ---- */

/* An opcode has at least one byte and pushes at most one value: so with room for as many values as there are bytes in the
 * window, nobody has to ask. */
static weir_status reserve_stack(weir__pickle *p) {
  size_t height = (size_t)(p->top - p->stack), box_at = (size_t)(p->last_box - p->stack);
  size_t needed = height + (size_t)(p->in.end - p->in.at) + 1;
  value *grown = weir__grow(&p->budget, p->stack, &p->stack_capacity, needed, sizeof *grown);
  if (grown == NULL)
    return FAIL_MEMORY(p);
  p->stack = grown;
  p->top = grown + height;
  p->last_box = grown + box_at;
  return WEIR_OK;
}

static inline weir_status push_mark(weir__pickle *p) {
  if (p->mark_count >= p->limits.depth)
    return FAIL(p, "nested more than %zu deep, the limit", p->limits.depth);
  size_t *grown = weir__grow(&p->budget, p->marks, &p->mark_capacity, p->mark_count + 1, sizeof *grown);
  if (grown == NULL)
    return FAIL_MEMORY(p);
  p->marks = grown;
  p->fence = grown[p->mark_count++] = (size_t)(p->top - p->stack);
  return WEIR_OK;
}

/* The values above the highest mark, which goes. */
static inline weir_status pop_mark(weir__pickle *p, value **values, size_t *count) {
  if (p->mark_count == 0)
    return FAIL(p, "there is no mark for this opcode");
  *values = p->stack + p->fence;
  *count = (size_t)(p->top - *values);
  p->top = *values;
  p->mark_count--;
  p->fence = p->mark_count > 0 ? p->marks[p->mark_count - 1] : 0;
  return WEIR_OK;
}

static bool has(const weir__pickle *p, size_t count) { return (size_t)(p->top - p->stack) - p->fence >= count; }

static box *box_of(const weir__pickle *p, value v) { return &p->boxes[weir__pickle_payload(v)]; }

/* Makes place for entry `index`, which is behind all others. */
static weir_status extend_memo(weir__pickle *p, uint64_t index) {
  /* Who counts its entries does not get ahead of the bytes it has written; a few are left out at times. */
  if (index > weir__window_offset(&p->in, p->in.begin) + MEMO_GAP || index >= NO_MEMO)
    return FAIL(p, "memo entry %llu is out of any order", (unsigned long long)index);
  value *grown = weir__grow(&p->budget, p->memo, &p->memo_capacity, (size_t)index + 1, sizeof *grown);
  if (grown == NULL)
    return FAIL_MEMORY(p);
  p->memo = grown;
  while (p->memo_count <= index)
    grown[p->memo_count++] = 0;
  return WEIR_OK;
}

static inline weir_status put_memo(weir__pickle *p, uint64_t index) {
  if (!has(p, 1))
    return fail_underflow(p);
  if (index >= p->memo_count)
    TRY(extend_memo(p, index));
  value v = p->top[-1];
  p->memo_filled += p->memo[index] == 0;
  p->memo[index] = v;
  if (weir__pickle_is_box(v)) {
    box *b = box_of(p, v);
    if (b->memo == NO_MEMO)
      b->memo = (uint32_t)index;
    else
      b->is_shared = true;
  }
  return WEIR_OK;
}

/* One more reference to what is there already. */
static inline void push_again(weir__pickle *p, value v) {
  if (weir__pickle_is_box(v)) {
    box_of(p, v)->is_shared = true;
    p->last_box = p->top;
  }
  *p->top++ = v;
}

static inline weir_status get_memo(weir__pickle *p, uint64_t index) {
  if (index >= p->memo_count || p->memo[index] == 0)
    return fail_memo(p, index);
  push_again(p, p->memo[index]);
  return WEIR_OK;
}

/* ---- Values ---- */

static weir_status push_wide(weir__pickle *p, weir__pickle_tag tag, uint64_t bits) {
  uint64_t *grown = weir__grow(&p->budget, p->wide, &p->wide_capacity, p->wide_count + 1, sizeof *grown);
  if (grown == NULL)
    return FAIL_MEMORY(p);
  p->wide = grown;
  grown[p->wide_count] = bits;
  *p->top++ = weir__pickle_make(tag, p->wide_count++);
  return WEIR_OK;
}

static value small_int(int64_t n) { return weir__pickle_make(WEIR__PICKLE_INT, (uint64_t)n); }

static weir_status push_int(weir__pickle *p, int64_t n) {
  value v = small_int(n);
  if ((int64_t)v >> WEIR__PICKLE_TAG_BITS != n)
    return push_wide(p, WEIR__PICKLE_WIDE_INT, (uint64_t)n);
  *p->top++ = v;
  return WEIR_OK;
}

static weir_status push_bits(weir__pickle *p, uint64_t bits, bool is_negative) {
  if (!is_negative && bits > INT64_MAX)
    return push_wide(p, WEIR__PICKLE_WIDE_UINT, bits);
  return push_int(p, (int64_t)bits);
}

/* An integer of any number of bytes, two's complement, the lowest first. */
static weir_status push_long(weir__pickle *p, const unsigned char *bytes, size_t size) {
  bool is_negative = size > 0 && bytes[size - 1] >= 0x80;
  while (size > 8 && bytes[size - 1] == (is_negative ? 0xff : 0))
    size--;
  uint64_t bits = is_negative ? ~(uint64_t)0 : 0;
  if (size > 8 || (size == 8 && is_negative && bytes[7] < 0x80))
    return FAIL(p, "an integer of more than 64 bits");
  for (size_t i = size; i-- > 0;)
    bits = bits << 8 | bytes[i];
  return push_bits(p, bits, is_negative);
}

static weir_status check_objects(weir__pickle *p) {
  if (p->box_count + p->strings.count < p->limits.objects)
    return WEIR_OK;
  return FAIL(p, "there are more objects than the limit of %zu", p->limits.objects);
}

/* A text that is new here. */
static weir_status add_str(weir__pickle *p, uint32_t hash, const char *text, size_t size, uint32_t *id) {
  if (!weir__utf8_is_valid(text, size))
    return FAIL(p, "a text that is not UTF-8");
  TRY(check_objects(p));
  *id = weir__strings_add(&p->strings, &p->budget, hash, text, size, true);
  return *id != WEIR__TABLE_END ? WEIR_OK : FAIL_MEMORY(p);
}

static inline weir_status push_str(weir__pickle *p, const char *text, size_t size) {
  uint32_t hash = weir__strings_hash(&p->strings, text, size);
  uint32_t id = weir__strings_find(&p->strings, hash, text, size);
  if (id == WEIR__TABLE_END)
    TRY(add_str(p, hash, text, size, &id));
  *p->top++ = weir__pickle_make(WEIR__PICKLE_STR, id);
  return WEIR_OK;
}

/* What Python 2 wrote for its str. As in Python 3, only ASCII is understood. */
static weir_status push_old_str(weir__pickle *p, const char *text, size_t size) {
  if (!weir__ascii_is_valid(text, size))
    return FAIL(p, "an 8-bit str that is not ASCII");
  return push_str(p, text, size);
}

static weir_status push_bytes(weir__pickle *p, const void *bytes, size_t size) {
  TRY(check_objects(p));
  uint32_t id = weir__strings_add(&p->strings, &p->budget, 0, bytes, size, false);
  if (id == WEIR__TABLE_END)
    return FAIL_MEMORY(p);
  *p->top++ = weir__pickle_make(WEIR__PICKLE_BYTES, id);
  return WEIR_OK;
}

static weir_status push_unescaped(weir__pickle *p, size_t (*decode)(const char *, size_t, char *)) {
  const char *line;
  size_t size;
  TRY(weir__window_take_line(&p->in, p->limits.string, &line, &size));
  char *scratch = weir__grow(&p->budget, p->scratch, &p->scratch_capacity, 2 * size + 1, 1);
  if (scratch == NULL)
    return FAIL_MEMORY(p);
  p->scratch = scratch;
  size = decode(line, size, scratch);
  if (size == WEIR__TEXT_BAD)
    return FAIL(p, "a text with a bad escape or quote");
  return decode == weir__repr_decode ? push_old_str(p, scratch, size) : push_str(p, scratch, size);
}

static weir_status push_number_line(weir__pickle *p, unsigned char op) {
  const char *line;
  size_t size;
  TRY(weir__window_take_line(&p->in, LONGEST_NUMBER, &line, &size));
  if (op == OP_FLOAT) {
    double number = 0;
    uint64_t bits;
    if (weir__float_decode(line, size, &number) != WEIR__NUMBER_OK)
      return FAIL(p, "a float that cannot be read");
    memcpy(&bits, &number, sizeof bits);
    return push_wide(p, WEIR__PICKLE_FLOAT, bits);
  }
  if (op == OP_INT && size == 2 && line[0] == '0' && (line[1] == '0' || line[1] == '1')) { /* how bools began */
    *p->top++ = weir__pickle_make(WEIR__PICKLE_BOOL, line[1] == '1');
    return WEIR_OK;
  }
  if (op == OP_LONG && size > 0 && line[size - 1] == 'L')
    size--;
  uint64_t bits = 0;
  bool is_negative = false;
  switch (weir__integer_decode(line, size, &bits, &is_negative)) {
  case WEIR__NUMBER_OK:
    return push_bits(p, bits, is_negative);
  case WEIR__NUMBER_WIDE:
    return FAIL(p, "an integer of more than 64 bits");
  default:
    return FAIL(p, "an integer that cannot be read");
  }
}

static weir_status take_index(weir__pickle *p, uint64_t *index) {
  const char *line;
  size_t size;
  bool is_negative = false;
  TRY(weir__window_take_line(&p->in, LONGEST_NUMBER, &line, &size));
  if (weir__integer_decode(line, size, index, &is_negative) != WEIR__NUMBER_OK || is_negative)
    return FAIL(p, "a memo entry whose number cannot be read");
  return WEIR_OK;
}

/* ---- Boxes ---- */

static inline weir_status new_box(weir__pickle *p, weir__pickle_tag tag, value *made) {
  if (p->free_box != 0) {
    uint32_t index = p->free_box - 1;
    box *b = &p->boxes[index];
    p->free_box = b->note; /* NOLINT(clang-analyzer-core.NullDereference): what is free is in the array */
    *b = (box){.items = b->items, .capacity = b->capacity, .memo = NO_MEMO, .depth = 1};
    *made = weir__pickle_make(tag, index);
    return WEIR_OK;
  }
  TRY(check_objects(p));
  if (p->box_count >= NO_MEMO)
    return FAIL(p, "there are more lists and dicts than can be counted");
  box *grown = weir__grow(&p->budget, p->boxes, &p->box_capacity, p->box_count + 1, sizeof *grown);
  if (grown == NULL)
    return FAIL_MEMORY(p);
  p->boxes = grown;
  grown[p->box_count] = (box){.memo = NO_MEMO, .depth = 1};
  *made = weir__pickle_make(tag, p->box_count++);
  return WEIR_OK;
}

static inline weir_status push_box(weir__pickle *p, weir__pickle_tag tag) {
  value made;
  TRY(new_box(p, tag, &made));
  p->last_box = p->top;
  *p->top++ = made;
  return WEIR_OK;
}

static weir_status add_items(weir__pickle *p, box *b, const value *values, size_t count) {
  if (count > UINT32_MAX - b->count)
    return FAIL(p, "a list or dict with more items than can be counted");
  size_t needed = b->count + count;
  if (needed > b->capacity) {
    size_t capacity = b->capacity < HEAP_ITEMS ? 0 : b->capacity;
    value *items;
    if (needed < HEAP_ITEMS) {
      capacity = needed > 2 * (size_t)b->capacity ? needed : 2 * (size_t)b->capacity;
      if (capacity >= HEAP_ITEMS)
        capacity = HEAP_ITEMS - 1;
      items = weir__chunks_take(&p->items, &p->budget, capacity * sizeof *items, sizeof *items);
    } else {
      items = weir__grow(&p->budget, capacity == 0 ? NULL : b->items, &capacity, needed, sizeof *items);
      if (capacity > UINT32_MAX)
        capacity = UINT32_MAX;
    }
    if (items == NULL)
      return FAIL_MEMORY(p);
    if (b->capacity < HEAP_ITEMS && b->count > 0)
      memcpy(items, b->items, b->count * sizeof *items);
    b->items = items;
    b->capacity = (uint32_t)capacity;
  }
  if (count > 0)
    memcpy(b->items + b->count, values, count * sizeof *values);
  b->count = (uint32_t)needed;
  return WEIR_OK;
}

/* `child` goes into `parent`. */
static weir_status seal(weir__pickle *p, box *parent, value child) {
  box *b = box_of(p, child);
  if (b == parent)
    return FAIL(p, "a list or dict would contain itself");
  b->is_sealed = true;
  if (b->depth >= p->limits.depth)
    return FAIL(p, "nested more than %zu deep, the limit", p->limits.depth);
  if (parent->depth <= b->depth)
    parent->depth = (uint16_t)(b->depth + 1);
  return WEIR_OK;
}

/* The dict `*v` is complete: does the hook want it? Then *v becomes the hook's object, and the box is free. */
static inline weir_status offer(weir__pickle *p, value *v, const value *pairs, size_t count) {
  size_t index = weir__pickle_payload(*v);
  p->boxes[index].was_offered = true;
  value taken = 0;
  TRY(p->hook(p->context, p, pairs, count / 2, &taken));
  if (taken == 0)
    return WEIR_OK;
  box *b = &p->boxes[index];
  if (b->memo != NO_MEMO && p->memo[b->memo] == *v)
    p->memo[b->memo] = taken;
  *v = taken;
  b->note = p->free_box;
  p->free_box = (uint32_t)index + 1;
  return WEIR_OK;
}

/* Only a dict with no reference elsewhere may go. */
static inline bool may_offer(const weir__pickle *p, value v) {
  if (p->hook == NULL || weir__pickle_tag_of(v) != WEIR__PICKLE_DICT)
    return false;
  const box *b = box_of(p, v);
  return !b->was_offered && !b->is_shared && !b->is_sealed;
}

static weir_status seal_items(weir__pickle *p, size_t parent, value *values, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!weir__pickle_is_box(values[i]))
      continue;
    if (may_offer(p, values[i]) && weir__pickle_payload(values[i]) != parent)
      TRY(offer(p, &values[i], box_of(p, values[i])->items, box_of(p, values[i])->count));
    if (weir__pickle_is_box(values[i]))
      TRY(seal(p, &p->boxes[parent], values[i]));
  }
  return WEIR_OK;
}

/* Keys have to be hashable, which lists, dicts and sets are not. */
static weir_status check_key(weir__pickle *p, value key) {
  weir__pickle_tag tag = weir__pickle_tag_of(key);
  if (tag == WEIR__PICKLE_LIST || tag == WEIR__PICKLE_DICT || tag == WEIR__PICKLE_SET)
    return FAIL(p, "%s cannot be a key", weir__pickle_kind(key));
  return WEIR_OK;
}

static inline weir_status seal_pairs(weir__pickle *p, size_t parent, const value *pairs, size_t count) {
  if (p->last_box < pairs) /* as it is nearly always */
    return WEIR_OK;
  for (size_t i = 0; i < count; i++) {
    if (!weir__pickle_is_box(pairs[i]))
      continue;
    if (i % 2 == 0)
      TRY(check_key(p, pairs[i]));
    TRY(seal(p, &p->boxes[parent], pairs[i]));
  }
  return WEIR_OK;
}

/* The value below those that an opcode takes; it must be of kind `tag` and open. */
static inline weir_status target(weir__pickle *p, weir__pickle_tag tag, value **found) {
  if (!has(p, 1))
    return fail_underflow(p);
  value v = p->top[-1];
  if (weir__pickle_tag_of(v) != tag)
    return FAIL(p, "this opcode adds to %s, and finds %s", kinds[tag], weir__pickle_kind(v));
  if (box_of(p, v)->is_sealed)
    return FAIL(p, "%s changes after it was put into another one: it may contain itself", kinds[tag]);
  *found = p->top - 1;
  return WEIR_OK;
}

static weir_status add_to_list(weir__pickle *p, value *values, size_t count) {
  value *list = NULL;
  TRY(target(p, WEIR__PICKLE_LIST, &list));
  size_t index = weir__pickle_payload(*list);
  TRY(seal_items(p, index, values, count));
  return add_items(p, &p->boxes[index], values, count);
}

static weir_status add_to_set(weir__pickle *p, value set, value *values, size_t count) {
  size_t index = weir__pickle_payload(set);
  for (size_t i = 0; i < count; i++)
    TRY(check_key(p, values[i]));
  TRY(seal_items(p, index, values, count));
  return add_items(p, &p->boxes[index], values, count);
}

static inline weir_status add_to_dict(weir__pickle *p, const value *pairs, size_t count, bool is_complete) {
  value *dict = NULL;
  TRY(target(p, WEIR__PICKLE_DICT, &dict));
  if (count % 2 != 0)
    return FAIL(p, "a dict gets a key without a value");
  size_t index = weir__pickle_payload(*dict);
  TRY(seal_pairs(p, index, pairs, count));
  if (is_complete && p->boxes[index].count == 0 && may_offer(p, *dict)) {
    TRY(offer(p, dict, pairs, count));
    if (!weir__pickle_is_box(*dict))
      return WEIR_OK;
  }
  return add_items(p, &p->boxes[index], pairs, count);
}

static bool is_plain(const value *values, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (weir__pickle_is_box(values[i]))
      return false;
  return true;
}

/* The `count` highest values become a tuple. Small ones repeat a lot (a pool's id is one) and cannot change: each is kept
 * once, as far as a small table remembers. */
static weir_status make_tuple(weir__pickle *p, value *values, size_t count) {
  value *known = NULL;
  if (count <= 3 && is_plain(values, count)) {
    known = &p->tuples[weir__hash_end(weir__hash_bytes(p->strings.seed, values, count * sizeof *values)) % TUPLES];
    const box *b = *known != 0 ? box_of(p, *known) : NULL;
    if (b != NULL && b->count == count && (count == 0 || memcmp(b->items, values, count * sizeof *values) == 0)) {
      p->top = values;
      push_again(p, *known);
      return WEIR_OK;
    }
  }
  value tuple = 0;
  TRY(new_box(p, WEIR__PICKLE_TUPLE, &tuple));
  TRY(seal_items(p, weir__pickle_payload(tuple), values, count));
  TRY(add_items(p, box_of(p, tuple), values, count));
  if (known != NULL)
    *known = tuple;
  p->top = p->last_box = values;
  *p->top++ = tuple;
  return WEIR_OK;
}

/* LIST, TUPLE, DICT, FROZENSET: all that is above the mark. */
static weir_status make_from_mark(weir__pickle *p, weir__pickle_tag tag) {
  value *values;
  size_t count;
  TRY(pop_mark(p, &values, &count));
  if (tag == WEIR__PICKLE_TUPLE)
    return make_tuple(p, values, count);
  value made;
  TRY(new_box(p, tag, &made));
  size_t index = weir__pickle_payload(made);
  if (tag == WEIR__PICKLE_DICT && count % 2 != 0)
    return FAIL(p, "a dict gets a key without a value");
  if (tag == WEIR__PICKLE_DICT)
    TRY(seal_pairs(p, index, values, count));
  else if (tag == WEIR__PICKLE_LIST)
    TRY(seal_items(p, index, values, count));
  if (tag == WEIR__PICKLE_FROZENSET)
    TRY(add_to_set(p, made, values, count));
  else
    TRY(add_items(p, &p->boxes[index], values, count));
  p->last_box = p->top;
  *p->top++ = made;
  return WEIR_OK;
}

/* ---- Opcodes ---- */

static weir_status begin_frame(weir__pickle *p) {
  const unsigned char *bytes;
  TRY(weir__window_take(&p->in, 8, &bytes));
  uint64_t size = load(bytes, 8), begin = weir__window_offset(&p->in, p->in.at);
  if (weir__window_offset(&p->in, p->in.begin) < p->frame_end)
    return FAIL(p, "a frame begins inside another one, which ends at byte %llu", (unsigned long long)p->frame_end);
  if (size > p->limits.input || begin > p->limits.input - size)
    return FAIL(p, "a frame of %llu bytes is beyond the limit of %llu", (unsigned long long)size,
                (unsigned long long)p->limits.input);
  p->frame_end = begin + size;
  return WEIR_OK;
}

static weir_status pop(weir__pickle *p) {
  value *values;
  size_t count;
  if (has(p, 1)) {
    p->top--;
    return WEIR_OK;
  }
  return p->mark_count > 0 ? pop_mark(p, &values, &count) : fail_underflow(p);
}

static weir_status additems(weir__pickle *p) {
  value *values, *set = NULL;
  size_t count;
  TRY(pop_mark(p, &values, &count));
  TRY(target(p, WEIR__PICKLE_SET, &set));
  return add_to_set(p, *set, values, count);
}

static weir_status push_sized(weir__pickle *p, unsigned char op, size_t length_size) {
  const unsigned char *bytes;
  size_t length;
  TRY(take_length(p, length_size, &length));
  TRY(weir__window_take(&p->in, length, &bytes));
  switch (op) {
  case OP_BINUNICODE:
  case OP_BINUNICODE8:
    return push_str(p, (const char *)bytes, length);
  case OP_BINSTRING:
  case OP_SHORT_BINSTRING:
    return push_old_str(p, (const char *)bytes, length);
  case OP_LONG1:
  case OP_LONG4:
    return push_long(p, bytes, length);
  default:
    return push_bytes(p, bytes, length);
  }
}

/* Every opcode but those of the loop below. There is room for one more value. */
__attribute__((noinline)) static weir_status rare(weir__pickle *p, unsigned char op) {
  const unsigned char *bytes;
  value *values;
  size_t count;
  uint64_t index;
  switch (op) {
  case OP_PROTO:
    TRY(weir__window_take(&p->in, 1, &bytes));
    return *bytes <= 5 ? WEIR_OK : FAIL(p, "protocol %u is not known; 5 is the highest", *bytes);
  case OP_FRAME:
    return begin_frame(p);
  case OP_NONE:
    *p->top++ = weir__pickle_make(WEIR__PICKLE_NONE, 0);
    return WEIR_OK;
  case OP_NEWTRUE:
  case OP_NEWFALSE:
    *p->top++ = weir__pickle_make(WEIR__PICKLE_BOOL, op == OP_NEWTRUE);
    return WEIR_OK;
  case OP_INT:
  case OP_LONG:
  case OP_FLOAT:
    return push_number_line(p, op);
  case OP_BINFLOAT:
    TRY(weir__window_take(&p->in, 8, &bytes));
    return push_wide(p, WEIR__PICKLE_FLOAT, __builtin_bswap64(load(bytes, 8)));
  case OP_UNICODE:
    return push_unescaped(p, weir__raw_unicode_decode);
  case OP_STRING:
    return push_unescaped(p, weir__repr_decode);
  case OP_LONG1:
  case OP_SHORT_BINSTRING:
  case OP_SHORT_BINBYTES:
    return push_sized(p, op, 1);
  case OP_LONG4:
  case OP_BINUNICODE:
  case OP_BINSTRING:
  case OP_BINBYTES:
    return push_sized(p, op, 4);
  case OP_BINUNICODE8:
  case OP_BINBYTES8:
  case OP_BYTEARRAY8:
    return push_sized(p, op, 8);
  case OP_EMPTY_LIST:
    return push_box(p, WEIR__PICKLE_LIST);
  case OP_EMPTY_SET:
    return push_box(p, WEIR__PICKLE_SET);
  case OP_EMPTY_TUPLE:
    return make_tuple(p, p->top, 0);
  case OP_TUPLE1:
  case OP_TUPLE2:
  case OP_TUPLE3:
    count = (size_t)(op - OP_TUPLE1) + 1;
    return has(p, count) ? make_tuple(p, p->top - count, count) : fail_underflow(p);
  case OP_LIST:
    return make_from_mark(p, WEIR__PICKLE_LIST);
  case OP_TUPLE:
    return make_from_mark(p, WEIR__PICKLE_TUPLE);
  case OP_DICT:
    return make_from_mark(p, WEIR__PICKLE_DICT);
  case OP_FROZENSET:
    return make_from_mark(p, WEIR__PICKLE_FROZENSET);
  case OP_APPEND:
    if (!has(p, 1))
      return fail_underflow(p);
    p->top--;
    return add_to_list(p, p->top, 1);
  case OP_APPENDS:
    TRY(pop_mark(p, &values, &count));
    return add_to_list(p, values, count);
  case OP_SETITEM:
    if (!has(p, 2))
      return fail_underflow(p);
    p->top -= 2;
    return add_to_dict(p, p->top, 2, false);
  case OP_ADDITEMS:
    return additems(p);
  case OP_POP:
    return pop(p);
  case OP_POP_MARK:
    return pop_mark(p, &values, &count);
  case OP_DUP:
    if (!has(p, 1))
      return fail_underflow(p);
    push_again(p, p->top[-1]);
    return WEIR_OK;
  case OP_GET:
    TRY(take_index(p, &index));
    return get_memo(p, index);
  case OP_PUT:
    TRY(take_index(p, &index));
    return put_memo(p, index);
  case OP_BINPUT:
  case OP_LONG_BINPUT:
    TRY(weir__window_take(&p->in, op == OP_BINPUT ? 1 : 4, &bytes));
    return put_memo(p, load(bytes, op == OP_BINPUT ? 1 : 4));
  default:
    return fail_opcode(p, op);
  }
}

static weir_status stop(weir__pickle *p, value *root) {
  if (p->mark_count > 0)
    return FAIL(p, "the pickle stops with a mark left over");
  if (!has(p, 1))
    return FAIL(p, "the pickle stops without a value");
  if (weir__window_offset(&p->in, p->in.at) < p->frame_end)
    return FAIL(p, "the pickle stops before its frame does, at byte %llu", (unsigned long long)p->frame_end);
  p->in.begin = p->in.at;
  TRY(weir__window_fill(&p->in, 1));
  if (p->in.at < p->in.end)
    return FAIL(p, "there are bytes behind the end of the pickle");
  *root = p->top[-1];
  return WEIR_OK;
}

/* The loop below has come to where too few bytes are ahead to go on blindly: at the window's end, and at each opcode near
 * the end of all. */
static weir_status look_ahead(weir__pickle *p) {
  if (p->in.at > p->in.end) /* the opcode before has eaten zeros from behind the end */
    return FAIL_END(p);
  p->in.begin = p->in.at;
  if (!p->in.has_ended)
    TRY(weir__window_fill(&p->in, AHEAD));
  if (p->in.at == p->in.end)
    return FAIL_END(p);
  return reserve_stack(p);
}

static inline uint32_t load32(const unsigned char *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t load64(const unsigned char *at) { return load32(at) | (uint64_t)load32(at + 4) << 32; }

/* A text of at most 255 bytes, which are there. */
static inline weir_status push_short_str(weir__pickle *p, const unsigned char *text, size_t size) {
  uint64_t word = 0;
  if (size - 1 < 8) {
    word = load64(text) << (64 - 8 * size);
    if (word == p->recent_word && size == p->recent_size) {
      *p->top++ = weir__pickle_make(WEIR__PICKLE_STR, p->recent_id);
      return WEIR_OK;
    }
  }
  TRY(push_str(p, (const char *)text, size));
  if (size - 1 < 8) {
    p->recent_word = word;
    p->recent_size = size;
    p->recent_id = (uint32_t)weir__pickle_payload(p->top[-1]);
  }
  return WEIR_OK;
}

/* The opcodes of the loop, in one piece for its switch. */
enum {
  RARE,
  BININT1,
  BININT2,
  BININT,
  BINGET,
  LONG_BINGET,
  LONG1,
  SHORT_BINUNICODE,
  MEMOIZE,
  EMPTY_DICT,
  MARK,
  SETITEMS,
  STOP
};

static const unsigned char often[256] = {[OP_BININT1] = BININT1,
                                         [OP_BININT2] = BININT2,
                                         [OP_BININT] = BININT,
                                         [OP_BINGET] = BINGET,
                                         [OP_LONG_BINGET] = LONG_BINGET,
                                         [OP_LONG1] = LONG1,
                                         [OP_SHORT_BINUNICODE] = SHORT_BINUNICODE,
                                         [OP_MEMOIZE] = MEMOIZE,
                                         [OP_EMPTY_DICT] = EMPTY_DICT,
                                         [OP_MARK] = MARK,
                                         [OP_SETITEMS] = SETITEMS,
                                         [OP_STOP] = STOP};

weir_status weir__pickle_read(weir__pickle *p, weir__pickle_hook hook, void *context, weir__pickle_value *root) {
  p->hook = hook;
  p->context = context;
  unsigned char *at = p->in.at;
  for (;;) {
    if (p->in.end - at < AHEAD) {
      p->in.at = at;
      TRY(look_ahead(p));
      at = p->in.at;
    }
    p->in.begin = at;
    unsigned char op = *at++;
    switch (often[op]) {
    case BININT1:
      *p->top++ = small_int(at[0]);
      at += 1;
      continue;
    case BININT2:
      *p->top++ = small_int(at[0] | at[1] << 8);
      at += 2;
      continue;
    case BININT:
      *p->top++ = small_int((int32_t)load32(at));
      at += 4;
      continue;
    case BINGET:
      if (at < p->in.end)
        TRY(get_memo(p, at[0]));
      at += 1;
      continue;
    case LONG_BINGET:
      if (p->in.end - at >= 4)
        TRY(get_memo(p, load32(at)));
      at += 4;
      continue;
    case LONG1:
      if (at[0] - 1u < 7) { /* all but the widest */
        unsigned shift = 64 - 8u * at[0];
        *p->top++ = small_int((int64_t)(load64(at + 1) << shift) >> shift);
        at += 1 + at[0];
        continue;
      }
      break;
    case SHORT_BINUNICODE:
      if (p->in.end - at > at[0])
        TRY(push_short_str(p, at + 1, at[0]));
      at += 1 + at[0];
      continue;
    case MEMOIZE:
      TRY(put_memo(p, p->memo_filled));
      continue;
    case EMPTY_DICT:
      TRY(push_box(p, WEIR__PICKLE_DICT));
      continue;
    case MARK:
      TRY(push_mark(p));
      continue;
    case SETITEMS: {
      value *pairs;
      size_t count;
      TRY(pop_mark(p, &pairs, &count));
      TRY(add_to_dict(p, pairs, count, true));
      continue;
    }
    case STOP:
      p->in.at = at;
      return stop(p, root);
    default:
      break;
    }
    p->in.at = at;
    TRY(rare(p, op));
    TRY(reserve_stack(p)); /* it may have moved the window */
    at = p->in.at;
  }
}

/* ---- Opening, and what the consumer asks ---- */

weir_status weir__pickle_open(weir__source *source, const weir__pickle_limits *limits, weir__pickle **out) {
  weir__pickle *p = calloc(1, sizeof *p);
  if (p == NULL)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", weir__source_name(source));
  if (limits != NULL)
    p->limits = *limits;
  if (p->limits.input == 0)
    p->limits.input = 1ull << 36;
  if (p->limits.memory == 0)
    p->limits.memory = 1ull << 32;
  if (p->limits.objects == 0)
    p->limits.objects = (size_t)1 << 27;
  if (p->limits.string == 0)
    p->limits.string = (size_t)1 << 26;
  if (p->limits.depth == 0)
    p->limits.depth = 100;
  if (p->limits.depth > UINT16_MAX)
    p->limits.depth = UINT16_MAX;
  p->budget.limit = p->limits.memory;
  p->strings.seed = weir__hash_seed();
  weir_status status = weir__window_open(&p->in, source, &p->budget, p->limits.input);
  if (status != WEIR_OK) {
    weir__pickle_close(p);
    return status;
  }
  *out = p;
  return WEIR_OK;
}

void weir__pickle_close(weir__pickle *p) {
  if (p == NULL)
    return;
  for (size_t i = 0; i < p->box_count; i++)
    if (p->boxes[i].capacity >= HEAP_ITEMS)
      weir__drop(p->boxes[i].items);
  weir__chunks_clear(&p->items);
  weir__strings_clear(&p->strings);
  weir__drop(p->scratch);
  weir__drop(p->wide);
  weir__drop(p->boxes);
  weir__drop(p->memo);
  weir__drop(p->marks);
  weir__drop(p->stack);
  weir__window_close(&p->in);
  free(p);
}

weir__budget *weir__pickle_budget(weir__pickle *p) { return &p->budget; }

weir__strings *weir__pickle_strings(weir__pickle *p) { return &p->strings; }

weir_status weir__pickle_intern(weir__pickle *p, const char *text, uint32_t *id) {
  size_t length = strlen(text);
  uint32_t hash = weir__strings_hash(&p->strings, text, length);
  *id = weir__strings_find(&p->strings, hash, text, length);
  return *id != WEIR__TABLE_END ? WEIR_OK : add_str(p, hash, text, length, id);
}

bool weir__pickle_int64_slow(const weir__pickle *p, weir__pickle_value v, int64_t *out) {
  switch (weir__pickle_tag_of(v)) {
  case WEIR__PICKLE_BOOL:
    *out = (int64_t)weir__pickle_payload(v);
    return true;
  case WEIR__PICKLE_WIDE_INT:
    *out = (int64_t)p->wide[weir__pickle_payload(v)];
    return true;
  default:
    return false;
  }
}

bool weir__pickle_uint64_slow(const weir__pickle *p, weir__pickle_value v, uint64_t *out) {
  int64_t number;
  if (weir__pickle_tag_of(v) == WEIR__PICKLE_WIDE_UINT) {
    *out = p->wide[weir__pickle_payload(v)];
    return true;
  }
  if (!weir__pickle_int64(p, v, &number) || number < 0)
    return false;
  *out = (uint64_t)number;
  return true;
}

bool weir__pickle_double(const weir__pickle *p, weir__pickle_value v, double *out) {
  int64_t number;
  switch (weir__pickle_tag_of(v)) {
  case WEIR__PICKLE_FLOAT:
    memcpy(out, &p->wide[weir__pickle_payload(v)], sizeof *out);
    return true;
  case WEIR__PICKLE_WIDE_UINT:
    *out = (double)p->wide[weir__pickle_payload(v)];
    return true;
  default:
    if (!weir__pickle_int64(p, v, &number))
      return false;
    *out = (double)number;
    return true;
  }
}

weir__string weir__pickle_string(const weir__pickle *p, weir__pickle_value v) {
  return p->strings.items[weir__pickle_payload(v)];
}

const weir__pickle_value *weir__pickle_items(const weir__pickle *p, weir__pickle_value v, size_t *count) {
  const box *b = box_of(p, v);
  *count = b->count;
  return b->items;
}

uint32_t *weir__pickle_note(weir__pickle *p, weir__pickle_value v) { return &box_of(p, v)->note; }
