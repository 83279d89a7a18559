/*
 * Options: defaults, environment variables, and error texts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/soft.h"

static const char *const variables[] = {"WEIR_SOFT_CLOCK",      "WEIR_SOFT_DEVICES",   "WEIR_SOFT_MEMORY",
                                        "WEIR_SOFT_CAPABILITY", "WEIR_SOFT_CLOCK_KHZ", "WEIR_SOFT_COPY_SPEED",
                                        "WEIR_SOFT_CONTEXT"};

static int clear_environment(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
    unsetenv(variables[i]);
  return 0;
}

static int teardown(void **state) {
  clear_environment(state);
  return soft_teardown(state);
}

FIXTURE(.setup = clear_environment, .teardown = teardown)

static void check_options(const weir_soft_options *a, const weir_soft_options *b) {
  assert_int_equal(a->size, b->size);
  assert_int_equal(a->clock, b->clock);
  assert_int_equal(a->devices, b->devices);
  assert_int_equal(a->bytes, b->bytes);
  assert_int_equal(a->capability_major, b->capability_major);
  assert_int_equal(a->capability_minor, b->capability_minor);
  assert_int_equal(a->clock_khz, b->clock_khz);
  assert_int_equal(a->copy_bytes_per_second, b->copy_bytes_per_second);
  assert_int_equal(a->context_bytes, b->context_bytes);
}

static const weir_soft_options defaults = {.size = sizeof(weir_soft_options),
                                           .clock = WEIR_SOFT_THREADS,
                                           .devices = 1,
                                           .bytes = 16ull << 30,
                                           .capability_major = 9,
                                           .capability_minor = 0,
                                           .clock_khz = 1000000,
                                           .copy_bytes_per_second = 0};

TEST(defaults) {
  weir_soft_options options;
  memset(&options, 0x5a, sizeof options);
  weir_soft_options_init(&options);
  check_options(&options, &defaults);
  assert_ok(weir_soft_options_from_env(&options)); /* nothing is set */
  check_options(&options, &defaults);
  for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
    setenv(variables[i], "", 1);
  assert_ok(weir_soft_options_from_env(&options)); /* nor is this */
  check_options(&options, &defaults);
}

TEST(from_the_environment) {
  weir_soft_options options, expected = {.size = sizeof expected,
                                         .clock = WEIR_SOFT_STEPPED,
                                         .devices = 3,
                                         .bytes = 80ull << 30,
                                         .capability_major = 7,
                                         .capability_minor = 5,
                                         .clock_khz = 1410000,
                                         .copy_bytes_per_second = 50000000000,
                                         .context_bytes = 512 << 20};
  setenv("WEIR_SOFT_CLOCK", "stepped", 1);
  setenv("WEIR_SOFT_DEVICES", "3", 1);
  setenv("WEIR_SOFT_MEMORY", "80GiB", 1);
  setenv("WEIR_SOFT_CAPABILITY", "7.5", 1);
  setenv("WEIR_SOFT_CLOCK_KHZ", "1410000", 1);
  setenv("WEIR_SOFT_COPY_SPEED", "50GB", 1);
  setenv("WEIR_SOFT_CONTEXT", "512MiB", 1);
  weir_soft_options_init(&options);
  assert_ok(weir_soft_options_from_env(&options));
  check_options(&options, &expected);

  /* The device has these options. */
  weir_driver *driver;
  assert_ok(weir_driver_open("soft", &driver));
  assert_cu(driver->Init(driver, 0));
  int value;
  size_t bytes;
  unsigned long done;
  assert_cu(driver->DeviceGetCount(driver, &value));
  assert_int_equal(value, 3);
  assert_cu(driver->DeviceTotalMem(driver, &bytes, 2));
  assert_int_equal(bytes, 80ull << 30);
  assert_cu(driver->DeviceGetAttribute(driver, &value, WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, 0));
  assert_int_equal(value, 7);
  assert_cu(driver->DeviceGetAttribute(driver, &value, WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR, 0));
  assert_int_equal(value, 5);
  assert_cu(driver->DeviceGetAttribute(driver, &value, WEIR_CU_ATTR_CLOCK_RATE, 0));
  assert_int_equal(value, 1410000);
  assert_ok(weir_soft_step_all(driver, &done));
  weir_driver_close(driver);

  /* Other options are unchanged. */
  clear_environment(NULL);
  setenv("WEIR_SOFT_CLOCK", "threads", 1);
  assert_ok(weir_soft_options_from_env(&options));
  expected.clock = WEIR_SOFT_THREADS;
  check_options(&options, &expected);
}

TEST(sizes) {
  static const struct {
    const char *text;
    unsigned long long bytes;
  } cases[] = {{"2097152", 2097152},   {"2MiB", 2 << 20},       {"2M", 2 << 20},        {"500MB", 500000000},
               {"80GiB", 80ull << 30}, {"80 GiB", 80ull << 30}, {"1.5GiB", 3ull << 29}, {"16TiB", 1ull << 44},
               {"16T", 1ull << 44},    {"1TB", 1000000000000}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weir_soft_options options;
    weir_soft_options_init(&options);
    setenv("WEIR_SOFT_MEMORY", cases[i].text, 1);
    assert_ok(weir_soft_options_from_env(&options));
    assert_int_equal(options.bytes, cases[i].bytes);
  }
}

