/*
 * Built-in kernels: found, launched and released on each device.
 */
#include "src/builtin.h"

#include <string.h>

#include "support/runtime.h"

static weir__builtin fill_32 = WEIR__BUILTIN("fill", "weir_fill_32");
static weir__builtin no_file = WEIR__BUILTIN("nothing", "weir_fill_32");
static weir__builtin no_kernel = WEIR__BUILTIN("fill", "weir_fill");

static weir_status fill(weir__builtin *kernel, int device, weir_stream stream, void *out, unsigned value,
                        unsigned long long count) {
  void *params[] = {&out, &count, &value};
  weir_launch_dims dims = {.grid = {3}, .block = {64}};
  return weir__builtin_launch("weir_fill", kernel, device, raw_of(stream), dims, params);
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(fill) {
  void *memory = device_memory(0, 4096);
  weir_stream stream = new_stream(0);
  assert_ok(fill(&fill_32, 0, stream, memory, 0x11111111, 1024));
  assert_ok(weir_stream_synchronize(stream));
  assert_filled(0, memory, 0x11, 4096);
  /* Fewer elements than threads, and the current device. */
  assert_ok(fill(&fill_32, -1, stream, memory, 0x22222222, 5));
  assert_filled(0, memory, 0x22, 20);
  assert_filled(0, (char *)memory + 20, 0x11, 4096 - 20);
  free_device_memory(0, memory);
}

TEST(each_device_has_its_module) {
  NEED_TWO_DEVICES();
  void *memory = device_memory(1, 4096);
  weir_stream stream = new_stream(1);
  assert_ok(weir_device_set_current(0));
  assert_ok(fill(&fill_32, 1, stream, memory, 0x33333333, 1024));
  int device;
  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 0);
  assert_filled(1, memory, 0x33, 4096);
  free_device_memory(1, memory);
}

TEST(after_a_restart) {
  for (int round = 0; round < 2; round++) {
    void *memory = device_memory(0, 4096);
    assert_ok(fill(&fill_32, 0, default_stream(0), memory, 0x44444444, 1024));
    assert_filled(0, memory, 0x44, 4096);
    free_device_memory(0, memory);
    assert_ok(weir_shutdown());
  }
}

TEST(unknown_names) {
  void *memory = device_memory(0, 64);
  assert_int_equal(fill(&no_file, 0, default_stream(0), memory, 0, 1), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "weir_fill: there are no built-in kernels named nothing"));
  assert_int_not_equal(fill(&no_kernel, 0, default_stream(0), memory, 0, 1), WEIR_OK);
  assert_non_null(strstr(weir_last_error(), "CUDA_ERROR_NOT_FOUND"));
  free_device_memory(0, memory);
}

TEST(in_a_graph) {
  void *memory = device_memory(0, 4096);
  weir_stream stream = new_stream(0);
  weir_graph *graph;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_ok(fill(&fill_32, 0, stream, memory, 0x55555555, 1024)); /* the first use, which loads the module */
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(fill(&fill_32, 0, stream, memory, 0x66666666, 1024));
  assert_filled(0, memory, 0x66, 4096);
  assert_ok(weir_graph_replay(graph));
  assert_filled(0, memory, 0x55, 4096);
  weir_graph_destroy(graph);
  free_device_memory(0, memory);
}

/* Writes nothing, so it needs no memory. */
static weir_status use_builtin(void) {
  void *params[] = {&(void *){NULL}, &(unsigned long long){0}, &(unsigned){1}};
  weir_launch_dims dims = {.grid = {1}, .block = {1}};
  return weir__builtin_launch("weir_fill", &fill_32, 0, NULL, dims, params);
}

TEST_SETUP(failing_calls, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("makes calls of the software device fail");
  sweep_faults(use_builtin);
}
