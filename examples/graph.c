/*
 * A graph: work that is captured from streams once and launched many times. It contains the addresses, so each replay
 * works on the present contents of the memory.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

enum { COUNT = 1024, BYTES = COUNT * 4, REPLAYS = 5 };

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
  void *pinned;
  weir_cu_deviceptr memory;
  check_driver(driver->MemHostAlloc(driver, &pinned, 3 * BYTES, WEIR_CU_MEMHOSTALLOC_PORTABLE));
  check_driver(driver->MemAlloc(driver, &memory, 2 * BYTES));
  uint32_t *in = pinned, *out = in + COUNT;
  char *device = (char *)(uintptr_t)memory;

  /* A capture needs a stream that is not the default one. Another stream joins when it waits for the first one. */
  weir_stream main_stream, side_stream;
  weir_stream_scope scope;
  weir_graph *graph;
  check(weir_stream_create(0, 0, &main_stream));
  check(weir_stream_create(0, 0, &side_stream));
  check(weir_graph_create(&graph));
  check(weir_stream_scope_enter(main_stream, &scope));
  check(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));

  check(weir_stream_wait_stream(side_stream, main_stream));
  check(weir_fill32_async(device + BYTES, 7, COUNT, side_stream)); /* concurrent with the copy below */
  check(weir_copy_async(device, in, BYTES, main_stream));
  check(weir_stream_wait_stream(main_stream, side_stream)); /* a stream that joined must be waited for */
  check(weir_copy_async(out, device, 2 * BYTES, main_stream));

  check(weir_graph_end_capture(graph));
  check(weir_stream_scope_leave(&scope));
  size_t nodes;
  check(weir_graph_node_count(graph, &nodes));

  /* Nothing has run so far. Each replay reads the present contents of `in`, on the default stream. */
  weir_stream stream;
  check(weir_stream_get_current(0, &stream));
  int wrong = 0;
  for (uint32_t r = 1; r <= REPLAYS; r++) {
    for (int i = 0; i < COUNT; i++)
      in[i] = r * 1000 + (uint32_t)i;
    check(weir_graph_replay(graph));
    check(weir_stream_synchronize(stream));
    for (int i = 0; i < COUNT; i++)
      wrong += out[i] != r * 1000 + (uint32_t)i || out[COUNT + i] != 7;
  }
  printf("%zu nodes, replayed %d times, %d words wrong\n", nodes, REPLAYS, wrong);

  weir_graph_destroy(graph);
  check_driver(driver->MemFree(driver, memory));
  check_driver(driver->MemFreeHost(driver, pinned));
  check(weir_shutdown());
  return wrong != 0;
}
