/*
 * A libFuzzer target, see scripts/fuzz: tables of the costs of driver calls (weir tune --costs).
 */
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/cost.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  weir__costs costs;
  if (!text)
    return 0;
  memcpy(text, data, size);
  text[size] = 0;
  weir__costs_default(&costs);
  if (weir__costs_parse("fuzz", text, &costs) == WEIR_OK)
    for (int kind = 0; kind < WEIR__METER_KINDS; kind++)
      if (!(costs.of[kind].handle >= 0 && costs.of[kind].handle <= 1e12 && costs.of[kind].mib >= 0))
        abort();
  free(text);
  return 0;
}
