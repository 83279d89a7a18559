/*
 * The live table: growth, and blocks that overflow from their bucket.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/block.h"

static void insert_again(weir__live *live, const weir__live_bucket *bucket) {
  for (unsigned i = 0; i < WEIR__LIVE_SLOTS; i++)
    if (bucket->tags[i])
      weir__live_insert(live, bucket->blocks[i], weir__live_hash(bucket->blocks[i]->address));
}

bool weir__live_grow(weir__live *live) {
  weir__live grown = {.bits = live->buckets ? live->bits + 1 : 3};
  grown.shift = 64 - grown.bits;
  size_t count = (size_t)1 << grown.bits, bytes = count * sizeof *grown.buckets;
  grown.most = count * 5;
  grown.buckets = aligned_alloc(sizeof *grown.buckets, bytes);
  if (!grown.buckets)
    return false;
  memset(grown.buckets, 0, bytes);
  for (size_t i = 0; live->buckets && i < (size_t)1 << live->bits; i++)
    insert_again(&grown, &live->buckets[i]);
  free(live->buckets);
  *live = grown;
  return true;
}

static size_t next_bucket(const weir__live *live, size_t i) { return (i + 1) & (((size_t)1 << live->bits) - 1); }

void weir__live_insert_overflow(weir__live *live, weir__block *block, uint64_t hash) {
  size_t i = weir__live_home(live, hash);
  while (!weir__live_vacant(&live->buckets[i])) {
    if (live->buckets[i].overflowed < UINT8_MAX) /* sticks at the maximum, which only makes searches longer */
      live->buckets[i].overflowed++;
    i = next_bucket(live, i);
  }
  weir__live_put(&live->buckets[i], block, hash);
}

weir__block *weir__live_find_overflow(const weir__live *live, uint64_t address, uint64_t hash,
                                      weir__live_place *place) {
  size_t i = weir__live_home(live, hash);
  for (size_t left = (size_t)1 << live->bits; live->buckets[i].overflowed && left > 1; left--) {
    i = next_bucket(live, i);
    weir__block *block = weir__live_match(&live->buckets[i], address, hash, true, place);
    if (block)
      return block;
  }
  return NULL;
}

void weir__live_uncount_overflow(weir__live *live, uint64_t address, const weir__live_bucket *found) {
  for (size_t i = weir__live_home(live, weir__live_hash(address)); &live->buckets[i] != found; i = next_bucket(live, i))
    if (live->buckets[i].overflowed < UINT8_MAX)
      live->buckets[i].overflowed--;
}

void weir__live_clear(weir__live *live) {
  free(live->buckets);
  *live = (weir__live){0};
}
