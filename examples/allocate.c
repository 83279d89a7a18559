/*
 * An allocator of the program: memory that is reused on its stream without a wait, and memory that two streams use.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { COUNT = 1 << 20, BYTES = COUNT * 4, STEPS = 100 };

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

int main(void) {
  static uint32_t words[COUNT];
  weir_driver *driver;
  weir_allocator *allocator;
  weir_stream main_stream, side_stream;
  weir_cu_stream main_raw, side_raw;
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  check(weir_allocator_create(driver, NULL, &allocator)); /* NULL: settings from WEIR_ALLOC_CONF */
  check(weir_stream_create(0, 0, &main_stream));
  check(weir_stream_create(0, 0, &side_stream));
  check(weir_stream_raw(main_stream,
                        &main_raw)); /* an allocator is not tied to the runtime: it takes the driver's streams */
  check(weir_stream_raw(side_stream, &side_raw));

  int wrong = 0;
  for (uint32_t step = 1; step <= STEPS; step++) {
    /* After the first step this makes no driver call: it reuses the block that was freed on the same stream. */
    void *memory;
    check(weir_allocator_alloc(allocator, 0, BYTES, main_raw, &memory));
    check(weir_fill32_async(memory, step, COUNT, main_stream));

    /* Another stream reads it too, which the allocator has to know. Then it can be freed while the copy runs. */
    check(weir_stream_wait_stream(side_stream, main_stream));
    check(weir_copy_async(words, memory, BYTES, side_stream));
    check(weir_allocator_record_stream(allocator, memory, side_raw));
    check(weir_allocator_free(allocator, memory));

    check(weir_stream_synchronize(side_stream));
    wrong += words[0] != step || words[COUNT - 1] != step;
  }

  /* Out of memory is a status with a text, and the program can continue. */
  void *too_much;
  weir_status status = weir_allocator_alloc(allocator, 0, (size_t)1 << 50, main_raw, &too_much);
  if (status != WEIR_ERROR_OUT_OF_MEMORY)
    wrong++;

  weir_allocator_stats stats = {.size = sizeof stats};
  check(weir_allocator_get_stats(allocator, 0, &stats));
  printf("%" PRId64 " allocations, %" PRId64 " from the driver, %d wrong; out of memory %" PRId64 " times\n",
         stats.allocation[WEIR_STAT_ALL].allocated, stats.num_device_alloc, wrong, stats.num_ooms);

  weir_allocator_destroy(allocator);
  check(weir_shutdown());
  return wrong != 0;
}
