/*
 * Invalid arguments to every call of driver.h, soft.h and status.h: the status, an error text that begins with the name
 * of the call, and unchanged outputs.
 */
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"
#include "support/soft.h"

static weir_cu_result kernel(const weir_soft_launch *launch) {
  (void)launch;
  return WEIR_CU_SUCCESS;
}

static int no_context(void *context) {
  (void)context;
  return 0;
}

TEST(opening) {
  weir_driver *driver = (weir_driver *)state;
  weir_soft_options soft;
  weir_ledger_options ledger;
  assert_error_says(INVALID_ARGUMENT, ": driver is NULL", weir_driver_open("soft", NULL));
  assert_error(INVALID_ARGUMENT, weir_driver_open("", &driver));
  assert_error(INVALID_ARGUMENT, weir_driver_open("none such", &driver));
  assert_error_says(INVALID_ARGUMENT, ": driver is NULL", weir_driver_open_cuda(NULL));
  assert_error_says(INVALID_ARGUMENT, ": inner is NULL", weir_driver_open_fault(NULL, &driver));
  assert_error_says(INVALID_ARGUMENT, ": driver is NULL", weir_driver_open_fault(d, NULL));
  assert_error_says(INVALID_ARGUMENT, ": inner is NULL", weir_driver_open_contexts(NULL, no_context, NULL, &driver));
  assert_error_says(INVALID_ARGUMENT, ": provide is NULL", weir_driver_open_contexts(d, NULL, NULL, &driver));
  assert_error_says(INVALID_ARGUMENT, ": driver is NULL", weir_driver_open_contexts(d, no_context, NULL, NULL));
#define REFUSED_SOFT(field, value)                                                                                     \
  do {                                                                                                                 \
    weir_soft_options_init(&soft);                                                                                     \
    soft.field = value;                                                                                                \
    assert_error(INVALID_ARGUMENT, weir_driver_open_soft(&soft, &driver));                                             \
  } while (0)
  assert_error_says(INVALID_ARGUMENT, ": driver is NULL", weir_driver_open_soft(NULL, NULL));
  REFUSED_SOFT(size, 0);
  REFUSED_SOFT(clock, (weir_soft_clock)2);
  REFUSED_SOFT(devices, 0);
  REFUSED_SOFT(devices, -1);
  REFUSED_SOFT(devices, WEIR_SOFT_MAX_DEVICES + 1);
  REFUSED_SOFT(bytes, 0);
  REFUSED_SOFT(bytes, ULLONG_MAX);
  REFUSED_SOFT(capability_major, 0);
  REFUSED_SOFT(capability_minor, -1);
  REFUSED_SOFT(clock_khz, 0);
  weir_soft_options_init(NULL);
  assert_error_says(INVALID_ARGUMENT, ": options is NULL", weir_soft_options_from_env(NULL));
  weir_soft_options_init(&soft);
  setenv("WEIR_SOFT_DEVICES", "minus one", 1);
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_soft_options_from_env(&soft));
  assert_memory_equal(weir_last_error(), "WEIR_SOFT_DEVICES=", 18);
  unsetenv("WEIR_SOFT_DEVICES");
  assert_int_equal(soft.devices, 1);
#define REFUSED_LEDGER(field, value)                                                                                   \
  do {                                                                                                                 \
    weir_ledger_options_init(&ledger);                                                                                 \
    ledger.field = value;                                                                                              \
    assert_error(INVALID_ARGUMENT, weir_driver_open_ledger(&ledger, &driver));                                         \
  } while (0)
  assert_error(INVALID_ARGUMENT, weir_driver_open_ledger(NULL, NULL));
  REFUSED_LEDGER(size, 0);
  REFUSED_LEDGER(devices, 0);
  REFUSED_LEDGER(devices, INT_MAX);
  REFUSED_LEDGER(bytes, 0);
  weir_driver_init(NULL);
  weir_ledger_options_init(NULL);
  weir_soft_census_init(NULL);
  assert_ptr_equal(driver, state);
  weir_driver_close(NULL);
}

