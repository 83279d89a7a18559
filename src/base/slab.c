#include "base/slab.h"

#include <stdlib.h>

enum {
  ALIGNMENT = 16,
  LINE = 64,             /* chunks begin with a cache line, in which they are linked */
  CHUNK_FIRST = 4 << 10, /* small, because there may be hundreds of owners with a handful of objects each */
  CHUNK_LARGEST = 256 << 10
};

static size_t aligned(size_t size, size_t alignment) { return (size + alignment - 1) / alignment * alignment; }

static int grow(weir__slab *slab, size_t object) {
  size_t bytes = slab->growth == 0 ? CHUNK_FIRST : slab->growth * 2;
  if (bytes > CHUNK_LARGEST)
    bytes = CHUNK_LARGEST;
  if (bytes < LINE + object)
    bytes = aligned(LINE + object, LINE);
  char *chunk = aligned_alloc(LINE, bytes);
  if (chunk == NULL)
    return 0;
  *(void **)chunk = slab->chunks;
  slab->chunks = chunk;
  slab->fresh = chunk + LINE;
  slab->end = chunk + bytes;
  slab->growth = bytes;
  return 1;
}

void *weir__slab_take_fresh(weir__slab *slab, size_t size) {
  size_t step = aligned(size, ALIGNMENT);
  if ((size_t)(slab->end - slab->fresh) < step && !grow(slab, step))
    return NULL;
  void *object = slab->fresh;
  slab->fresh += step;
  return object;
}

void weir__slab_clear(weir__slab *slab) {
  for (void *chunk = slab->chunks; chunk != NULL;) {
    void *next = *(void **)chunk;
    free(chunk);
    chunk = next;
  }
  *slab = (weir__slab){0};
}
