/*
 * Accesses to memory that is not mapped. A driver that learns what the access was reports it here: the software device
 * does, NVIDIA's driver says only that the context is lost.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "weir/driver.h"

typedef struct weir__access {
  uint64_t address;
  bool is_write;
  int device;            /* whose work it was; -1 for the host */
  weir_cu_stream stream; /* NULL for the legacy stream, and for the host */
  const char *name;      /* of the kernel, or "copy", "memset", "host"; valid during the call */
} weir__access;

/* Called by the thread whose access it was, without a lock of the driver. It must not call the driver. There is one for
 * the process; NULL if such accesses are not wanted: then they end the process, as any segmentation fault. */
typedef void (*weir__access_observer_fn)(const weir__access *access);
extern _Atomic(weir__access_observer_fn) weir__access_observer __attribute__((visibility("hidden")));

/* Likewise, for reads of memory that was never written. The address is that of the first such byte; or, of a kernel
 * that used such bytes, what it got as a parameter. Known under valgrind's memcheck alone (base/defined.h). */
extern _Atomic(weir__access_observer_fn) weir__undefined_observer __attribute__((visibility("hidden")));

/* Called without a lock when an object of the program, an event, a graph or a stream, is destroyed (`caller` is NULL):
 * returns a number for the stack. And when a call gets an object that was destroyed, with that number; 0 if it is not
 * known. */
typedef uint32_t (*weir__destroyed_observer_fn)(const char *what, const char *caller, uint64_t handle, uint32_t stack);
extern _Atomic(weir__destroyed_observer_fn) weir__destroyed_observer __attribute__((visibility("hidden")));

/* Called with each error that ends a context, so that whatever may have caused it can be named. */
typedef void (*weir__lost_observer_fn)(const weir_driver *driver, weir_cu_result result);
extern _Atomic(weir__lost_observer_fn) weir__lost_observer __attribute__((visibility("hidden")));
