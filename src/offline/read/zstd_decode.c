#include "offline/read/zstd_decode.h"

#include <stdlib.h>
#include <string.h>

enum {
  BLOCK_MAX = 128 * 1024,
  HUFFMAN_LOG = 11, /* the longest code */
  HUFFMAN_SYMBOLS = 256,
  FSE_MAX_LOG = 9,
  FSE_MAX_SYMBOLS = 64,
  IS_SINGLE = 0x20, /* in the frame's descriptor: the window is the whole content */
  SLACK = 32        /* bytes behind a buffer that a copy of whole words may write */
};

typedef enum step {
  MAGIC,
  DESCRIPTOR,
  HEADER,
  BLOCK_HEADER,
  RAW,
  REPEATED,
  COMPRESSED,
  CHECKSUM,
  SKIP_SIZE,
  SKIP
} step;

/* A state of a decoding table of FSE: the symbol, and how the next state is found. */
typedef struct fse_state {
  uint16_t base; /* of the next state */
  uint8_t bits;  /* to add to it */
  uint8_t symbol;
} fse_state;

typedef struct fse_table {
  fse_state states[1 << FSE_MAX_LOG];
  unsigned log;
  bool is_set;
} fse_table;

typedef struct huffman_state {
  uint8_t symbol, bits;
} huffman_state;

/* XXH64 of the frame's contents. */
typedef struct hash {
  uint64_t lanes[4], total;
  unsigned char rest[32];
  size_t rest_size;
} hash;

struct weir__zstd {
  step step;
  size_t wanted;
  const char *error;

  /* The frame. */
  unsigned descriptor;
  uint64_t window, content, made; /* bytes; content is UINT64_MAX if the header does not say */
  bool has_checksum, is_last;
  uint32_t skip; /* bytes of a skippable frame that are left */
  hash hash;

  /* The output: the window before `end`, of which the bytes from `taken` on have not been taken yet. */
  unsigned char *out;
  size_t room, end, taken;

  /* The block. */
  size_t block_size;
  unsigned char *literals; /* BLOCK_MAX + SLACK */
  size_t literal_count;

  /* Tables that later blocks of the frame may use again. */
  huffman_state huffman[1 << HUFFMAN_LOG];
  unsigned huffman_log; /* 0: there is none */
  fse_table lengths, offsets, matches;
  uint64_t repeats[3];
};

static weir__zstd_result bad(weir__zstd *z, const char *error) {
  z->error = error;
  return WEIR__ZSTD_BAD;
}

static uint64_t load(const unsigned char *at, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; i++)
    value |= (uint64_t)at[i] << (8 * i);
  return value;
}

static uint64_t load8(const unsigned char *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  value = __builtin_bswap64(value);
#endif
  return value;
}

static unsigned highest_bit(uint64_t value) { return 63 - (unsigned)__builtin_clzll(value); }

/* ---- The checksum ---- */

static const uint64_t prime1 = 0x9e3779b185ebca87u, prime2 = 0xc2b2ae3d27d4eb4fu, prime3 = 0x165667b19e3779f9u,
                      prime4 = 0x85ebca77c2b2ae63u, prime5 = 0x27d4eb2f165667c5u;

static uint64_t rotate(uint64_t x, unsigned bits) { return x << bits | x >> (64 - bits); }

static uint64_t mix(uint64_t lane, uint64_t value) { return rotate(lane + value * prime2, 31) * prime1; }

static void hash_begin(hash *h) { *h = (hash){.lanes = {prime1 + prime2, prime2, 0, -prime1}}; }

static void hash_words(hash *h, const unsigned char *at) {
  for (size_t i = 0; i < 4; i++)
    h->lanes[i] = mix(h->lanes[i], load8(at + 8 * i));
}

static void hash_add(hash *h, const unsigned char *bytes, size_t size) {
  h->total += size;
  if (h->rest_size) {
    size_t part = size < sizeof h->rest - h->rest_size ? size : sizeof h->rest - h->rest_size;
    memcpy(h->rest + h->rest_size, bytes, part);
    h->rest_size += part;
    bytes += part;
    size -= part;
    if (h->rest_size < sizeof h->rest)
      return;
    hash_words(h, h->rest);
    h->rest_size = 0;
  }
  for (; size >= sizeof h->rest; bytes += sizeof h->rest, size -= sizeof h->rest)
    hash_words(h, bytes);
  memcpy(h->rest, bytes, size);
  h->rest_size = size;
}

