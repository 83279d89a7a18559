/*
 * Compilation at run time: NVRTC for GPUs, the system's C++ compiler for the software device, and the cache in front.
 */
#pragma once

#include "src/compute.h"
#include "src/kernel_cache.h"

/* Compiled code. */
typedef struct weir__binary {
  unsigned char *data; /* PTX with its NUL, a cubin, or a shared object of the host */
  size_t bytes;
  char *log;               /* the compiler's warnings; NULL if there are none */
  char **names, **lowered; /* the names that were asked for, and the symbols that they became */
  int name_count;
} weir__binary;

void weir__binary_end(weir__binary *code);
/* Room for the names; false if the host has no memory. */
bool weir__binary_names(weir__binary *code, int count);

/* Compiles for the entered device, or takes the code from the cache. `options` is never NULL. */
weir_status weir__compile(const char *caller, const weir__on_device *on, const char *source,
                          const weir_compile_options *options, weir__binary *code, bool *is_cached);

/* Loads code on the entered device. With host code, the shared object stays loaded until the module is gone. */
weir_status weir__binary_load(const char *caller, const weir__on_device *on, const weir__binary *code,
                              weir_cu_module *module);

/* Loads PTX, a cubin or a fatbin, with the driver's log in the error. */
weir_status weir__image_load(const char *caller, const weir__on_device *on, const void *image, weir_cu_module *module);

/* ---- compile_nvrtc.c ---- */

/* The functions of NVRTC. Results are nvrtcResult; 0 is success. */
typedef struct weir__nvrtc {
  int (*Version)(int *major, int *minor);
  const char *(*GetErrorString)(int result);
  int (*CreateProgram)(void **program, const char *source, const char *name, int header_count,
                       const char *const *headers, const char *const *header_names);
  int (*DestroyProgram)(void **program);
  int (*CompileProgram)(void *program, int option_count, const char *const *options);
  int (*GetPTXSize)(void *program, size_t *bytes);
  int (*GetPTX)(void *program, char *ptx);
  int (*GetCUBINSize)(void *program, size_t *bytes);
  int (*GetCUBIN)(void *program, char *cubin);
  int (*GetProgramLogSize)(void *program, size_t *bytes);
  int (*GetProgramLog)(void *program, char *log);
  int (*AddNameExpression)(void *program, const char *name);
  int (*GetLoweredName)(void *program, const char *name, const char **lowered);
  int (*GetNumSupportedArchs)(int *count);
  int (*GetSupportedArchs)(int *archs);
} weir__nvrtc;

/* Uses these functions in place of the library's; NULL ends that. For tests. */
void weir__nvrtc_replace(const weir__nvrtc *functions);

/* What identifies the compiler and the architecture in a key. False, with the last error set, without NVRTC. */
weir_status weir__nvrtc_key(const char *caller, const weir__on_device *on, const char *source,
                            const weir_compile_options *options, weir__bytes *key);
weir_status weir__nvrtc_compile(const char *caller, const weir__on_device *on, const char *source,
                                const weir_compile_options *options, weir__binary *code);

/* ---- compile_soft.c ---- */

weir_status weir__soft_key(const char *caller, weir__bytes *key);
weir_status weir__soft_compile(const char *caller, const char *source, const weir_compile_options *options,
                               weir__binary *code);
/* Loads a shared object from memory; NULL, with the last error set, if that fails. */
void *weir__soft_open(const char *caller, const weir__binary *code);

/* ---- soft_source.c ---- */

/* The source for the host's compiler: dynamic shared arrays are replaced, and the kernels are listed at the end. Lines
 * keep their numbers. */
void weir__soft_source(const char *source, const weir_compile_options *options, weir__bytes *text);
