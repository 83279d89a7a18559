/*
 * Sync debug mode: warns about calls that synchronize, or forbids them.
 */
#include <string.h>

#include "support/runtime.h"

static const char sentence[] = "called a synchronizing";

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(the_mode_is_default) {
  assert_int_equal(weir_get_sync_debug(), WEIR_SYNC_DEBUG_DEFAULT);
  collect_messages();
  weir_stream stream = new_stream(0);
  uint8_t byte = 0;
  void *memory = device_memory(0, 1);
  assert_ok(weir_stream_synchronize(stream));
  assert_ok(weir_copy(memory, &byte, 1, stream));
  assert_int_equal(messages_with(WEIR_LOG_WARN, ""), 0);
  free_device_memory(0, memory);
}

TEST(set_and_get) {
  const weir_sync_debug modes[] = {WEIR_SYNC_DEBUG_WARN, WEIR_SYNC_DEBUG_ERROR, WEIR_SYNC_DEBUG_DEFAULT};
  for (int i = 0; i < 3; i++) {
    assert_ok(weir_set_sync_debug(modes[i]));
    assert_int_equal(weir_get_sync_debug(), modes[i]);
  }
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_WARN));
  assert_error(INVALID_ARGUMENT, weir_set_sync_debug((weir_sync_debug)3));
  assert_error(INVALID_ARGUMENT, weir_set_sync_debug((weir_sync_debug)-1));
  assert_error(INVALID_ARGUMENT, weir_set_sync_debug((weir_sync_debug)1000));
  assert_int_equal(weir_get_sync_debug(), WEIR_SYNC_DEBUG_WARN);
}

TEST(warn) {
  weir_stream stream = new_stream(0);
  uint8_t byte = 5, back = 0;
  void *memory = device_memory(0, 1);
  collect_messages();
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_WARN));
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(messages_with(WEIR_LOG_WARN, sentence), 1);
  assert_int_equal(messages_with(WEIR_LOG_WARN, "weir_stream_synchronize"), 1);
  assert_ok(weir_copy(memory, &byte, 1, stream));
  assert_int_equal(messages_with(WEIR_LOG_WARN, sentence), 2);
  assert_int_equal(messages_with(WEIR_LOG_WARN, "weir_copy"), 1);
  assert_ok(weir_copy(&back, memory, 1, stream));
  assert_int_equal(messages_with(WEIR_LOG_WARN, sentence), 3);
  assert_int_equal(back, 5); /* it ran nevertheless */
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_DEFAULT));
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(messages_with(WEIR_LOG_WARN, sentence), 3);
  free_device_memory(0, memory);
}

TEST(error) {
  weir_stream stream = new_stream(0);
  uint8_t byte = 5, back = 9;
  void *memory = device_memory(0, 1);
  assert_ok(weir_fill_async(memory, 1, 1, stream));
  struct held *gate = hold(stream);
  mark(stream, 1);
  collect_messages();
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_ERROR));
  /* None of them waits, as the stream is held. */
  assert_error_says(SYNC_FORBIDDEN, sentence, weir_stream_synchronize(stream));
  assert_error_says(SYNC_FORBIDDEN, sentence, weir_copy(memory, &byte, 1, stream));
  assert_error_says(SYNC_FORBIDDEN, sentence, weir_copy(&back, memory, 1, stream));
  assert_int_equal(mark_count(), 0);
  assert_int_equal(messages_with(WEIR_LOG_WARN, ""), 0);
  unblock(gate);
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_DEFAULT));
  assert_ok(weir_stream_synchronize(stream));
  assert_marks(1);
  assert_int_equal(back, 9);
  assert_filled(0, memory, 1, 1); /* and the copy did not run */
  free_device_memory(0, memory);
}

/* Calls that do not wait for a stream, or whose purpose is to wait, are not affected. */
TEST(what_is_always_allowed) {
  weir_stream stream = new_stream(0), other = new_stream(0);
  uint8_t *pinned = pinned_memory(1);
  void *memory = device_memory(0, 1);
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  collect_messages();
  for (int mode = WEIR_SYNC_DEBUG_WARN; mode <= WEIR_SYNC_DEBUG_ERROR; mode++) {
    assert_ok(weir_set_sync_debug((weir_sync_debug)mode));
    assert_ok(weir_copy_async(memory, pinned, 1, stream));
    assert_ok(weir_fill_async(memory, 1, 1, stream));
    assert_ok(weir_event_record(event, stream));
    assert_ok(weir_stream_wait_stream(other, stream));
    assert_ok(weir_event_synchronize(event));
    assert_ok(weir_event_query(event));
    assert_ok(weir_device_synchronize(0));
    assert_ok(weir_stream_query(stream));
  }
  assert_int_equal(messages_with(WEIR_LOG_WARN, ""), 0);
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_DEFAULT));
  weir_event_destroy(event);
  free_device_memory(0, memory);
  free_pinned_memory(pinned);
}

static void *synchronize_on_thread(void *data) {
  weir_stream stream;
  weir_status *status = data;
  *status = weir_stream_default(0, &stream);
  if (*status == WEIR_OK)
    *status = weir_stream_synchronize(stream);
  return NULL;
}

TEST(the_mode_is_for_all_threads) {
  weir_status status = WEIR_OK;
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_ERROR));
  on_thread(synchronize_on_thread, &status);
  assert_int_equal(status, WEIR_ERROR_SYNC_FORBIDDEN);
}

/* An invalid stream is reported before the mode applies. */
TEST(a_wrong_stream_is_still_wrong) {
  assert_ok(weir_set_sync_debug(WEIR_SYNC_DEBUG_ERROR));
  assert_error(INVALID_ARGUMENT, weir_stream_synchronize((weir_stream){.id = 0, .device = 1000, .device_type = 1}));
  char byte;
  assert_error(INVALID_ARGUMENT, weir_copy(NULL, &byte, 1, default_stream(0)));
}
