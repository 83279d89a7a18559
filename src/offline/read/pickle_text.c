#include "offline/read/pickle_text.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

bool weir__ascii_is_valid(const char *text, size_t size) {
  uint64_t high = 0, word;
  for (; size >= 8; size -= 8, text += 8) {
    memcpy(&word, text, 8);
    high |= word;
  }
  for (; size > 0; size--, text++)
    high |= (unsigned char)*text;
  return (high & 0x8080808080808080) == 0;
}

/* The length of the UTF-8 character at `at`; 0 if it is none. */
static size_t utf8_length(const unsigned char *at, size_t left) {
  if (at[0] < 0x80)
    return 1;
  size_t length = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
  if (at[0] < 0xc2 || at[0] > 0xf4 || length > left)
    return 0;
  for (size_t i = 1; i < length; i++)
    if ((at[i] & 0xc0) != 0x80)
      return 0;
  /* An overlong form, or beyond U+10FFFF. */
  if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f))
    return 0;
  return length;
}

bool weir__utf8_is_valid(const char *text, size_t size) {
  if (weir__ascii_is_valid(text, size))
    return true;
  const unsigned char *at = (const unsigned char *)text, *end = at + size;
  while (at < end) {
    size_t length = utf8_length(at, (size_t)(end - at));
    if (length == 0)
      return false;
    at += length;
  }
  return true;
}

static size_t utf8_put(uint32_t code, char *out) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  if (code < 0x800) {
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3f));
    return 2;
  }
  if (code < 0x10000) {
    out[0] = (char)(0xe0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3f));
    out[2] = (char)(0x80 | (code & 0x3f));
    return 3;
  }
  out[0] = (char)(0xf0 | code >> 18);
  out[1] = (char)(0x80 | (code >> 12 & 0x3f));
  out[2] = (char)(0x80 | (code >> 6 & 0x3f));
  out[3] = (char)(0x80 | (code & 0x3f));
  return 4;
}

/* The value of `digits` digits of a base up to 16; -1 if one is not a digit. */
static int64_t digits_value(const char *text, size_t digits, int base) {
  int64_t value = 0;
  for (size_t i = 0; i < digits; i++) {
    char c = text[i];
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : 16;
    if (digit >= base)
      return -1;
    value = value * base + digit;
  }
  return value;
}

size_t weir__raw_unicode_decode(const char *text, size_t size, char *out) {
  size_t written = 0;
  for (size_t i = 0; i < size;) {
    if (text[i] != '\\' || i + 1 == size) {
      written += utf8_put((unsigned char)text[i++], out + written);
      continue;
    }
    size_t digits = text[i + 1] == 'u' ? 4 : text[i + 1] == 'U' ? 8 : 0;
    if (digits == 0) { /* any other pair stands for itself */
      out[written++] = '\\';
      written += utf8_put((unsigned char)text[i + 1], out + written);
      i += 2;
      continue;
    }
    int64_t code = digits <= size - i - 2 ? digits_value(text + i + 2, digits, 16) : -1;
    if (code < 0 || code > 0x10ffff)
      return WEIR__TEXT_BAD;
    written += utf8_put((uint32_t)code, out + written);
    i += 2 + digits;
  }
  return written;
}

size_t weir__repr_decode(const char *text, size_t size, char *out) {
  if (size < 2 || (text[0] != '\'' && text[0] != '"') || text[size - 1] != text[0])
    return WEIR__TEXT_BAD;
  size_t written = 0, end = size - 1;
  for (size_t i = 1; i < end;) {
    if (text[i] != '\\') {
      out[written++] = text[i++];
      continue;
    }
    if (++i == end)
      return WEIR__TEXT_BAD;
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    char c = text[i];
    const char *letter = c != '\0' ? strchr(letters, c) : NULL;
    if (letter) {
      out[written++] = meanings[letter - letters];
      i++;
    } else if (c == 'x') {
      int64_t code = end - i > 2 ? digits_value(text + i + 1, 2, 16) : -1;
      if (code < 0)
        return WEIR__TEXT_BAD;
      out[written++] = (char)code;
      i += 3;
    } else if (c >= '0' && c <= '7') {
      size_t digits = 1;
      while (digits < 3 && i + digits < end && text[i + digits] >= '0' && text[i + digits] <= '7')
        digits++;
      out[written++] = (char)digits_value(text + i, digits, 8);
      i += digits;
    } else { /* not an escape: both stay */
      out[written++] = '\\';
      out[written++] = c;
      i++;
    }
  }
  return written;
}

weir__number weir__integer_decode(const char *text, size_t size, uint64_t *bits, bool *is_negative) {
  bool negative = size > 0 && text[0] == '-';
  if (size > 0 && (text[0] == '-' || text[0] == '+')) {
    text++;
    size--;
  }
  if (size == 0 || (size > 1 && text[0] == '0')) /* to Python, 010 is 8 or an error */
    return WEIR__NUMBER_BAD;
  uint64_t value = 0;
  bool is_wide = false;
  for (size_t i = 0; i < size; i++) {
    if (text[i] < '0' || text[i] > '9')
      return WEIR__NUMBER_BAD;
    is_wide |= __builtin_mul_overflow(value, 10, &value);
    is_wide |= __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value);
  }
  if (is_wide || (negative && value > (uint64_t)INT64_MAX + 1))
    return WEIR__NUMBER_WIDE;
  *bits = negative ? -value : value;
  *is_negative = negative && value != 0;
  return WEIR__NUMBER_OK;
}

weir__number weir__float_decode(const char *text, size_t size, double *value) {
  char copy[64];
  if (size == 0 || size >= sizeof copy)
    return WEIR__NUMBER_BAD;
  memcpy(copy, text, size);
  copy[size] = '\0';
  /* strtod accepts more than Python writes: hexadecimal, spaces, nan(...). */
  const char *word = copy + (copy[0] == '-' || copy[0] == '+');
  if (strcmp(word, "inf") != 0 && strcmp(word, "nan") != 0 &&
      (strlen(copy) != size || strspn(copy, "0123456789+-.eE") != size))
    return WEIR__NUMBER_BAD;
  locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (locale == (locale_t)0)
    return WEIR__NUMBER_BAD;
  char *end;
  double parsed = strtod_l(copy, &end, locale);
  freelocale(locale);
  if (end != copy + size)
    return WEIR__NUMBER_BAD;
  *value = parsed;
  return WEIR__NUMBER_OK;
}
