/*
 * Writes pickles of protocol 2, with operations that all versions of CPython and of PyTorch's script and viewer read.
 * The viewer appends a batch to a list as the arguments of one call, so batches must be short.
 */
#include "inspect/write_snapshot.h"

enum op {
  MARK = '(',
  STOP = '.',
  BINFLOAT = 'G',
  BININT = 'J',
  BININT1 = 'K',
  BININT2 = 'M',
  NONE = 'N',
  BINUNICODE = 'X',
  EMPTY_LIST = ']',
  APPENDS = 'e',
  BINGET = 'h',
  LONG_BINGET = 'j',
  BINPUT = 'q',
  LONG_BINPUT = 'r',
  SETITEMS = 'u',
  EMPTY_DICT = '}',
  PROTO = 0x80,
  TUPLE2 = 0x86,
  NEWTRUE = 0x88,
  NEWFALSE = 0x89,
  LONG1 = 0x8a
};

enum { BATCH = 1000 }; /* items of a list that are appended at once, as in CPython */

static void put_number(weir__sink *sink, enum op op, uint64_t value, int bytes) {
  unsigned char text[9] = {(unsigned char)op};
  for (int i = 0; i < bytes; i++)
    text[1 + i] = (unsigned char)(value >> 8 * i);
  weir__sink_put(sink, text, 1 + (size_t)bytes);
}

/* Before a value: the first one of each batch of a list is preceded by a mark. */
static inline void place(weir__sink *sink) {
  if (!sink->depth || sink->open[sink->depth - 1].is_dict)
    return;
  uint32_t *count = &sink->open[sink->depth - 1].count;
  if (*count == BATCH) {
    weir__sink_put_byte(sink, APPENDS);
    *count = 0;
  }
  if ((*count)++ == 0)
    weir__sink_put_byte(sink, MARK);
}

static void get_memo(weir__sink *sink, uint32_t memo) {
  put_number(sink, memo - 1 < 256 ? BINGET : LONG_BINGET, memo - 1, memo - 1 < 256 ? 1 : 4);
}

static void put_memo(weir__sink *sink, uint32_t *memo) {
  *memo = ++sink->memos;
  put_number(sink, *memo - 1 < 256 ? BINPUT : LONG_BINPUT, *memo - 1, *memo - 1 < 256 ? 1 : 4);
}

static void begin(weir__sink *sink) { weir__sink_put(sink, (const unsigned char[]){PROTO, 2}, 2); }
static void end(weir__sink *sink) { weir__sink_put_byte(sink, STOP); }

static void open_value(weir__sink *sink, bool is_dict) {
  place(sink);
  weir__sink_put_byte(sink, is_dict ? EMPTY_DICT : EMPTY_LIST);
  if (is_dict)
    weir__sink_put_byte(sink, MARK);
  sink->open[sink->depth].is_dict = is_dict;
  sink->open[sink->depth++].count = 0;
}

static void close_value(weir__sink *sink) {
  sink->depth--;
  if (sink->open[sink->depth].is_dict)
    weir__sink_put_byte(sink, SETITEMS);
  else if (sink->open[sink->depth].count)
    weir__sink_put_byte(sink, APPENDS);
}

static void key(weir__sink *sink, const char *text, uint32_t *memo) {
  if (memo && *memo) {
    get_memo(sink, *memo);
    return;
  }
  size_t length = strlen(text);
  length = length < UINT32_MAX ? length : UINT32_MAX;
  put_number(sink, BINUNICODE, length, 4);
  weir__sink_put(sink, text, length);
  if (memo)
    put_memo(sink, memo);
}

static void text(weir__sink *sink, const char *value, uint32_t *memo) {
  place(sink);
  key(sink, value, memo);
}

/* Uses the shortest encoding. */
static void put_integer(weir__sink *sink, int64_t value) {
  if (value >= 0 && value < 256)
    put_number(sink, BININT1, (uint64_t)value, 1);
  else if (value >= 0 && value < 65536)
    put_number(sink, BININT2, (uint64_t)value, 2);
  else if (value >= INT32_MIN && value <= INT32_MAX)
    put_number(sink, BININT, (uint64_t)value, 4);
  else {
    uint64_t magnitude = value < 0 ? ~(uint64_t)value : (uint64_t)value; /* without the sign extension */
    int bytes = 5;
    while (bytes < 8 && magnitude >> (8 * bytes - 1))
      bytes++;
    put_number(sink, LONG1, (uint64_t)bytes, 1);
    for (int i = 0; i < bytes; i++)
      weir__sink_put_byte(sink, (unsigned char)((uint64_t)value >> 8 * i));
  }
}

static void put_natural(weir__sink *sink, uint64_t value) {
  if (value <= INT64_MAX) {
    put_integer(sink, (int64_t)value);
    return;
  }
  put_number(sink, LONG1, 9, 1);
  for (int i = 0; i < 8; i++)
    weir__sink_put_byte(sink, (unsigned char)(value >> 8 * i));
  weir__sink_put_byte(sink, 0);
}

static void integer(weir__sink *sink, int64_t value) {
  place(sink);
  put_integer(sink, value);
}

static void natural(weir__sink *sink, uint64_t value) {
  place(sink);
  put_natural(sink, value);
}

static void real(weir__sink *sink, double value) {
  uint64_t bits, reversed = 0;
  memcpy(&bits, &value, sizeof bits);
  for (int i = 0; i < 8; i++)
    reversed = reversed << 8 | (bits >> 8 * i & 0xff); /* big endian */
  place(sink);
  put_number(sink, BINFLOAT, reversed, 8);
}

static void boolean(weir__sink *sink, bool value) {
  place(sink);
  weir__sink_put_byte(sink, value ? NEWTRUE : NEWFALSE);
}

static void pair(weir__sink *sink, uint64_t first, uint64_t second) {
  place(sink);
  put_natural(sink, first);
  put_natural(sink, second);
  weir__sink_put_byte(sink, TUPLE2);
}

static void null(weir__sink *sink) {
  place(sink);
  weir__sink_put_byte(sink, NONE);
}

static void again(weir__sink *sink, uint32_t memo) {
  place(sink);
  get_memo(sink, memo);
}

const weir__sink_format weir__pickle_format = {.begin = begin,
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
                                               .null = null,
                                               .again = again,
                                               .keep = put_memo};
