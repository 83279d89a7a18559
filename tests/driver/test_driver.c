/*
 * Names and texts of results, statuses, and the choice of a driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/call.h"
#include "driver/cuda.h"
#include "support/check.h"
#include "weir/soft.h"

/* ---- Messages ---- */

static struct {
  int count;
  weir_log_level level; /* of the last */
  char text[8192];      /* of all */
} messages;

static void sink(void *context, weir_log_level level, const char *message) {
  (void)context;
  messages.count++;
  messages.level = level;
  size_t length = strlen(messages.text);
  snprintf(messages.text + length, sizeof messages.text - length, "%s\n", message);
}

static int setup(void **state) {
  (void)state;
  memset(&messages, 0, sizeof messages);
  weir_log_set_sink(sink, NULL);
  weir_log_set_level(WEIR_LOG_DEBUG);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  weir_log_set_sink(NULL, NULL);
  unsetenv("WEIR_DRIVER");
  unsetenv("WEIR_CUDA_LIBRARY");
  unsetenv("WEIR_SOFT_DEVICES");
  return 0;
}

static void prepare(void) {
  /* Ignore the environment of the user. */
  unsetenv("WEIR_DRIVER");
  unsetenv("WEIR_CUDA_LIBRARY");
  unsetenv("WEIR_SOFT_DEVICES");
}

FIXTURE(.prepare = prepare, .setup = setup, .teardown = teardown)

/* ---- Names and texts ---- */

TEST_SETUP(call_names, NULL, NULL) {
  assert_string_equal(weir_driver_call_name(WEIR_CALL_Init), "cuInit");
  assert_string_equal(weir_driver_call_name(WEIR_CALL_MemAlloc), "cuMemAlloc");
  assert_string_equal(weir_driver_call_name(WEIR_CALL_GraphInstantiate), "cuGraphInstantiate");
  assert_string_equal(weir_driver_call_name((weir_driver_call)(WEIR_CALL_COUNT - 1)), "cuGraphRetainUserObject");
  assert_null(weir_driver_call_name(WEIR_CALL_COUNT));
  assert_null(weir_driver_call_name((weir_driver_call)-1));
}

TEST_SETUP(result_names_and_texts, NULL, NULL) {
  assert_string_equal(weir_cu_result_name(0), "CUDA_SUCCESS");
  assert_string_equal(weir_cu_result_string(0), "no error");
  assert_string_equal(weir_cu_result_name(2), "CUDA_ERROR_OUT_OF_MEMORY");
  assert_string_equal(weir_cu_result_string(2), "out of memory");
  assert_string_equal(weir_cu_result_name(999), "CUDA_ERROR_UNKNOWN");
  assert_string_equal(weir_cu_result_string(999), "unknown error");
  for (int code = -1; code < 100000; code += 7777) {
    assert_non_null(weir_cu_result_name(code));
    assert_non_null(weir_cu_result_string(code));
  }
  assert_string_equal(weir_cu_result_name(-1), "CUDA_ERROR_<unrecognized>");
  assert_string_equal(weir_cu_result_string(-1), "unrecognized error code");
}

/* ---- Statuses ---- */

