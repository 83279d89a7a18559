/*
 * Device memory for the compute library.
 */
#pragma once

#include "weir/alloc.h"
#include "weir/stream.h"

typedef struct weir__device_memory {
  void *pointer;             /* NULL if there is none */
  weir_allocator *allocator; /* that it came from */
} weir__device_memory;

/* The allocator of weir_compute_use_allocator, or the default one. */
weir_status weir__compute_allocator(weir_allocator **allocator);

/* Allocates memory on the stream's device for use on the stream. */
weir_status weir__compute_alloc(uint64_t bytes, weir_stream stream, weir__device_memory *memory);

/* Says that another stream uses the memory too. */
weir_status weir__compute_record_stream(const weir__device_memory *memory, weir_stream stream);

/* Frees it, if there is any. A forked child frees nothing: the memory belongs to its parent. */
void weir__compute_free(weir__device_memory *memory);
