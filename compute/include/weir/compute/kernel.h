/*
 * Kernels: modules of device code, compiled at run time or loaded, and launches of their functions.
 *
 * Part of libweir_compute; weir/weir.h does not include this header.
 *
 *     weir_module *module;
 *     weir_kernel *saxpy;
 *     weir_module_compile(0, source, NULL, &module);
 *     weir_module_kernel(module, "saxpy", &saxpy);
 *     weir_param params[] = {WEIR_PARAM(a), WEIR_PARAM(x), WEIR_PARAM(y), WEIR_PARAM(n)};
 *     weir_launch_dims dims = {.grid = {(n + 255) / 256}, .block = {256}};
 *     weir_kernel_launch(saxpy, dims, stream, params, 4);
 *
 * compute/docs/kernels.md says what the source may contain on the software device.
 */
#ifndef WEIR_KERNEL_H
#define WEIR_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "weir/driver.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Modules ---- */

/* Device code on one device. It becomes invalid when the runtime is shut down, and can then only be destroyed. */
typedef struct weir_module weir_module;

/* A function of a module. It belongs to the module and lives as long. */
typedef struct weir_kernel weir_kernel;

/* Loads PTX (a text; `bytes` may include its NUL or not), a cubin or a fatbin, which are copied. device -1 is the
 * current one. WEIR_ERROR_INVALID_ARGUMENT if the image is none of these, or the driver rejects it: the text has the
 * driver's log. The software device cannot run them: there, a module of PTX has the entries for which
 * weir_soft_register_kernel has registered a function, and cubins and fatbins are WEIR_ERROR_NOT_SUPPORTED. */
weir_status weir_module_load(int device, const void *image, size_t bytes, weir_module **module);

/* What weir_module_compile makes. */
typedef enum weir_compile_target {
  WEIR_COMPILE_AUTO,  /* a cubin for the device, or PTX if the compiler does not know its architecture */
  WEIR_COMPILE_PTX,   /* PTX, which the driver compiles */
  WEIR_COMPILE_BINARY /* a cubin */
} weir_compile_target;

typedef struct weir_compile_options {
  size_t size; /* sizeof(weir_compile_options) */
  /* Options of the compiler, as "--use_fast_math" or "-DN=4". On the software device, -D, -U, -I and -O go to the
   * host's compiler and others are ignored. */
  const char *const *options;
  int option_count;
  /* C++ names of kernels that are templates or have no C linkage, as "scale<float>": weir_module_kernel finds them
   * under these names. Kernels that are declared extern "C" need not be named. */
  const char *const *names;
  int name_count;
  /* Headers that the source includes by name, with their texts. */
  const char *const *header_names;
  const char *const *headers;
  int header_count;
  const char *file_name; /* in the compiler's messages; "kernel.cu" */
  weir_compile_target target;
  int no_cache; /* 1 neither reads nor writes the cache on disk */
} weir_compile_options;

/* Sets `size` and the defaults. */
void weir_compile_options_init(weir_compile_options *options);

/* Compiles CUDA C++: with NVRTC on a GPU, with the system's C++ compiler (WEIR_CXX, c++, g++ or clang++) on the
 * software device. WEIR_ERROR_INVALID_ARGUMENT if the source does not compile, with the compiler's messages as the
 * text; WEIR_ERROR_NOT_SUPPORTED without a compiler, and the text says what to install. A result is kept in a cache
 * on disk. */
weir_status weir_module_compile(int device, const char *source, const weir_compile_options *options,
                                weir_module **module);

/* The compiler's warnings, or "". Valid as long as the module. */
const char *weir_module_log(const weir_module *module);

/* 1 if the code came from the cache on disk. */
int weir_module_is_cached(const weir_module *module);

/* The number of the device. */
int weir_module_device(const weir_module *module);

/* Unloads the module, which waits for the work of its device. NULL is allowed. Not during a capture. A graph with a
 * kernel of the module must not be launched afterwards. */
void weir_module_destroy(weir_module *module);

/* WEIR_ERROR_INVALID_ARGUMENT if the module has no such function. The same name gives the same kernel. */
weir_status weir_module_kernel(weir_module *module, const char *name, weir_kernel **kernel);

