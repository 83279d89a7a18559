/*
 * Real faults: accessing memory that is unmapped, or mapped without access, kills the process, whichever code does it.
 * Each case runs in a child process.
 */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB };

enum step { NOTHING, READ, WRITE };

/* What is accessed, and how; in a child. */
struct touch {
  void (*prepare)(weir_cu_deviceptr va); /* two granules are reserved at va */
  enum step step;
  weir_soft_clock clock;
  bool by_kernel;
};

static weir_cu_mem_handle handle;

static void map(weir_cu_deviceptr va) {
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  assert_cu(d->MemCreate(d, &handle, G, &prop, 0));
  assert_cu(d->MemMap(d, va, G, 0, handle, 0));
}

static void set_access(weir_cu_deviceptr va, int device, int flags) {
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, device}, flags};
  assert_cu(d->MemSetAccess(d, va, G, &access, 1));
}

static void do_touch(weir_cu_deviceptr at, enum step step) {
  if (step == READ)
    (void)*(volatile char *)(uintptr_t)at;
  if (step == WRITE)
    *(volatile char *)(uintptr_t)at = 1;
}

static weir_cu_result touch_kernel(const weir_soft_launch *launch) {
  do_touch(*(weir_cu_deviceptr *)launch->params[0], *(enum step *)launch->params[1]);
  return WEIR_CU_SUCCESS;
}

static void launch_touch(weir_cu_deviceptr at, enum step step) {
  static const size_t bytes[] = {sizeof at, sizeof step};
  assert_ok(weir_soft_register_kernel(d, "touch", touch_kernel, 2, bytes));
  weir_cu_module module;
  weir_cu_function function;
  void *params[] = {&at, &step};
  assert_cu(d->ModuleLoadData(d, &module, ".version 6.0\n.entry touch()\n"));
  assert_cu(d->ModuleGetFunction(d, &function, module, "touch"));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
  assert_cu(d->CtxSynchronize(d));
}

static void touch_body(void *data) {
  const struct touch *touch = data;
  weir_cu_deviceptr va;
  soft_open(touch->clock, 2, 64 * MIB);
  assert_cu(d->MemAddressReserve(d, &va, 2 * G, 0, 0, 0));
  touch->prepare(va);
  if (touch->by_kernel)
    launch_touch(va + 4097, touch->step);
  else
    do_touch(va + 4097, touch->step);
  weir_driver_close(d);
  d = NULL;
}

static void expect_end(const struct touch *touch, bool faults) {
  int status = soft_in_child(touch_body, (void *)(uintptr_t)touch);
  if (faults) {
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
  } else {
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
  }
}

static void expect(void (*prepare)(weir_cu_deviceptr va), bool read_faults, bool write_faults) {
  for (int by_kernel = 0; by_kernel < 2; by_kernel++)
    for (int clock = WEIR_SOFT_THREADS; clock <= WEIR_SOFT_STEPPED; clock++) {
      struct touch touch = {prepare, NOTHING, (weir_soft_clock)clock, by_kernel};
      expect_end(&touch, false); /* the steps before do not fault */
      touch.step = READ;
      expect_end(&touch, read_faults);
      touch.step = WRITE;
      expect_end(&touch, write_faults);
    }
}

static void only_reserved(weir_cu_deviceptr va) { (void)va; }

static void no_access_yet(weir_cu_deviceptr va) { map(va); }

static void readable(weir_cu_deviceptr va) {
  map(va);
  set_access(va, 0, WEIR_CU_ACCESS_READ);
}

static void writable(weir_cu_deviceptr va) {
  map(va);
  set_access(va, 0, WEIR_CU_ACCESS_READWRITE);
}

static void no_more_access(weir_cu_deviceptr va) {
  writable(va);
  set_access(va, 0, WEIR_CU_ACCESS_NONE);
}

static void writable_again(weir_cu_deviceptr va) {
  no_more_access(va);
  set_access(va, 0, WEIR_CU_ACCESS_READWRITE);
}

static void released_but_mapped(weir_cu_deviceptr va) {
  writable(va);
  assert_cu(d->MemRelease(d, handle));
}

static void unmapped(weir_cu_deviceptr va) {
  writable(va);
  assert_cu(d->MemUnmap(d, va, G));
}

static void mapped_anew(weir_cu_deviceptr va) {
  unmapped(va);
  assert_cu(d->MemMap(d, va, G, 0, handle, 0));
}

static void beside_a_mapping(weir_cu_deviceptr va) {
  map(va + G);
  set_access(va + G, 0, WEIR_CU_ACCESS_READWRITE);
}

/* All devices share the address space of the host: memory that any device may access is accessible. */
static void for_the_other_device(weir_cu_deviceptr va) {
  map(va);
  set_access(va, 1, WEIR_CU_ACCESS_READ);
}

FIXTURE(.teardown = soft_teardown)

TEST(reserved) { expect(only_reserved, true, true); }

TEST(mapped_without_access) { expect(no_access_yet, true, true); }

TEST(read_only) { expect(readable, false, true); }

TEST(with_access) {
  expect(writable, false, false);
  expect(writable_again, false, false);
  expect(released_but_mapped, false, false);
  expect(for_the_other_device, false, true);
}

TEST(access_taken_away) { expect(no_more_access, true, true); }

TEST(unmapped) {
  expect(unmapped, true, true);
  expect(mapped_anew, true, true);
  expect(beside_a_mapping, true, true);
}

/* ---- Plain memory ---- */

static void use_after_free(void *data) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_deviceptr p = soft_alloc(10 * MIB);
  do_touch(p + 5 * MIB, WRITE);
  assert_cu(d->MemFree(d, p));
  do_touch(p + 5 * MIB, *(enum step *)data);
}

static void use_of_a_trimmed_pool(void *data) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_deviceptr p;
  assert_cu(d->MemAllocAsync(d, &p, 10 * MIB, NULL));
  do_touch(p + 5 * MIB, WRITE);
  assert_cu(d->MemFreeAsync(d, p, NULL));
  do_touch(p + 5 * MIB, WRITE); /* still owned by the pool */
  assert_cu(d->CtxSynchronize(d));
  do_touch(p + 5 * MIB, *(enum step *)data);
}

static void use_of_a_reservation_that_is_gone(void *data) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_deviceptr va;
  assert_cu(d->MemAddressReserve(d, &va, G, 0, 0, 0));
  writable(va);
  do_touch(va, WRITE);
  assert_cu(d->MemUnmap(d, va, G));
  assert_cu(d->MemAddressFree(d, va, G));
  do_touch(va, *(enum step *)data);
}

TEST(freed_memory) {
  static void (*const bodies[])(void *) = {use_after_free, use_of_a_trimmed_pool, use_of_a_reservation_that_is_gone};
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
    for (enum step step = NOTHING; step <= WRITE; step++) {
      int status = soft_in_child(bodies[i], &step);
      if (step == NOTHING)
        assert_int_equal(status, 0);
      else {
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGSEGV);
      }
    }
}
