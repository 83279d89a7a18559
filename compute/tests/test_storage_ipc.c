/*
 * Storages that a process sends, and receives itself. Two processes: compute/python/tests/test_ipc_arrays.py.
 */
#include "src/base.h"
#include "support/runtime.h"
#include "weir/compute/array.h"
#include "weir/graph.h"
#include "weir/memory.h"

static weir_stream stream;
static weir_ipc_handle handle;

static int setup(void **state) {
  int result = runtime_setup_fault(state);
  stream = new_stream(0);
  weir_ipc_handle_init(&handle);
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

static weir_storage *create(uint64_t bytes) {
  weir_storage *storage;
  assert_ok(weir_storage_create(weir_place_device(0), bytes, stream, &storage));
  return storage;
}

static weir_storage *receive(uint64_t bytes, weir_stream on) {
  weir_storage *storage;
  assert_ok(weir_storage_receive(handle.bytes, handle.length, bytes, on, &storage));
  return storage;
}

static weir_allocator_stats stats(void) {
  weir_allocator *allocator;
  weir_allocator_stats all = {.size = sizeof all};
  assert_ok(weir_default_allocator(&allocator));
  assert_ok(weir_ipc_collect(allocator, NULL));
  assert_ok(weir_allocator_get_stats(allocator, 0, &all));
  return all;
}

static void assert_nothing_left(void) {
  assert_int_equal(stats().ipc_references, 0);
  assert_int_equal(stats().ipc_limbo_blocks, 0);
}

TEST(the_storage_that_is_there) {
  weir_storage *sent = create(1000);
  assert_false(weir_storage_is_received(sent));
  for (int i = 0; i < 40; i++) {
    assert_ok(weir_storage_send(sent, stream, NULL, &handle));
    weir_storage *same = receive(1000, stream);
    assert_ptr_equal(same, sent);
    assert_int_equal(weir_storage_references(sent), 2);
    weir_storage_release(same);
  }
  assert_nothing_left();
  weir_storage_release(sent);
}

/* Memory in limbo becomes a storage again, which later messages of the same memory find. */
TEST(memory_in_limbo) {
  weir_ipc_handle second;
  weir_ipc_handle_init(&second);
  weir_storage *sent = create(1000), *again;
  void *address = weir_storage_data(sent);
  weir_stream other = new_stream(0);
  assert_ok(weir_storage_send(sent, stream, NULL, &handle));
  assert_ok(weir_storage_send(sent, other, NULL, &second));
  weir_storage_release(sent);
  assert_int_equal(stats().ipc_limbo_blocks, 1);
  weir_storage *received = receive(1000, stream);
  assert_ptr_equal(weir_storage_data(received), address);
  assert_true(weir_storage_is_received(received) && weir_storage_is_borrowed(received));
  assert_ok(weir_storage_receive(second.bytes, second.length, 1000, other, &again));
  assert_ptr_equal(again, received);
  assert_error_says(BAD_STATE, "Consider cloning", weir_storage_send(received, stream, NULL, &handle));
  assert_error_says(BAD_STATE, "not resizable", weir_storage_resize(received, 8, stream));
  for (int i = 0; i < 10; i++)
    assert_ok(weir_storage_record_stream(received, new_stream(0)));
  assert_ok(weir_storage_record_stream(received, other));
  weir_storage_release(received);
  assert_int_equal(stats().ipc_references, 2);
  weir_storage_release(again);
  assert_nothing_left();
}

/* Without events the device is synchronized; if the release fails as well, a collection does it. */
TEST(release_fails) {
  static const weir_driver_call calls[] = {WEIR_CALL_EventCreate, WEIR_CALL_StreamSynchronize};
  for (size_t i = 0; i < WEIR_COUNT_OF(calls); i++) {
    weir_storage *sent = create(1000);
    assert_ok(weir_storage_send(sent, stream, NULL, &handle));
    weir_storage_release(sent);
    weir_storage *received = receive(1000, stream);
    assert_ok(weir_storage_record_stream(received, new_stream(0)));
    assert_ok(weir_fault_nth(fault, calls[i], 1, WEIR_CU_UNKNOWN, 0));
    weir_storage_release(received);
    assert_ok(weir_fault_clear(fault));
    assert_nothing_left();
  }
}

/* A storage that gets a new address is not found by the old one. */
TEST(resize) {
  weir_storage *sent = create(1000);
  assert_ok(weir_storage_send(sent, stream, NULL, &handle));
  assert_ok(weir_storage_resize(sent, 5000, stream));
  weir_storage *received = receive(1000, stream);
  assert_ptr_not_equal(received, sent);
  assert_ptr_not_equal(weir_storage_data(received), weir_storage_data(sent));
  weir_storage_release(sent);
  weir_storage_release(received);
  assert_nothing_left();
}

TEST(errors) {
  char bytes[8];
  weir_storage *sent = create(1000), *storage;
  assert_error_says(INVALID_ARGUMENT, "storage", weir_storage_send(NULL, stream, NULL, &handle));
  assert_error_says(INVALID_ARGUMENT, "handle", weir_storage_send(sent, stream, NULL, NULL));
  assert_ok(weir_storage_borrow(bytes, sizeof bytes, weir_place_device(0), NULL, NULL, &storage));
  assert_error_says(NOT_SUPPORTED, "allocated", weir_storage_send(storage, stream, NULL, &handle));
  weir_storage_release(storage);
  assert_ok(weir_storage_create(weir_place_host(), 8, stream, &storage));
  assert_error_says(NOT_SUPPORTED, "allocated", weir_storage_send(storage, stream, NULL, &handle));
  weir_storage_release(storage);

  assert_ok(weir_storage_send(sent, stream, NULL, &handle));
  assert_error_says(INVALID_ARGUMENT, "was expected; the memory has",
                    weir_storage_receive(handle.bytes, handle.length, 1 << 20, stream, &storage));
  assert_error_says(BAD_STATE, "received before",
                    weir_storage_receive(handle.bytes, handle.length, 1000, stream, &storage));
  assert_error_says(BAD_DATA, "truncated", weir_storage_receive(bytes, 8, 1000, stream, &storage));
  assert_nothing_left();
  weir_storage_release(sent);
}

/* The capture goes on after the refusal. */
TEST(captures) {
  weir_storage *sent = create(1000);
  weir_graph *graph;
  weir_stream_scope scope;
  assert_ok(weir_graph_create(&graph));
  for (int i = 0; i < 2; i++) {
    weir_stream captured = i ? stream : new_stream(0);
    assert_ok(weir_stream_scope_enter(captured, &scope));
    assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_RELAXED));
    assert_error_says(BAD_STATE, "captured", weir_storage_send(sent, captured, NULL, &handle));
    assert_error_says(BAD_STATE, "captured", weir_storage_send(sent, i ? new_stream(0) : captured, NULL, &handle));
    assert_ok(weir_graph_end_capture(graph));
    assert_ok(weir_stream_scope_leave(&scope));
    weir_graph_reset(graph);
  }
  weir_graph_destroy(graph);
  weir_storage_release(sent);
  assert_nothing_left();
}
