/*
 * A ledger with a current context, for tests.
 */
#pragma once

#include "support/check.h"
#include "support/random.h"

#define PAGE ((size_t)2 << 20)

/* A module with the only kernel that the ledger knows, and parameters for it. */
#define SPIN_PTX ".version 6.0\n.visible .entry weir_spin(.param .u64 cycles)\n.visible .entry other()\n"
static uint64_t spin_cycles = 1;
static void *spin_params[] = {&spin_cycles};
static inline void **params_of_spin(void) { return spin_params; }

/* A ledger with `devices` devices of `bytes` each. All contexts are retained, and that of device 0 is current. */
static inline weir_driver *open_ledger(int devices, unsigned long long bytes) {
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  options.devices = devices;
  options.bytes = bytes;
  weir_driver *d = NULL;
  assert_ok(weir_driver_open_ledger(&options, &d));
  assert_cu(d->Init(d, 0));
  weir_cu_context context;
  for (int i = devices - 1; i >= 0; i--)
    assert_cu(d->DevicePrimaryCtxRetain(d, &context, i));
  assert_cu(d->CtxSetCurrent(d, context));
  return d;
}

static inline weir_cu_mem_prop memory_of(int device) {
  return (weir_cu_mem_prop){.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, device}};
}

static inline weir_cu_mem_access access_of(int device, int flags) {
  return (weir_cu_mem_access){{WEIR_CU_LOCATION_DEVICE, device}, flags};
}

static inline size_t free_bytes(weir_driver *d) {
  size_t free = 0, total = 0;
  assert_cu(d->MemGetInfo(d, &free, &total));
  return free;
}

static inline weir_cu_stream make_stream(weir_driver *d, unsigned flags) {
  weir_cu_stream stream = NULL;
  assert_cu(d->StreamCreateWithPriority(d, &stream, flags, 0));
  return stream;
}

static inline weir_cu_event make_event(weir_driver *d) {
  weir_cu_event event = NULL;
  assert_cu(d->EventCreate(d, &event, WEIR_CU_EVENT_DEFAULT));
  return event;
}