TEST_SETUP(status_of_each_result, NULL, NULL) {
  static const struct {
    int first, last;
    weir_status status;
  } ranges[] = {
      {0, 0, WEIR_OK},
      {1, 1, WEIR_ERROR_INVALID_ARGUMENT},
      {2, 2, WEIR_ERROR_OUT_OF_MEMORY},
      {34, 34, WEIR_ERROR_NO_DRIVER},
      {100, 100, WEIR_ERROR_NO_DEVICE},
      {101, 101, WEIR_ERROR_INVALID_DEVICE},
      {201, 201, WEIR_ERROR_INVALID_HANDLE},
      {214, 214, WEIR_ERROR_DEVICE_FAULT},
      {217, 217, WEIR_ERROR_NOT_SUPPORTED},
      {220, 220, WEIR_ERROR_DEVICE_FAULT},
      {226, 226, WEIR_ERROR_DEVICE_FAULT},
      {400, 400, WEIR_ERROR_INVALID_HANDLE},
      {600, 600, WEIR_ERROR_NOT_READY},
      {700, 700, WEIR_ERROR_DEVICE_FAULT},
      {702, 702, WEIR_ERROR_DEVICE_FAULT},
      {709, 709, WEIR_ERROR_INVALID_HANDLE},
      {710, 710, WEIR_ERROR_DEVICE_FAULT},
      {714, 719, WEIR_ERROR_DEVICE_FAULT},
      {721, 721, WEIR_ERROR_DEVICE_FAULT},
      {801, 801, WEIR_ERROR_NOT_SUPPORTED},
      {810, 810, WEIR_ERROR_DEVICE_FAULT},
      {900, 908, WEIR_ERROR_CAPTURE},
      {911, 911, WEIR_ERROR_DEVICE_FAULT},
  };
  size_t next = 0;
  for (int code = -5; code < 2000; code++) {
    while (next < WEIR_COUNT_OF(ranges) && ranges[next].last < code)
      next++;
    bool listed = next < WEIR_COUNT_OF(ranges) && ranges[next].first <= code;
    weir_status expected = listed ? ranges[next].status : WEIR_ERROR_DRIVER, got = weir__status_of_result(code);
    if (got != expected)
      fail_msg("code %d is %s, not %s", code, weir_status_name(got), weir_status_name(expected));
  }
}

/* A table that fails with a given result, and knows two results that driver.h does not list. */
static weir_cu_result code_of_query;
static weir_cu_result stream_query(weir_driver *self, weir_cu_stream stream) {
  (void)self, (void)stream;
  return code_of_query;
}
static weir_cu_result error_name(weir_driver *self, weir_cu_result code, const char **name) {
  (void)self;
  *name = code == 4321 || code == 911 ? "CUDA_ERROR_NEW" : NULL;
  return *name ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}
