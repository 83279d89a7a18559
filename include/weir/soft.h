/*
 * The software device: a GPU made of threads and mapped memory, with CUDA's rules. It needs no hardware. Its work can
 * be stepped by hand, so that a test can produce any order of events.
 */
#ifndef WEIR_SOFT_H
#define WEIR_SOFT_H

#include "weir/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weir_soft_clock {
  WEIR_SOFT_THREADS, /* streams run on their own, concurrently, in real time */
  WEIR_SOFT_STEPPED  /* work runs in weir_soft_step, or in a call that waits; time is counted */
} weir_soft_clock;

typedef struct weir_soft_options {
  size_t size;           /* sizeof(weir_soft_options) */
  weir_soft_clock clock; /* WEIR_SOFT_THREADS */
  int devices;           /* 1; up to WEIR_SOFT_MAX_DEVICES */
  uint64_t bytes;        /* memory of each device, 16 GiB; host memory is used where it is touched */
  int capability_major;  /* 9 */
  int capability_minor;  /* 0 */
  int clock_khz;         /* cycles of the spin kernel per millisecond, 1000000 */
  /* The speed of copies and fills. 0, the default, is the speed of the host, or 100 GB/s in stepped time. */
  uint64_t copy_bytes_per_second;
  uint64_t context_bytes; /* memory that a context takes while it exists; 0, or WEIR_SOFT_CONTEXT_AUTO */
} weir_soft_options;

enum { WEIR_SOFT_MAX_DEVICES = 64 };

/* For context_bytes: 1/64 of the memory, at most 256 MiB. It is the default of weir_driver_open. */
#define WEIR_SOFT_CONTEXT_AUTO (~0ull)

/* Sets `size` and the defaults. */
static inline void weir_soft_options_init(weir_soft_options *options) {
  if (!options)
    return;
  WEIR__INIT(options);
  options->clock = WEIR_SOFT_THREADS;
  options->devices = 1;
  options->bytes = (uint64_t)16 << 30;
  options->capability_major = 9;
  options->clock_khz = 1000000;
}

/* Overrides options from WEIR_SOFT_CLOCK=threads|stepped, WEIR_SOFT_DEVICES, WEIR_SOFT_MEMORY (as "80GiB"),
 * WEIR_SOFT_CAPABILITY (as "9.0"), WEIR_SOFT_CLOCK_KHZ, WEIR_SOFT_COPY_SPEED (bytes a second, as "50GB") and
 * WEIR_SOFT_CONTEXT (as "512MiB"). */
weir_status weir_soft_options_from_env(weir_soft_options *options);

/* NULL options are the defaults. */
weir_status weir_driver_open_soft(const weir_soft_options *options, weir_driver **driver);

/* ---- Stepping (the stepped clock only) ---- */

/* Runs up to `count` items of work of a stream: each copy, fill, kernel, host function, record or wait is one. Stops
 * before a wait whose event has not completed. *done is the number of items that ran; done may be NULL. */
weir_status weir_soft_step(weir_driver *soft, weir_cu_stream stream, uint64_t count, uint64_t *done);

/* Runs the work of all streams, in the order of devices and streams, until nothing is left or every stream waits. */
weir_status weir_soft_step_all(weir_driver *soft, uint64_t *done);

/* The number of items of work in a stream that have not run. Works with both clocks. */
weir_status weir_soft_pending(weir_driver *soft, weir_cu_stream stream, uint64_t *pieces);

/* The device's clock in nanoseconds: counted in stepped time. */
weir_status weir_soft_now(weir_driver *soft, uint64_t *nanoseconds);

/* ---- Kernels ---- */

/* A kernel is a C function that a thread of the device calls once for a whole launch. params[i] points to a copy of
 * parameter i. It returns 0, or a WEIR_CU_ code that breaks the context like a faulting kernel. */
typedef struct weir_soft_launch {
  unsigned grid[3], block[3], shared_bytes;
  void **params;
  weir_cu_device device;
} weir_soft_launch;
typedef weir_cu_result (*weir_soft_kernel_fn)(const weir_soft_launch *launch);

/* Registers a kernel for every module that has an entry of that name in its PTX. param_bytes[i] is the size of
 * parameter i. */
weir_status weir_soft_register_kernel(weir_driver *soft, const char *name, weir_soft_kernel_fn kernel, int param_count,
                                      const size_t *param_bytes);

/* A kernel of an image. */
typedef struct weir_soft_entry {
  const char *name;
  weir_soft_kernel_fn function;
  int param_count; /* at most 64 */
  const size_t *param_bytes;
  unsigned shared_bytes; /* static shared memory */
  unsigned reserved;
} weir_soft_entry;

/* Kernels that are compiled for the host, in the form that ModuleLoadData takes: the image is the address of this
 * struct. What it points to stays valid until `release` is called, which happens once no module, no work and no
 * graph uses it any more. `release` runs under the locks of the device and must not call it. */
typedef struct weir_soft_image {
  char magic[16]; /* WEIR_SOFT_IMAGE_MAGIC */
  size_t size;    /* sizeof(weir_soft_image) */
  const weir_soft_entry *const *begin, *const *end;
  void (*release)(void *context); /* may be NULL */
  void *context;
} weir_soft_image;
#define WEIR_SOFT_IMAGE_MAGIC "\177weir kernels 1"

/* ---- Counting ---- */

/* The number of live objects over all devices. All are 0 for a correct program that has cleaned up. */
typedef struct weir_soft_census {
  size_t size; /* sizeof(weir_soft_census) */
  uint64_t contexts, streams, events, graphs, graph_execs, modules, pools;
  uint64_t allocations, host_allocations, registrations, reservations, mappings, handles, ipc_mappings;
  uint64_t device_bytes; /* physical memory in use */
  /* Calls of MemUnmap, so far, for memory that a copy, a fill or a kernel in a stream accesses: it would fault. */
  uint64_t unmaps_in_use;
} weir_soft_census;

/* Sets `size` and makes the rest zero, for weir_soft_get_census. */
static inline void weir_soft_census_init(weir_soft_census *census) { WEIR__INIT(census); }
/* Counts the live objects. */
weir_status weir_soft_get_census(weir_driver *soft, weir_soft_census *census);

#ifdef __cplusplus
}
#endif
#endif