/* ---- Kernels ---- */

typedef struct weir_kernel_attributes {
  size_t size;                  /* sizeof(weir_kernel_attributes) */
  int registers;                /* of a thread; 0 on the software device */
  int shared_bytes;             /* static shared memory; 0 on the software device */
  int local_bytes;              /* of a thread */
  int constant_bytes;           /* in all */
  int max_threads;              /* of a block */
  int max_dynamic_shared_bytes; /* of a launch; weir_kernel_set_max_dynamic_shared raises it */
  int ptx_version, binary_version;
  int param_count; /* -1 if neither the driver nor the compiler knows it */
} weir_kernel_attributes;

/* Sets `size` and makes the rest zero, for weir_kernel_get_attributes. */
void weir_kernel_attributes_init(weir_kernel_attributes *attributes);

/* The caller sets attributes->size. */
weir_status weir_kernel_get_attributes(weir_kernel *kernel, weir_kernel_attributes *attributes);

/* The name under which it was found. */
const char *weir_kernel_name(const weir_kernel *kernel);

/* The size of a parameter. WEIR_ERROR_NOT_SUPPORTED if it is not known. */
weir_status weir_kernel_param_bytes(weir_kernel *kernel, int index, size_t *bytes);

/* Allows launches with up to this much dynamic shared memory. Without it, static and dynamic shared memory together are
 * limited to 48 KiB. */
weir_status weir_kernel_set_max_dynamic_shared(weir_kernel *kernel, int bytes);

/* ---- Launches ---- */

/* A 0 in the second or third place means 1. */
typedef struct weir_launch_dims {
  unsigned grid[3];      /* blocks */
  unsigned block[3];     /* threads of a block */
  unsigned shared_bytes; /* dynamic shared memory of a block */
} weir_launch_dims;

typedef struct weir_param {
  const void *value; /* read before the launch returns */
  size_t bytes;
} weir_param;
/* The weir_param of a variable, which is passed by value. */
#define WEIR_PARAM(variable)                                                                                           \
  { &(variable), sizeof(variable) }

/* Enqueues a launch on a stream of the kernel's device. Can be captured. Number and sizes of the parameters are
 * checked as far as they are known: WEIR_ERROR_INVALID_ARGUMENT with a text that says which is wrong. */
weir_status weir_kernel_launch(weir_kernel *kernel, weir_launch_dims dims, weir_stream stream, const weir_param *params,
                               int param_count);

/* The same without checks of the parameters and the stream, for callers that made sure, and have the driver's stream:
 * params[i] points to the value of parameter i. */
weir_status weir_kernel_launch_unchecked(weir_kernel *kernel, weir_launch_dims dims, weir_cu_stream stream,
                                         void **params);

/* ---- Occupancy ---- */

/* How many blocks of this size one multiprocessor can run at a time; 0 if none fits. */
weir_status weir_kernel_max_active_blocks(weir_kernel *kernel, int block_threads, size_t dynamic_bytes, int *blocks);

/* The block size, a multiple of the warp size, with which the most threads are active, the largest if several are
 * equal, and the smallest grid that fills the device. `limit` is the largest block that is wanted; 0 means no limit. */
weir_status weir_kernel_suggest_block(weir_kernel *kernel, size_t dynamic_bytes, int limit, int *grid, int *block);

/* ---- Libraries that are loaded at run time ---- */

/* Adds a folder in which NVRTC, cuBLAS and NCCL are looked for, and in whose nvidia/x/lib, as Python's packages have
 * it. */
weir_status weir_library_add_folder(const char *folder);

/* Where a library ("nvrtc", "cublas" or "nccl") was found; it is loaded if it was not. It is looked for under
 * WEIR_<NAME>_LIBRARY, among the loaded libraries, on the loader's path, in the folders that were added, and in the
 * CUDA toolkit. *how says which of these it was. WEIR_ERROR_NOT_SUPPORTED if it is not found. */
weir_status weir_library_find(const char *name, char *path, size_t size, size_t *length, const char **how);

#ifdef __cplusplus
}
#endif
#endif
