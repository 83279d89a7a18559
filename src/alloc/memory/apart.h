/*
 * Blocks that stand apart: each at the end of pages of its own, with nothing mapped before and behind them, so that an
 * access past its end faults. The addresses of a block that is gone stay unmapped for as long as there are addresses
 * that were not used yet.
 *
 * The caller guards it as it guards the pages, and has made the device's context current.
 */
#pragma once

#include <stdatomic.h>

#include "alloc/memory/pages.h"

/* All zero before the first block. */
typedef struct weir__apart {
  weir__reservation space; /* opened with the first block; base 0 before */
  uint64_t bytes;          /* of the space, written before ... */
  atomic_ullong base;      /* ... its base is, so that both can be read without a lock */
  uint64_t next;           /* the offset where the search for addresses begins */
} weir__apart;

/* Makes pages for `bytes`, a multiple of 512; the block ends where they end. `memory` is that of the device: there are
 * many times as many addresses. The failure is that of the pages. */
bool weir__apart_get(weir__pages *pages, weir__apart *apart, uint64_t memory, uint64_t bytes,
                     weir_cu_deviceptr *address);

/* Unmaps and releases the pages of a block. All work that may use it has completed. */
bool weir__apart_give(weir__pages *pages, weir__apart *apart, uint64_t address, uint64_t bytes);

/* The end, with all blocks. */
void weir__apart_end(weir__pages *pages, weir__apart *apart);

/* Whether an address is among those of such blocks, of live ones and of others. Needs no lock. */
static inline bool weir__apart_has(const weir__apart *apart, uint64_t address) {
  uint64_t base = atomic_load_explicit(&apart->base, memory_order_acquire);
  return base && address - base < apart->bytes;
}
