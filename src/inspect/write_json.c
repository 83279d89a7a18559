#include <math.h>
#include <stdlib.h>

#include "base/text.h"
#include "inspect/json.h"

/* Before an item that is not the first of its dict or list. */
static inline void separate(weir__sink *sink) {
  if (!sink->open[sink->depth - 1].count++)
    return;
  bool ends_line = sink->depth <= sink->line_depth && (sink->depth == 1 || !sink->open[sink->depth - 1].is_dict);
  weir__sink_put(sink, ends_line ? ",\n" : ", ", 2);
}

static inline void place(weir__sink *sink) {
  if (sink->depth && !sink->open[sink->depth - 1].is_dict)
    separate(sink);
}

static void begin(weir__sink *sink) { (void)sink; }
static void end(weir__sink *sink) { weir__sink_put_byte(sink, '\n'); }

static void open_value(weir__sink *sink, bool is_dict) {
  place(sink);
  weir__sink_put_byte(sink, is_dict ? '{' : '[');
  sink->open[sink->depth].is_dict = is_dict;
  sink->open[sink->depth++].count = 0;
}

static void close_value(weir__sink *sink) {
  sink->depth--;
  weir__sink_put_byte(sink, sink->open[sink->depth].is_dict ? '}' : ']');
}

/* Writes a character that is not plain ASCII: U+FFFD if it is not UTF-8, an escape if JSON or a terminal would
 * interpret it. Returns its length in the text. */
static size_t put_special(weir__sink *sink, const char *text) {
  char escaped[16];
  uint32_t code;
  size_t length = weir__utf8_length(text, &code);
  if (!length) {
    weir__sink_put(sink, "\xef\xbf\xbd", 3);
    return 1;
  }
  if (code == '"' || code == '\\')
    snprintf(escaped, sizeof escaped, "\\%c", (int)code);
  else if (weir__is_printable(code))
    snprintf(escaped, sizeof escaped, "%.*s", (int)length, text);
  else if (code < 0x10000)
    snprintf(escaped, sizeof escaped, "\\u%04x", code);
  else
    snprintf(escaped, sizeof escaped, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 | (code & 0x3ff));
  weir__sink_put(sink, escaped, strlen(escaped));
  return length;
}

static void put_text(weir__sink *sink, const char *text) {
  weir__sink_put_byte(sink, '"');
  while (*text) {
    size_t plain = 0;
    while (text[plain] >= 0x20 && text[plain] < 0x7f && text[plain] != '"' && text[plain] != '\\')
      plain++;
    weir__sink_put(sink, text, plain);
    text += plain;
    if (*text)
      text += put_special(sink, text);
  }
  weir__sink_put_byte(sink, '"');
}

static void key(weir__sink *sink, const char *name, uint32_t *memo) {
  (void)memo;
  separate(sink);
  put_text(sink, name);
  weir__sink_put(sink, ": ", 2);
}

static void text(weir__sink *sink, const char *value, uint32_t *memo) {
  (void)memo;
  place(sink);
  put_text(sink, value);
}

static void put_natural(weir__sink *sink, uint64_t value) {
  char digits[20];
  size_t at = sizeof digits;
  do
    digits[--at] = (char)('0' + value % 10);
  while (value /= 10);
  weir__sink_put(sink, digits + at, sizeof digits - at);
}

static void natural(weir__sink *sink, uint64_t value) {
  place(sink);
  put_natural(sink, value);
}

static void integer(weir__sink *sink, int64_t value) {
  place(sink);
  if (value < 0)
    weir__sink_put_byte(sink, '-');
  put_natural(sink, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

static void null(weir__sink *sink) {
  place(sink);
  weir__sink_put(sink, "null", 4);
}

/* The shortest form that reads back as the same number, with a point, so that it stays a float. JSON has no
 * infinity. */
static void real(weir__sink *sink, double value) {
  char digits[40];
  int precision = 15;
  if (!isfinite(value)) {
    null(sink);
    return;
  }
  place(sink);
  do
    snprintf(digits, sizeof digits, "%.*g", precision, value);
  while (strtod(digits, NULL) != value && ++precision <= 17);
  for (char *c = digits; *c; c++)
    if (*c == ',') /* the decimal point of some locales */
      *c = '.';
  weir__sink_put(sink, digits, strlen(digits));
  if (!strpbrk(digits, ".e"))
    weir__sink_put(sink, ".0", 2);
}

static void boolean(weir__sink *sink, bool value) {
  place(sink);
  weir__sink_put(sink, value ? "true" : "false", value ? 4 : 5);
}

static void pair(weir__sink *sink, uint64_t first, uint64_t second) {
  place(sink);
  weir__sink_put_byte(sink, '[');
  put_natural(sink, first);
  weir__sink_put(sink, ", ", 2);
  put_natural(sink, second);
  weir__sink_put_byte(sink, ']');
}

const weir__sink_format weir__json_format = {.begin = begin,
                                             .end = end,
                                             .open = open_value,
                                             .close = close_value,
                                             .key = key,
                                             .text = text,
                                             .integer = integer,
                                             .natural = natural,
                                             .real = real,
                                             .boolean = boolean,
                                             .pair = pair,
                                             .null = null};

/* ---- Items ---- */

static void write_rounded(weir__sink *sink, const weir__json_item *item) {
  char digits[400];
  snprintf(digits, sizeof digits, "%.*f", item->decimals, item->real);
  if (item->decimals)
    sink->format->real(sink, strtod(digits, NULL));
  else
    sink->format->integer(sink, strtoll(digits, NULL, 10));
}

static void write_item(weir__sink *sink, const weir__json_item *item) {
  const weir__sink_format *to = sink->format;
  if (item->key)
    to->key(sink, item->key, NULL);
  switch (item->kind) {
  case WEIR__JSON_OBJECT:
  case WEIR__JSON_LIST:
    to->open(sink, item->kind == WEIR__JSON_OBJECT);
    break;
  case WEIR__JSON_CLOSE:
    to->close(sink);
    break;
  case WEIR__JSON_TEXT:
    if (item->text)
      to->text(sink, item->text, NULL);
    else
      to->null(sink);
    break;
  case WEIR__JSON_BOOL:
    to->boolean(sink, item->integer != 0);
    break;
  case WEIR__JSON_INTEGER:
    to->integer(sink, item->integer);
    break;
  case WEIR__JSON_NATURAL:
    to->natural(sink, item->natural);
    break;
  case WEIR__JSON_REAL:
    write_rounded(sink, item);
    break;
  case WEIR__JSON_NULL:
    to->null(sink);
    break;
  }
}

void weir__json_write(weir__sink *sink, const weir__json_item *items, size_t count) {
  for (size_t i = 0; i < count; i++)
    write_item(sink, &items[i]);
}