static uint64_t hash_end(const hash *h) {
  const unsigned char *at = h->rest, *end = h->rest + h->rest_size;
  uint64_t value = h->lanes[2] + prime5; /* lane 2 begins as the seed, 0 */
  if (h->total >= sizeof h->rest) {
    value = rotate(h->lanes[0], 1) + rotate(h->lanes[1], 7) + rotate(h->lanes[2], 12) + rotate(h->lanes[3], 18);
    for (size_t i = 0; i < 4; i++)
      value = (value ^ mix(0, h->lanes[i])) * prime1 + prime4;
  }
  value += h->total;
  for (; end - at >= 8; at += 8)
    value = rotate(value ^ mix(0, load8(at)), 27) * prime1 + prime4;
  for (; end - at >= 4; at += 4)
    value = rotate(value ^ load(at, 4) * prime1, 23) * prime2 + prime3;
  for (; at < end; at++)
    value = rotate(value ^ *at * prime5, 11) * prime1;
  value = (value ^ value >> 33) * prime2;
  value = (value ^ value >> 29) * prime3;
  return value ^ value >> 32;
}

/* ---- Bits that are read from the end of a buffer towards its beginning ---- */

typedef struct bits {
  const unsigned char *begin;
  const unsigned char *at; /* the word that is in `word`, if there are 8 bytes; its unread bits are the highest */
  uint64_t word;
  unsigned used;  /* bits of the word that were read */
  int64_t beyond; /* bits that were read beyond the beginning, as zeros */
  bool is_short;  /* the buffer has fewer than 8 bytes, all in the word */
} bits;

/* The last byte has a 1 above the first bit. false if it is 0, or there is none. */
static bool bits_open(bits *b, const unsigned char *begin, size_t size) {
  if (!size || !begin[size - 1])
    return false;
  *b = (bits){.begin = begin, .at = begin, .is_short = size < 8};
  if (b->is_short)
    b->word = load(begin, size) << (8 * (8 - size));
  else {
    b->at = begin + size - 8;
    b->word = load8(b->at);
  }
  if (b->is_short)
    b->beyond = -(int64_t)(8 * size);
  b->used = 8 - highest_bit(begin[size - 1]);
  return true;
}

/* Makes sure that 56 bits or more can be read, if there are that many. Bits beyond the beginning are 0. */
static inline void bits_refill(bits *b) {
  if (b->is_short)
    return;
  unsigned bytes = b->used >> 3;
  if ((size_t)(b->at - b->begin) < bytes)
    bytes = (unsigned)(b->at - b->begin);
  b->at -= bytes;
  b->used -= 8 * bytes;
  b->word = load8(b->at);
}

/* At most 56 bits since the last refill. */
static inline uint64_t bits_peek(const bits *b, unsigned count) {
  return b->used >= 64 || !count ? 0 : b->word << b->used >> (64 - count);
}

static inline uint64_t bits_read(bits *b, unsigned count) {
  uint64_t value = bits_peek(b, count);
  b->used += count;
  return value;
}

/* Bits that are left; negative if more were read than there are. */
static inline int64_t bits_left(const bits *b) {
  if (b->is_short)
    return -b->beyond - (int64_t)b->used;
  return 8 * (int64_t)(b->at - b->begin) + 64 - (int64_t)b->used;
}

/* ---- FSE tables ---- */

/* Makes the decoding table of a distribution: -1 stands for "less than 1". */
static bool fse_build(fse_table *table, const int16_t *counts, unsigned symbols, unsigned log) {
  unsigned size = 1u << log, high = size, at = 0, step = (size >> 1) + (size >> 3) + 3;
  uint16_t next[HUFFMAN_SYMBOLS];
  for (unsigned s = 0; s < symbols; s++) {
    next[s] = (uint16_t)(counts[s] == -1 ? 1 : counts[s]);
    if (counts[s] == -1)
      table->states[--high].symbol = (uint8_t)s;
  }
  for (unsigned s = 0; s < symbols; s++)
    for (int i = 0; i < counts[s]; i++) {
      table->states[at].symbol = (uint8_t)s;
      do
        at = (at + step) & (size - 1);
      while (at >= high);
    }
  if (at)
    return false;
  for (unsigned i = 0; i < size; i++) {
    fse_state *state = &table->states[i];
    unsigned value = next[state->symbol]++;
    state->bits = (uint8_t)(log - highest_bit(value));
    state->base = (uint16_t)((value << state->bits) - size);
  }
  table->log = log;
  return table->is_set = true;
}

