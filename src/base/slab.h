/*
 * Objects of one size, taken and given back in a few instructions. For metadata that is allocated and freed often: the
 * objects lie side by side, and weir__slab_clear frees all of them at once. Not thread-safe: its owner guards it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Objects that were given back are poisoned, so that the address sanitizer reports their use like a use after free. */
#if defined(__SANITIZE_ADDRESS__)
#define WEIR__POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEIR__POISON 1
#endif
#endif

#ifdef WEIR__POISON
#include <sanitizer/asan_interface.h>
#define WEIR__SLAB_POISON(object, size) __asan_poison_memory_region((object), (size))
#define WEIR__SLAB_UNPOISON(object, size) __asan_unpoison_memory_region((object), (size))
#else
#define WEIR__SLAB_POISON(object, size) ((void)(object), (void)(size))
#define WEIR__SLAB_UNPOISON(object, size) ((void)(object), (void)(size))
#endif

/* All zero is an empty slab. */
typedef struct weir__slab {
  void *given;                     /* objects that were given back, linked through their first word */
  char *fresh;                     /* the part of the newest chunk that was never taken ... */
  char *end;                       /* ... ends here */
  struct weir__slab_chunk *chunks; /* all of them, the newest first */
  bool in_region;                  /* chunks are pieces of the region; set before the first object is taken */
} weir__slab;

/* Takes an object that was never taken before, from a new chunk if necessary. */
void *weir__slab_alloc_fresh(weir__slab *slab, size_t size);

/* An object of `size` bytes with any content; NULL when the host has no memory. It is aligned for any type up to 16
 * bytes, and objects of 64 bytes are cache lines. `size` is the same in every call on one slab. */
static inline void *weir__slab_alloc(weir__slab *slab, size_t size) {
  void *object = slab->given;
  if (!object)
    return weir__slab_alloc_fresh(slab, size);
  WEIR__SLAB_UNPOISON(object, size);
  slab->given = *(void **)object;
  return object;
}

/* The object came from this slab, and `size` is what it was taken with. */
static inline void weir__slab_free(weir__slab *slab, void *object, size_t size) {
  *(void **)object = slab->given;
  slab->given = object;
  WEIR__SLAB_POISON(object, size);
}

/* Makes sure that the next `count` objects can be taken. Returns false when the host has no memory. */
bool weir__slab_reserve(weir__slab *slab, size_t size, size_t count);

/* Frees every object, and leaves an empty slab with the same in_region. */
void weir__slab_clear(weir__slab *slab);
