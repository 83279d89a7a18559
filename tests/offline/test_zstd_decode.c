/*
 * The own zstd decoder, compared with libzstd: on real files, on made-up data of every kind, and on damaged data.
 */
#include "offline/read/zstd_decode.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WEIR_HAVE_ZSTD
#include <zstd.h>
#endif

typedef struct buffer {
  unsigned char *bytes;
  size_t size, room;
} buffer;

static void append(buffer *b, const void *bytes, size_t size) {
  if (b->size + size > b->room) {
    b->room = 2 * (b->size + size);
    b->bytes = realloc(b->bytes, b->room);
    assert_non_null(b->bytes);
  }
  if (size)
    memcpy(b->bytes + b->size, bytes, size);
  b->size += size;
}

/* Decodes everything. false if it is damaged or ends too early. Pieces are copied, so that a sanitizer sees reads beyond
 * their ends. */
static bool decode(const unsigned char *bytes, size_t size, buffer *out) {
  weir__zstd *z = weir__zstd_new();
  size_t at = 0;
  bool is_good = true;
  assert_non_null(z);
  out->size = 0;
  for (;;) {
    unsigned char part[1 << 15];
    size_t got;
    while ((got = weir__zstd_take(z, part, sizeof part)))
      append(out, part, got);
    size_t wanted = weir__zstd_wanted(z);
    assert_in_range(wanted, 1, WEIR__ZSTD_MAX_WANTED);
    if (at == size || wanted > size - at) {
      is_good = at == size && weir__zstd_is_between_frames(z);
      break;
    }
    unsigned char *piece = malloc(wanted);
    assert_non_null(piece);
    memcpy(piece, bytes + at, wanted);
    weir__zstd_result result = weir__zstd_feed(z, piece);
    free(piece);
    if (result) {
      assert_true(result == WEIR__ZSTD_NO_MEMORY || weir__zstd_error(z));
      is_good = false;
      break;
    }
    at += wanted;
  }
  weir__zstd_delete(z);
  return is_good;
}

/* Frames whose bytes are written out. */
TEST(known) {
  static const unsigned char raw[] = {0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x19, 0x00, 0x00, 'a', 'b', 'c', 0, 0, 0, 0};
  buffer out = {0};
  assert_false(decode(raw, sizeof raw, &out)); /* the checksum is wrong */
  assert_false(decode(raw, 5, &out));
  assert_false(decode((const unsigned char *)"abcd", 4, &out));
  assert_true(decode((const unsigned char *)"", 0, &out));
  static const unsigned char skipped[] = {0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3};
  assert_true(decode(skipped, sizeof skipped, &out));
  assert_int_equal(out.size, 0);
  static const unsigned char plain[] = {0x28, 0xb5, 0x2f, 0xfd, 0x20, 3, 0x19, 0, 0, 'a', 'b', 'c'};
  assert_true(decode(plain, sizeof plain, &out));
  assert_int_equal(out.size, 3);
  assert_memory_equal(out.bytes, "abc", 3);
  static const unsigned char dictionary[] = {0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 3, 0x19, 0, 0, 'a', 'b', 'c'};
  assert_false(decode(dictionary, sizeof dictionary, &out));
  static const unsigned char huge[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0x19, 0, 0, 'a', 'b', 'c'};
  assert_false(decode(huge, sizeof huge, &out)); /* a window of 2 TiB */
  free(out.bytes);
}

#ifdef WEIR_HAVE_ZSTD

static uint64_t seed = 1;

static uint64_t draw(uint64_t below) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed % below;
}

/* Data of different kinds: noise, few symbols, skewed symbols, repeated pieces near and far, runs. */
static void make_data(unsigned char *to, size_t size) {
  size_t at = 0;
  while (at < size) {
    size_t length = 1 + (size_t)draw(draw(2) ? 40 : 5000), kind = (size_t)draw(6);
    if (length > size - at)
      length = size - at;
    size_t back = at ? 1 + (size_t)draw(draw(2) ? (at < 64 ? at : 64) : at) : 0;
    unsigned char byte = (unsigned char)draw(256);
    for (size_t i = 0; i < length; i++, at++)
      to[at] = kind == 0   ? (unsigned char)draw(256)
               : kind == 1 ? (unsigned char)('a' + draw(4))
               : kind == 2 ? (unsigned char)(draw(256) & draw(256) & draw(256)) /* NOLINT(misc-redundant-expression) */
               : kind == 3 ? byte
               : back      ? to[at - back]
                           : (unsigned char)draw(16);
  }
}

