/*
 * Other back ends: the driver's stream-ordered memory, selected by a setting, and functions of the program. Counters,
 * limits, history and snapshots work with all of them.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { COUNT = 1 << 16, BYTES = COUNT * 4, STEPS = 50 };

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

/* A back end of the program: the driver's plain memory. The device's context is current when these are called. */
static void *plain_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  weir_driver *driver = context;
  weir_cu_deviceptr memory = 0;
  (void)device;
  (void)stream;
  return driver->MemAlloc(driver, &memory, bytes) == WEIR_CU_SUCCESS ? (void *)(uintptr_t)memory : NULL;
}

static void plain_free(void *context, void *memory, size_t bytes, int device, weir_cu_stream stream) {
  weir_driver *driver = context;
  (void)bytes;
  (void)device;
  (void)stream;
  driver->MemFree(driver, (weir_cu_deviceptr)(uintptr_t)memory);
}

/* Runs the same steps on any back end. Returns the number of wrong words. */
static int use(weir_allocator *allocator, weir_stream stream, weir_stream side) {
  static uint32_t words[COUNT];
  weir_cu_stream raw, side_raw;
  int wrong = 0;
  check(weir_stream_raw(stream, &raw));
  check(weir_stream_raw(side, &side_raw));
  for (uint32_t step = 1; step <= STEPS; step++) {
    void *memory;
    check(weir_allocator_alloc(allocator, 0, BYTES, raw, &memory));
    check(weir_fill32_async(memory, step, COUNT, stream));
    check(weir_stream_wait_stream(side, stream));
    check(weir_copy_async(words, memory, BYTES, side));
    check(weir_allocator_record_stream(allocator, memory, side_raw));
    check(weir_allocator_free(allocator, memory));
    check(weir_stream_synchronize(side));
    wrong += words[0] != step || words[COUNT - 1] != step;
  }
  void *too_much;
  wrong += weir_allocator_alloc(allocator, 0, (size_t)1 << 50, raw, &too_much) != WEIR_ERROR_OUT_OF_MEMORY;
  weir_allocator_stats stats = {.size = sizeof stats};
  check(weir_allocator_get_stats(allocator, 0, &stats));
  char name[32];
  check(weir_allocator_backend(allocator, name, sizeof name, NULL));
  printf("%-15s %" PRId64 " allocations, peak %" PRId64 " bytes, reserved %" PRId64 ", %d wrong\n", name,
         stats.allocation[WEIR_STAT_ALL].allocated, stats.allocated_bytes[WEIR_STAT_ALL].peak,
         stats.reserved_bytes[WEIR_STAT_ALL].peak, wrong);
  weir_allocator_destroy(allocator);
  return wrong;
}

int main(void) {
  weir_driver *driver;
  weir_allocator *allocator;
  weir_stream stream, side;
  check(weir_device_set_current(0));
  check(weir_get_driver(&driver));
  check(weir_stream_create(0, 0, &stream));
  check(weir_stream_create(0, 0, &side));
  weir_backend plain = {
      .size = sizeof plain, .name = "plain", .context = driver, .alloc = plain_alloc, .free = plain_free};
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  int wrong = 0;

  options.conf = "backend:native";
  check(weir_allocator_create(driver, &options, &allocator));
  wrong += use(allocator, stream, side);
  options.conf = "backend:cudaMallocAsync";
  check(weir_allocator_create(driver, &options, &allocator));
  wrong += use(allocator, stream, side);
  options.conf = "";
  options.backend = &plain;
  check(weir_allocator_create(driver, &options, &allocator));
  wrong += use(allocator, stream, side);
  check(weir_shutdown());
  return wrong != 0;
}
