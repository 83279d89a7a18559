/*
 * A libFuzzer target, see scripts/fuzz: input that is plain or compressed with gzip or zstd, by the libraries that the
 * program is linked to. Whatever the input, no more may come out than WEIR__INPUT_RATIO and WEIR__INPUT_FREE allow.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "offline/read/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct file {
  const uint8_t *data;
  size_t size, at;
} file;

/* As a pipe would, in pieces of odd sizes. */
static size_t read_piece(void *context, void *to, size_t room) {
  file *f = context;
  size_t piece = f->size - f->at < 7 ? f->size - f->at : 7;
  piece = piece < room ? piece : room;
  for (size_t i = 0; i < piece; i++)
    ((uint8_t *)to)[i] = f->data[f->at + i];
  f->at += piece;
  return piece;
}

/* A sum of all bytes, for the comparison of both ways to read. *is_cut is set if it stops after `most` bytes. */
static uint64_t read_all(weir__input *input, size_t size, size_t room, uint64_t most, weir_status *status,
                         bool *is_cut) {
  static uint8_t to[1 << 16];
  uint8_t begin[WEIR__INPUT_PEEK];
  uint64_t sum = 0, total = 0;
  size_t got = 0;
  *status = weir__input_peek(input, begin, sizeof begin, &got);
  for (got = 1; !*status && got && total < most;) {
    *status = weir__input_read(input, to, room, &got);
    for (size_t i = 0; !*status && i < got; i++)
      sum = sum * 31 + to[i];
    total += *status ? 0 : got;
  }
  *is_cut |= total >= most;
  if (total > (uint64_t)size * WEIR__INPUT_RATIO + WEIR__INPUT_FREE)
    abort();
  return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  weir__input *input;
  weir_status first, second;
  bool is_cut = false;
  file pipe = {data, size, 0};
  /* Few inputs are read beyond the first MiB, which takes long. */
  const uint64_t most = size && data[size - 1] == 0 && size % 16 == 0 ? UINT64_MAX : 1 << 20;
  if (weir__input_open_memory("fuzz", data, size, &input))
    return 0;
  uint64_t sum = read_all(input, size, 1 << 16, most, &first, &is_cut);
  weir__input_close(input);
  if (weir__input_open_source("fuzz", read_piece, &pipe, &input))
    return 0;
  if (read_all(input, size, 4096, most, &second, &is_cut) != sum && !first && !second && !is_cut)
    abort();
  weir__input_close(input);
  if (!first != !second && !is_cut)
    abort();
  return 0;
}
