/*
 * The machine: a stack, marks into it, a memo, and boxes. The loop in weir__pickle_read has the opcodes that are common
 * in recordings and keeps its state in registers; `rare` has the others. There is no recursion.
 */
#include <string.h>

#include "offline/read/pickle_machine.h"
#include "offline/read/pickle_opcode.h"
#include "offline/read/pickle_text.h"

enum {
  AHEAD = 272, /* the longest opcode of the loop: a text of 255 bytes */
  MEMO_GAP = 1024
};

static weir_status fail_underflow(weir__pickle *p) { return FAIL(p, "the stack has too few values for this opcode"); }

static weir_status fail_memo(weir__pickle *p, uint64_t index) {
  return FAIL(p, "the memo has no entry %llu", (unsigned long long)index);
}

static weir_status fail_opcode(weir__pickle *p, unsigned char op) {
  const char *name;
  const char *why = weir__pickle_refused(op, &name);
  if (!why)
    return FAIL(p, "0x%02x is not an opcode of a pickle%s", op,
                weir__byte_reader_offset(&p->in, p->in.begin) ? "" : ": it is not what _dump_snapshot() writes");
  return FAIL(p, "opcode %s is refused: %s; only plain data are read", name, why);
}

/* ---- Stack and memo ---- */

/* An opcode has at least one byte and pushes at most one value. So with room for as many values as there are bytes in
 * the buffer, pushing needs no check. */
static weir_status reserve_stack(weir__pickle *p) {
  size_t height = (size_t)(p->top - p->stack), box_at = (size_t)(p->last_box - p->stack);
  size_t needed = height + (size_t)(p->in.end - p->in.at) + 1;
  value *grown = weir__grow(&p->budget, p->stack, &p->stack_capacity, needed, sizeof *grown);
  if (!grown)
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
  if (!grown)
    return FAIL_MEMORY(p);
  p->marks = grown;
  p->fence = grown[p->mark_count++] = (size_t)(p->top - p->stack);
  return WEIR_OK;
}

/* Pops the top mark. Returns the values above it. */
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

/* Makes room for entry `index`, which is beyond all others. */
static weir_status extend_memo(weir__pickle *p, uint64_t index) {
  /* Entries are numbered in order, so an index does not exceed the number of bytes read; a few may be skipped. */
  if (index > weir__byte_reader_offset(&p->in, p->in.begin) + MEMO_GAP || index >= NO_MEMO)
    return FAIL(p, "memo entry %llu is out of order", (unsigned long long)index);
  value *grown = weir__grow(&p->budget, p->memo, &p->memo_capacity, (size_t)index + 1, sizeof *grown);
  if (!grown)
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

/* Adds a reference to an existing value. */
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
  if (!grown)
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
    if (!items)
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

/* Puts `child` into `parent`. */
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

/* Offers the complete box *v to the hook. If the hook takes it, *v becomes the hook's object, and the box is freed. */
static inline weir_status offer(weir__pickle *p, weir__pickle_hook hook, value *v, const value *items, size_t count) {
  size_t index = (size_t)weir__pickle_payload(*v);
  p->boxes[index].was_offered = true;
  value taken = 0;
  TRY(hook(p->context, p, items, count, &taken));
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

/* Only a box without other references may be freed. */
static inline bool is_alone(const box *b) { return !b->was_offered && !b->is_shared && !b->is_sealed; }

static inline bool may_offer(const weir__pickle *p, value v) {
  return p->hook != NULL && weir__pickle_tag_of(v) == WEIR__PICKLE_DICT && is_alone(box_of(p, v));
}

static inline bool may_offer_list(const weir__pickle *p, value v) {
  if (!p->list_hook || weir__pickle_tag_of(v) != WEIR__PICKLE_LIST || !is_alone(box_of(p, v)))
    return false;
  const box *b = box_of(p, v);
  size_t objects = 0;
  while (objects < b->count && weir__pickle_tag_of(b->items[objects]) == WEIR__PICKLE_OBJECT)
    objects++;
  return b->count > 0 && objects == b->count;
}

static weir_status seal_items(weir__pickle *p, size_t parent, value *values, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!weir__pickle_is_box(values[i]))
      continue;
    if (may_offer(p, values[i]) && weir__pickle_payload(values[i]) != parent)
      TRY(offer(p, p->hook, &values[i], box_of(p, values[i])->items, box_of(p, values[i])->count / 2));
    if (weir__pickle_is_box(values[i]))
      TRY(seal(p, &p->boxes[parent], values[i]));
  }
  return WEIR_OK;
}

