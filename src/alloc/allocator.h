/*
 * Creating and destroying an allocator.
 */
#pragma once

#include "alloc/cache/heap.h"

/* weir_allocator_create without recording from the environment, on behalf of the public call `caller`. */
weir_status weir__allocator_new(const char *caller, weir_driver *driver, const weir_allocator_options *options,
                                weir_allocator **allocator);

/* Refuses settings with a back end other than the cache. */
weir_status weir__check_backend(const weir__settings *settings);
