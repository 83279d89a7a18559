/*
 * A libFuzzer target, which the build leaves out:
 *
 *   clang -std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Isrc \
 *     tests/alloc/fuzz_settings.c src/alloc/settings.c src/base/{status,text,log}.c -pthread -o fuzz_settings
 *   ./fuzz_settings -max_len=512
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The text up to a newline is read over the defaults, the rest over that. What is accepted must come back. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1), *second;
  weir__settings settings, again;
  if (text == NULL)
    return 0;
  memcpy(text, data, size);
  text[size] = '\0';
  second = strchr(text, '\n');
  if (second != NULL)
    *second++ = '\0';
  if (weir__settings_parse(NULL, text, &settings) == WEIR_OK) {
    if (second != NULL && weir__settings_parse(&settings, second, &settings) != WEIR_OK && weir_last_error()[0] == '\0')
      abort();
    char written[4096];
    if (weir__settings_format(&settings, written, sizeof written) >= sizeof written ||
        weir__settings_parse(NULL, written, &again) != WEIR_OK || !weir__settings_equal(&settings, &again))
      abort();
  }
  free(text);
  return 0;
}
