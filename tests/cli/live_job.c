/*
 * live_job [LEAK_MB]: a job for the tests of what is seen of a running process. It holds a pool with the tag "weights"
 * of 30 MiB, allocates and frees in a steady state, and loses LEAK_MB MiB in each round of 50 ms. It prints "ready"
 * once its page is written, and ends when its standard input does.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "weir/weir.h"

enum { HELD = 8, MIB = 1 << 20 };

static int failed(const char *what) {
  fprintf(stderr, "live_job: %s: %s\n", what, weir_last_error());
  return 1;
}

int main(int count, char **words) {
  uint64_t leak = count > 1 ? strtoull(words[1], NULL, 10) * MIB : 0;
  weir_driver *driver;
  weir_allocator *allocator;
  weir_tag *tag;
  void *held[HELD], *kept;
  char byte;
  if (weir_driver_open("soft", &driver) || driver->Init(driver, 0))
    return failed("no driver");
  if (weir_allocator_create(driver, NULL, &allocator))
    return failed("no allocator");
  if (weir_tag_open(allocator, 0, "weights", &tag) || weir_tag_begin(tag) ||
      weir_allocator_alloc(allocator, 0, 30 * MIB, NULL, &kept) || weir_tag_end(tag))
    return failed("no weights");
  struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
  for (int round = 0;; round++) {
    for (int i = 0; i < HELD; i++)
      if (weir_allocator_alloc(allocator, 0, (uint64_t)(i + 1) * MIB, NULL, &held[i]))
        return failed("an allocation");
    for (int i = 0; i < HELD; i++)
      weir_allocator_free(allocator, held[i]);
    if (leak && weir_allocator_alloc(allocator, 0, leak, NULL, &kept))
      return failed("out of memory");
    if (round == 22) { /* after more than a second: the page has been written since */
      puts("ready");
      fflush(stdout);
    }
    if (poll(&input, 1, 50) > 0 && read(STDIN_FILENO, &byte, 1) <= 0)
      break;
  }
  weir_allocator_destroy(allocator);
  weir_driver_close(driver);
  return 0;
}
