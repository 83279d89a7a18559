/*
 * Shared by the rules tests, which check the rules of CUDA through the table. The same assertions hold for the software
 * device, with both clocks, and for NVIDIA's driver, so the software device is known to behave as NVIDIA's driver does.
 * The expected results are those of driver 580 (CUDA 13.0) on an H200. Where the software device is stricter on
 * purpose, the test says so, and waives that part on NVIDIA's driver.
 */
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

enum { KIB = 1024, MIB = 1024 * 1024 };

/* A stream that does not synchronize with the legacy stream. */
static inline weir_cu_stream stream_new(void) {
  weir_cu_stream stream;
  assert_cu(d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  return stream;
}

static inline weir_cu_stream stream_new_blocking(void) {
  weir_cu_stream stream;
  assert_cu(d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_DEFAULT, 0));
  return stream;
}

static inline weir_cu_event event_new(unsigned flags) {
  weir_cu_event event;
  assert_cu(d->EventCreate(d, &event, flags));
  return event;
}

static inline weir_cu_deviceptr mem_new(size_t bytes) {
  weir_cu_deviceptr pointer;
  assert_cu(d->MemAlloc(d, &pointer, bytes));
  return pointer;
}

/* Page-locked and zeroed. On the ledger it is only an address. */
static inline void *host_new(size_t bytes) {
  void *pointer;
  assert_cu(d->MemHostAlloc(d, &pointer, bytes, 0));
  if (!is_ledger())
    memset(pointer, 0, bytes);
  return pointer;
}

static inline weir_cu_deviceptr address_of(const void *host) { return (weir_cu_deviceptr)(uintptr_t)host; }

/* An address that is never valid. */
static const weir_cu_deviceptr nowhere = 0x1234000;

/* The index of the first byte that is not `value`, or `bytes`. */
static inline size_t first_other(const unsigned char *at, size_t bytes, unsigned char value) {
  if (!bytes || (at[0] == value && !memcmp(at, at + 1, bytes - 1)))
    return bytes;
  size_t i = 0;
  while (at[i] == value)
    i++;
  return i;
}

/* The ledger has no memory to read, so the next two functions succeed there. */
static inline void assert_filled(const void *host, size_t bytes, unsigned char value) {
  const unsigned char *at = host;
  if (is_ledger())
    return;
  size_t i = first_other(at, bytes, value);
  if (i < bytes) {
    print_error("byte %zu of %zu is %#x, expected %#x\n", i, bytes, at[i], value);
    fail();
  }
}

/* Reads device memory that no pending work uses. */
static inline void assert_device_filled(weir_cu_deviceptr pointer, size_t bytes, unsigned char value) {
  unsigned char *copy = malloc(bytes);
  assert_non_null(copy);
  weir_cu_result result = d->Memcpy(d, address_of(copy), pointer, bytes);
  size_t i = result || is_ledger() ? bytes : first_other(copy, bytes, value);
  unsigned char found = i < bytes ? copy[i] : value;
  free(copy);
  assert_cu(result);
  if (i < bytes) {
    print_error("byte %zu of %zu on the device is %#x, expected %#x\n", i, bytes, found, value);
    fail();
  }
}

static inline int capture_status(weir_cu_stream stream) {
  int status = -1;
  assert_cu(d->StreamIsCapturing(d, stream, &status));
  return status;
}

/* Runs fn(data) on another thread and joins it. fn must not assert; it keeps results for the test. */
static inline void on_another_thread(void *(*fn)(void *), void *data) {
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, fn, data), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
}

/* ---- Waivers ---- */

static const struct rules_waiver {
  const char *suite, *rule, *reason;
} rules_waivers[] = {
#define WAIVED(suite, rule, reason) {suite, #rule, reason},
#include "driver/rules_waived.h"
};
enum { RULES_WAIVERS = sizeof rules_waivers / sizeof *rules_waivers };

/* Whether the rule is waived on the current driver. Prints the reason. */
static inline bool is_waived(const char *rule) {
  for (size_t i = 0; is_ledger() && i < RULES_WAIVERS; i++)
    if (!strcmp(rules_waivers[i].suite, test_module()) && !strcmp(rules_waivers[i].rule, rule)) {
      device_print_waived(rule, "%s", rules_waivers[i].reason);
      return true;
    }
  return false;
}

/* A waiver for a test that does not exist is an error. */
static inline void rules_prepare(void) {
  for (size_t i = 0; i < RULES_WAIVERS; i++)
    if (!strcmp(rules_waivers[i].suite, test_module()) && !strncmp(rules_waivers[i].rule, "test_", 5) &&
        !test_exists(rules_waivers[i].rule)) {
      fprintf(stderr, "rules_waived.h lists %s, which %s does not have\n", rules_waivers[i].rule, test_module());
      exit(1);
    }
}

#define RULES .prepare = rules_prepare, .omits = is_waived, .setup = device_setup, .teardown = device_teardown
