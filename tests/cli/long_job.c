/*
 * long_job COUNT: makes COUNT allocations and frees, then asks for more memory than there is. Prints the reserved bytes
 * and the requested bytes of the blocks in use. WEIR_RECORD records it from the outside.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "weir/alloc.h"
#include "weir/driver.h"
#include "weir/status.h"

enum { HELD = 200 };

static int failed(const char *what) {
  fprintf(stderr, "long_job: %s: %s\n", what, weir_last_error());
  return 1;
}

int main(int count, char **words) {
  long operations = count > 1 ? strtol(words[1], NULL, 10) : 1000;
  weir_driver *driver;
  weir_allocator *allocator;
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  options.bytes = 1ull << 30;
  if (weir_driver_open_ledger(&options, &driver))
    return failed("no driver");
  driver->Init(driver, 0);
  if (weir_allocator_create(driver, NULL, &allocator))
    return failed("no allocator");

  void *held[HELD] = {0}, *none;
  uint32_t random = 1;
  for (long i = 0; i < operations; i++) {
    random = random * 1664525 + 1013904223;
    void **at = &held[(random >> 8) % HELD];
    if (*at && weir_allocator_free(allocator, *at))
      return failed("a free");
    if (*at)
      *at = NULL;
    else if (weir_allocator_alloc(allocator, 0, 1 + (random >> 4) % (6 << 20), NULL, at))
      return failed("an allocation");
  }
  if (weir_allocator_alloc(allocator, 0, 1000u << 20, NULL, &none) != WEIR_ERROR_OUT_OF_MEMORY)
    return failed("there is enough memory");
  weir_allocator_stats stats = {.size = sizeof stats};
  weir_allocator_get_stats(allocator, 0, &stats);
  printf("%" PRId64 " %" PRId64 "\n", stats.reserved_bytes[WEIR_STAT_ALL].current,
         stats.requested_bytes[WEIR_STAT_ALL].current);
  return 0; /* like most programs, it leaves the cleanup to the system */
}