static void check(const unsigned char *packed, size_t packed_size, const unsigned char *data, size_t size) {
  buffer out = {0};
  if (!decode(packed, packed_size, &out))
    fail_msg("%zu bytes, packed to %zu, are refused", size, packed_size);
  assert_int_equal(out.size, size);
  if (size && memcmp(out.bytes, data, size) != 0)
    fail_msg("%zu bytes, packed to %zu, come out differently", size, packed_size);
  free(out.bytes);
}

TEST(made_up) {
  static const int levels[] = {-5, 1, 2, 3, 5, 7, 9, 12, 15, 17, 19, 22};
  size_t most = 1 << 20, rounds = getenv("WEIR_TEST_LONG") ? 5000 : 250;
  unsigned char *data = malloc(most), *packed = malloc(2 * ZSTD_compressBound(most));
  ZSTD_CCtx *context = ZSTD_createCCtx();
  assert_true(data && packed && context);
  for (size_t round = 0; round < rounds; round++) {
    size_t size = (size_t)draw(round % 16 ? (round % 4 ? 3000 : 200000) : most);
    make_data(data, size);
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, levels[draw(sizeof levels / sizeof *levels)]);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, (int)draw(2));
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, (int)draw(2));
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, draw(2) ? 0 : 10 + (int)draw(10));
    size_t got = ZSTD_compress2(context, packed, ZSTD_compressBound(most), data, size);
    assert_false(ZSTD_isError(got));
    check(packed, got, data, size);
    /* Two frames, one after the other. */
    if (size < most / 2 && draw(4) == 0) {
      memcpy(data + size, data, size);
      memcpy(packed + got, packed, got);
      check(packed, 2 * got, data, 2 * size);
    }
  }
  ZSTD_freeCCtx(context);
  free(data);
  free(packed);
}

static buffer read_file(const char *name) {
  char path[1024];
  unsigned char part[1 << 15];
  buffer b = {0};
  snprintf(path, sizeof path, "%s/%s", WEIR_TEST_DATA, name);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  for (size_t got; (got = fread(part, 1, sizeof part, file));)
    append(&b, part, got);
  fclose(file);
  return b;
}

static const char *const files[] = {"traces/llama_oom.pickle.zst", "traces/resnet_stacks.pickle.zst",
                                    "traces/streams_prefetch.pickle.zst", "histories/pools.pickle.zst"};

static void unpack(const buffer *packed, buffer *data) {
  unsigned char part[1 << 15];
  ZSTD_DCtx *context = ZSTD_createDCtx();
  ZSTD_inBuffer in = {packed->bytes, packed->size, 0};
  for (size_t left = 1; left || in.pos < in.size;) {
    ZSTD_outBuffer out = {part, sizeof part, 0};
    left = ZSTD_decompressStream(context, &out, &in);
    assert_false(ZSTD_isError(left));
    append(data, part, out.pos);
    if (!out.pos && in.pos == in.size)
      break;
  }
  ZSTD_freeDCtx(context);
}

TEST(real) {
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    buffer packed = read_file(files[i]), data = {0};
    unpack(&packed, &data);
    check(packed.bytes, packed.size, data.bytes, data.size);
    free(packed.bytes);
    free(data.bytes);
  }
}

/* What is damaged is refused, or comes out as libzstd has it; and it never takes or reads more than it may. */
TEST(damaged) {
  size_t rounds = getenv("WEIR_TEST_LONG") ? 200000 : 4000, refused = 0;
  buffer packed = read_file("histories/split_capped.pickle.zst"), data = {0}, out = {0};
  unpack(&packed, &data);
  unsigned char *copy = malloc(packed.size), *other = malloc(4 * data.size);
  assert_true(copy && other);
  for (size_t round = 0; round < rounds; round++) {
    size_t size = draw(4) ? packed.size : (size_t)draw(packed.size + 1);
    memcpy(copy, packed.bytes, size);
    for (size_t i = 0, flips = (size_t)draw(4); i < flips && size; i++)
      copy[draw(draw(2) ? size : size < 300 ? size : 300)] ^= (unsigned char)(1u << draw(8));
    bool is_good = decode(copy, size, &out);
    size_t got = ZSTD_decompress(other, 4 * data.size, copy, size);
    refused += !is_good;
    if (is_good) {
      if (ZSTD_isError(got))
        fail_msg("round %zu: libzstd refuses it: %s", round, ZSTD_getErrorName(got));
      assert_int_equal(out.size, got);
      assert_memory_equal(out.bytes, other, got);
    }
  }
  print_message("%zu of %zu refused\n", refused, rounds);
  assert_true(refused > rounds / 4);
  free(copy);
  free(other);
  free(packed.bytes);
  free(data.bytes);
  free(out.bytes);
}

#endif
