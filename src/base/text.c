#include "base/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "weir/adapter.h"

void weir__format_text(char *text, size_t size, const char *format, va_list args) {
  int length = vsnprintf(text, size, format, args);
  if (length < 0) /* an invalid multibyte string: at least show the format */
    snprintf(text, size, "%s", format);
  else if ((size_t)length >= size)
    memcpy(text + size - sizeof "...", "...", sizeof "...");
}

size_t weir__utf8_length(const char *text, uint32_t *code) {
  const unsigned char *s = (const unsigned char *)text;
  size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
  if (length < 2) {
    *code = s[0];
    return length;
  }
  uint32_t value = s[0] & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if ((s[i] & 0xc0) != 0x80) /* the NUL ends it here too */
      return 0;
    value = value << 6 | (s[i] & 0x3f);
  }
  static const uint32_t lowest[] = {[2] = 0x80, [3] = 0x800, [4] = 0x10000};
  if (value < lowest[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
    return 0;
  *code = value;
  return length;
}

bool weir__is_printable(uint32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0))
    return false;
  return !(code == 0x61c || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069) || code == 0xfeff);
}

size_t weir__escape_text(const char *text, size_t length, char *out, size_t size) {
  size_t at = 0;
  for (size_t i = 0; i < length;) {
    char escape[16], character[5] = ""; /* a copy: what follows `length` is not part of it */
    memcpy(character, text + i, length - i < 4 ? length - i : 4);
    uint32_t code;
    size_t bytes = weir__utf8_length(character, &code), written = bytes;
    const char *from = character;
    if (!bytes || !weir__is_printable(code)) {
      static const char letters[] = "abtnvfr"; /* from 7 on */
      from = escape;
      if (bytes && code >= 7 && code <= 13)
        written = (size_t)snprintf(escape, sizeof escape, "\\%c", letters[code - 7]);
      else if (bytes > 1)
        written = (size_t)snprintf(escape, sizeof escape, "\\u%04x", (unsigned)code);
      else
        written = (size_t)snprintf(escape, sizeof escape, "\\x%02x", (unsigned)(unsigned char)text[i]);
      bytes = bytes ? bytes : 1;
    }
    if (written >= size - at)
      break;
    memcpy(out + at, from, written);
    at += written;
    i += bytes;
  }
  out[at] = 0;
  return at;
}

void weir__escape_message(char *text, size_t size, bool keeps_lines) {
  const char *at = text;
  uint32_t code;
  for (size_t bytes;
       *at && (bytes = weir__utf8_length(at, &code)) && (weir__is_printable(code) || (keeps_lines && code == '\n'));)
    at += bytes;
  if (!*at) /* nearly always */
    return;
  char copy[WEIR__TEXT_SIZE];
  size_t from = (size_t)(at - text), to = from, length = strlen(text);
  memcpy(copy, text, length < sizeof copy ? length + 1 : sizeof copy);
  copy[sizeof copy - 1] = 0;
  while (copy[from]) {
    size_t line = keeps_lines ? strcspn(copy + from, "\n") : strlen(copy + from);
    to += weir__escape_text(copy + from, line, text + to, size - to);
    from += line;
    if (copy[from] && to + 1 < size) {
      text[to++] = '\n';
      text[to] = 0;
    }
    from += copy[from] != 0;
  }
}

const char *weir__format_bytes(unsigned long long bytes, char text[32]) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) {
    snprintf(text, 32, bytes == 1 ? "%llu byte" : "%llu bytes", bytes);
    return text;
  }
  double number = (double)bytes / 1024;
  size_t unit = 0;
  /* What would be printed as 1024.00 takes the next unit. */
  while (number >= 1023.995 && unit + 1 < WEIR_COUNT_OF(units)) {
    number /= 1024;
    unit++;
  }
  snprintf(text, 32, "%.2f %s", number, units[unit]);
  return text;
}

/* The limits are those of PyTorch's messages: exactly 1 MiB is "1024.00 KiB" there. */
const char *weir__format_bytes_as_pytorch(unsigned long long bytes, char text[32]) {
  const unsigned long long kib = 1ull << 10, mib = 1ull << 20, gib = 1ull << 30;
  if (bytes <= kib)
    snprintf(text, 32, "%llu bytes", bytes);
  else if (bytes <= mib)
    snprintf(text, 32, "%.2f KiB", (double)bytes / (double)kib);
  else if (bytes <= gib)
    snprintf(text, 32, "%.2f MiB", (double)bytes / (double)mib);
  else
    snprintf(text, 32, "%.2f GiB", (double)bytes / (double)gib);
  return text;
}

