#include "base/slab.h"

#include <stdlib.h>

/* Objects that were given back are poisoned, so that the address sanitizer sees a use after the give as one after a
 * free. */
#if defined(__SANITIZE_ADDRESS__)
#define WEIR__POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEIR__POISON 1
#endif
#endif

#ifdef WEIR__POISON
#include <sanitizer/asan_interface.h>
#define POISON(object, size) __asan_poison_memory_region((object), (size))
#define UNPOISON(object, size) __asan_unpoison_memory_region((object), (size))
#else
#define POISON(object, size) ((void)(object), (void)(size))
#define UNPOISON(object, size) ((void)(object), (void)(size))
#endif

enum {
  ALIGNMENT = 16,
  CHUNK_FIRST = 4 << 10, /* small, because there may be hundreds of owners with a handful of objects each */
  CHUNK_LARGEST = 256 << 10
};

static size_t aligned(size_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int grow(weir__slab *slab, size_t object) {
  size_t bytes = slab->growth == 0 ? CHUNK_FIRST : slab->growth * 2;
  if (bytes > CHUNK_LARGEST)
    bytes = CHUNK_LARGEST;
  if (bytes < ALIGNMENT + object)
    bytes = ALIGNMENT + object;
  char *chunk = malloc(bytes);
  if (chunk == NULL)
    return 0;
  *(void **)chunk = slab->chunks;
  slab->chunks = chunk;
  slab->fresh = chunk + ALIGNMENT;
  slab->end = chunk + bytes;
  slab->growth = bytes;
  return 1;
}

void *weir__slab_take(weir__slab *slab, size_t size) {
  void *object = slab->given;
  if (object != NULL) {
    UNPOISON(object, size);
    slab->given = *(void **)object;
    return object;
  }
  size_t step = aligned(size);
  if ((size_t)(slab->end - slab->fresh) < step && !grow(slab, step))
    return NULL;
  object = slab->fresh;
  slab->fresh += step;
  return object;
}

void weir__slab_give(weir__slab *slab, void *object, size_t size) {
  *(void **)object = slab->given;
  slab->given = object;
  POISON(object, size);
}

void weir__slab_clear(weir__slab *slab) {
  for (void *chunk = slab->chunks; chunk != NULL;) {
    void *next = *(void **)chunk;
    free(chunk);
    chunk = next;
  }
  *slab = (weir__slab){0};
}