static weir_cu_result error_string(weir_driver *self, weir_cu_result code, const char **text) {
  (void)self;
  *text = code == 4321 || code == 911 ? "newer than this program" : NULL;
  return *text ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

static weir_status query(weir_cu_result result) {
  static weir_driver table = {.StreamQuery = stream_query, .GetErrorName = error_name, .GetErrorString = error_string};
  weir_driver *d = &table;
  weir_cu_stream stream = NULL;
  code_of_query = result;
  return WEIR__CALL(d, StreamQuery(d, stream));
}

TEST(failed_call_has_a_text) {
  assert_int_equal(query(WEIR_CU_OUT_OF_MEMORY), WEIR_ERROR_OUT_OF_MEMORY);
  const char *text = "query: cuStreamQuery(d, stream) failed: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory";
  assert_string_equal(weir_last_error(), text);
  assert_int_equal(weir_last_driver_result(), 2);
  assert_int_equal(messages.count, 1);
  assert_int_equal(messages.level, WEIR_LOG_DEBUG);
  assert_non_null(strstr(messages.text, text));
}

TEST(success_and_not_ready_are_silent) {
  weir__fail_result(WEIR_ERROR_DRIVER, 12, "before");
  messages.count = 0;
  assert_int_equal(query(WEIR_CU_SUCCESS), WEIR_OK);
  assert_int_equal(query(WEIR_CU_NOT_READY), WEIR_ERROR_NOT_READY);
  assert_string_equal(weir_last_error(), "before");
  assert_int_equal(weir_last_driver_result(), 12);
  assert_int_equal(messages.count, 0);
}

TEST(driver_names_unknown_results) {
  assert_int_equal(query(4321), WEIR_ERROR_DRIVER);
  assert_string_equal(weir_last_error(),
                      "query: cuStreamQuery(d, stream) failed: CUDA_ERROR_NEW (4321): newer than this program");
  assert_int_equal(weir_last_driver_result(), 4321);

  assert_int_equal(query(4322), WEIR_ERROR_DRIVER);
  assert_string_equal(weir_last_error(), "query: cuStreamQuery(d, stream) failed: CUDA_ERROR_<unrecognized> (4322): "
                                         "unrecognized error code");
}

TEST(advice) {
  for (int code = 0; code < 1000; code++) {
    weir_status status = weir__status_of_result(code);
    if (status != WEIR_ERROR_DEVICE_FAULT && status != WEIR_ERROR_CAPTURE)
      continue;
    assert_int_equal(query(code), status);
    if (!strstr(weir_last_error(), "; "))
      fail_msg("no advice in \"%s\"", weir_last_error());
    if (status == WEIR_ERROR_DEVICE_FAULT)
      assert_non_null(strstr(weir_last_error(), "restart the process"));
  }
  query(WEIR_CU_OPERATING_SYSTEM);
  assert_non_null(strstr(weir_last_error(), "ulimit -n"));
  assert_int_equal(query(WEIR_CU_STREAM_CAPTURE_UNMATCHED), WEIR_ERROR_CAPTURE);
  assert_string_equal(
      weir_last_error(),
      "query: cuStreamQuery(d, stream) failed: CUDA_ERROR_STREAM_CAPTURE_UNMATCHED (903): capture was not "
      "ended in the same stream as it began; end the capture on the stream that began it");
  assert_int_equal(query(WEIR_CU_STUB_LIBRARY), WEIR_ERROR_NO_DRIVER);
  assert_non_null(strstr(weir_last_error(), "install NVIDIA's driver"));
}

/* ---- The choice ---- */

/* Makes the test independent of a GPU in the machine. */
static void hide_cuda(void) { assert_int_equal(setenv("WEIR_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1), 0); }

static void assert_opens(const char *choice, const char *name) {
  weir_driver *driver = NULL;
  weir_status status = weir_driver_open(choice, &driver);
  if (status != WEIR_OK)
    fail_msg("%s: %s", weir_status_name(status), weir_last_error());
  assert_string_equal(driver->name, name);
  assert_int_equal(driver->size, sizeof(weir_driver));
  assert_true(offsetof(weir_driver, capabilities) < offsetof(weir_driver, Init)); /* entries can be appended */
  weir_driver_close(driver);
}

TEST(soft) {
  assert_opens("soft", "soft");
  assert_int_equal(setenv("WEIR_DRIVER", "soft", 1), 0);
  assert_opens(NULL, "soft");
}

TEST(soft_follows_its_environment) {
  assert_int_equal(setenv("WEIR_SOFT_DEVICES", "3", 1), 0);
  weir_driver *driver = NULL;
  assert_ok(weir_driver_open("soft", &driver));
  int count = 0;
  assert_cu(driver->Init(driver, 0));
  assert_cu(driver->DeviceGetCount(driver, &count));
  assert_int_equal(count, 3);
  weir_driver_close(driver);

  assert_int_equal(setenv("WEIR_SOFT_DEVICES", "many", 1), 0);
  driver = (weir_driver *)&messages;
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open("soft", &driver));
  assert_ptr_equal(driver, &messages);
  assert_non_null(strstr(weir_last_error(), "WEIR_SOFT_DEVICES"));
}

TEST(cuda_without_a_driver) {
  hide_cuda();
  weir_driver *driver = (weir_driver *)&messages;
  assert_status(WEIR_ERROR_NO_DRIVER, weir_driver_open("cuda", &driver));
  assert_ptr_equal(driver, &messages);
  assert_non_null(strstr(weir_last_error(), "/nowhere/libcuda.so.1"));
}

TEST(auto_without_a_driver_is_soft) {
  hide_cuda();
  /* A library that the user named and that is missing is worth a warning. */
  const char *message = "weir_driver_open: auto selects the software device, although WEIR_CUDA_LIBRARY is set: "
                        "/nowhere/libcuda.so.1 cannot be loaded";
  weir_log_set_level(WEIR_LOG_ERROR);
  weir__fail(WEIR_ERROR_SYSTEM, "before");
  assert_opens("auto", "soft");
  assert_null(strstr(messages.text, message));
  weir_log_set_level(WEIR_LOG_WARN);
  assert_opens("auto", "soft");
  assert_non_null(strstr(messages.text, message));
  /* It succeeded, so it set no last error. */
  assert_string_equal(weir_last_error(), "before");

  assert_int_equal(setenv("WEIR_DRIVER", "auto", 1), 0);
  assert_opens(NULL, "soft");
  assert_int_equal(setenv("WEIR_DRIVER", "", 1), 0);
  assert_opens(NULL, "soft");
  assert_int_equal(unsetenv("WEIR_DRIVER"), 0);
  assert_opens(NULL, "soft");
}

/* On any machine, auto finds a driver, consistent with NVIDIA's driver. */
TEST(auto_on_this_machine) {
  char reason[WEIR__CUDA_REASON] = "";
  weir_driver *cuda = NULL;
  bool usable = weir__cuda_open(reason, &cuda) == WEIR_OK && weir__cuda_has_device(cuda, reason);
  weir_driver_close(cuda);
  assert_opens("auto", usable ? "cuda" : "soft");
  if (!usable)
    print_message("no CUDA device here: %s\n", reason);
}

TEST(garbage_is_refused) {
  weir_driver *driver = (weir_driver *)&messages;
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open("gpu", &driver));
  assert_string_equal(weir_last_error(),
                      "weir_driver_open: choice is \"gpu\"; allowed are \"auto\", \"cuda\" and \"soft\"");
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open("", &driver));
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open("Soft", &driver));

  assert_int_equal(setenv("WEIR_DRIVER", "cuda,soft", 1), 0);
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open(NULL, &driver));
  assert_string_equal(weir_last_error(),
                      "weir_driver_open: WEIR_DRIVER is \"cuda,soft\"; allowed are \"auto\", \"cuda\" and \"soft\"");
  assert_ptr_equal(driver, &messages);

  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open("soft", NULL));
  assert_string_equal(weir_last_error(), "weir_driver_open: driver is NULL");
}

