/*
 * A libFuzzer target, see scripts/fuzz: short texts of the environment. The first byte selects CUDA_VISIBLE_DEVICES or
 * a size in bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver/visible.h"
#include "weir/adapter.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void list_visible(const char *text) {
  static const char *const uuids[] = {"GPU-00000000-0000-0000-0000-000000000001",
                                      "GPU-00000000-0000-0000-0000-000000000002",
                                      "GPU-10000000-0000-0000-0000-000000000002"};
  int ordinals[WEIR_MAX_DEVICES];
  int count = weir__visible_ordinals(text, uuids, 3, ordinals);
  if (count < WEIR__VISIBLE_MIG || count > 3)
    abort();
  for (int i = 0; i < count; i++)
    if (ordinals[i] < 0 || ordinals[i] > 2)
      abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint64_t bytes;
  char *text = malloc(size + 1);
  if (!text)
    return 0;
  memcpy(text, data, size);
  text[size] = 0;
  if (size && *text % 2)
    list_visible(text + 1);
  else if (size)
    weir_bytes_parse(text + 1, &bytes);
  free(text);
  return 0;
}