TEST(bad_values) {
  static const struct {
    const char *variable, *value;
  } cases[] = {
      {"WEIR_SOFT_CLOCK", "wall"},
      {"WEIR_SOFT_CLOCK", "Threads"},
      {"WEIR_SOFT_CLOCK", "stepped "},
      {"WEIR_SOFT_DEVICES", "0"},
      {"WEIR_SOFT_DEVICES", "65"},
      {"WEIR_SOFT_DEVICES", "-1"},
      {"WEIR_SOFT_DEVICES", "two"},
      {"WEIR_SOFT_DEVICES", "2x"},
      {"WEIR_SOFT_DEVICES", "99999999999999999999"},
      {"WEIR_SOFT_MEMORY", "much"},
      {"WEIR_SOFT_MEMORY", "80GiBs"},
      {"WEIR_SOFT_MEMORY", "-1GiB"},
      {"WEIR_SOFT_MEMORY", "GiB"},
      {"WEIR_SOFT_MEMORY", "0"},
      {"WEIR_SOFT_MEMORY", "1MiB"},
      {"WEIR_SOFT_MEMORY", "17TiB"},
      {"WEIR_SOFT_MEMORY", "99999999TiB"},
      {"WEIR_SOFT_CAPABILITY", "9"},
      {"WEIR_SOFT_CAPABILITY", "9."},
      {"WEIR_SOFT_CAPABILITY", "9.0x"},
      {"WEIR_SOFT_CAPABILITY", "-9.0"},
      {"WEIR_SOFT_CAPABILITY", "0.0"},
      {"WEIR_SOFT_CAPABILITY", "9.0.1"},
      {"WEIR_SOFT_CAPABILITY", "a.b"},
      {"WEIR_SOFT_CAPABILITY", "9999.0"},
      {"WEIR_SOFT_CAPABILITY", "9.9999"},
      {"WEIR_SOFT_CLOCK_KHZ", "0"},
      {"WEIR_SOFT_CLOCK_KHZ", "fast"},
      {"WEIR_SOFT_CLOCK_KHZ", "1e6"},
      {"WEIR_SOFT_CLOCK_KHZ", "100000001"},
      {"WEIR_SOFT_COPY_SPEED", "fast"},
      {"WEIR_SOFT_COPY_SPEED", "-5"},
      {"WEIR_SOFT_COPY_SPEED", "5GB/s"},
      {"WEIR_SOFT_CONTEXT", "some"},
      {"WEIR_SOFT_CONTEXT", "17GiB"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weir_soft_options options;
    weir_driver *driver = NULL;
    char part[128];
    clear_environment(NULL);
    setenv(cases[i].variable, cases[i].value, 1);
    weir_soft_options_init(&options);
    weir_status status = weir_soft_options_from_env(&options);
    if (status != WEIR_ERROR_INVALID_ARGUMENT)
      fail_msg("%s=%s is %s", cases[i].variable, cases[i].value, weir_status_name(status));
    snprintf(part, sizeof part, "%s=%s: ", cases[i].variable, cases[i].value);
    if (!strstr(weir_last_error(), part) || !strstr(weir_last_error(), "expected"))
      fail_msg("\"%s\" does not say \"%s\", nor what is expected", weir_last_error(), part);
    check_options(&options, &defaults); /* written only on success */
    assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open("soft", &driver));
    assert_null(driver);
    if (!strstr(weir_last_error(), cases[i].variable))
      fail_msg("\"%s\" does not name %s", weir_last_error(), cases[i].variable);
  }
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_soft_options_from_env(NULL));
}

/* The free memory of device 0 while the driver has a context on it, and that nothing is left of it afterwards. */
static uint64_t free_in_context(weir_driver *driver) {
  weir_cu_context context;
  uint64_t free_bytes, total;
  assert_cu(driver->Init(driver, 0));
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, 0)); /* counted once */
  assert_cu(driver->CtxSetCurrent(driver, context));
  assert_cu(driver->MemGetInfo(driver, &free_bytes, &total));
  weir_cu_deviceptr pointer;
  assert_cu_error(OUT_OF_MEMORY, driver->MemAlloc(driver, &pointer, free_bytes + 1));
  assert_cu(driver->MemAlloc(driver, &pointer, free_bytes));
  assert_cu(driver->MemFree(driver, pointer));
  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  weir_soft_census census;
  weir_soft_census_init(&census);
  assert_ok(weir_soft_get_census(driver, &census));
  assert_int_equal(census.device_bytes, 0);
  return free_bytes;
}

