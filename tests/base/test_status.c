#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "support/check.h"
#include "support/heard.h"

TEST(every_status_has_its_name_and_text) {
#define X(number, name, text)                                                                                          \
  assert_int_equal(WEIR_##name, number);                                                                               \
  assert_string_equal(weir_status_name(WEIR_##name), "WEIR_" #name);                                                   \
  assert_string_equal(weir_status_string(WEIR_##name), text);
  WEIR_STATUS_MAP(X)
#undef X
}

TEST(an_unknown_status_has_a_name) {
  const int numbers[] = {-1, 9999};
  for (size_t i = 0; i < WEIR_COUNT_OF(numbers); i++) {
    assert_string_equal(weir_status_name((weir_status)numbers[i]), "WEIR_ERROR_UNKNOWN");
    assert_string_equal(weir_status_string((weir_status)numbers[i]), "no status has this number");
  }
}

/* Runs first, on a thread in which nothing has failed yet. */
TEST(nothing_failed_yet) {
  assert_string_equal(weir_last_error(), "");
  assert_int_equal(weir_last_driver_result(), 0);
}

TEST(failing_stores_the_text_and_returns_the_status) {
  assert_int_equal(weir__fail(WEIR_ERROR_INVALID_DEVICE, "weir_device_set_current: device %d of %d", 7, 2),
                   WEIR_ERROR_INVALID_DEVICE);
  assert_string_equal(weir_last_error(), "weir_device_set_current: device 7 of 2");
  assert_int_equal(weir_last_driver_result(), 0);
}

TEST(the_drivers_code_belongs_to_the_last_failure) {
  assert_int_equal(weir__fail_result(WEIR_ERROR_OUT_OF_MEMORY, 2, "weir_x: out of memory"), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(weir_last_driver_result(), 2);
  weir__fail(WEIR_ERROR_BAD_STATE, "weir_y: too late");
  assert_int_equal(weir_last_driver_result(), 0);
}

TEST(a_text_may_quote_the_one_before) {
  weir__fail(WEIR_ERROR_SYSTEM, "weir_inner: why");
  weir__fail(WEIR_ERROR_DEFERRED_CALL, "weir_init: a queued call failed: %s", weir_last_error());
  assert_string_equal(weir_last_error(), "weir_init: a queued call failed: weir_inner: why");
}

TEST(a_long_text_is_truncated_and_marked) {
  char whole[1025];
  memset(whole, 'a', sizeof whole - 1);
  whole[sizeof whole - 1] = '\0';
  weir__fail(WEIR_ERROR_SYSTEM, "%s", whole);
  assert_string_equal(weir_last_error(), whole);

  weir__fail(WEIR_ERROR_SYSTEM, "%s%s%s", whole, whole, whole);
  size_t length = strlen(weir_last_error());
  assert_in_range(length, 1024, 3 * 1024 - 1);
  assert_string_equal(weir_last_error() + length - 5, "aa...");
}

TEST(a_failure_is_logged_at_debug_level) {
  struct heard heard = {0};
  weir_log_set_sink(hear, &heard);
  weir_log_set_level(WEIR_LOG_INFO);
  weir__fail(WEIR_ERROR_CAPTURE, "weir_x: why");
  assert_int_equal(heard.count, 0);
  weir_log_set_level(WEIR_LOG_DEBUG);
  weir__fail(WEIR_ERROR_CAPTURE, "weir_x: why");
  weir_log_set_level(WEIR_LOG_WARN);
  weir_log_set_sink(NULL, NULL);
  assert_int_equal(heard.count, 1);
  assert_int_equal(heard.level, WEIR_LOG_DEBUG);
  assert_string_equal(heard.message, "WEIR_ERROR_CAPTURE: weir_x: why");
}
