/*
 * A libFuzzer target, see scripts/fuzz: the zstd decoder, with pieces of exactly the size that it wants.
 */
#include <stdlib.h>
#include <string.h>

#include "offline/read/zstd_decode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  enum { MAX_OUTPUT = 16 << 20 };
  static unsigned char out[1 << 16];
  size_t made = 0;
  weir__zstd *z = weir__zstd_new();
  if (!z)
    return 0;
  for (size_t wanted; (wanted = weir__zstd_wanted(z)) <= size && made < MAX_OUTPUT; data += wanted, size -= wanted) {
    unsigned char *piece = malloc(wanted); /* so that reads beyond it are seen */
    if (!piece)
      break;
    memcpy(piece, data, wanted);
    weir__zstd_result result = weir__zstd_feed(z, piece);
    free(piece);
    if (result)
      break;
    for (size_t got; (got = weir__zstd_take(z, out, sizeof out));)
      made += got;
  }
  weir__zstd_delete(z);
  return 0;
}
