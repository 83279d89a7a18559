/*
 * Objects of one size, taken and given back in a few instructions. For metadata that comes and goes often: the objects
 * lie side by side, and all of them go at once with weir__slab_clear. Not thread-safe: its owner guards it.
 */
#ifndef WEIR_SLAB_H
#define WEIR_SLAB_H

#include <stddef.h>

/* All zero is an empty slab. */
typedef struct weir__slab {
  void *given;   /* objects that came back, linked through their first word */
  char *fresh;   /* the part of the newest chunk that was never taken ... */
  char *end;     /* ... ends here */
  void *chunks;  /* all chunks, linked through their first word */
  size_t growth; /* bytes of the newest chunk */
} weir__slab;

/* An object of `size` bytes with any content, aligned for any type up to 16 bytes; NULL when the host has no memory.
 * `size` is the same in every call on one slab. */
void *weir__slab_take(weir__slab *slab, size_t size);

/* The object came from this slab, and `size` is what it was taken with. */
void weir__slab_give(weir__slab *slab, void *object, size_t size);

/* Frees every object, and leaves an empty slab. */
void weir__slab_clear(weir__slab *slab);

#endif
