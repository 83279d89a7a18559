/*
 * The port to a back end other than the cache (backends/): what the cache, private pools and shared memory ask of it.
 * No lock is held, unless a comment says otherwise.
 */
#pragma once

#include "alloc/cache/heap.h"

typedef struct weir__backend_calls {
  weir_status (*alloc)(const char *caller, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                       weir_cu_stream stream, uint64_t *address);
  weir_status (*free)(const char *caller, weir_allocator *allocator, uint64_t address);

  /* Returns memory whose last use has ended to its owner. */
  void (*return_segments)(weir__heap *heap);

  /* Completes the free of a block whose streams have all finished. The heap's lock and the arena's are held. */
  void (*block_done)(weir__heap *heap, weir__block *block);

  /* Frees a block in stream order, after all streams that use it; *done says whether that succeeded. Returns false if
   * the back end is not stream-ordered. The heap's lock is held. */
  bool (*join_streams)(weir__heap *heap, weir__block *block, bool *done);

  /* Releases cached memory of one pool, or of all if the id is {0, 0}. */
  weir_status (*empty)(const char *caller, weir__heap *heap, weir_pool_id id);
} weir__backend_calls;

struct weir__backend_port {
  const weir__backend_calls *calls;
  weir_backend program;               /* its functions; all NULL for the driver's stream-ordered memory */
  struct weir__async_device *devices; /* of that memory (backends/backend.h) */
  char *name;
  bool is_async; /* the driver's stream-ordered memory */
  weir__mutex lock;
  weir__rangemap pointers; /* live memory -> its arena; guarded by the lock, which is a leaf */
};

/* The arena of a live pointer of the back end; NULL if it is not live. */
static inline weir__arena *weir__backend_arena(weir_allocator *allocator, uint64_t address) {
  weir__backend_port *backend = allocator->backend;
  uint64_t base;
  weir__mutex_lock(&backend->lock);
  weir__arena *arena = weir__rangemap_find(&backend->pointers, address, &base, NULL);
  weir__mutex_unlock(&backend->lock);
  return arena && base == address ? arena : NULL;
}

/* The arena of a pointer, with the cache or with a back end. */
static inline weir__arena *weir__arena_of(weir_allocator *allocator, uint64_t address) {
  return allocator->backend ? weir__backend_arena(allocator, address)
                            : weir__page_map_find(allocator->page_map, address);
}
static inline weir__arena *weir__block_arena(const weir__heap *heap, const weir__block *block) {
  return weir__arena_of(heap->allocator, block->address);
}

static inline const char *weir__backend_name(const weir_allocator *allocator) {
  return allocator->backend ? allocator->backend->name : "native";
}

static inline bool weir__backend_is_async(const weir_allocator *allocator) {
  return allocator->backend && allocator->backend->is_async;
}
