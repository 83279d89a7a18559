/*
 * The software device stepped by hand: a buffer is freed in one stream while another still uses it. On a GPU the order
 * is a matter of luck; here the program decides it, and it is the same every time.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/soft.h>

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static void check_driver(weir_cu_result result) {
  if (result != WEIR_CU_SUCCESS) {
    fprintf(stderr, "%s: %s\n", weir_cu_result_name(result), weir_cu_result_string(result));
    exit(1);
  }
}

static void expect(int as_expected, const char *what) {
  printf("%s %s\n", as_expected ? "yes:" : "NO: ", what);
  if (!as_expected)
    exit(1);
}

int main(void) {
  enum { BYTES = 1 << 20 };
  weir_soft_options options;
  weir_driver *d;
  weir_cu_context context;
  weir_soft_options_init(&options);
  options.clock = WEIR_SOFT_STEPPED;
  options.copy_bytes_per_second = 1ull << 30; /* 1 MiB takes 1/1024 of a second */
  check(weir_driver_open_soft(&options, &d));
  check_driver(d->Init(d, 0));
  check_driver(d->DevicePrimaryCtxRetain(d, &context, 0));
  check_driver(d->CtxSetCurrent(d, context));

  weir_cu_stream owner, user;
  weir_cu_event made, used;
  check_driver(d->StreamCreateWithPriority(d, &owner, WEIR_CU_STREAM_NON_BLOCKING, 0));
  check_driver(d->StreamCreateWithPriority(d, &user, WEIR_CU_STREAM_NON_BLOCKING, 0));
  check_driver(d->EventCreate(d, &made, WEIR_CU_EVENT_DEFAULT));
  check_driver(d->EventCreate(d, &used, WEIR_CU_EVENT_DEFAULT));

  /* The owner creates a buffer, the user reads it, and the owner frees it after that. */
  weir_cu_deviceptr buffer, result, other;
  check_driver(d->MemAlloc(d, &result, BYTES));
  check_driver(d->MemAllocAsync(d, &buffer, BYTES, owner));
  check_driver(d->MemsetD8Async(d, buffer, 42, BYTES, owner));
  check_driver(d->EventRecord(d, made, owner));
  check_driver(d->StreamWaitEvent(d, user, made, 0));
  check_driver(d->MemcpyAsync(d, result, buffer, BYTES, user));
  check_driver(d->EventRecord(d, used, user));
  check_driver(d->StreamWaitEvent(d, owner, used, 0));
  check_driver(d->MemFreeAsync(d, buffer, owner));

  const volatile unsigned char *bytes = (const volatile unsigned char *)(uintptr_t)result;
  unsigned long done;
  expect(d->StreamQuery(d, owner) == WEIR_CU_NOT_READY && bytes[0] == 0, "nothing has run yet");
  check(weir_soft_step(d, user, 10, &done));
  expect(done == 0, "the user's stream waits for the owner's");
  check(weir_soft_step(d, owner, 10, &done));
  expect(done == 2, "the owner's stream fills, records, and waits for the user's");

  /* Now the buffer is freed by the program, but not by the device. */
  check_driver(d->MemAllocAsync(d, &other, BYTES, user));
  expect(other != buffer, "the buffer is not reused before the user has read it");
  check_driver(d->MemFreeAsync(d, other, user));

  check(weir_soft_step(d, user, 2, &done));
  expect(done == 2 && bytes[BYTES - 1] == 42, "the user's stream has read it");
  check(weir_soft_step_all(d, &done));
  expect(d->StreamQuery(d, owner) == WEIR_CU_SUCCESS, "all is done");

  /* Time is counted: a fill and a copy, one after the other, each a microsecond plus its bytes. */
  uint64_t nanoseconds;
  float milliseconds;
  check(weir_soft_now(d, &nanoseconds));
  check_driver(d->EventElapsedTime(d, &milliseconds, made, used));
  printf("     the copy took %.6f ms, everything %.6f ms\n", (double)milliseconds, (double)nanoseconds / 1e6);
  expect(nanoseconds == 2 * (1000 + 976562), "and it takes that long every time");

  check_driver(d->MemFree(d, result));
  check_driver(d->DevicePrimaryCtxRelease(d, 0)); /* destroys the streams and events too */
  weir_soft_census census = {.size = sizeof census};
  check(weir_soft_get_census(d, &census));
  expect(census.device_bytes == 0 && census.streams == 0, "nothing is left");
  weir_driver_close(d);
  return 0;
}