/* Reads the description of a distribution from the beginning of a buffer. The number of bytes; 0 if it is wrong. */
static size_t fse_read(const unsigned char *bytes, size_t size, unsigned most_log, unsigned most_symbols,
                       int16_t *counts, unsigned *symbols, unsigned *log) {
  size_t bit = 4, end = 8 * size;
  if (!size)
    return 0;
  *log = (bytes[0] & 15u) + 5;
  if (*log > most_log)
    return 0;
  int remaining = (1 << *log) + 1;
  unsigned s = 0;
  while (remaining > 1) {
    unsigned width = highest_bit((uint64_t)remaining) + 1;
    size_t first = bit >> 3;
    if (s >= most_symbols || bit >= end)
      return 0;
    uint64_t word = load(bytes + first, size - first < 8 ? size - first : 8) >> (bit & 7);
    /* Values below `low` take one bit less. */
    unsigned value = (unsigned)(word & ((1u << width) - 1)), mask = (1u << (width - 1)) - 1;
    unsigned low = (1u << width) - 1 - (unsigned)remaining;
    if ((value & mask) < low) {
      value &= mask;
      bit += width - 1;
    } else {
      if (value > mask)
        value -= low;
      bit += width;
    }
    int count = (int)value - 1;
    remaining -= count < 0 ? -count : count;
    if (remaining < 1)
      return 0;
    counts[s++] = (int16_t)count;
    if (count)
      continue;
    for (unsigned repeat = 3; repeat == 3;) { /* further symbols with 0 */
      if (bit + 2 > end)
        return 0;
      first = bit >> 3;
      repeat = (unsigned)(load(bytes + first, size - first < 2 ? size - first : 2) >> (bit & 7)) & 3;
      bit += 2;
      if (repeat > most_symbols - s)
        return 0;
      for (unsigned i = 0; i < repeat; i++)
        counts[s++] = 0;
    }
  }
  *symbols = s;
  return bit > end ? 0 : (bit + 7) >> 3;
}

/* ---- Huffman codes ---- */

/* The decoding table of the weights of all symbols but the last one, which follows from the others. */
static bool huffman_build(weir__zstd *z, uint8_t *weights, unsigned count) {
  uint32_t total = 0, ranks[HUFFMAN_LOG + 2] = {0};
  for (unsigned i = 0; i < count; i++) {
    if (weights[i] > HUFFMAN_LOG)
      return false;
    total += weights[i] ? 1u << (weights[i] - 1) : 0;
  }
  if (!total)
    return false;
  unsigned log = highest_bit(total) + 1;
  uint32_t left = (1u << log) - total;
  if (log > HUFFMAN_LOG || left & (left - 1))
    return false;
  weights[count++] = (uint8_t)(highest_bit(left) + 1);
  for (unsigned i = 0; i < count; i++)
    ranks[weights[i]]++;
  if (!ranks[1]) /* the longest words of a code are siblings; without any, all weights are too large */
    return false;
  uint32_t at = 0, next[HUFFMAN_LOG + 2];
  for (unsigned w = 1; w <= log; w++) {
    next[w] = at;
    at += ranks[w] << (w - 1);
  }
  if (at != 1u << log)
    return false;
  for (unsigned s = 0; s < count; s++) {
    unsigned w = weights[s];
    if (!w)
      continue;
    huffman_state state = {(uint8_t)s, (uint8_t)(log + 1 - w)};
    for (uint32_t i = 0; i < 1u << (w - 1); i++)
      z->huffman[next[w]++] = state;
  }
  z->huffman_log = log;
  return true;
}

/* Weights that are compressed with FSE: two states take turns. The number of weights; 0 if they are wrong. */
static unsigned read_weights(const unsigned char *bytes, size_t size, uint8_t *weights) {
  enum { LOG = 6, SYMBOLS = HUFFMAN_LOG + 2 };
  int16_t counts[SYMBOLS];
  unsigned symbols, log, count = 0;
  fse_table table = {.is_set = false};
  bits b;
  size_t used = fse_read(bytes, size, LOG, SYMBOLS, counts, &symbols, &log);
  if (!used || !fse_build(&table, counts, symbols, log) || !bits_open(&b, bytes + used, size - used))
    return 0;
  unsigned states[2];
  bits_refill(&b);
  states[0] = (unsigned)bits_read(&b, log);
  states[1] = (unsigned)bits_read(&b, log);
  if (bits_left(&b) < 0)
    return 0;
  for (unsigned turn = 0;; turn ^= 1) {
    const fse_state *s = &table.states[states[turn]];
    if (count == HUFFMAN_SYMBOLS - 2)
      return 0;
    weights[count++] = s->symbol;
    bits_refill(&b);
    states[turn] = s->base + (unsigned)bits_read(&b, s->bits);
    if (bits_left(&b) < 0) { /* the other state has the last one */
      weights[count++] = table.states[states[turn ^ 1]].symbol;
      return count;
    }
  }
}

