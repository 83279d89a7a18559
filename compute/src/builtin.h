/*
 * Built-in kernels: the files kernels/NAME.cu. For the software device they are compiled into the library; for GPUs
 * NAME.ptx of ptx.tar.xz is, and where it is missing or older than its source, NVRTC compiles the source at run time.
 *
 *     static weir__builtin uniform = WEIR__BUILTIN("random", "weir_random_uniform");
 *     void *params[] = {&out, &count, &seed, &offset};
 *     weir_launch_dims dims = {.grid = {blocks}, .block = {256}};
 *     status = weir__builtin_launch(__func__, &uniform, device, stream, dims, params);
 *
 * A file includes "device.h" first, declares its kernels extern "C" __global__, with names that begin with weir_, and
 * has a line WEIR_KERNEL(name) behind each. It may use what both device.h and compute/docs/kernels.md list.
 * Shared memory is WEIR_DYNAMIC_SHARED: a static __shared__ array is thread-local on the software device, and the
 * static thread-local memory of a library that a running program loads is small.
 */
#pragma once

#include "src/compute.h"
#include "weir/soft.h"

/* One kernel, with its function on each device once it was used there. Static. */
typedef struct weir__builtin {
  const char *file, *name;
  _Atomic(weir_soft_kernel_fn) host; /* for weir__builtin_run; NULL until it is used */
  struct {
    atomic_ulong epoch; /* in which the function was found; 0 for never */
    _Atomic(weir_cu_function) function;
  } on[WEIR_MAX_DEVICES];
} weir__builtin;
#define WEIR__BUILTIN(of_file, of_name)                                                                                \
  { .file = of_file, .name = of_name }

/* Enqueues a launch for the public call `caller`: params[i] points to the value of parameter i. device -1 is the
 * current one, and the stream is one of its streams. The first use on a device loads the module of the file, also
 * during a capture. Neither number nor sizes of the parameters are checked. */
weir_status weir__builtin_launch(const char *caller, weir__builtin *builtin, int device, weir_cu_stream stream,
                                 weir_launch_dims dims, void **params);

/* Runs a kernel for host memory on the calling thread, and returns when it is done. Needs no device and no runtime, and
 * works in a forked child. */
weir_status weir__builtin_run(const char *caller, weir__builtin *builtin, weir_launch_dims dims, void **params);

/* The function on a device that was entered (weir__compute_enter): for occupancy and attributes. */
weir_status weir__builtin_function(const char *caller, weir__builtin *builtin, const weir__on_device *on,
                                   weir_cu_function *function);
