#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "support/check.h"
#include "support/heard.h"

static void every_status_has_its_name_and_text(void **state) {
  (void)state;
#define X(number, name, text)                                                                                          \
  assert_int_equal(WEIR_##name, number);                                                                               \
  assert_string_equal(weir_status_name(WEIR_##name), "WEIR_" #name);                                                   \
  assert_string_equal(weir_status_string(WEIR_##name), text);
  WEIR_STATUS_MAP(X)
#undef X
}

static void an_unknown_status_has_a_name(void **state) {
  (void)state;
  const int numbers[] = {-1, 9999};
  for (size_t i = 0; i < WEIR_COUNT_OF(numbers); i++) {
    assert_string_equal(weir_status_name((weir_status)numbers[i]), "WEIR_ERROR_UNKNOWN");
    assert_string_equal(weir_status_string((weir_status)numbers[i]), "no status has this number");
  }
}

/* Runs first, on a thread in which nothing has failed yet. */
static void nothing_failed_yet(void **state) {
  (void)state;
  assert_string_equal(weir_last_error(), "");
  assert_int_equal(weir_last_driver_result(), 0);
}

static void failing_stores_the_text_and_returns_the_status(void **state) {
  (void)state;
  assert_int_equal(weir__fail(WEIR_ERROR_INVALID_DEVICE, "weir_device_set: device %d of %d", 7, 2),
                   WEIR_ERROR_INVALID_DEVICE);
  assert_string_equal(weir_last_error(), "weir_device_set: device 7 of 2");
  assert_int_equal(weir_last_driver_result(), 0);
}

static void the_drivers_code_belongs_to_the_last_failure(void **state) {
  (void)state;
  assert_int_equal(weir__fail_result(WEIR_ERROR_OUT_OF_MEMORY, 2, "weir_x: out of memory"), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(weir_last_driver_result(), 2);
  weir__fail(WEIR_ERROR_BAD_STATE, "weir_y: too late");
  assert_int_equal(weir_last_driver_result(), 0);
}

static void a_text_may_quote_the_one_before(void **state) {
  (void)state;
  weir__fail(WEIR_ERROR_SYSTEM, "weir_inner: why");
  weir__fail(WEIR_ERROR_DEFERRED_CALL, "weir_init: a queued call failed: %s", weir_last_error());
  assert_string_equal(weir_last_error(), "weir_init: a queued call failed: weir_inner: why");
}

static void a_long_text_is_truncated_and_marked(void **state) {
  (void)state;
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

static void a_failure_is_logged_at_debug_level(void **state) {
  (void)state;
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_failed_yet),
      cmocka_unit_test(every_status_has_its_name_and_text),
      cmocka_unit_test(an_unknown_status_has_a_name),
      cmocka_unit_test(failing_stores_the_text_and_returns_the_status),
      cmocka_unit_test(the_drivers_code_belongs_to_the_last_failure),
      cmocka_unit_test(a_text_may_quote_the_one_before),
      cmocka_unit_test(a_long_text_is_truncated_and_marked),
      cmocka_unit_test(a_failure_is_logged_at_debug_level),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
