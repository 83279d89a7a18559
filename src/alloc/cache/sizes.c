#include "alloc/cache/sizes.h"

/* The power-of-two interval, from 1 MiB up, that contains a size. */
static unsigned interval_of(uint64_t bytes) {
  unsigned log = 63 - (unsigned)__builtin_clzll(bytes);
  return log < 20 ? 0 : log - 20 < WEIR__ROUNDUP_INTERVALS ? log - 20 : WEIR__ROUNDUP_INTERVALS - 1;
}

uint64_t weir__round_to_division(const weir__settings *settings, uint64_t bytes) {
  if (bytes < WEIR__UNIT)
    return WEIR__UNIT;
  unsigned divisions_log = settings->roundup_divisions[interval_of(bytes)];
  if (divisions_log > 1 && bytes > (uint64_t)WEIR__UNIT << (divisions_log - 1)) {
    uint64_t power = 1ull << (63 - __builtin_clzll(bytes));
    if (bytes == power)
      return bytes;
    uint64_t step = power >> (divisions_log - 1);
    return step ? weir__round_up(bytes, step) : power << 1;
  }
  return weir__round_up(bytes, WEIR__UNIT);
}

uint64_t weir__segment_bytes(const weir__settings *settings, uint64_t bytes) {
  if (bytes <= WEIR__SMALL_MAX)
    return WEIR__SMALL_SEGMENT;
  if (bytes < WEIR__LARGE_MIN)
    return settings->large_segment_size;
  return weir__round_up(bytes, WEIR__ROUND_LARGE);
}
