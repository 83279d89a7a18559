/*
 * Declarations that the files of the extension weir.compute._compute share.
 *
 * Every file is a part: `int pyweir_add_<part>(PyObject *module)` adds its types and functions to the module. It
 * returns 0, or -1 with an exception set, as do all int functions here unless stated otherwise. The file api.h of the
 * core says which calls are made without the GIL.
 */
#pragma once

#define PYWEIR(name) pyweir->name
#include "api.h"

/* The core's functions; set before any part is added. */
extern const pyweir_api *pyweir;

static inline int pyweir_ensure_init(void) { return PYWEIR_ENSURE_INIT(*pyweir->started); }

/* ---- Parts (module.c calls them in this order) ---- */

#define PYWEIR_PARTS(X)                                                                                                \
  X(random)                                                                                                            \
  X(kernel)                                                                                                            \
  X(blas)                                                                                                              \
  X(dtype)                                                                                                             \
  X(storage)                                                                                                           \
  X(array)                                                                                                             \
  X(array_exchange)                                                                                                    \
  X(array_random)                                                                                                      \
  X(array_index)                                                                                                       \
  X(jiterator)                                                                                                         \
  X(nvtx)                                                                                                              \
  X(collectives)                                                                                                       \
  X(amp)                                                                                                               \
  X(tunable)

#define X(part) int pyweir_add_##part(PyObject *module);
PYWEIR_PARTS(X)
#undef X

/* Returns the generator of a weir.Generator, or NULL with a TypeError (random.c). */
typedef struct weir_generator weir_generator;
weir_generator *pyweir_generator_get(PyObject *object);
