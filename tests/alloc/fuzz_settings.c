/*
 * A libFuzzer target, see scripts/fuzz: the parser of settings.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/config/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The text up to a newline is parsed over the defaults, and the rest over the result. Accepted settings must survive a
 * round trip through their text. */
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
