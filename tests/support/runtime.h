/*
 * The runtime over the device that WEIR_TEST_DRIVER names, fresh for each test.
 *
 *     static void test_it(void **state) {
 *       weir_stream stream = new_stream(0);
 *       assert_ok(weir_stream_synchronize(stream));
 *       assert_error(INVALID_DEVICE, weir_device_set(1000));
 *     }
 *     cmocka_unit_test_setup_teardown(test_it, runtime_setup, runtime_teardown)
 *
 * On the software device the teardown fails when anything is left behind. The checks jump out of a failing test, so they are
 * for the test's own thread only.
 */
#ifndef WEIR_TEST_RUNTIME_H
#define WEIR_TEST_RUNTIME_H

#include "support/device.h"
#include "weir/weir.h"

/* First in main: ends the program as waived where the driver is not there. It asks in a process of its own, because NVIDIA's
 * driver, once started, spoils every later child. */
void runtime_need_device(void);

/* ---- A runtime for each test: not started, on `d` ---- */

extern weir_driver *soft;  /* the software device below; NULL on cuda */
extern weir_driver *fault; /* the wrapper around it that `d` is then; NULL unless the setup was runtime_setup_fault */

int runtime_setup(void **state);       /* soft: two devices of 1 GiB; cuda: as many as there are */
int runtime_setup_fault(void **state); /* the same with a fault table around it */
int runtime_setup_four(void **state);  /* as runtime_setup_fault; soft: four devices */
int runtime_setup_none(void **state);  /* no driver is chosen: for tests that use WEIR_DRIVER */
int runtime_teardown(void **state);

/* Shuts the runtime down, and checks that nothing is left of it. */
void shut_down_clean(void);

/* Points the environment to the driver of the test, for a runtime that opens it by itself. */
void choose_driver_by_environment(void);

/* How many devices the started runtime has. WAIVE_TEST where a test needs more. */
int devices(void);
#define NEED_TWO_DEVICES()                                                                                             \
  do {                                                                                                                 \
    if (devices() < 2)                                                                                                 \
      WAIVE_TEST("there is one device, and it takes two");                                                             \
  } while (0)
#define NEED_SOFT(reason)                                                                                              \
  do {                                                                                                                 \
    if (!is_soft())                                                                                                    \
      WAIVE_TEST(reason);                                                                                              \
  } while (0)
#define NEED_STEPPED()                                                                                                 \
  do {                                                                                                                 \
    if (!is_stepped())                                                                                                 \
      WAIVE_TEST("it takes the stepped clock to stop between two pieces of work");                                     \
  } while (0)

/* ---- Checks ---- */

#define assert_stream_equal(a, b) runtime_same_stream((a), (b), __FILE__, __LINE__)
void runtime_same_stream(weir_stream a, weir_stream b, const char *file, int line);

/* ---- Streams and memory ---- */

weir_stream new_stream(int device);
weir_stream default_stream(int device);
weir_stream current_stream(int device);
weir_cu_stream raw_of(weir_stream stream);

void *device_memory(int device, size_t bytes);
void free_device_memory(int device, void *memory);
void *pinned_memory(size_t bytes);
void free_pinned_memory(void *memory);

/* Every byte of the memory, once all work of its device is done. */
#define assert_filled(device, memory, value, bytes)                                                                    \
  runtime_is_filled((device), (memory), (value), (bytes), __FILE__, __LINE__)
void runtime_is_filled(int device, const void *memory, uint8_t value, size_t bytes, const char *file, int line);

/* ---- Work ---- */

/* Stops the stream until the test lets go, so that "not done yet" is certain. While a stream is held the test's thread waits
 * for nothing that is behind it, and makes and frees no memory. */
struct held *hold(weir_stream stream);
void let_go(struct held *held);

/* Puts a number into the stream; when the stream gets there it is appended to the marks. */
void mark(weir_stream stream, int number);
void forget_marks(void);
int mark_count(void);
#define assert_marks(...)                                                                                              \
  runtime_marks_are((const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int), __FILE__, __LINE__)
void runtime_marks_are(const int *numbers, size_t count, const char *file, int line);
/* Where a number stands among the marks; -1 when it does not. */
int place_of_mark(int number);

/* A kernel: to[i] = from[i] + value for 32-bit words. load_add comes first, and not in a capture. */
void load_add(int device);
weir_cu_result launch_add(void *to, const void *from, uint32_t value, uint32_t count, weir_stream stream);

/* Cycles of the device's clock in so many milliseconds. */
uint64_t cycles_of(double milliseconds);

/* ---- Messages ---- */

/* Collects what is logged, from here to the teardown. */
void collect_messages(void);
int messages_with(weir_log_level level, const char *words);

/* ---- Other threads and processes ---- */

/* Runs fn(data) on another thread, to its end. */
void on_thread(void *(*fn)(void *), void *data);

/* Runs fn(data) in a process of its own, forked here, and fails unless it gets to its end. It uses
 * child_assert, not the other assertions. */
#define in_process(fn, data) runtime_in_process((fn), (data), __FILE__, __LINE__)
void runtime_in_process(void (*fn)(void *), void *data, const char *file, int line);
/* The same from inside such a process, where there is no test to fail. 1 when fn got to its end. */
int succeeds_in_process(void (*fn)(void *), void *data);

/* ---- Failing driver calls ---- */

/* Runs `scenario`, which uses the runtime and gives back all that it took, once for every driver call that it makes, and
 * lets that call fail. The scenario has to end with an error and a text then, unless the call is one that the runtime can
 * do without; the runtime has to work for it again right after, and has to leave nothing behind. The last rounds let the
 * calls of the shutdown fail. For the software device; the test's setup is runtime_setup_none. */
void sweep_faults(weir_status (*scenario)(void));

/* In the scenario, before calls that cannot tell of a failure: those that destroy. */
void only_giving_back(void);

#endif
