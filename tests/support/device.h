/*
 * The device that a test program runs on: WEIR_TEST_DRIVER=soft (the default), soft-stepped, cuda or ledger.
 *
 *     static void test_it(void **state) {
 *       weir_cu_deviceptr p;
 *       assert_cu(d->MemAlloc(d, &p, 100));
 *       assert_cu_error(INVALID_VALUE, d->MemFree(d, p + 8));
 *       assert_cu(d->MemFree(d, p));
 *     }
 *     cmocka_unit_test_setup_teardown(test_it, device_setup, device_teardown)
 *
 * The checks jump out of a failing test, so they are for the test's own thread only.
 */
#ifndef WEIR_TEST_DEVICE_H
#define WEIR_TEST_DEVICE_H

#include "support/check.h"
#include "weir/soft.h"

bool is_soft(void);    /* the software device, in either clock */
bool is_stepped(void); /* the software device in stepped time */
bool is_cuda(void);    /* NVIDIA's driver */
bool is_ledger(void);  /* runs no work and has no memory */

/* Prints "waived: reason" and ends the program with 77: none of it can run here. */
_Noreturn void waived(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same of one test, which counts as skipped. */
#define WAIVE_TEST(...)                                                                                                \
  do {                                                                                                                 \
    device_print_waived(__func__, __VA_ARGS__);                                                                        \
    skip();                                                                                                            \
  } while (0)

/* Only says so: the rest of the test runs. */
void device_print_waived(const char *what, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- A driver without more, for those who set up the rest themselves ---- */

/* Not initialised. `options` may be NULL; WEIR_TEST_DRIVER overrides their clock, cuda ignores them, and the ledger
 * takes the number and size of the devices from them. A program for cuda is waived where there is none. */
weir_driver *device_open_bare(const weir_soft_options *options);

/* The same, initialised, with at least one device. */
weir_driver *device_open(const weir_soft_options *options);

/* NVIDIA's driver stays open for the life of the process. */
void device_close(weir_driver *driver);

/* On the software device: fails unless all that was made is gone, contexts and default pools apart. On the ledger:
 * fails unless all memory of device 0 is free. */
void device_check_clean(weir_driver *driver);

/* ---- A whole device for each test ---- */

extern weir_driver *d;      /* between setup and teardown */
extern weir_cu_context ctx; /* the primary context of device 0, current on the test's thread */

int device_setup(void **state);       /* one device of 16 GiB, unless it is cuda */
int device_setup_two(void **state);   /* two of them; cuda has as many as there are: see device_count */
int device_setup_small(void **state); /* one of 64 MiB, unless it is cuda */
int device_teardown(void **state);    /* opens all gates, releases the context, checks that nothing is left */
int device_count(void);

/* ---- Work that takes its time ---- */

/* Keeps a stream of ctx busy for about so long. */
void spin(weir_cu_stream stream, double milliseconds);

/* The entry weir_spin(.param .u64 cycles), for those who launch it themselves. Loaded on first use, gone with the
 * teardown. */
weir_cu_function spin_function(void);
extern const char spin_ptx[];

/* A gate stops a stream until the test opens it, so that "not done yet" is certain. While it is closed the test's
 * thread waits for nothing: in stepped time it is the one that would come to the gate. An open gate may be opened
 * again. */
struct gate *gate_close(weir_cu_stream stream);
void gate_open(struct gate *gate);

#endif
