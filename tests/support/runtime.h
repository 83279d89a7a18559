/*
 * The runtime over the device that WEIR_TEST_DRIVER names, fresh for each test.
 *
 *     TEST(it) {
 *       weir_stream stream = new_stream(0);
 *       assert_ok(weir_stream_synchronize(stream));
 *       assert_error(INVALID_DEVICE, weir_device_set_current(1000));
 *     }
 *     FIXTURE(.setup = runtime_setup, .teardown = runtime_teardown)
 *
 * On the software device the teardown fails if objects are left. The assertions are those of check.h.
 */
#pragma once

#include "support/device.h"
#include "weir/weir.h"

/* First in main: waives the program if there is no driver. The check runs in a child process, because NVIDIA's driver
 * cannot be used in children that are forked after its start. */
void runtime_need_device(void);

/* ---- A runtime for each test: not started, on `d` ---- */

extern weir_driver *soft;  /* the underlying software device; NULL on cuda */
extern weir_driver *fault; /* the fault table around it, which is `d`; NULL unless runtime_setup_fault was used */

int runtime_setup(void **state);       /* soft: two devices of 1 GiB; cuda: all devices */
int runtime_setup_fault(void **state); /* the same with a fault table around it */
int runtime_setup_four(void **state);  /* as runtime_setup_fault; soft: four devices */
int runtime_setup_none(void **state);  /* no driver is chosen, for tests that use WEIR_DRIVER */
int runtime_teardown(void **state);

/* Shuts the runtime down and checks for leaks. */
void shut_down_clean(void);

/* Selects the driver of the test through the environment, for a runtime that opens its driver itself. */
void choose_driver_by_environment(void);

/* The number of devices of the runtime. WAIVE_TEST if a test needs more. */
int devices(void);
#define NEED_TWO_DEVICES()                                                                                             \
  do {                                                                                                                 \
    if (devices() < 2)                                                                                                 \
      WAIVE_TEST("needs two devices");                                                                                 \
  } while (0)
#define NEED_SOFT(reason)                                                                                              \
  do {                                                                                                                 \
    if (!is_soft())                                                                                                    \
      WAIVE_TEST(reason);                                                                                              \
  } while (0)
#define NEED_STEPPED()                                                                                                 \
  do {                                                                                                                 \
    if (!is_stepped())                                                                                                 \
      WAIVE_TEST("needs the stepped clock, which can stop between two pieces of work");                                \
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

void uuid_of(int device, char text[48]);

/* Synchronizes the device and checks every byte. */
#define assert_filled(device, memory, value, bytes)                                                                    \
  runtime_is_filled((device), (memory), (value), (bytes), __FILE__, __LINE__)
void runtime_is_filled(int device, const void *memory, uint8_t value, size_t bytes, const char *file, int line);

/* ---- Work ---- */

/* Blocks the stream until unblock, so that work behind it is certainly not done. Meanwhile the thread of the test must
 * not wait for that work, nor allocate or free memory. */
struct held *hold(weir_stream stream);
void unblock(struct held *held);

/* Enqueues a host function that appends a number to the marks. */
void mark(weir_stream stream, int number);
void forget_marks(void);
int mark_count(void);
#define assert_marks(...)                                                                                              \
  runtime_marks_are((const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int), __FILE__, __LINE__)
void runtime_marks_are(const int *numbers, size_t count, const char *file, int line);
/* The index of a number among the marks; -1 if it is missing. */
int place_of_mark(int number);

/* A kernel: to[i] = from[i] + value for 32-bit words. Call load_add first, outside of a capture. */
void load_add(int device);
weir_cu_result launch_add(void *to, const void *from, uint32_t value, uint32_t count, weir_stream stream);

/* Cycles of the device clock in this many milliseconds. */
uint64_t cycles_of(double milliseconds);

/* ---- Messages ---- */

/* Collects log messages until the teardown. */
void collect_messages(void);
int messages_with(weir_log_level level, const char *words);

/* ---- Other threads and processes ---- */

/* Runs fn(data) on another thread and joins it. */
void on_thread(void *(*fn)(void *), void *data);

/* Runs fn(data) in a forked child, and fails unless it runs to its end. The child uses child_assert, not the other
 * assertions. */
#define in_process(fn, data) runtime_in_process((fn), (data), __FILE__, __LINE__)
void runtime_in_process(void (*fn)(void *), void *data, const char *file, int line);
/* The same from inside such a child, where no test can fail. 1 if fn ran to its end. */
int succeeds_in_process(void (*fn)(void *), void *data);

/* ---- Failing driver calls ---- */

/* Runs `scenario` with its nth driver call failing, on a runtime with a fault table. An error that it returns must have
 * a text. Returns whether it made that many calls; if not, it must have succeeded. */
bool fails_at(unsigned long n, weir_status (*scenario)(void));

/* Runs `scenario`, which uses the runtime and releases everything, once for every driver call that it makes, and makes
 * that call fail. The scenario must then fail with an error text, unless the runtime tolerates the failure. It must
 * succeed when repeated, and must leak nothing. The last rounds make the calls of the shutdown fail. For the software
 * device with runtime_setup_none. */
void sweep_faults(weir_status (*scenario)(void));

/* Marks the rest of the scenario, which destroys objects and cannot report failures. */
void only_giving_back(void);