/* Reads the description of a Huffman tree. The number of bytes; 0 if it is wrong. */
static size_t huffman_read(weir__zstd *z, const unsigned char *bytes, size_t size) {
  uint8_t weights[HUFFMAN_SYMBOLS + 1];
  if (!size)
    return 0;
  unsigned head = bytes[0], count;
  size_t used;
  z->huffman_log = 0;
  if (head < 128) {
    used = 1 + (size_t)head;
    count = used <= size ? read_weights(bytes + 1, head, weights) : 0;
  } else {
    count = head - 127;
    used = 1 + ((size_t)count + 1) / 2;
    for (unsigned i = 0; i < count && used <= size; i++)
      weights[i] = i & 1 ? bytes[1 + i / 2] & 15 : bytes[1 + i / 2] >> 4;
  }
  return count && used <= size && count < HUFFMAN_SYMBOLS && huffman_build(z, weights, count) ? used : 0;
}

/* Decodes one stream of exactly `count` literals. */
static bool huffman_decode(const weir__zstd *z, const unsigned char *bytes, size_t size, unsigned char *to,
                           size_t count) {
  const huffman_state *table = z->huffman;
  unsigned log = z->huffman_log;
  unsigned char *end = to + count;
  bits b;
  if (!bits_open(&b, bytes, size))
    return false;
  while (end - to >= 4) {
    bits_refill(&b);
    for (int i = 0; i < 4; i++) { /* at most 44 bits */
      huffman_state s = table[bits_peek(&b, log)];
      *to++ = s.symbol;
      b.used += s.bits;
    }
    if (bits_left(&b) < 0)
      return false;
  }
  bits_refill(&b);
  while (to < end) {
    huffman_state s = table[bits_peek(&b, log)];
    *to++ = s.symbol;
    b.used += s.bits;
  }
  return bits_left(&b) == 0;
}

/* ---- Literals ---- */

typedef struct literals_header {
  unsigned kind; /* 0 raw, 1 one byte repeated, 2 compressed, 3 compressed with the last tree */
  size_t header, size, packed;
  bool has_four; /* streams */
} literals_header;

static bool read_literals_header(const unsigned char *bytes, size_t size, literals_header *h) {
  if (!size)
    return false;
  unsigned format = bytes[0] >> 2 & 3;
  *h = (literals_header){.kind = bytes[0] & 3u};
  if (h->kind < 2) {
    h->header = format == 1 ? 2 : format == 3 ? 3 : 1;
    if (size < h->header)
      return false;
    h->size = (size_t)(load(bytes, h->header) >> (h->header == 1 ? 3 : 4));
    h->packed = h->kind ? 1 : h->size;
  } else {
    unsigned width = format < 2 ? 10 : format == 2 ? 14 : 18;
    h->header = format < 2 ? 3 : format == 2 ? 4 : 5;
    if (size < h->header)
      return false;
    uint64_t word = load(bytes, h->header) >> 4;
    h->size = (size_t)(word & ((1u << width) - 1));
    h->packed = (size_t)(word >> width & ((1u << width) - 1));
    h->has_four = format != 0;
  }
  return h->size <= BLOCK_MAX && h->packed <= size - h->header;
}

static bool decode_four(const weir__zstd *z, const unsigned char *bytes, size_t size) {
  size_t count = z->literal_count, each = (count + 3) / 4, at = 6, sizes[4];
  if (size < at || 3 * each > count)
    return false;
  for (size_t i = 0; i < 3; i++)
    sizes[i] = (size_t)load(bytes + 2 * i, 2);
  if (sizes[0] + sizes[1] + sizes[2] > size - at)
    return false;
  sizes[3] = size - at - sizes[0] - sizes[1] - sizes[2];
  for (size_t i = 0; i < 4; at += sizes[i], i++)
    if (!huffman_decode(z, bytes + at, sizes[i], z->literals + i * each, i < 3 ? each : count - 3 * each))
      return false;
  return true;
}