/* ---- Whether a driver has a device ---- */

static weir_cu_result init_result, count_result;
static int device_count;
static weir_cu_result init(weir_driver *self, unsigned flags) {
  (void)self;
  assert_int_equal(flags, 0);
  return init_result;
}
static weir_cu_result get_count(weir_driver *self, int *count) {
  (void)self;
  assert_int_equal(init_result, WEIR_CU_SUCCESS);
  if (count_result == WEIR_CU_SUCCESS)
    *count = device_count;
  return count_result;
}

TEST_SETUP(has_device, NULL, NULL) {
  weir_driver table = {.Init = init, .DeviceGetCount = get_count};
  char reason[WEIR__CUDA_REASON] = "";
  init_result = WEIR_CU_STUB_LIBRARY;
  assert_false(weir__cuda_has_device(&table, reason));
  assert_string_equal(reason, "cuInit failed: CUDA_ERROR_STUB_LIBRARY (34): CUDA driver is a stub library");

  init_result = WEIR_CU_SUCCESS;
  count_result = WEIR_CU_NO_DEVICE;
  assert_false(weir__cuda_has_device(&table, reason));
  assert_string_equal(reason,
                      "cuDeviceGetCount failed: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected");

  count_result = WEIR_CU_SUCCESS;
  device_count = 0;
  assert_false(weir__cuda_has_device(&table, reason));
  assert_string_equal(reason, "the driver has no device");

  device_count = 2;
  assert_true(weir__cuda_has_device(&table, reason));
}

/* ---- The end ---- */

static int destroyed;
static void destroy(weir_driver *self) {
  (void)self;
  destroyed++;
}

TEST_SETUP(close, NULL, NULL) {
  weir_driver table = {.destroy = destroy}, kept = {0};
  weir_driver_close(NULL);
  weir_driver_close(&kept);
  assert_int_equal(destroyed, 0);
  weir_driver_close(&table);
  assert_int_equal(destroyed, 1);
}
