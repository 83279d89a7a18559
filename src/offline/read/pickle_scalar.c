/*
 * Numbers, texts and bytes: from an opcode's argument onto the stack.
 */
#include <string.h>

#include "offline/read/pickle_machine.h"
#include "offline/read/pickle_opcode.h"
#include "offline/read/pickle_text.h"

enum { LONGEST_NUMBER = 128 };

weir_status weir__pickle_push_wide(weir__pickle *p, weir__pickle_tag tag, uint64_t bits) {
  uint64_t *grown = weir__grow(&p->budget, p->wide, &p->wide_capacity, p->wide_count + 1, sizeof *grown);
  if (!grown)
    return FAIL_MEMORY(p);
  p->wide = grown;
  grown[p->wide_count] = bits;
  *p->top++ = weir__pickle_make(tag, p->wide_count++);
  return WEIR_OK;
}

static weir_status push_int(weir__pickle *p, int64_t n) {
  value v = small_int(n);
  if ((int64_t)v >> WEIR__PICKLE_TAG_BITS != n)
    return weir__pickle_push_wide(p, WEIR__PICKLE_WIDE_INT, (uint64_t)n);
  *p->top++ = v;
  return WEIR_OK;
}

static weir_status push_bits(weir__pickle *p, uint64_t bits, bool is_negative) {
  if (!is_negative && bits > INT64_MAX)
    return weir__pickle_push_wide(p, WEIR__PICKLE_WIDE_UINT, bits);
  return push_int(p, (int64_t)bits);
}

/* A little-endian integer of any number of bytes, in two's complement. */
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

/* Adds a new text. */
weir_status weir__pickle_add_str(weir__pickle *p, uint32_t hash, const char *text, size_t size, uint32_t *id) {
  if (!weir__utf8_is_valid(text, size))
    return FAIL(p, "a text that is not UTF-8");
  TRY(check_objects(p));
  *id = weir__strings_add(&p->strings, &p->budget, hash, text, size, true);
  return *id != WEIR__TABLE_END ? WEIR_OK : FAIL_MEMORY(p);
}

/* A str of Python 2. As in Python 3, only ASCII is accepted. */
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

weir_status weir__pickle_push_unescaped(weir__pickle *p, size_t (*decode)(const char *, size_t, char *)) {
  const char *line;
  size_t size;
  TRY(weir__byte_reader_take_line(&p->in, p->limits.string, &line, &size));
  char *scratch = weir__grow(&p->budget, p->scratch, &p->scratch_capacity, 2 * size + 1, 1);
  if (!scratch)
    return FAIL_MEMORY(p);
  p->scratch = scratch;
  size = decode(line, size, scratch);
  if (size == WEIR__TEXT_BAD)
    return FAIL(p, "a text with a bad escape or quote");
  return decode == weir__repr_decode ? push_old_str(p, scratch, size) : push_str(p, scratch, size);
}

weir_status weir__pickle_push_number_line(weir__pickle *p, unsigned char op) {
  const char *line;
  size_t size;
  TRY(weir__byte_reader_take_line(&p->in, LONGEST_NUMBER, &line, &size));
  if (op == OP_FLOAT) {
    double number = 0;
    uint64_t bits;
    if (weir__float_decode(line, size, &number) != WEIR__NUMBER_OK)
      return FAIL(p, "a float that cannot be read");
    memcpy(&bits, &number, sizeof bits);
    return weir__pickle_push_wide(p, WEIR__PICKLE_FLOAT, bits);
  }
  if (op == OP_INT && size == 2 && line[0] == '0' &&
      (line[1] == '0' || line[1] == '1')) { /* how protocol 0 writes bools */
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

weir_status weir__pickle_take_index(weir__pickle *p, uint64_t *index) {
  const char *line;
  size_t size;
  bool is_negative = false;
  TRY(weir__byte_reader_take_line(&p->in, LONGEST_NUMBER, &line, &size));
  if (weir__integer_decode(line, size, index, &is_negative) != WEIR__NUMBER_OK || is_negative)
    return FAIL(p, "a memo entry whose number cannot be read");
  return WEIR_OK;
}

/* A length of `size` bytes. */
static weir_status take_length(weir__pickle *p, size_t size, size_t *length) {
  const unsigned char *bytes;
  TRY(weir__byte_reader_take(&p->in, size, &bytes));
  uint64_t claimed = load(bytes, size);
  if (claimed > p->limits.string)
    return FAIL(p, "a length of %llu bytes is beyond the limit of %zu", (unsigned long long)claimed, p->limits.string);
  *length = (size_t)claimed;
  return WEIR_OK;
}

weir_status weir__pickle_push_sized(weir__pickle *p, unsigned char op, size_t length_size) {
  const unsigned char *bytes;
  size_t length;
  TRY(take_length(p, length_size, &length));
  TRY(weir__byte_reader_take(&p->in, length, &bytes));
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