/* Reads the literals of a block. The number of bytes; 0 if they are wrong. */
static size_t read_literals(weir__zstd *z, const unsigned char *bytes, size_t size) {
  literals_header h;
  if (!read_literals_header(bytes, size, &h))
    return 0;
  const unsigned char *packed = bytes + h.header;
  size_t left = h.packed;
  z->literal_count = h.size;
  if (h.kind == 0)
    memcpy(z->literals, packed, h.size);
  else if (h.kind == 1)
    memset(z->literals, packed[0], h.size);
  else {
    size_t used = h.kind == 2 ? huffman_read(z, packed, left) : 0;
    if ((h.kind == 2 && !used) || !z->huffman_log)
      return 0;
    packed += used;
    left -= used;
    if (h.has_four ? !decode_four(z, packed, left) : !huffman_decode(z, packed, left, z->literals, h.size))
      return 0;
  }
  return h.header + h.packed;
}

/* ---- Sequences ---- */

typedef struct code {
  uint32_t base;
  uint8_t bits;
} code;

static const code length_codes[36] = {
    {0, 0},   {1, 0},   {2, 0},     {3, 0},     {4, 0},     {5, 0},     {6, 0},      {7, 0},      {8, 0},
    {9, 0},   {10, 0},  {11, 0},    {12, 0},    {13, 0},    {14, 0},    {15, 0},     {16, 1},     {18, 1},
    {20, 1},  {22, 1},  {24, 2},    {28, 2},    {32, 3},    {40, 3},    {48, 4},     {64, 6},     {128, 7},
    {256, 8}, {512, 9}, {1024, 10}, {2048, 11}, {4096, 12}, {8192, 13}, {16384, 14}, {32768, 15}, {65536, 16}};

static const code match_codes[53] = {
    {3, 0},   {4, 0},     {5, 0},     {6, 0},     {7, 0},     {8, 0},      {9, 0},      {10, 0},    {11, 0},
    {12, 0},  {13, 0},    {14, 0},    {15, 0},    {16, 0},    {17, 0},     {18, 0},     {19, 0},    {20, 0},
    {21, 0},  {22, 0},    {23, 0},    {24, 0},    {25, 0},    {26, 0},     {27, 0},     {28, 0},    {29, 0},
    {30, 0},  {31, 0},    {32, 0},    {33, 0},    {34, 0},    {35, 1},     {37, 1},     {39, 1},    {41, 1},
    {43, 2},  {47, 2},    {51, 3},    {59, 3},    {67, 4},    {83, 4},     {99, 5},     {131, 7},   {259, 8},
    {515, 9}, {1027, 10}, {2051, 11}, {4099, 12}, {8195, 13}, {16387, 14}, {32771, 15}, {65539, 16}};

static const int16_t length_default[36] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1,  1,  2,  2,
                                           2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
static const int16_t match_default[53] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,  1,  1,  1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
static const int16_t offset_default[29] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1,  1,  1,  1,  1, 1,
                                           1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};

/* Sets one of the three tables. The number of bytes in *used; false if they are wrong. */
static bool read_table(fse_table *table, unsigned mode, const int16_t *defaults, unsigned default_symbols,
                       unsigned default_log, unsigned most_log, unsigned most_symbols, const unsigned char *bytes,
                       size_t size, size_t *used) {
  int16_t counts[FSE_MAX_SYMBOLS];
  unsigned symbols, log;
  *used = 0;
  switch (mode) {
  case 0:
    return fse_build(table, defaults, default_symbols, default_log);
  case 1: /* one symbol */
    *used = 1;
    if (!size || bytes[0] >= most_symbols)
      return false;
    table->states[0] = (fse_state){.symbol = bytes[0]};
    table->log = 0;
    return table->is_set = true;
  case 2:
    *used = fse_read(bytes, size, most_log, most_symbols, counts, &symbols, &log);
    return *used && fse_build(table, counts, symbols, log);
  default:
    return table->is_set;
  }
}

/* Copies a match, which may overlap what it is copied to. The buffer has slack behind the end. */
static inline void copy_match(unsigned char *to, size_t offset, size_t length) {
  const unsigned char *from = to - offset;
  if (offset >= 16) {
    for (size_t i = 0; i < length; i += 16)
      memcpy(to + i, from + i, 16);
    return;
  }
  for (size_t i = 0; i < length; i++)
    to[i] = from[i];
}

