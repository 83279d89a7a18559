/*
 * Weir's calls as a contestant of patterns.h: BENCH_PLAYER(player, take_from_weir, give_to_weir).
 */
#pragma once

#include "weir/alloc.h"
#include "weir/host.h"

/* The context is a weir_allocator. */
static inline void *take_from_weir(void *context, size_t bytes, void *stream) {
  void *pointer;
  return weir_allocator_alloc(context, 0, bytes, stream, &pointer) == WEIR_OK ? pointer : NULL;
}

static inline void give_to_weir(void *context, void *pointer) { weir_allocator_free(context, pointer); }

/* The context is a weir_host_allocator. */
static inline void *take_pinned(void *context, size_t bytes, void *stream) {
  void *pointer;
  (void)stream;
  return weir_host_alloc(context, bytes, &pointer) == WEIR_OK ? pointer : NULL;
}

static inline void give_pinned(void *context, void *pointer) { weir_host_free(context, pointer); }
