/*
 * Pinned host memory: buffers for copies to the device that are freed when the copy is enqueued, and reused when it is
 * done.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { COUNT = 1 << 18, BYTES = COUNT * 4, STEPS = 200 };

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

int main(void) {
  static uint32_t words[COUNT];
  weir_driver *driver;
  weir_host_allocator *host;
  weir_stream stream;
  weir_cu_stream raw;
  void *memory, *staged;
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  check(weir_host_allocator_create(driver, NULL, &host));
  check(weir_stream_create(0, 0, &stream));
  check(weir_stream_raw(stream, &raw));
  check(weir_malloc(BYTES, stream, &memory));

  for (uint32_t step = 1; step <= STEPS; step++) {
    check(weir_host_alloc(host, BYTES, &staged));
    for (uint32_t i = 0; i < COUNT; i++)
      ((uint32_t *)staged)[i] = step * i;
    check(weir_copy_async(memory, staged, BYTES, stream));
    check(weir_host_record_stream(host, staged, 0, raw)); /* not reused before the copy is done */
    check(weir_host_free(host, staged));
  }
  check(weir_copy_async(words, memory, BYTES, stream));
  check(weir_stream_synchronize(stream));
  int wrong = 0;
  for (uint32_t i = 0; i < COUNT; i++)
    wrong += words[i] != STEPS * i;

  weir_host_stats stats = {.size = sizeof stats};
  check(weir_host_get_stats(host, &stats));
  printf("%" PRId64 " pieces through %" PRId64 " pinned buffers, %d words wrong\n", stats.active_requests.allocated,
         stats.num_host_alloc, wrong);

  check(weir_free(memory));
  weir_host_allocator_destroy(host);
  check(weir_shutdown());
  return wrong != 0;
}