/* The offset of a sequence: above 3 it is new, otherwise one of the last three. 0 if it is wrong. */
static inline uint64_t next_offset(uint64_t repeats[3], uint64_t value, bool has_literals) {
  uint64_t offset;
  if (value > 3) {
    offset = value - 3;
    repeats[2] = repeats[1];
    repeats[1] = repeats[0];
  } else {
    unsigned index = (unsigned)value - has_literals;
    offset = index == 3 ? repeats[0] - 1 : repeats[index];
    if (index > 1)
      repeats[2] = repeats[1];
    if (index > 0)
      repeats[1] = repeats[0];
  }
  repeats[0] = offset;
  return offset;
}

/* How far back a match may go. */
static inline uint64_t reach(const weir__zstd *z, size_t at) {
  uint64_t made = z->made + (at - z->end);
  return made < z->window ? made : z->window;
}

static weir__zstd_result run_sequences(weir__zstd *z, const unsigned char *bytes, size_t size, size_t count) {
  bits b;
  const unsigned char *literal = z->literals, *literals_end = z->literals + z->literal_count;
  size_t at = z->end, limit = z->end + BLOCK_MAX;
  if (!bits_open(&b, bytes, size))
    return bad(z, "the sequences of a block have no end mark");
  bits_refill(&b);
  unsigned length_state = (unsigned)bits_read(&b, z->lengths.log),
           offset_state = (unsigned)bits_read(&b, z->offsets.log);
  unsigned match_state = (unsigned)bits_read(&b, z->matches.log);
  for (size_t i = 0; i < count; i++) {
    fse_state l = z->lengths.states[length_state], o = z->offsets.states[offset_state];
    fse_state m = z->matches.states[match_state];
    bits_refill(&b);
    uint64_t value = (1ull << o.symbol) + bits_read(&b, o.symbol); /* at most 31 bits */
    if (o.symbol > 24)
      bits_refill(&b);
    size_t match = match_codes[m.symbol].base + (size_t)bits_read(&b, match_codes[m.symbol].bits);
    size_t length = length_codes[l.symbol].base + (size_t)bits_read(&b, length_codes[l.symbol].bits);
    uint64_t offset = next_offset(z->repeats, value, length != 0);
    if (length > (size_t)(literals_end - literal) || length + match > limit - at)
      return bad(z, "a sequence is longer than its block");
    for (size_t k = 0; k < length; k += 16)
      memcpy(z->out + at + k, literal + k, 16);
    literal += length;
    at += length;
    if (!offset || offset > reach(z, at))
      return bad(z, "a match begins before the data");
    copy_match(z->out + at, (size_t)offset, match);
    at += match;
    if (i + 1 < count) {
      bits_refill(&b);
      length_state = l.base + (unsigned)bits_read(&b, l.bits);
      match_state = m.base + (unsigned)bits_read(&b, m.bits);
      offset_state = o.base + (unsigned)bits_read(&b, o.bits);
    }
    if (bits_left(&b) < 0)
      return bad(z, "the sequences of a block end too early");
  }
  if (bits_left(&b))
    return bad(z, "the sequences of a block have bits left over");
  size_t rest = (size_t)(literals_end - literal);
  if (rest > limit - at)
    return bad(z, "a block is too long");
  memcpy(z->out + at, literal, rest);
  z->block_size = at + rest - z->end;
  return WEIR__ZSTD_OK;
}

static weir__zstd_result decode_block(weir__zstd *z, const unsigned char *bytes, size_t size) {
  const unsigned char *end = bytes + size;
  size_t used = read_literals(z, bytes, size), count;
  if (!used)
    return bad(z, "the literals of a block are damaged");
  bytes += used;
  if (bytes == end)
    return bad(z, "a block has no sequences");
  count = *bytes++;
  if (!count) {
    if (bytes != end)
      return bad(z, "a block has bytes left over");
    memcpy(z->out + z->end, z->literals, z->literal_count);
    z->block_size = z->literal_count;
    return WEIR__ZSTD_OK;
  }
  if (count >= 128) {
    size_t more = count == 255 ? 2 : 1;
    if ((size_t)(end - bytes) < more)
      return bad(z, "a block ends too early");
    count = more == 2 ? (size_t)load(bytes, 2) + 0x7f00 : ((count - 128) << 8) + bytes[0];
    bytes += more;
  }
  if (bytes == end || bytes[0] & 3)
    return bad(z, "the tables of a block are damaged");
  unsigned modes = *bytes++;
  if (!read_table(&z->lengths, modes >> 6, length_default, 36, 6, 9, 36, bytes, (size_t)(end - bytes), &used))
    return bad(z, "the table of literal lengths is damaged");
  bytes += used;
  if (!read_table(&z->offsets, modes >> 4 & 3, offset_default, 29, 5, 8, 32, bytes, (size_t)(end - bytes), &used))
    return bad(z, "the table of offsets is damaged");
  bytes += used;
  if (!read_table(&z->matches, modes >> 2 & 3, match_default, 53, 6, 9, 53, bytes, (size_t)(end - bytes), &used))
    return bad(z, "the table of match lengths is damaged");
  bytes += used;
  return run_sequences(z, bytes, (size_t)(end - bytes), count);
}

