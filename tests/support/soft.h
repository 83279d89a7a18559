/*
 * A software device with the clock, devices and memory that a test chooses, regardless of WEIR_TEST_DRIVER. It is the
 * `d` of device.h, with the context of every device retained and that of device 0 current.
 *
 *     TEST(it) {
 *       soft_open(WEIR_SOFT_STEPPED, 1, 64 << 20);
 *       ...
 *       soft_close();
 *     }
 *     FIXTURE(.teardown = soft_teardown)
 */
#pragma once

#include "support/device.h"

extern weir_cu_context contexts[WEIR_SOFT_MAX_DEVICES];

/* Defaults, except for the given options. */
void soft_open(weir_soft_clock clock, int devices, unsigned long long bytes);
void soft_open_with(const weir_soft_options *options);

/* Releases the contexts, fails if objects are left, and closes. */
void soft_close(void);

/* Prints the seed of a failing test. Its device stays open, as its state is not known. */
int soft_teardown(void **state);

/* Makes the context of a device current. */
void soft_use(int device);

/* On the current device. */
weir_cu_stream soft_stream(unsigned flags);
weir_cu_event soft_event(void);
weir_cu_deviceptr soft_alloc(size_t bytes);

/* The spin kernel, on a stream of the current device. */
void soft_spin(weir_cu_stream stream, uint64_t cycles);

/* ---- Stepping ---- */

unsigned long soft_step(weir_cu_stream stream, unsigned long count);
unsigned long soft_step_all(void);
unsigned long soft_pending(weir_cu_stream stream);
uint64_t soft_now(void);

/* ---- Census ---- */

weir_soft_census soft_census(void);

/* Fails and lists the objects if any are alive. */
void soft_check_nothing(void);

/* ---- Random numbers ---- */

/* The first seed: WEIR_TEST_SEED, or 1. If the variable is set, *rounds becomes 1. */
uint64_t soft_first_seed(int *rounds);

/* Seeds soft_random. A failing test prints the seed. */
void soft_seed(uint64_t seed);

/* A random number below `limit`, which must not be 0. For one thread. */
uint64_t soft_random(uint64_t limit);

/* The same with an explicit state. */
uint64_t soft_random_r(uint64_t *state, uint64_t limit);

/* ---- Children ---- */

/* Runs `body` in a forked child without an open device, and returns its status as waitpid does. */
int soft_in_child(void (*body)(void *data), void *data);

/* A monotonic clock in milliseconds. */
double soft_milliseconds(void);