TEST(contexts) {
  static const struct {
    const char *memory, *context;
    uint64_t free_bytes;
  } cases[] = {{"", "", (16ull << 30) - (256 << 20)}, {"1GiB", "", (1ull << 30) - (16 << 20)},
               {"127MiB", "", 127ull << 20},          {"", "0", 16ull << 30},
               {"1GiB", "300MiB", 724ull << 20},      {"1GiB", "5000", (1ull << 30) - 8192}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weir_driver *driver;
    setenv("WEIR_SOFT_MEMORY", cases[i].memory, 1);
    setenv("WEIR_SOFT_CONTEXT", cases[i].context, 1);
    assert_ok(weir_driver_open("soft", &driver));
    assert_int_equal(free_in_context(driver), cases[i].free_bytes);
    weir_driver_close(driver);
  }
  weir_driver *driver;
  weir_soft_options o = defaults;
  assert_ok(weir_driver_open_soft(&o, &driver));
  assert_int_equal(free_in_context(driver), o.bytes);
  weir_driver_close(driver);
  o.context_bytes = o.bytes; /* there is a context, and no memory */
  weir_cu_context context;
  assert_ok(weir_driver_open_soft(&o, &driver));
  assert_cu(driver->Init(driver, 0));
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  weir_driver_close(driver);
}

/* Memory of MemCreate outlives contexts, so that there may be none left for the next one. */
TEST(context_without_memory) {
  weir_driver *driver;
  weir_cu_context context;
  weir_cu_mem_handle handle;
  weir_soft_options o = defaults;
  o.bytes = 64 << 20;
  o.context_bytes = 32 << 20;
  assert_ok(weir_driver_open_soft(&o, &driver));
  assert_cu(driver->Init(driver, 0));
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  assert_cu(driver->CtxSetCurrent(driver, context));
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {.type = WEIR_CU_LOCATION_DEVICE, .id = 0}};
  assert_cu_error(OUT_OF_MEMORY, driver->MemCreate(driver, &handle, 34 << 20, &prop, 0));
  assert_cu(driver->MemCreate(driver, &handle, 32 << 20, &prop, 0));
  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  weir_cu_mem_handle other;
  assert_cu(driver->MemCreate(driver, &other, 2 << 20, &prop, 0));
  assert_cu_error(OUT_OF_MEMORY, driver->DevicePrimaryCtxRetain(driver, &context, 0));
  assert_cu(driver->MemRelease(driver, other));
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  assert_cu(driver->MemRelease(driver, handle));
  weir_driver_close(driver);
}

TEST(bad_options) {
  weir_driver *driver = NULL;
  weir_soft_options o = defaults;
  o.clock = (weir_soft_clock)7;
  assert_error_says(INVALID_ARGUMENT, "clock is 7", weir_driver_open_soft(&o, &driver));
  o = defaults;
  o.devices = 0;
  assert_error_says(INVALID_ARGUMENT, "devices is 0", weir_driver_open_soft(&o, &driver));
  o.devices = WEIR_SOFT_MAX_DEVICES + 1;
  assert_error_says(INVALID_ARGUMENT, "devices is 65", weir_driver_open_soft(&o, &driver));
  o = defaults;
  o.bytes = 0;
  assert_error_says(INVALID_ARGUMENT, "bytes is 0", weir_driver_open_soft(&o, &driver));
  o = defaults;
  o.context_bytes = o.bytes + 1;
  assert_error_says(INVALID_ARGUMENT, "context_bytes is 17179869185", weir_driver_open_soft(&o, &driver));
  o.bytes = (1ull << 44) + 1;
  assert_error_says(INVALID_ARGUMENT, "16 TiB", weir_driver_open_soft(&o, &driver));
  o = defaults;
  o.capability_major = 0;
  assert_error_says(INVALID_ARGUMENT, "capability 0.0", weir_driver_open_soft(&o, &driver));
  o = defaults;
  o.capability_minor = -1;
  assert_error_says(INVALID_ARGUMENT, "capability 9.-1", weir_driver_open_soft(&o, &driver));
  o = defaults;
  o.clock_khz = 0;
  assert_error_says(INVALID_ARGUMENT, "clock_khz 0", weir_driver_open_soft(&o, &driver));
  assert_null(driver);
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open_soft(&defaults, NULL));
}

/* A program that was compiled with an older, smaller struct. */
TEST(an_older_program) {
  weir_soft_options o = defaults;
  o.devices = 2;
  o.bytes = 1;
  o.clock_khz = -1;
  o.size = offsetof(weir_soft_options, bytes); /* the rest is not part of its struct */
  weir_driver *driver;
  assert_ok(weir_driver_open_soft(&o, &driver));
  assert_cu(driver->Init(driver, 0));
  int count;
  size_t bytes;
  assert_cu(driver->DeviceGetCount(driver, &count));
  assert_int_equal(count, 2);
  assert_cu(driver->DeviceTotalMem(driver, &bytes, 0));
  assert_int_equal(bytes, 16ull << 30);
  weir_driver_close(driver);
}
