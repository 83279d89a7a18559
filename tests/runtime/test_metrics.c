/*
 * Utilization, temperature, power and clock: of the software device, of NVIDIA's, and of drivers without metrics.
 */
#include <stdlib.h>

#include "support/runtime.h"

static int value_of(weir_metric metric, int device) {
  int value = -1;
  assert_ok(weir_device_metric(device, metric, &value));
  return value;
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(the_software_device) {
  NEED_SOFT("it is about the software device");
  int value = -1;
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  assert_ok(weir_device_get_properties(0, &properties));
  assert_int_equal(value_of(WEIR_METRIC_CLOCK_RATE, 0), properties.clock_khz / 1000);
  assert_error_says(NOT_SUPPORTED, "the software device has no temperature",
                    weir_device_metric(0, WEIR_METRIC_TEMPERATURE, &value));
  assert_error_says(NOT_SUPPORTED, "the software device draws no power",
                    weir_device_metric(0, WEIR_METRIC_POWER_DRAW, &value));
  assert_int_equal(value, -1);
}

TEST(busy_software_device) {
  NEED_SOFT("it is about the software device");
  weir_stream stream = new_stream(0);
  void *memory = device_memory(0, 4096);
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(value_of(WEIR_METRIC_UTILIZATION, 0), 0);
  assert_int_equal(value_of(WEIR_METRIC_MEMORY_USAGE, 0), 0);

  struct held *held = hold(stream);
  assert_int_equal(value_of(WEIR_METRIC_UTILIZATION, 0), 100);
  assert_int_equal(value_of(WEIR_METRIC_MEMORY_USAGE, 0), 0);
  assert_int_equal(value_of(WEIR_METRIC_UTILIZATION, 1), 0);
  unblock(held);
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(value_of(WEIR_METRIC_UTILIZATION, 0), 0);

  if (is_stepped()) { /* the pending fill is the current work of the stream */
    assert_ok(weir_fill_async(memory, 1, 4096, stream));
    assert_int_equal(value_of(WEIR_METRIC_MEMORY_USAGE, 0), 100);
    assert_ok(weir_stream_synchronize(stream));
    assert_int_equal(value_of(WEIR_METRIC_MEMORY_USAGE, 0), 0);
  }
  free_device_memory(0, memory);
}

TEST(nvidia) {
  if (is_soft())
    WAIVE_TEST("it is about NVIDIA's management library");
  assert_in_range(value_of(WEIR_METRIC_UTILIZATION, 0), 0, 100);
  assert_in_range(value_of(WEIR_METRIC_MEMORY_USAGE, 0), 0, 100);
  assert_in_range(value_of(WEIR_METRIC_TEMPERATURE, 0), 1, 150);
  assert_in_range(value_of(WEIR_METRIC_POWER_DRAW, 0), 1, 10000000);
  assert_in_range(value_of(WEIR_METRIC_CLOCK_RATE, 0), 1, 100000);
}

/* The software device, marked as an NVIDIA device so that NVML is used. */
static void as_nvidia(const char *library, const char *mode, void (*test)(void)) {
  assert_ok(weir_init());
  d->capabilities |= WEIR_DRIVER_NVIDIA;
  setenv("WEIR_NVML_LIBRARY", library, 1);
  setenv("WEIR_FAKE_NVML", mode, 1);
  test();
  unsetenv("WEIR_NVML_LIBRARY");
  unsetenv("WEIR_FAKE_NVML");
  d->capabilities &= ~(uint64_t)WEIR_DRIVER_NVIDIA;
}

static void all_there(void) {
  assert_int_equal(value_of(WEIR_METRIC_UTILIZATION, 0), 87);
  assert_int_equal(value_of(WEIR_METRIC_MEMORY_USAGE, 0), 12);
  assert_int_equal(value_of(WEIR_METRIC_TEMPERATURE, 0), 41);
  assert_int_equal(value_of(WEIR_METRIC_POWER_DRAW, 0), 123456);
  assert_int_equal(value_of(WEIR_METRIC_CLOCK_RATE, 0), 1980);
  assert_int_equal(value_of(WEIR_METRIC_CLOCK_RATE, -1), 1980);
}

static void old_temperature(void) { assert_int_equal(value_of(WEIR_METRIC_TEMPERATURE, 0), 40); }

static void assert_all_fail(const char *words) {
  for (int i = 0; i <= WEIR_METRIC_CLOCK_RATE; i++) {
    int value = -1;
    assert_error_says(NOT_SUPPORTED, words, weir_device_metric(0, (weir_metric)i, &value));
    assert_int_equal(value, -1);
  }
}

static void not_reported(void) { assert_all_fail("does not report this metric for device"); }
static void missing_functions(void) { assert_all_fail("too old for this metric"); }
static void no_library(void) { assert_all_fail("cannot be loaded"); }

TEST(nvml_functions) {
  NEED_SOFT("it takes a library of the test's own");
  as_nvidia(WEIR_TEST_NVML, "none", all_there);
  as_nvidia(WEIR_TEST_NVML, "plain", old_temperature);
  as_nvidia(WEIR_TEST_NVML, "broken", not_reported);
  as_nvidia(WEIR_TEST_NVML_OLD, "none", missing_functions);
  as_nvidia("/nonexistent/libnvml.so", "none", no_library);
}

/* The name of a table is for messages only. */
TEST(renamed_driver) {
  NEED_SOFT("it is about the software device");
  assert_ok(weir_init());
  const char *name = d->name;
  d->name = "another";
  assert_int_equal(value_of(WEIR_METRIC_UTILIZATION, 0), 0);
  d->name = name;
}

TEST_SETUP(wrapped_driver, runtime_setup_fault, runtime_teardown) {
  NEED_SOFT("a fault table over NVIDIA's driver is measured as NVIDIA's driver is");
  assert_all_fail("the driver \"soft\" does not measure its devices"); /* the fault table's name */
}

TEST(wrong_arguments) {
  for (int i = 0; i <= WEIR_METRIC_CLOCK_RATE; i++) {
    int value = -1;
    assert_error(INVALID_ARGUMENT, weir_device_metric(0, (weir_metric)i, NULL));
    assert_error(INVALID_DEVICE, weir_device_metric(1000, (weir_metric)i, &value));
    assert_error(INVALID_DEVICE, weir_device_metric(-2, (weir_metric)i, &value));
    assert_int_equal(value, -1);
  }
}