TEST(faults) {
  weir_driver *fault;
  unsigned long count = 77;
  assert_ok(weir_driver_open_fault(d, &fault));
  assert_error(INVALID_ARGUMENT, weir_fault_nth(NULL, WEIR_CALL_MemAlloc, 1, WEIR_CU_UNKNOWN, 0));
  assert_error(INVALID_ARGUMENT, weir_fault_nth(d, WEIR_CALL_MemAlloc, 1, WEIR_CU_UNKNOWN, 0));
  assert_error(INVALID_ARGUMENT, weir_fault_nth(fault, WEIR_CALL_COUNT, 1, WEIR_CU_UNKNOWN, 0));
  assert_error(INVALID_ARGUMENT, weir_fault_nth(fault, (weir_driver_call)-1, 1, WEIR_CU_UNKNOWN, 0));
  assert_error(INVALID_ARGUMENT, weir_fault_nth(fault, WEIR_CALL_MemAlloc, 1, WEIR_CU_SUCCESS, 0));
  assert_error(INVALID_ARGUMENT, weir_fault_nth_any(NULL, 1, WEIR_CU_UNKNOWN));
  assert_error(INVALID_ARGUMENT, weir_fault_nth_any(d, 1, WEIR_CU_UNKNOWN));
  assert_error(INVALID_ARGUMENT, weir_fault_nth_any(fault, 1, WEIR_CU_SUCCESS));
  assert_error(INVALID_ARGUMENT, weir_fault_random(NULL, 1, 1, WEIR_CU_UNKNOWN));
  assert_error(INVALID_ARGUMENT, weir_fault_random(fault, 1, 1000001, WEIR_CU_UNKNOWN));
  assert_error(INVALID_ARGUMENT, weir_fault_random(fault, 1, 1, WEIR_CU_SUCCESS));
  assert_error(INVALID_ARGUMENT, weir_fault_clear(NULL));
  assert_error(INVALID_ARGUMENT, weir_fault_clear(d));
  assert_error(INVALID_ARGUMENT, weir_fault_counts(NULL, WEIR_CALL_COUNT, &count, &count));
  assert_error(INVALID_ARGUMENT, weir_fault_counts(fault, (weir_driver_call)(WEIR_CALL_COUNT + 1), &count, &count));
  assert_int_equal(count, 77);
  int devices;
  assert_cu(fault->DeviceGetCount(fault, &devices)); /* no fault was injected */
  weir_driver_close(fault);
}

TEST(timing) {
  weir_driver *timing = NULL;
  uint64_t count = 77;
  assert_error_says(INVALID_ARGUMENT, ": inner is NULL", weir_driver_open_timing(NULL, &timing));
  assert_error_says(INVALID_ARGUMENT, ": driver is NULL", weir_driver_open_timing(d, NULL));
  assert_null(timing);
  assert_ok(weir_driver_open_timing(d, &timing));
  assert_error_says(INVALID_ARGUMENT, "NULL", weir_timing_counts(NULL, WEIR_CALL_COUNT, &count, &count, &count));
  assert_error_says(INVALID_ARGUMENT, "was not opened by weir_driver_open_timing",
                    weir_timing_counts(d, WEIR_CALL_COUNT, &count, &count, &count));
  assert_error_says(INVALID_ARGUMENT, "expected a weir_driver_call",
                    weir_timing_counts(timing, (weir_driver_call)(WEIR_CALL_COUNT + 1), &count, &count, &count));
  assert_error(INVALID_ARGUMENT, weir_timing_counts(timing, (weir_driver_call)-1, &count, &count, &count));
  assert_int_equal(count, 77);
  assert_ok(weir_timing_counts(timing, WEIR_CALL_COUNT, NULL, NULL, NULL));
  weir_driver_close(timing);
}

