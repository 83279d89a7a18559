/*
 * The parser of live pages: it gets the bytes of a page that any process of the user may have written.
 */
#include <stdlib.h>
#include <string.h>

#include "record/live_page.h"

/* Half of the inputs get a checksum that fits, as a forger would compute it: random bytes have none. */
static void reseal(char *data, size_t size) {
  weir__page_slot slot;
  weir__ring_file_area requests; /* the accounts are behind it */
  if (size < WEIR__RING_HEADER + sizeof requests)
    return;
  memcpy(&requests, data + WEIR__RING_HEADER, sizeof requests);
  uint64_t at = WEIR__RING_HEADER + requests.bytes + sizeof requests;
  if (requests.bytes > size || size < at + sizeof slot)
    return;
  memcpy(&slot, data + at, sizeof slot);
  if (slot.at % 8 || slot.bytes % 8 || slot.at > size || slot.bytes > size - slot.at)
    return;
  slot.checksum = weir__ring_file_checksum(atomic_load(&slot.sequence), slot.at, data + slot.at, slot.bytes);
  memcpy(data + at, &slot, sizeof slot);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
  weir__page_view view;
  if (size < 1)
    return 0;
  char *data = malloc(size + 8);
  if (!data)
    return 0;
  memcpy(data, input + 1, size - 1);
  if (*input & 1)
    reseal(data, size - 1);
  weir__page_parse(data, size - 1, &view);
  uint64_t sum = 0;
  for (uint32_t i = 0; view.life == WEIR__PAGE_ALIVE && i < view.copy.row_count; i++)
    sum += view.devices[view.rows[i].device].total + strlen(view.rows[i].tag) + view.rows[i].count[0];
  if (sum == 1) /* so that the reads are not removed */
    abort();
  weir__page_view_clear(&view);
  free(data);
  return 0;
}
