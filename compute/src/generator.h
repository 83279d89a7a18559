/*
 * What fills need to know of a generator.
 */
#pragma once

#include "weir/compute/random.h"

/* The multiprocessors of a device, and the threads of one, by which elements are assigned to threads. */
typedef struct weir__geometry {
  int multiprocessors;
  int threads_per_multiprocessor;
} weir__geometry;

/* The geometry of the generator, or that of its device. */
weir_status weir__generator_geometry(const char *caller, const weir_generator *generator, weir__geometry *geometry);

/* Replaces NULL by the default generator of the stream's device, and checks that the generator is of that device. */
weir_status weir__generator_resolve(const char *caller, weir_stream stream, weir_generator **generator);
