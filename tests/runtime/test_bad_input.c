/*
 * Invalid arguments to every call: the status, an error text that begins with the name of the call, unchanged outputs,
 * and no leaks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

static const weir_pool_id own_pool = {0, 0};

static weir_status do_nothing(void *context) {
  (void)context;
  return WEIR_OK;
}
static void nothing(void *data) { (void)data; }

/* ---- Errors of other libraries (adapter.h), and calls at the shutdown ---- */

static int ended;
static void count_end(void *context) {
  ended++;
  assert_ptr_equal(context, &ended);
  assert_int_equal(weir_is_initialized(), 1);
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(reports) {
  weir_driver *driver;
  assert_ok(weir_get_driver(&driver));
  assert_error(INVALID_ARGUMENT, weir_shutdown_hook_add(NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_shutdown_hook_remove(NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_shutdown_hook_remove(count_end, &ended));
  assert_error(INVALID_ARGUMENT, weir_report_error(WEIR_ERROR_BAD_DATA, NULL));
  assert_error(INVALID_ARGUMENT, weir_report_as(NULL, WEIR_ERROR_BAD_DATA));
  assert_error(INVALID_ARGUMENT, weir_report_result(NULL, WEIR_CU_NOT_FOUND, "a", "b"));
  assert_error(INVALID_ARGUMENT, weir_report_result(driver, WEIR_CU_NOT_FOUND, NULL, "b"));
  assert_error(INVALID_ARGUMENT, weir_report_result(driver, WEIR_CU_NOT_FOUND, "a", NULL));

  assert_int_equal(weir_report_error(WEIR_ERROR_BAD_DATA, "other_call: why 100%\nand a line"), WEIR_ERROR_BAD_DATA);
  assert_string_equal(weir_last_error(), "other_call: why 100%\nand a line");
  assert_int_equal(weir_report_as("outer_call", WEIR_ERROR_BAD_DATA), WEIR_ERROR_BAD_DATA);
  assert_string_equal(weir_last_error(), "outer_call: why 100%\nand a line");
  assert_ok(weir_report_result(driver, WEIR_CU_SUCCESS, "other_call", "cuInit(driver, 0)"));
  assert_int_equal(weir_report_result(driver, WEIR_CU_OUT_OF_MEMORY, "other_call", "cuInit(driver, 0)"),
                   WEIR_ERROR_OUT_OF_MEMORY);
  assert_string_equal(weir_last_error(),
                      "other_call: cuInit(driver, 0) failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");

  assert_ok(weir_shutdown_hook_add(count_end, &ended));
  assert_ok(weir_shutdown());
  assert_int_equal(ended, 1);
  assert_ok(weir_shutdown()); /* nothing to shut down */
  assert_int_equal(ended, 1);
  assert_ok(weir_shutdown_hook_remove(count_end, &ended));
  assert_ok(weir_init());
  assert_ok(weir_shutdown());
  assert_int_equal(ended, 1);
}

/* ---- memory.h ---- */

TEST(memory_h) {
  weir_stream stream = default_stream(0), wrong = {.id = 0, .device = 99, .device_type = WEIR_DEVICE_TYPE_GPU};
  void *pointer = &pointer;
  weir_allocator_stats stats = {.size = 0};
  assert_error(INVALID_ARGUMENT, weir_malloc(512, stream, NULL));
  assert_error_says(INVALID_ARGUMENT, "there is no such device", weir_malloc(512, wrong, &pointer));
  assert_error_says(OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate",
                    weir_malloc((size_t)1 << 40, stream, &pointer));
  assert_ptr_equal(pointer, &pointer);
  assert_error_says(INVALID_ARGUMENT, "invalid device pointer", weir_free(&pointer));
  assert_error(INVALID_ARGUMENT, weir_memory_record_stream(&pointer, stream));
  assert_error(INVALID_ARGUMENT, weir_memory_record_stream(NULL, wrong));
  assert_ok(weir_memory_record_stream(NULL, stream));
  assert_error(INVALID_ARGUMENT, weir_memory_get_stats(0, NULL));
  assert_error(INVALID_ARGUMENT, weir_memory_get_stats(0, &stats));
  weir_allocator_stats_init(&stats);
  assert_error(INVALID_DEVICE, weir_memory_get_stats(99, &stats));
  assert_error(INVALID_ARGUMENT, weir_default_allocator(NULL));

  assert_ptr_equal(pointer, &pointer);
}

/* ---- NULL arguments ---- */

TEST(null_in_runtime_h) {
  assert_error(INVALID_ARGUMENT, weir_get_driver(NULL));
  assert_error(INVALID_ARGUMENT, weir_lazy_call(NULL, NULL, "here"));
  assert_error(INVALID_ARGUMENT, weir_lazy_call(do_nothing, NULL, NULL));
  assert_ok(weir_init()); /* none of them was queued */
}

TEST(null_in_device_h) {
  int number = -7, before;
  size_t size = 77;
  weir_device_properties_init(NULL);
  for (int started = 0; started < 2; started++) {
    assert_error(INVALID_ARGUMENT, weir_device_count(NULL));
    assert_error(INVALID_ARGUMENT, weir_device_get_current(NULL));
    assert_error(INVALID_ARGUMENT, weir_device_exchange(0, NULL));
    assert_error(INVALID_ARGUMENT, weir_device_maybe_exchange(0, NULL));
    assert_error(INVALID_ARGUMENT, weir_device_get_properties(0, NULL));
    assert_error(INVALID_ARGUMENT, weir_device_capability(0, NULL, &number));
    assert_error(INVALID_ARGUMENT, weir_device_capability(0, &number, NULL));
    assert_error(INVALID_ARGUMENT, weir_device_memory_info(0, NULL, &size));
    assert_error(INVALID_ARGUMENT, weir_device_memory_info(0, &size, NULL));
    assert_error(INVALID_ARGUMENT, weir_device_can_access_peer(0, 0, NULL));
    assert_error(INVALID_ARGUMENT, weir_device_has_primary_context(0, NULL));
    assert_ok(weir_init());
  }
  assert_int_equal(number, -7);
  assert_int_equal(size, 77);
  assert_ok(weir_device_get_current(&before)); /* the exchanges had no effect */
  assert_int_equal(before, 0);
}

TEST(null_in_stream_h) {
  int number = -7;
  weir_stream stream = default_stream(0);
  assert_error(INVALID_ARGUMENT, weir_stream_create(0, 0, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_priority_range(NULL, &number));
  assert_error(INVALID_ARGUMENT, weir_stream_priority_range(&number, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_default(0, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_external(0, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_raw(stream, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_priority(stream, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_unpack(0, 0, 1, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_get_current(0, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_host_function(stream, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_scope_enter(stream, NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_scope_leave(NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_is_capturing(stream, NULL));
  assert_error(INVALID_ARGUMENT, weir_current_stream_is_capturing(NULL));
  assert_int_equal(number, -7);
}

TEST(null_in_event_h) {
  double milliseconds = -7;
  weir_stream stream = default_stream(0);
  weir_event *event, *out;
  weir_cu_ipc_event_handle handle;
  memset(&handle, 0, sizeof handle);
  assert_ok(weir_event_create(WEIR_EVENT_TIMING, &event));
  out = event;
  assert_error(INVALID_ARGUMENT, weir_event_create(0, NULL));
  assert_error(INVALID_ARGUMENT, weir_event_record(NULL, stream));
  assert_error(INVALID_ARGUMENT, weir_event_query(NULL));
  assert_error(INVALID_ARGUMENT, weir_event_wait(NULL, stream));
  assert_error(INVALID_ARGUMENT, weir_event_synchronize(NULL));
  assert_ok(weir_event_record(event, stream));
  assert_ok(weir_event_synchronize(event));
  assert_error(INVALID_ARGUMENT, weir_event_elapsed(NULL, event, &milliseconds));
  assert_error(INVALID_ARGUMENT, weir_event_elapsed(event, NULL, &milliseconds));
  assert_error(INVALID_ARGUMENT, weir_event_elapsed(event, event, NULL));
  assert_error(INVALID_ARGUMENT, weir_event_ipc_handle(NULL, &handle));
  assert_error(INVALID_ARGUMENT, weir_event_ipc_handle(event, NULL));
  assert_error(INVALID_ARGUMENT, weir_event_from_ipc_handle(0, NULL, &out));
  assert_error(INVALID_ARGUMENT, weir_event_from_ipc_handle(0, &handle, NULL));
  weir_cu_event raw = (weir_cu_event)&raw;
  assert_error(INVALID_ARGUMENT, weir_event_raw(NULL, &raw));
  assert_error(INVALID_ARGUMENT, weir_event_raw(event, NULL));
  int device = -7;
  assert_error(INVALID_ARGUMENT, weir_event_device(NULL, &device));
  assert_error(INVALID_ARGUMENT, weir_event_device(event, NULL));
  assert_ptr_equal(raw, &raw);
  assert_int_equal(device, -7);
  assert_ptr_equal(out, event);
  assert_true(milliseconds == -7);
  weir_event_destroy(event);
  weir_event_destroy(NULL);
}

TEST(null_in_graph_h) {
  weir_graph *graph;
  weir_pool_id pool = {7, 8};
  size_t count = 77;
  assert_error(INVALID_ARGUMENT, weir_graph_create(NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_begin_capture(NULL, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_error(INVALID_ARGUMENT, weir_graph_end_capture(NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_replay(NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_reset(NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_pool(NULL, &pool));
  assert_error(INVALID_ARGUMENT, weir_graph_node_count(NULL, &count));
  assert_error(INVALID_ARGUMENT, weir_graph_enable_debug(NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_keep(NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_finish(NULL));
  assert_error(INVALID_ARGUMENT, weir_stream_capture_id((weir_stream){0}, NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_instantiate(NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_raw(NULL, NULL, NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_debug_dump(NULL, "/tmp/never-written"));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_graph_enable_debug(graph));
  assert_ok(weir_stream_set_current(new_stream(0)));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_stream_host_function(current_stream(0), nothing, NULL));
  assert_ok(weir_graph_end_capture(graph));
  assert_error(INVALID_ARGUMENT, weir_graph_pool(graph, NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_node_count(graph, NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_debug_dump(graph, NULL));
  assert_ok(weir_graph_debug_dump(graph, "/dev/null")); /* it can still be used */
  assert_int_equal(pool.first, 7);
  assert_int_equal(count, 77);
  weir_graph_destroy(graph);
  weir_graph_destroy(NULL);
}

/* ---- Invalid devices ---- */

TEST(wrong_devices) {
  int count = devices(), number = -7, other = -7;
  const int bad[] = {-2, count, 1000, 2147483647, -2147483647 - 1};
  size_t free_bytes = 77, total_bytes = 78;
  char text[256] = "untouched";
  weir_stream stream = {.id = 77, .device = 78, .device_type = 79};
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  weir_cu_ipc_event_handle handle;
  memset(&handle, 0, sizeof handle);
  weir_event *event = (weir_event *)state;
  void *memory = device_memory(0, 16);
  assert_ok(weir_device_set_current(count - 1));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int device = bad[i];
    assert_error(INVALID_DEVICE, weir_device_set_current(device));
    if (device >= 0) {
      assert_error(INVALID_DEVICE, weir_device_exchange(device, &number));
      assert_error(INVALID_DEVICE, weir_device_maybe_exchange(device, &number));
    }
    assert_error(INVALID_DEVICE, weir_device_get_properties(device, &properties));
    assert_error(INVALID_DEVICE, weir_device_capability(device, &number, &other));
    assert_error(INVALID_DEVICE, weir_device_memory_info(device, &free_bytes, &total_bytes));
    assert_error(INVALID_DEVICE, weir_device_synchronize(device));
    assert_error(INVALID_DEVICE, weir_device_can_access_peer(device, 0, &number));
    assert_error(INVALID_DEVICE, weir_device_can_access_peer(0, device, &number));
    assert_error(INVALID_DEVICE, weir_device_enable_peer_access(device, 0));
    assert_error(INVALID_DEVICE, weir_device_enable_peer_access(0, device));
    assert_error(INVALID_DEVICE, weir_device_has_primary_context(device, &number));
    assert_error(INVALID_DEVICE, weir_stream_create(device, 0, &stream));
    assert_error(INVALID_DEVICE, weir_stream_default(device, &stream));
    assert_error(INVALID_DEVICE, weir_stream_external(device, NULL, &stream));
    assert_error(INVALID_DEVICE, weir_stream_get_current(device, &stream));
    assert_error(INVALID_DEVICE, weir_event_from_ipc_handle(device, &handle, &event));
    assert_error(INVALID_DEVICE, weir_copy_peer_async(memory, device, memory, 0, 16, default_stream(0)));
    assert_error(INVALID_DEVICE, weir_copy_peer_async(memory, 0, memory, device, 16, default_stream(0)));
    char digits[16];
    snprintf(digits, sizeof digits, "%d", device);
    assert_non_null(strstr(weir_last_error(), digits)); /* the text contains the number */
  }
  assert_int_equal(number, -7);
  assert_int_equal(other, -7);
  assert_int_equal(free_bytes, 77);
  assert_int_equal(total_bytes, 78);
  assert_string_equal(text, "untouched");
  assert_string_equal(properties.name, "");
  assert_int_equal(stream.id, 77);
  assert_int_equal(stream.device, 78);
  assert_ptr_equal(event, state);
  assert_ok(weir_device_get_current(&number));
  assert_int_equal(number, count - 1);
  free_device_memory(0, memory);
}

/* ---- Invalid streams ---- */

TEST(wrong_streams) {
  int count = devices(), number = -7;
  weir_stream good = new_stream(0), mine = new_stream(0);
  const weir_stream bad[] = {
      {.id = good.id, .device = count, .device_type = 1}, /* an invalid device */
      {.id = good.id, .device = -1, .device_type = 1},
      {.id = good.id, .device = -2, .device_type = 1},
      {.id = good.id, .device = 1000, .device_type = 1},
      {.id = 0, .device = count, .device_type = 1},
      {.id = good.id, .device = 0, .device_type = 0}, /* an invalid type */
      {.id = good.id, .device = 0, .device_type = 2},
      {.id = 0, .device = 0, .device_type = -1},
      {.id = -1, .device = 0, .device_type = 1}, /* an invalid id */
      {.id = -4096, .device = 0, .device_type = 1},
      {.id = INT64_MIN, .device = 0, .device_type = 1},
      {.id = INT64_MAX, .device = 0, .device_type = 1},
      {.id = 1, .device = 0, .device_type = 1}, /* an invalid pool */
      {.id = good.id | 15 << 1, .device = 0, .device_type = 1},
      {.id = good.id | 32 << 5, .device = 0, .device_type = 1}, /* past the end of the pool */
      {.id = good.id | 1ll << 40, .device = 0, .device_type = 1},
  };
  char byte = 0;
  void *memory = device_memory(0, 16);
  weir_event *event;
  weir_stream_scope scope;
  memset(&scope, 0x5a, sizeof scope);
  weir_stream_scope scope_before = scope;
  weir_cu_stream raw = (weir_cu_stream)state;
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_stream_set_current(mine));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    weir_stream stream = bad[i];
    assert_error(INVALID_ARGUMENT, weir_stream_raw(stream, &raw));
    assert_error(INVALID_ARGUMENT, weir_stream_priority(stream, &number));
    assert_error(INVALID_ARGUMENT, weir_stream_set_current(stream));
    assert_error(INVALID_ARGUMENT, weir_stream_query(stream));
    assert_error(INVALID_ARGUMENT, weir_stream_synchronize(stream));
    assert_error(INVALID_ARGUMENT, weir_stream_wait_stream(stream, good));
    assert_error(INVALID_ARGUMENT, weir_stream_wait_stream(good, stream));
    assert_error(INVALID_ARGUMENT, weir_stream_wait_stream(stream, stream));
    assert_error(INVALID_ARGUMENT, weir_stream_host_function(stream, nothing, NULL));
    assert_error(INVALID_ARGUMENT, weir_stream_spin(stream, 1));
    assert_error(INVALID_ARGUMENT, weir_stream_scope_enter(stream, &scope));
    assert_error(INVALID_ARGUMENT, weir_stream_scope_leave(&(weir_stream_scope){.outer = stream, .replaced = good}));
    assert_error(INVALID_ARGUMENT, weir_stream_scope_leave(&(weir_stream_scope){.outer = good, .replaced = stream}));
    assert_error(INVALID_ARGUMENT, weir_stream_is_capturing(stream, &number));
    assert_error(INVALID_ARGUMENT, weir_event_record(event, stream));
    assert_error(INVALID_ARGUMENT, weir_event_wait(event, stream));
    assert_error(INVALID_ARGUMENT, weir_copy_async(memory, memory, 8, stream));
    assert_error(INVALID_ARGUMENT, weir_copy(&byte, memory, 1, stream));
    assert_error(INVALID_ARGUMENT, weir_copy_peer_async(memory, 0, memory, 0, 8, stream));
    assert_error(INVALID_ARGUMENT, weir_fill_async(memory, 1, 8, stream));
    assert_error(INVALID_ARGUMENT, weir_fill32_async(memory, 1, 2, stream));
    /* Calls that cannot fail return what they can. */
    assert_int_equal(weir_stream_equal(stream, good), 0);
    weir_stream_hash(stream);
  }
  assert_null(event_raw(event));
  assert_int_equal(number, -7);
  assert_ptr_equal(raw, state);
  assert_memory_equal(&scope, &scope_before, sizeof scope);
  assert_stream_equal(current_stream(0), mine);
  weir_event_destroy(event);
  free_device_memory(0, memory);
}

/* Addresses that are not streams. Only the software device detects them; NVIDIA's driver may crash. */
TEST(invalid_external_streams) {
  NEED_SOFT("NVIDIA's driver does not check");
  weir_stream stream;
  int number = -7;
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_stream_external(0, (weir_cu_stream)(uintptr_t)0x123450, &stream));
  assert_error(INVALID_HANDLE, weir_stream_query(stream));
  assert_error(INVALID_HANDLE, weir_stream_synchronize(stream));
  assert_error(INVALID_HANDLE, weir_stream_priority(stream, &number));
  assert_error(INVALID_HANDLE, weir_stream_host_function(stream, nothing, NULL));
  assert_error(INVALID_HANDLE, weir_stream_spin(stream, 1));
  assert_error(INVALID_HANDLE, weir_stream_wait_stream(stream, default_stream(0)));
  assert_error(INVALID_HANDLE, weir_stream_wait_stream(default_stream(0), stream));
  assert_error(INVALID_HANDLE, weir_event_record(event, stream));
  assert_null(event_raw(event));
  assert_int_equal(number, -7);

  /* Nor is a destroyed stream. */
  weir_cu_stream raw;
  assert_cu(d->StreamCreateWithPriority(d, &raw, WEIR_CU_STREAM_NON_BLOCKING, 0));
  assert_ok(weir_stream_external(0, raw, &stream));
  assert_ok(weir_stream_query(stream));
  assert_cu(d->StreamDestroy(d, raw));
  assert_error(INVALID_HANDLE, weir_stream_query(stream));
  weir_event_destroy(event);
}

/* Addresses of streams are neither odd nor negative, as such values are ids of pooled streams. */
TEST(external_streams_at_impossible_addresses) {
  weir_stream stream = {.id = 77};
  assert_error(INVALID_ARGUMENT, weir_stream_external(0, (weir_cu_stream)(uintptr_t)0x12345, &stream));
  assert_error(INVALID_ARGUMENT, weir_stream_external(0, (weir_cu_stream) ~(uintptr_t)15, &stream));
  assert_int_equal(stream.id, 77);
}

/* ---- Numbers and sizes ---- */

TEST(wrong_enums_and_sizes) {
  weir_graph *graph;
  weir_event *event = (weir_event *)state;
  weir_device_properties properties;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(new_stream(0)));
  assert_error(INVALID_ARGUMENT, weir_graph_begin_capture(graph, own_pool, (weir_capture_mode)3));
  assert_error(INVALID_ARGUMENT, weir_graph_begin_capture(graph, own_pool, (weir_capture_mode)-1));
  assert_error(INVALID_ARGUMENT, weir_graph_begin_capture(graph, (weir_pool_id){1, 1}, WEIR_CAPTURE_GLOBAL));
  int capturing = -1;
  assert_ok(weir_current_stream_is_capturing(&capturing));
  assert_int_equal(capturing, 0);
  assert_error(INVALID_ARGUMENT, weir_set_sync_debug((weir_sync_debug)3));
  assert_error(INVALID_ARGUMENT, weir_event_create(16, &event));
  assert_error(INVALID_ARGUMENT, weir_event_create(WEIR_EVENT_TIMING | WEIR_EVENT_INTERPROCESS, &event));
  assert_ptr_equal(event, state);
  weir_graph_memory_hooks hooks = {.size = 0};
  assert_error(INVALID_ARGUMENT, weir_graph_set_memory_hooks(&hooks));
  weir_graph_hooks work_hooks = {.size = 0};
  assert_error(INVALID_ARGUMENT, weir_graph_set_hooks(&work_hooks));
  memset(&properties, 0x5a, sizeof properties);
  properties.size = 0;
  assert_error(INVALID_ARGUMENT, weir_device_get_properties(0, &properties));
  assert_int_equal((unsigned char)properties.name[0], 0x5a);
  weir_graph_destroy(graph);
}

/* ---- The last error stays until the next failure ---- */

TEST(more_of_device_h) {
  int number = -7, ordinals[WEIR_MAX_DEVICES] = {-7}, visible = -7;
  static const char *const uuids[] = {"GPU-1"};
  static const int wrong[] = {1000, -2};
  for (int i = 0; i < 2; i++) {
    assert_error(INVALID_DEVICE, weir_device_metric(wrong[i], WEIR_METRIC_UTILIZATION, &number));
  }
  assert_error(INVALID_ARGUMENT, weir_device_metric(0, WEIR_METRIC_UTILIZATION, NULL));
  assert_error(INVALID_ARGUMENT, weir_device_metric(0, (weir_metric)(WEIR_METRIC_CLOCK_RATE + 1), &number));
  assert_error(INVALID_ARGUMENT, weir_device_metric(0, (weir_metric)-1, &number));
  assert_error(INVALID_ARGUMENT, weir_visible_devices("0", uuids, -1, ordinals, &visible));
  assert_error(INVALID_ARGUMENT, weir_visible_devices("0", NULL, 1, ordinals, &visible));
  assert_error(INVALID_ARGUMENT, weir_visible_devices("0", uuids, 1, NULL, &visible));
  assert_error(INVALID_ARGUMENT, weir_visible_devices("0", uuids, 1, ordinals, NULL));
  assert_error(NOT_SUPPORTED, weir_visible_devices("MIG-1", uuids, 1, ordinals, &visible));
  assert_int_equal(number, -7);
  assert_int_equal(ordinals[0], -7);
  assert_int_equal(visible, -7);
}

TEST(more_of_runtime_h) {
  weir_driver table = {.size = 1};
  assert_error_says(INVALID_ARGUMENT, "driver->size is 1", weir_use_driver(&table));
  table.size = sizeof table;
  assert_error_says(INVALID_ARGUMENT, "driver->name is NULL", weir_use_driver(&table));
  table.name = "empty";
  assert_error_says(INVALID_ARGUMENT, "lacks the required entry", weir_use_driver(&table));
  assert_ok(weir_init());
  assert_error(BAD_STATE, weir_use_driver(NULL));
  weir_graph_memory_hooks_init(NULL);
  weir_graph_hooks_init(NULL);
  assert_error(INVALID_ARGUMENT, weir_graph_get_memory_hooks(NULL));
  assert_error(INVALID_ARGUMENT, weir_graph_get_memory_hooks(&(weir_graph_memory_hooks){.size = 0}));
}

TEST(last_error_stays) {
  int number;
  assert_int_not_equal(weir_device_set_current(4711), WEIR_OK);
  char copy[512];
  snprintf(copy, sizeof copy, "%s", weir_last_error());
  assert_non_null(strstr(copy, "4711"));
  assert_int_equal(weir_last_driver_result(), 0);
  assert_ok(weir_device_get_current(&number)); /* success leaves it unchanged */
  struct held *gate = hold(new_stream(0));
  unblock(gate);
  assert_string_equal(weir_last_error(), copy);
  assert_int_not_equal(weir_device_set_current(815), WEIR_OK);
  assert_string_not_equal(weir_last_error(), copy);
}

/* PyTorch's test_check_error: the error has the name and the text of the driver's result. */
TEST_SETUP(driver_result_is_named, runtime_setup_fault, runtime_teardown) {
  weir_stream stream = new_stream(0);
  assert_ok(weir_fault_nth(fault, WEIR_CALL_StreamSynchronize, 1, WEIR_CU_OUT_OF_MEMORY, 0));
  assert_error_says(OUT_OF_MEMORY, "out of memory", weir_stream_synchronize(stream));
  assert_non_null(strstr(weir_last_error(), "CUDA_ERROR_OUT_OF_MEMORY"));
  assert_non_null(strstr(weir_last_error(), "StreamSynchronize"));
  assert_int_equal(weir_last_driver_result(), 2);
  assert_ok(weir_fault_nth(fault, WEIR_CALL_StreamSynchronize, 1, 12345, 0));
  assert_error_says(DRIVER, "12345", weir_stream_synchronize(stream));
  assert_ok(weir_stream_synchronize(stream));
}

/* ---- Random failures ---- */

static weir_status use_all(void) {
  static uint8_t host[300];
  weir_stream a, b;
  weir_event *event = NULL;
  weir_graph *graph = NULL;
  weir_cu_deviceptr memory = 0;
  weir_status status = weir_stream_create(0, 0, &a);
  if (status == WEIR_OK)
    status = weir_stream_create(1, -1, &b);
  if (status == WEIR_OK)
    status = weir_stream_set_current(a);
  if (status == WEIR_OK)
    assert_cu(soft->MemAlloc(soft, &memory, sizeof host));
  void *p = (void *)(uintptr_t)memory;
  if (status == WEIR_OK)
    status = weir_event_create(0, &event);
  if (status == WEIR_OK)
    status = weir_graph_create(&graph);
  if (status == WEIR_OK)
    status = weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_RELAXED);
  if (status == WEIR_OK) {
    status = weir_fill_async(p, 3, sizeof host, a);
    if (status == WEIR_OK)
      status = weir_stream_spin(a, 10);
    weir_status ended = weir_graph_end_capture(graph);
    if (status == WEIR_OK)
      status = ended;
  }
  if (status == WEIR_OK)
    status = weir_graph_replay(graph);
  if (status == WEIR_OK)
    status = weir_event_record(event, a);
  if (status == WEIR_OK)
    status = weir_event_wait(event, b);
  if (status == WEIR_OK)
    status = weir_stream_synchronize(b);
  if (status == WEIR_OK)
    status = weir_copy(host, p, sizeof host, a);
  if (status == WEIR_OK) {
    assert_int_equal(host[0], 3);
    assert_int_equal(host[sizeof host - 1], 3);
  }
  weir_graph_destroy(graph);
  weir_event_destroy(event);
  if (memory)
    assert_cu(soft->MemFree(soft, memory));
  return status;
}

TEST_SETUP(random_failures, runtime_setup_fault, runtime_teardown) {
  NEED_SOFT("the driver cannot be asked for what is left");
  int failed = 0;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    assert_ok(weir_fault_random(fault, seed, 200000, WEIR_CU_OUT_OF_MEMORY));
    clear_last_error();
    weir_status status = use_all();
    if (status != WEIR_OK) {
      failed++;
      assert_int_equal(status, WEIR_ERROR_OUT_OF_MEMORY);
      assert_memory_equal(weir_last_error(), "weir_", 5);
    }
    assert_ok(weir_fault_clear(fault));
    assert_ok(use_all());
    if (seed % 10 == 0)
      shut_down_clean();
  }
  assert_in_range(failed, 10, 100);
}
