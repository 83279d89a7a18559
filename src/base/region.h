/*
 * Metadata in one range of addresses, so that 32 bits are enough to point into it: a block with four links is then half
 * as large, and twice as many of them fit into the processor's caches.
 *
 * The range is reserved once for the process and gets memory piece by piece. It lies between two multiples of 4 GiB and
 * is as large as that, unless address space is limited. Each piece has a cold part of half its size in another place,
 * for data that is rarely read. Thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A reference into the region: the lower half of an address; 0 refers to nothing. */
typedef uint32_t weir__ref;

enum { WEIR__REGION_PIECE = 256 << 10 }; /* the largest */

/* The multiple of 4 GiB before the region, and where its cold part would be: set before the first piece is taken, never
 * again. */
extern __attribute__((visibility("hidden"))) char *weir__region_base, *weir__region_cold;

/* Reserves the range, if that has not been done. false if the process is limited in address space and has too little
 * left. Otherwise the first piece does it. */
bool weir__region_prepare(void);

/* A piece of `bytes`, all zero, as is its cold part, at the beginning of a page. NULL if the host has no memory. */
void *weir__region_alloc(size_t bytes);

/* Gives a piece back with its cold part. `bytes` is what it was taken with. */
void weir__region_free(void *piece, size_t bytes);

/* Neither of these accepts NULL. Numbers are added, not pointers: where pointers have 32 bits, the base is address 0,
 * and compilers assume that a null pointer plus an offset is never used. */
static inline void *weir__at(weir__ref ref) { return (void *)((uintptr_t)weir__region_base + ref); }
static inline weir__ref weir__ref_of(const void *place) { return (weir__ref)(uintptr_t)place; }

/* The cold part of an object in a piece: half as many bytes. */
static inline void *weir__cold_of(const void *object) {
  return (void *)((uintptr_t)weir__region_cold + weir__ref_of(object) / 2);
}