/* ---- Frames ---- */

weir__zstd *weir__zstd_new(void) {
  weir__zstd *z = calloc(1, sizeof *z);
  if (!z)
    return NULL;
  z->literals = malloc(BLOCK_MAX + SLACK);
  if (!z->literals) {
    free(z);
    return NULL;
  }
  z->step = MAGIC;
  z->wanted = 4;
  return z;
}

void weir__zstd_delete(weir__zstd *z) {
  if (!z)
    return;
  free(z->out);
  free(z->literals);
  free(z);
}

size_t weir__zstd_wanted(const weir__zstd *z) { return z->wanted; }

bool weir__zstd_is_between_frames(const weir__zstd *z) { return z->step == MAGIC; }

const char *weir__zstd_error(const weir__zstd *z) { return z->error; }

static weir__zstd_result want(weir__zstd *z, step step, size_t bytes) {
  z->step = step;
  z->wanted = bytes;
  return WEIR__ZSTD_OK;
}

static weir__zstd_result skip(weir__zstd *z) {
  if (!z->skip)
    return want(z, MAGIC, 4);
  size_t piece = z->skip < WEIR__ZSTD_MAX_WANTED ? z->skip : WEIR__ZSTD_MAX_WANTED;
  z->skip -= (uint32_t)piece;
  return want(z, SKIP, piece);
}

static weir__zstd_result begin_frame(weir__zstd *z, const unsigned char *bytes) {
  uint32_t magic = (uint32_t)load(bytes, 4);
  if (magic >> 4 == 0x184d2a5)
    return want(z, SKIP_SIZE, 4);
  return magic == 0xfd2fb528 ? want(z, DESCRIPTOR, 1) : bad(z, "a frame begins with unknown bytes");
}

/* Makes room for a window and a block. */
static weir__zstd_result make_room(weir__zstd *z) {
  /* Half a window of room beside the window, so that it is moved seldom. */
  size_t room = (size_t)z->window + (size_t)z->window / 2 + 2 * BLOCK_MAX;
  z->end = z->taken = 0;
  z->made = 0;
  if (z->room >= room)
    return WEIR__ZSTD_OK;
  free(z->out);
  z->out = malloc(room + SLACK);
  z->room = z->out ? room : 0;
  return z->out ? WEIR__ZSTD_OK : WEIR__ZSTD_NO_MEMORY;
}

/* The sizes of the header's fields. */
static void read_descriptor(unsigned descriptor, size_t *dictionary, size_t *content) {
  static const uint8_t dictionary_sizes[4] = {0, 1, 2, 4}, content_sizes[4] = {0, 2, 4, 8};
  *dictionary = dictionary_sizes[descriptor & 3];
  *content = content_sizes[descriptor >> 6];
  if (descriptor & IS_SINGLE && !*content)
    *content = 1;
}

static weir__zstd_result begin_header(weir__zstd *z, const unsigned char *bytes) {
  size_t dictionary, content;
  z->descriptor = bytes[0];
  read_descriptor(z->descriptor, &dictionary, &content);
  return want(z, HEADER, !(z->descriptor & IS_SINGLE) + dictionary + content);
}