/* Keys must be hashable, which lists, dicts and sets are not. */
static weir_status check_key(weir__pickle *p, value key) {
  weir__pickle_tag tag = weir__pickle_tag_of(key);
  if (tag == WEIR__PICKLE_LIST || tag == WEIR__PICKLE_DICT || tag == WEIR__PICKLE_SET)
    return FAIL(p, "%s cannot be a key", weir__pickle_kind(key));
  return WEIR_OK;
}

static inline weir_status seal_pairs(weir__pickle *p, size_t parent, value *pairs, size_t count) {
  if (p->last_box < pairs) /* the common case */
    return WEIR_OK;
  for (size_t i = 0; i < count; i++) {
    if (!weir__pickle_is_box(pairs[i]))
      continue;
    if (i % 2 == 0)
      TRY(check_key(p, pairs[i]));
    if (may_offer_list(p, pairs[i]))
      TRY(offer(p, p->list_hook, &pairs[i], box_of(p, pairs[i])->items, box_of(p, pairs[i])->count));
    if (weir__pickle_is_box(pairs[i]))
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
    return FAIL(p, "this opcode adds to %s, and finds %s", weir__pickle_kind(tag), weir__pickle_kind(v));
  if (box_of(p, v)->is_sealed)
    return FAIL(p, "%s changes after it was put into another one: it may contain itself", weir__pickle_kind(tag));
  *found = p->top - 1;
  return WEIR_OK;
}

static weir_status add_to_list(weir__pickle *p, value *values, size_t count) {
  value *list = NULL;
  TRY(target(p, WEIR__PICKLE_LIST, &list));
  size_t index = (size_t)weir__pickle_payload(*list);
  TRY(seal_items(p, index, values, count));
  return add_items(p, &p->boxes[index], values, count);
}

static weir_status add_to_set(weir__pickle *p, value set, value *values, size_t count) {
  size_t index = (size_t)weir__pickle_payload(set);
  for (size_t i = 0; i < count; i++)
    TRY(check_key(p, values[i]));
  TRY(seal_items(p, index, values, count));
  return add_items(p, &p->boxes[index], values, count);
}

static inline weir_status add_to_dict(weir__pickle *p, value *pairs, size_t count, bool is_complete) {
  value *dict = NULL;
  TRY(target(p, WEIR__PICKLE_DICT, &dict));
  if (count % 2 != 0)
    return FAIL(p, "a dict has a key without a value");
  size_t index = (size_t)weir__pickle_payload(*dict);
  TRY(seal_pairs(p, index, pairs, count));
  if (is_complete && p->boxes[index].count == 0 && may_offer(p, *dict)) {
    TRY(offer(p, p->hook, dict, pairs, count / 2));
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

/* Makes a tuple of the top `count` values. Small tuples repeat a lot (a pool's id is one) and are immutable, so a small
 * table shares recent ones. */
static weir_status make_tuple(weir__pickle *p, value *values, size_t count) {
  value *known = NULL;
  if (count <= 3 && is_plain(values, count)) {
    known = &p->tuples[weir__hash_end(weir__hash_bytes(p->strings.seed, values, count * sizeof *values)) % TUPLES];
    const box *b = *known != 0 ? box_of(p, *known) : NULL;
    if (b && b->count == count && (count == 0 || memcmp(b->items, values, count * sizeof *values) == 0)) {
      p->top = values;
      push_again(p, *known);
      return WEIR_OK;
    }
  }
  value tuple = 0;
  TRY(new_box(p, WEIR__PICKLE_TUPLE, &tuple));
  TRY(seal_items(p, (size_t)weir__pickle_payload(tuple), values, count));
  TRY(add_items(p, box_of(p, tuple), values, count));
  if (known)
    *known = tuple;
  p->top = p->last_box = values;
  *p->top++ = tuple;
  return WEIR_OK;
}

/* LIST, TUPLE, DICT, FROZENSET: takes everything above the mark. */
static weir_status make_from_mark(weir__pickle *p, weir__pickle_tag tag) {
  value *values;
  size_t count;
  TRY(pop_mark(p, &values, &count));
  if (tag == WEIR__PICKLE_TUPLE)
    return make_tuple(p, values, count);
  value made;
  TRY(new_box(p, tag, &made));
  size_t index = (size_t)weir__pickle_payload(made);
  if (tag == WEIR__PICKLE_DICT && count % 2 != 0)
    return FAIL(p, "a dict has a key without a value");
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
  TRY(weir__byte_reader_take(&p->in, 8, &bytes));
  uint64_t size = load(bytes, 8), begin = weir__byte_reader_offset(&p->in, p->in.at);
  if (weir__byte_reader_offset(&p->in, p->in.begin) < p->frame_end)
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

/* Every opcode but those of the loop below. There is room for one more value. */
__attribute__((noinline)) static weir_status rare(weir__pickle *p, unsigned char op) {
  const unsigned char *bytes;
  value *values;
  size_t count;
  uint64_t index;
  switch (op) {
  case OP_PROTO:
    TRY(weir__byte_reader_take(&p->in, 1, &bytes));
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
    return weir__pickle_push_number_line(p, op);
  case OP_BINFLOAT:
    TRY(weir__byte_reader_take(&p->in, 8, &bytes));
    return weir__pickle_push_wide(p, WEIR__PICKLE_FLOAT, __builtin_bswap64(load(bytes, 8)));
  case OP_UNICODE:
    return weir__pickle_push_unescaped(p, weir__raw_unicode_decode);
  case OP_STRING:
    return weir__pickle_push_unescaped(p, weir__repr_decode);
  case OP_LONG1:
  case OP_SHORT_BINSTRING:
  case OP_SHORT_BINBYTES:
    return weir__pickle_push_sized(p, op, 1);
  case OP_LONG4:
  case OP_BINUNICODE:
  case OP_BINSTRING:
  case OP_BINBYTES:
    return weir__pickle_push_sized(p, op, 4);
  case OP_BINUNICODE8:
  case OP_BINBYTES8:
  case OP_BYTEARRAY8:
    return weir__pickle_push_sized(p, op, 8);
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
    TRY(weir__pickle_take_index(p, &index));
    return get_memo(p, index);
  case OP_PUT:
    TRY(weir__pickle_take_index(p, &index));
    return put_memo(p, index);
  case OP_BINPUT:
  case OP_LONG_BINPUT:
    TRY(weir__byte_reader_take(&p->in, op == OP_BINPUT ? 1 : 4, &bytes));
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
  if (weir__byte_reader_offset(&p->in, p->in.at) < p->frame_end)
    return FAIL(p, "the pickle stops before its frame does, at byte %llu", (unsigned long long)p->frame_end);
  p->in.begin = p->in.at;
  TRY(weir__byte_reader_fill(&p->in, 1));
  if (p->in.at < p->in.end)
    return FAIL(p, "bytes follow the end of the pickle");
  *root = p->top[-1];
  return WEIR_OK;
}

/* Called where too few bytes are left for the unchecked loop below: at the end of the buffer, and at each opcode near
 * the end of the input. */
static weir_status look_ahead(weir__pickle *p) {
  if (p->in.at > p->in.end) /* the opcode before has read zeros beyond the end */
    return FAIL_END(p);
  p->in.begin = p->in.at;
  if (!p->in.has_ended)
    TRY(weir__byte_reader_fill(&p->in, AHEAD));
  if (p->in.at == p->in.end)
    return FAIL_END(p);
  return reserve_stack(p);
}

static inline uint32_t load32(const unsigned char *at) {
  return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t load64(const unsigned char *at) { return load32(at) | (uint64_t)load32(at + 4) << 32; }

/* A text of at most 255 bytes, which are in the buffer. */
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

/* The opcodes of the loop. */
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
    TRY(reserve_stack(p)); /* it may have moved the buffer */
    at = p->in.at;
  }
}