static const char *skip_spaces(const char *at) {
  while (isspace((unsigned char)*at))
    at++;
  return at;
}

/* Reads a unit, in upper or lower case, and moves *at past it. */
static unsigned long long parse_unit(const char **at) {
  static const char letters[] = "kmgt";
  const char *letter = **at != '\0' ? strchr(letters, tolower((unsigned char)**at)) : NULL;
  int power = letter ? (int)(letter - letters) + 1 : 0;
  unsigned long long step = 1024;
  if (power > 0)
    ++*at;
  if (power > 0 && strncasecmp(*at, "ib", 2) == 0) {
    *at += 2;
  } else if (strncasecmp(*at, "b", 1) == 0) {
    step = 1000;
    ++*at;
  }
  unsigned long long unit = 1;
  while (power-- > 0)
    unit *= step;
  return unit;
}

bool weir__parse_bytes(const char *text, unsigned long long *bytes) {
  const char *at = skip_spaces(text);
  unsigned long long whole = 0, fraction = 0, fraction_of = 1;
  if (!isdigit((unsigned char)*at))
    return false;
  for (; isdigit((unsigned char)*at); at++) {
    unsigned digit = (unsigned)(*at - '0');
    if (whole > (ULLONG_MAX - digit) / 10)
      return false;
    whole = whole * 10 + digit;
  }
  if (*at == '.') {
    at++;
    if (!isdigit((unsigned char)*at))
      return false;
    /* Six digits, so that fraction * unit below fits in 64 bits. */
    for (; isdigit((unsigned char)*at); at++) {
      if (fraction_of == 1000000)
        return false;
      fraction = fraction * 10 + (unsigned)(*at - '0');
      fraction_of *= 10;
    }
  }
  at = skip_spaces(at);
  unsigned long long unit = parse_unit(&at);
  if (*skip_spaces(at) != '\0' || (fraction_of > 1 && unit == 1))
    return false;
  unsigned long long rest = fraction * unit / fraction_of;
  if (whole > (ULLONG_MAX - rest) / unit)
    return false;
  *bytes = whole * unit + rest;
  return true;
}

void weir__copy_sized(void *to, size_t to_size, const void *from, size_t from_size) {
  memcpy(to, from, from_size < to_size ? from_size : to_size);
}

weir_status weir__read_options(const char *caller, const char *name, void *to, size_t to_size, const void *from) {
  if (!from)
    return WEIR_OK;
  size_t size;
  memcpy(&size, from, sizeof size);
  if (size < sizeof size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the size of %s is not set; call its _init function first",
                      caller, name);
  weir__copy_sized(to, to_size, from, size);
  return WEIR_OK;
}

weir_status weir_bytes_parse(const char *text, uint64_t *bytes) {
  WEIR__CHECK_ARGUMENT(text);
  WEIR__CHECK_ARGUMENT(bytes);
  unsigned long long parsed;
  if (!weir__parse_bytes(text, &parsed))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: \"%s\" is not a size: expected bytes, such as 1024 or 8GiB",
                      __func__, text);
  *bytes = parsed;
  return WEIR_OK;
}

/* ---- Misspellings ---- */

enum { LONGEST_WORD = 63 };

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

/* The Levenshtein distance, ignoring case. The word has at most LONGEST_WORD characters. */
static size_t edit_distance(const char *word, size_t length, const char *name) {
  size_t row[LONGEST_WORD + 1];
  for (size_t i = 0; i <= length; i++)
    row[i] = i;
  for (; *name; name++) {
    size_t diagonal = row[0]++;
    for (size_t i = 1; i <= length; i++) {
      size_t changed = diagonal + (lower(word[i - 1]) != *name);
      size_t moved = (row[i] < row[i - 1] ? row[i] : row[i - 1]) + 1;
      diagonal = row[i];
      row[i] = changed < moved ? changed : moved;
    }
  }
  return row[length];
}

void weir__nearest_compare(weir__nearest *nearest, const char *name) {
  if (nearest->length > LONGEST_WORD)
    return;
  /* A larger distance is hardly a misspelling. */
  size_t below = nearest->name ? nearest->distance : nearest->length / 4 + 2;
  size_t distance = edit_distance(nearest->word, nearest->length, name);
  if (distance >= below)
    return;
  nearest->name = name;
  nearest->distance = distance;
}
