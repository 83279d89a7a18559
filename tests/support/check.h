/*
 * Assertions about the result of a call. A failure prints the call, the expected and the actual value, and Weir's last
 * error.
 *
 *     assert_ok(weir_stream_synchronize(stream));
 *     assert_error(INVALID_DEVICE, weir_device_set_current(1000));
 *     assert_cu(d->MemAlloc(d, &p, 100));
 *     assert_cu_error(INVALID_VALUE, d->MemFree(d, p + 8));
 *
 * An assertion that fails leaves the test with longjmp, so it must run on the test's own thread. Other threads keep
 * their results for the test to check, and a forked child uses child_assert.
 */
#pragma once

#include <sys/types.h>

#include "support/test.h"
#include "weir/weir.h"

/* ---- Calls that return a weir_status ---- */

#define assert_ok(call) test_check_status((call), WEIR_OK, #call, __FILE__, __LINE__)
#define assert_status(expected, call) test_check_status((call), (expected), #call, __FILE__, __LINE__)

/* The call fails with WEIR_ERROR_<name>, and sets a last error that begins with the name of the called function. */
#define assert_error(name, call)                                                                                       \
  (clear_last_error(), test_check_error((call), WEIR_ERROR_##name, "", #call, __FILE__, __LINE__))

/* The last error also contains `words`. */
#define assert_error_says(name, words, call)                                                                           \
  (clear_last_error(), test_check_error((call), WEIR_ERROR_##name, words, #call, __FILE__, __LINE__))

/* WEIR_ERROR_NOT_READY is not a failure: it sets no last error. */
#define assert_not_ready(call) (clear_last_error(), test_check_not_ready((call), #call, __FILE__, __LINE__))

/* ---- Calls of the driver table ---- */

#define assert_cu(call) test_check_cu_result((call), WEIR_CU_SUCCESS, #call, __FILE__, __LINE__)
#define assert_cu_error(name, call) test_check_cu_result((call), WEIR_CU_##name, #call, __FILE__, __LINE__)
#define assert_cu_result(expected, call) test_check_cu_result((call), (expected), #call, __FILE__, __LINE__)

/* ---- Structs ---- */

/* HOST_CONF("pinned_use_cuda_host_register:True") for weir_host_allocator_create. */
#define HOST_CONF(text)                                                                                                \
  (&(const weir_host_allocator_options){.size = sizeof(weir_host_allocator_options), .conf = (text)})

/* OBSERVER(.entry = note, .context = &notes) for weir_allocator_attach. */
#define OBSERVER(...) (&(const weir_observer){.size = sizeof(weir_observer), __VA_ARGS__})

/* ---- Forked children ---- */

/* In the child: prints the condition and ends the process. */
#define child_assert(condition) ((condition) ? (void)0 : test_child_failed(#condition, __FILE__, __LINE__))
#define child_assert_ok(call) child_assert((call) == WEIR_OK)

/* Waits for a child. Returns its exit code, or minus the signal that ended it. */
int child_outcome(pid_t child);

/* ---- What the macros call ---- */

/* Replaces the thread's last error by a known text, so that the text of an earlier call is not taken for a new one. */
void clear_last_error(void);

void test_check_status(weir_status status, weir_status expected, const char *call, const char *file, int line);
void test_check_error(weir_status status, weir_status expected, const char *words, const char *call, const char *file,
                      int line);
void test_check_not_ready(weir_status status, const char *call, const char *file, int line);
void test_check_cu_result(weir_cu_result result, weir_cu_result expected, const char *call, const char *file, int line);
_Noreturn void test_child_failed(const char *condition, const char *file, int line);

/* ---- Answers of calls that do not fail here ---- */

static inline weir_cu_event event_raw(const weir_event *event) {
  weir_cu_event raw = NULL;
  assert_ok(weir_event_raw(event, &raw));
  return raw;
}

static inline int event_device(const weir_event *event) {
  int device = -2;
  assert_ok(weir_event_device(event, &device));
  return device;
}

static inline int is_owned(weir_allocator *by, const void *pointer) {
  int owns = -1;
  assert_ok(weir_allocator_owns(by, pointer, &owns));
  return owns;
}

static inline int is_caching(const weir_allocator *it) {
  int on = -1;
  assert_ok(weir_allocator_is_caching(it, &on));
  return on;
}

static inline int is_recording(const weir_allocator *it) {
  int on = -1;
  assert_ok(weir_history_is_on(it, &on));
  return on;
}

static inline size_t length_of_summary(const weir_allocator_stats *stats, int device, weir_summary_form form,
                                       char *text, size_t size) {
  size_t length = 0;
  assert_ok(weir_stats_summary(stats, device, form, text, size, &length));
  return length;
}
