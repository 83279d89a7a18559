#include "base/text.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void weir__format_text(char *text, size_t size, const char *format, va_list args) {
  int length = vsnprintf(text, size, format, args);
  if (length < 0) /* a broken multibyte string: the format still says something */
    snprintf(text, size, "%s", format);
  else if ((size_t)length >= size)
    memcpy(text + size - sizeof "...", "...", sizeof "...");
}

/* The limits are those of PyTorch's messages: exactly 1 MiB is "1024.00 KiB" there. */
const char *weir__format_bytes(unsigned long long bytes, char text[32]) {
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

/* The unit that stands at *at, which moves behind it. Upper and lower case are the same. */
static unsigned long long parse_unit(const char **at) {
  static const char letters[] = "kmgt";
  const char *letter = **at != '\0' ? strchr(letters, tolower((unsigned char)**at)) : NULL;
  int power = letter != NULL ? (int)(letter - letters) + 1 : 0;
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
