#pragma once

#include "src/compute.h"

/* Of a launch whose parameters are checked. */
enum { WEIR__MAX_PARAMS = 256 };

struct weir_kernel {
  weir_module *module;
  weir_cu_function function;
  int param_count; /* -1 if it is not known */
  size_t *param_bytes;
  weir_kernel *next; /* in the module */
  char name[];
};

struct weir_module {
  int device;
  weir_cu_module handle;
  bool is_expired; /* the runtime that it belongs to was shut down */
  bool is_cached;
  weir_kernel *kernels;
  char **names, **lowered; /* C++ names that were asked for, and their symbols */
  int name_count;
  char *log;
  weir_module *next, **link;
};

/* Fails if the runtime of the module was shut down. */
weir_status weir__module_check(const char *caller, const weir_module *module);