static weir__zstd_result read_header(weir__zstd *z, const unsigned char *bytes) {
  unsigned descriptor = z->descriptor;
  bool is_single = descriptor & IS_SINGLE;
  size_t dictionary, content;
  read_descriptor(descriptor, &dictionary, &content);
  if (descriptor & 8)
    return bad(z, "a frame uses a reserved bit");
  if (!is_single) {
    uint64_t base = 1ull << (10 + (bytes[0] >> 3));
    z->window = base + base / 8 * (bytes[0] & 7);
    bytes++;
  }
  if (load(bytes, dictionary))
    return bad(z, "a frame needs a dictionary");
  bytes += dictionary;
  z->content = content ? load(bytes, content) + (content == 2 ? 256 : 0) : UINT64_MAX;
  if (is_single)
    z->window = z->content;
  if (z->window > WEIR__ZSTD_MAX_WINDOW)
    return bad(z, "a frame needs a window of more than 128 MiB");
  z->has_checksum = descriptor & 4;
  z->huffman_log = 0;
  z->lengths.is_set = z->offsets.is_set = z->matches.is_set = false;
  z->repeats[0] = 1;
  z->repeats[1] = 4;
  z->repeats[2] = 8;
  hash_begin(&z->hash);
  weir__zstd_result result = make_room(z);
  return result ? result : want(z, BLOCK_HEADER, 3);
}

static weir__zstd_result end_frame(weir__zstd *z) {
  if (z->content != UINT64_MAX && z->made != z->content)
    return bad(z, "a frame has another length than its header says");
  return z->has_checksum ? want(z, CHECKSUM, 4) : want(z, MAGIC, 4);
}

static weir__zstd_result begin_block(weir__zstd *z, const unsigned char *bytes) {
  uint32_t header = (uint32_t)load(bytes, 3);
  size_t size = header >> 3, most = z->window < BLOCK_MAX ? (size_t)z->window : BLOCK_MAX;
  z->is_last = header & 1;
  z->block_size = size;
  switch (header >> 1 & 3) {
  case 0:
    if (size > most)
      return bad(z, "a block is too long");
    if (size)
      return want(z, RAW, size);
    return z->is_last ? end_frame(z) : want(z, BLOCK_HEADER, 3);
  case 1:
    return size > most ? bad(z, "a block is too long") : want(z, REPEATED, 1);
  case 2:
    return !size || size > most ? bad(z, "a block has an impossible size") : want(z, COMPRESSED, size);
  default:
    return bad(z, "a block has an unknown type");
  }
}

/* Makes room for a block: keeps a window of the output. All of it was taken. */
static void move_window(weir__zstd *z) {
  if (z->room - z->end >= BLOCK_MAX)
    return;
  size_t keep = z->window < z->end ? (size_t)z->window : z->end;
  memmove(z->out, z->out + z->end - keep, keep);
  z->end = z->taken = keep;
}

static weir__zstd_result make_block(weir__zstd *z, const unsigned char *bytes) {
  weir__zstd_result result = WEIR__ZSTD_OK;
  move_window(z);
  if (z->step == RAW)
    memcpy(z->out + z->end, bytes, z->block_size);
  else if (z->step == REPEATED)
    memset(z->out + z->end, bytes[0], z->block_size);
  else
    result = decode_block(z, bytes, z->wanted);
  if (result)
    return result;
  if (z->block_size > z->window && z->window < BLOCK_MAX)
    return bad(z, "a block is longer than the window");
  if (z->has_checksum)
    hash_add(&z->hash, z->out + z->end, z->block_size);
  z->end += z->block_size;
  z->made += z->block_size;
  if (z->made > z->content)
    return bad(z, "a frame has another length than its header says");
  return z->is_last ? end_frame(z) : want(z, BLOCK_HEADER, 3);
}

weir__zstd_result weir__zstd_feed(weir__zstd *z, const unsigned char *bytes) {
  switch (z->step) {
  case MAGIC:
    return begin_frame(z, bytes);
  case DESCRIPTOR:
    return begin_header(z, bytes);
  case HEADER:
    return read_header(z, bytes);
  case BLOCK_HEADER:
    return begin_block(z, bytes);
  case RAW:
  case REPEATED:
  case COMPRESSED:
    return make_block(z, bytes);
  case CHECKSUM:
    if ((uint32_t)hash_end(&z->hash) != (uint32_t)load(bytes, 4))
      return bad(z, "the checksum of a frame is wrong");
    return want(z, MAGIC, 4);
  case SKIP_SIZE:
    z->skip = (uint32_t)load(bytes, 4);
    return skip(z);
  default:
    return skip(z);
  }
}

size_t weir__zstd_take(weir__zstd *z, void *to, size_t room) {
  size_t size = z->end - z->taken < room ? z->end - z->taken : room;
  if (size)
    memcpy(to, z->out + z->taken, size);
  z->taken += size;
  return size;
}
