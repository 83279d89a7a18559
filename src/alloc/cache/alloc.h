/*
 * Allocation and free: the slow paths behind weir_allocator_alloc and weir_allocator_free.
 */
#pragma once

#include "alloc/cache/heap.h"

/* Allocates from a private pool, or from the default pool where `owner` is NULL, on behalf of the public call `caller`.
 * The caller keeps the pool alive (weir__route_enter). */
weir_status weir__alloc(const char *caller, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                        weir_cu_stream stream, uint64_t *address);

/* weir_allocator_free by address. */
weir_status weir__free_address(weir_allocator *allocator, uint64_t address);
