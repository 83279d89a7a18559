/*
 * Pages that move: a stream with holes, and what the tests look at.
 */
#pragma once

#include "alloc/allocator.h"
#include "alloc/cache/segment.h"
#include "support/alloc.h"

/* Two free holes of 40 MiB, each followed by a small block that is in use: a request for more than 40 MiB finds enough
 * free memory, but no free block. */
typedef struct holes {
  void *first, *second; /* the addresses of the holes */
  void *kept[2];
} holes;

static inline holes make_holes(weir_cu_stream stream) {
  holes h;
  h.first = get(40 * MIB, stream);
  h.kept[0] = get(2 * MIB, stream);
  h.second = get(40 * MIB, stream);
  h.kept[1] = get(2 * MIB, stream);
  put(h.first);
  put(h.second);
  return h;
}

static inline void end_holes(const holes *h) {
  put(h->kept[0]);
  put(h->kept[1]);
}

/* The number of aliases; they are counted as the walker finds them. */
static inline size_t alias_count(void) { return allocator->heaps[0].pages.aliases.count; }

/* Whether the memory at an address is mapped, as the owner or as an alias. */
static inline bool is_mapped_at(const void *address) {
  const weir__segment *s = weir__segment_at(&allocator->heaps[0], (uint64_t)address);
  return s && weir__mapping_at(&s->memory, (uint64_t)address);
}

/* Calls that map, unmap or make memory. */
static inline unsigned long memory_calls(void) {
  return calls(WEIR_CALL_MemCreate) + calls(WEIR_CALL_MemMap) + calls(WEIR_CALL_MemSetAccess) +
         calls(WEIR_CALL_MemUnmap) + calls(WEIR_CALL_MemRelease) + calls(WEIR_CALL_MemAddressReserve) +
         calls(WEIR_CALL_MemAddressFree) + calls(WEIR_CALL_MemAlloc) + calls(WEIR_CALL_MemFree);
}

/* Calls that make the host wait for the device. */
static inline unsigned long waiting_calls(void) {
  return calls(WEIR_CALL_StreamSynchronize) + calls(WEIR_CALL_EventSynchronize) + calls(WEIR_CALL_CtxSynchronize);
}

/* A fill of a block, in stream order, that stays pending until the stream is stepped. */
static inline void fill(void *memory, int value, size_t bytes, weir_cu_stream stream) {
  assert_cu(d->MemsetD8Async(d, (weir_cu_deviceptr)memory, (unsigned char)value, bytes, stream));
}

static inline void assert_fill(const void *memory, int value, size_t bytes) {
  const unsigned char *at = memory;
  for (size_t i = 0; i < bytes; i += i + 4096 < bytes ? 4096 : bytes - i)
    assert_int_equal(at[i], value);
  assert_int_equal(at[bytes - 1], value);
}
