/*
 * Two streams: one copies data to the device, the other works on it and copies it back. Events keep the order, so the
 * host waits only once, at the end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { COUNT = 1 << 16, BYTES = COUNT * 4, ROUNDS = 8 };

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static void check_driver(weir_cu_result result) {
  if (result != WEIR_CU_SUCCESS) {
    fprintf(stderr, "%s: %s\n", weir_cu_result_name(result), weir_cu_result_string(result));
    exit(1);
  }
}

int main(void) {
  check(weir_device_set_current(0));
  weir_driver *driver;
  check(weir_get_driver(&driver));

  /* Page-locked host memory, so that copies run concurrently with the host. */
  void *pinned;
  weir_cu_deviceptr memory;
  check_driver(driver->MemHostAlloc(driver, &pinned, 2 * ROUNDS * BYTES, WEIR_CU_MEMHOSTALLOC_PORTABLE));
  check_driver(driver->MemAlloc(driver, &memory, BYTES));
  uint32_t *in = pinned, *out = in + ROUNDS * COUNT;
  void *device = (void *)(uintptr_t)memory;
  for (int i = 0; i < ROUNDS * COUNT; i++)
    in[i] = (uint32_t)i;

  weir_stream loader, worker;
  check(weir_stream_create(0, 0, &loader));
  check(weir_stream_create(0, -1, &worker)); /* more urgent, if the device has priorities */

  weir_event *begin, *end, *loaded, *emptied;
  check(weir_event_create(WEIR_EVENT_TIMING, &begin));
  check(weir_event_create(WEIR_EVENT_TIMING, &end));
  check(weir_event_create(0, &loaded));
  check(weir_event_create(0, &emptied));

  check(weir_event_record(begin, loader));
  for (int r = 0; r < ROUNDS; r++) {
    /* One buffer for all rounds: the next load waits for the last result. The first wait has no effect. */
    check(weir_event_wait(emptied, loader));
    check(weir_copy_async(device, in + r * COUNT, BYTES, loader));
    check(weir_event_record(loaded, loader));

    check(weir_event_wait(loaded, worker));
    check(weir_fill32_async(device, (uint32_t)r, COUNT / 2, worker)); /* the "work": overwrite the first half */
    check(weir_copy_async(out + r * COUNT, device, BYTES, worker));
    check(weir_event_record(emptied, worker));
  }
  check(weir_event_record(end, worker));
  check(weir_event_synchronize(end));

  double milliseconds;
  check(weir_event_elapsed(begin, end, &milliseconds));
  int wrong = 0;
  for (int r = 0; r < ROUNDS; r++)
    for (int i = 0; i < COUNT; i++)
      wrong += out[r * COUNT + i] != (i < COUNT / 2 ? (uint32_t)r : in[r * COUNT + i]);
  printf("%d rounds through two streams in %.3f ms, %d words wrong\n", ROUNDS, milliseconds, wrong);

  weir_event_destroy(begin);
  weir_event_destroy(end);
  weir_event_destroy(loaded);
  weir_event_destroy(emptied);
  check_driver(driver->MemFree(driver, memory));
  check_driver(driver->MemFreeHost(driver, pinned));
  check(weir_shutdown());
  return wrong != 0;
}
