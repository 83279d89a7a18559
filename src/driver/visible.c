/*
 * Parses CUDA_VISIBLE_DEVICES: which devices the program sees, and in what order.
 */
#include "driver/visible.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"

enum { NO_MATCH = -1 };

/* The leading number of an entry, such as 2 in "2nd", if there is such a device. */
static int ordinal_of_number(const char *entry, size_t length, int count) {
  const char *end = entry + length;
  while (entry < end && isspace((unsigned char)*entry))
    entry++;
  bool negative = entry < end && *entry == '-';
  if (entry < end && (*entry == '-' || *entry == '+'))
    entry++;
  if (entry == end || !isdigit((unsigned char)*entry))
    return NO_MATCH;
  long long number = 0;
  for (; entry < end && isdigit((unsigned char)*entry); entry++) {
    number = number * 10 + (*entry - '0');
    if (number >= count)
      return NO_MATCH;
  }
  return negative && number > 0 ? NO_MATCH : (int)number;
}

/* The only device whose UUID begins with the entry. Unlike numbers, UUIDs may not be surrounded by spaces. "GPU-" alone
 * matches no device, even if there is only one, as in NVIDIA's driver. */
static int ordinal_of_uuid(const char *entry, size_t length, const char *const *uuids, int count) {
  int found = NO_MATCH;
  if (length < 5 || memcmp(entry, "GPU-", 4) != 0)
    return NO_MATCH;
  for (int i = 0; i < count; i++) {
    if (!uuids[i] || strncmp(uuids[i], entry, length) != 0)
      continue;
    if (found != NO_MATCH)
      return NO_MATCH;
    found = i;
  }
  return found;
}

int weir__visible_ordinals(const char *text, const char *const *uuids, int count, int *ordinals) {
  int visible = 0;
  if (!text) {
    for (; visible < count && visible < WEIR_MAX_DEVICES; visible++)
      ordinals[visible] = visible;
    return visible;
  }
  if (strncmp(text, "MIG-", 4) == 0)
    return WEIR__VISIBLE_MIG;

  /* The first entry decides whether all are UUIDs or numbers. */
  bool names = strncmp(text, "GPU-", 4) == 0;
  for (;;) {
    size_t length = strcspn(text, ",");
    int ordinal = names ? ordinal_of_uuid(text, length, uuids, count) : ordinal_of_number(text, length, count);
    if (ordinal == NO_MATCH)
      return visible;
    for (int i = 0; i < visible; i++)
      if (ordinals[i] == ordinal)
        return 0;
    if (visible < WEIR_MAX_DEVICES)
      ordinals[visible++] = ordinal;
    if (!text[length])
      return visible;
    text += length + 1;
  }
}

weir_status weir_visible_devices(const char *text, const char *const *uuids, int count, int *ordinals, int *visible) {
  if (count < 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: count is %d; must not be negative", __func__, count);
  if (count > 0)
    WEIR__CHECK_ARGUMENT(uuids);
  WEIR__CHECK_ARGUMENT(ordinals);
  WEIR__CHECK_ARGUMENT(visible);
  int found[WEIR_MAX_DEVICES];
  int number = weir__visible_ordinals(text, uuids, count, found);
  if (number == WEIR__VISIBLE_MIG)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: \"%s\" names MIG devices, which only NVIDIA's driver can resolve",
                      __func__, text);
  memcpy(ordinals, found, (size_t)number * sizeof *found);
  *visible = number;
  return WEIR_OK;
}

void weir__format_uuid(const weir_cu_uuid *uuid, char text[WEIR__UUID_SIZE]) {
  const unsigned char *b = (const unsigned char *)uuid->bytes;
  snprintf(text, WEIR__UUID_SIZE, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
           b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}
