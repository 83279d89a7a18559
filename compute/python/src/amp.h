/*
 * Autocast: the state of a thread, and what operations on arrays ask it.
 */
#pragma once

#include "array.h"

/* Regions exist for arrays on the host ("cpu") and on devices ("cuda"). */
enum { PYWEIR_CPU, PYWEIR_CUDA, PYWEIR_DEVICE_TYPES };

typedef struct pyweir_autocast_state {
  bool is_on; /* for either type: all that an operation looks at while autocast is off */
  bool is_enabled[PYWEIR_DEVICE_TYPES];
  bool has_no_cache;
  int nesting; /* of regions that the thread is in */
  weir_dtype dtypes[PYWEIR_DEVICE_TYPES];
} pyweir_autocast_state;

extern _Thread_local pyweir_autocast_state pyweir_autocast __attribute__((tls_model("initial-exec")));

/* The type of device on which an operation runs: the host's if both arrays, of which the second may be NULL, are on
 * it. */
static inline int pyweir_autocast_type(const weir_array *a, const weir_array *b) {
  return a->place.kind == WEIR_PLACE_DEVICE || (b && b->place.kind == WEIR_PLACE_DEVICE) ? PYWEIR_CUDA : PYWEIR_CPU;
}

/* Whether a policy of this type of device casts the array: a float that is not float64. */
bool pyweir_autocast_is_eligible(const weir_array *array, int device_type);

/* Returns a new reference to the array in another type if it is eligible, and to the array itself otherwise. Casts of
 * parameters (weir.amp.Parameter) from float32 to the type of the region are kept until the outermost region ends. */
PyObject *pyweir_autocast_cast(PyObject *array, int device_type, weir_dtype to);

/* Policies, for pairs of arrays of which the second may be NULL: which type they are cast to. 1 if there is one, 0 if
 * the policy does not apply, -1 with an exception set. */
int pyweir_autocast_lower(const weir_array *a, const weir_array *b, weir_dtype *to);
int pyweir_autocast_widest(const weir_array *a, const weir_array *b, weir_dtype *to);
