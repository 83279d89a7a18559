#include "base/slab.h"

#include <stdlib.h>

#include "base/region.h"

enum {
  ALIGNMENT = 16,
  LINE = 64,             /* chunks begin with a cache line, in which they are linked */
  CHUNK_FIRST = 4 << 10, /* small, because hundreds of owners may have a few objects each */
  CHUNK_LARGEST = WEIR__REGION_PIECE
};

struct weir__slab_chunk {
  struct weir__slab_chunk *next;
  size_t bytes;
};

static size_t aligned(size_t size, size_t alignment) { return (size + alignment - 1) / alignment * alignment; }

static int grow(weir__slab *slab, size_t object) {
  size_t bytes = !slab->chunks ? CHUNK_FIRST : slab->chunks->bytes * 2;
  if (bytes > CHUNK_LARGEST)
    bytes = CHUNK_LARGEST;
  if (bytes < LINE + object)
    bytes = aligned(LINE + object, LINE);
  struct weir__slab_chunk *chunk = slab->in_region ? weir__region_alloc(bytes) : aligned_alloc(LINE, bytes);
  if (!chunk)
    return 0;
  chunk->next = slab->chunks;
  chunk->bytes = bytes;
  slab->chunks = chunk;
  slab->fresh = (char *)chunk + LINE;
  slab->end = (char *)chunk + bytes;
  return 1;
}

void *weir__slab_alloc_fresh(weir__slab *slab, size_t size) {
  size_t step = aligned(size, ALIGNMENT);
  if ((size_t)(slab->end - slab->fresh) < step && !grow(slab, step))
    return NULL;
  void *object = slab->fresh;
  slab->fresh += step;
  return object;
}

bool weir__slab_reserve(weir__slab *slab, size_t size, size_t count) {
  void *taken = NULL;
  size_t have = 0;
  for (void *object; have < count && (object = weir__slab_alloc(slab, size)); have++) {
    *(void **)object = taken;
    taken = object;
  }
  while (taken) {
    void *next = *(void **)taken;
    weir__slab_free(slab, taken, size);
    taken = next;
  }
  return have == count;
}

void weir__slab_clear(weir__slab *slab) {
  for (struct weir__slab_chunk *chunk = slab->chunks, *next; chunk; chunk = next) {
    next = chunk->next;
    if (slab->in_region) {
      WEIR__SLAB_UNPOISON(chunk, chunk->bytes);
      weir__region_free(chunk, chunk->bytes);
    } else
      free(chunk);
  }
  *slab = (weir__slab){.in_region = slab->in_region};
}
