/*
 * The device that a test program runs on: WEIR_TEST_DRIVER=soft (the default), soft-stepped, cuda or ledger.
 *
 *     TEST(it) {
 *       weir_cu_deviceptr p;
 *       assert_cu(d->MemAlloc(d, &p, 100));
 *       assert_cu_error(INVALID_VALUE, d->MemFree(d, p + 8));
 *       assert_cu(d->MemFree(d, p));
 *     }
 *     FIXTURE(.setup = device_setup, .teardown = device_teardown)
 *
 * The assertions are those of check.h.
 */
#pragma once

#include "support/check.h"
#include "weir/soft.h"

bool is_soft(void);    /* the software device, in either clock */
bool is_stepped(void); /* the software device in stepped time */
bool is_cuda(void);    /* NVIDIA's driver */
bool is_ledger(void);  /* runs no work and has no memory */

/* Prints "waived: reason" and ends the program with 77: none of it can run here. */
_Noreturn void waived(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Waives one test, which counts as skipped. Not in a setup function: cmocka counts that as a failure. */
#define WAIVE_TEST(...)                                                                                                \
  do {                                                                                                                 \
    device_print_waived(__func__, __VA_ARGS__);                                                                        \
    skip();                                                                                                            \
  } while (0)

/* Prints the message; the rest of the test runs. */
void device_print_waived(const char *what, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- A plain driver ---- */

/* Not initialized. `options` may be NULL. WEIR_TEST_DRIVER overrides the clock, cuda ignores the options, and the
 * ledger uses the number and size of the devices. Without a GPU, a program for cuda is waived. */
weir_driver *device_open_bare(const weir_soft_options *options);

/* The same, initialized, with at least one device. */
weir_driver *device_open(const weir_soft_options *options);

/* NVIDIA's driver stays open for the life of the process. */
void device_close(weir_driver *driver);

/* On the software device, fails if any object is left, except contexts and default pools. On the ledger, fails if
 * memory of device 0 is in use. */
void device_check_clean(weir_driver *driver);

/* ---- A device for each test ---- */

extern weir_driver *d;      /* between setup and teardown */
extern weir_cu_context ctx; /* the primary context of device 0, current on the test's thread */

int device_setup(void **state);       /* one device; 16 GiB unless it is cuda */
int device_setup_two(void **state);   /* two devices; on cuda as many as exist: see device_count */
int device_setup_small(void **state); /* one device; 64 MiB unless it is cuda */
int device_teardown(void **state);    /* opens all gates, releases the context, and checks for leaks */
int device_count(void);

/* ---- Slow work ---- */

/* Keeps a stream of ctx busy for about this long. */
void spin(weir_cu_stream stream, double milliseconds);

/* The kernel weir_spin(.param .u64 cycles), for tests that launch it themselves. Loaded on first use, unloaded by the
 * teardown. */
weir_cu_function spin_function(void);
extern const char spin_ptx[];

/* A gate blocks a stream until the test opens it, so that work behind it is certainly not done. While a gate is closed
 * the thread of the test must not synchronize: in stepped time it would itself run into the gate. Opening an open gate
 * is allowed. */
struct gate *gate_close(weir_cu_stream stream);
void gate_open(struct gate *gate);