TEST(the_software_device) {
  weir_driver *ledger;
  unsigned long count = 77;
  uint64_t now = 77;
  static const size_t sizes[] = {8, SIZE_MAX};
  weir_soft_census census;
  memset(&census, 0x5a, sizeof census);
  census.size = sizeof census;
  assert_ok(weir_driver_open_ledger(NULL, &ledger));
  weir_driver *const wrong[] = {NULL, ledger};
  for (int i = 0; i < 2; i++) {
    assert_error(INVALID_ARGUMENT, weir_soft_step(wrong[i], NULL, 1, &count));
    assert_error(INVALID_ARGUMENT, weir_soft_step_all(wrong[i], &count));
    assert_error(INVALID_ARGUMENT, weir_soft_pending(wrong[i], NULL, &count));
    assert_error(INVALID_ARGUMENT, weir_soft_now(wrong[i], &now));
    assert_error(INVALID_ARGUMENT, weir_soft_register_kernel(wrong[i], "name", kernel, 0, NULL));
    assert_error(INVALID_ARGUMENT, weir_soft_get_census(wrong[i], &census));
  }
  assert_error(INVALID_HANDLE, weir_soft_step(d, (weir_cu_stream)16, 1, &count));
  assert_error(INVALID_HANDLE, weir_soft_pending(d, (weir_cu_stream)16, &count));
  assert_error_says(INVALID_ARGUMENT, ": pieces is NULL", weir_soft_pending(d, NULL, NULL));
  assert_error_says(INVALID_ARGUMENT, ": nanoseconds is NULL", weir_soft_now(d, NULL));
  assert_error_says(INVALID_ARGUMENT, ": name is NULL", weir_soft_register_kernel(d, NULL, kernel, 0, NULL));
  assert_error_says(INVALID_ARGUMENT, ": name is empty", weir_soft_register_kernel(d, "", kernel, 0, NULL));
  assert_error_says(INVALID_ARGUMENT, ": function is NULL", weir_soft_register_kernel(d, "name", NULL, 0, NULL));
  assert_error_says(INVALID_ARGUMENT, "param_count is -1", weir_soft_register_kernel(d, "name", kernel, -1, sizes));
  assert_error_says(INVALID_ARGUMENT, ": param_bytes is NULL", weir_soft_register_kernel(d, "name", kernel, 1, NULL));
  assert_error_says(INVALID_ARGUMENT, "larger than", weir_soft_register_kernel(d, "name", kernel, 2, sizes));
  assert_error_says(INVALID_ARGUMENT, ": census is NULL", weir_soft_get_census(d, NULL));
  assert_int_equal((unsigned char)census.pools, 0x5a);
  census.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_soft_get_census(d, &census));
  assert_int_equal(count, 77);
  assert_int_equal(now, 77);
  weir_driver_close(ledger);
}

TEST(stepping_in_real_time) {
  weir_driver *threads;
  unsigned long count = 77;
  assert_ok(weir_driver_open_soft(NULL, &threads));
  assert_error(BAD_STATE, weir_soft_step(threads, NULL, 1, &count));
  assert_error(BAD_STATE, weir_soft_step_all(threads, &count));
  assert_int_equal(count, 77);
  weir_driver_close(threads);
}

/* Invalid numbers have a name too. */
TEST(names) {
  assert_null(weir_driver_call_name(WEIR_CALL_COUNT));
  assert_null(weir_driver_call_name((weir_driver_call)-1));
  assert_non_null(weir_cu_result_name((weir_cu_result)-1));
  assert_non_null(weir_cu_result_string((weir_cu_result)123456));
  assert_string_equal(weir_status_name((weir_status)999), "WEIR_ERROR_UNKNOWN");
  assert_string_equal(weir_status_name((weir_status)-1), "WEIR_ERROR_UNKNOWN");
  assert_non_null(weir_status_string((weir_status)999));
}

static int setup(void **state) {
  (void)state;
  soft_open(WEIR_SOFT_STEPPED, 1, 1 << 30);
  return 0;
}

static int teardown(void **state) {
  soft_close();
  return soft_teardown(state);
}

FIXTURE(.setup = setup, .teardown = teardown)
