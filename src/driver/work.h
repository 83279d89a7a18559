/*
 * Work that a device has executed, for a timeline. The software device reports it between ProfilerStart and
 * ProfilerStop; NVIDIA's driver reports work to its own tools only.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "weir/driver.h"

typedef enum weir__work_kind { WEIR__WORK_KERNEL, WEIR__WORK_COPY, WEIR__WORK_FILL, WEIR__WORK_HOST } weir__work_kind;

typedef struct weir__work {
  weir__work_kind kind;
  const char *name; /* of the kernel, or "memcpy HtoD", "memset", "host function"; valid during the call */
  int device;
  weir_cu_stream stream;     /* NULL for the legacy stream */
  uint64_t bytes;            /* of a copy or fill */
  uint64_t start_ns, end_ns; /* of weir__monotonic_ns. Stepped time is counted from the first ProfilerStart */
} weir__work;

/* Called after each item of work, by the thread that executed it, without a lock. It must not call the driver. There
 * is one for the process; NULL if work is not wanted. */
typedef void (*weir__work_observer_fn)(const weir__work *work);
extern _Atomic(weir__work_observer_fn) weir__work_observer __attribute__((visibility("hidden")));
