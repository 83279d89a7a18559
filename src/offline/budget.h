/*
 * Memory for what is read from a file that nobody vouches for: every byte is taken from a budget, so a hostile file ends in
 * an error and not in the host's last page. Not thread-safe: its owner guards it.
 */
#ifndef WEIR_OFFLINE_BUDGET_H
#define WEIR_OFFLINE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What may be taken in all. Nothing is given back to it before all of it goes. */
typedef struct weir__budget {
  uint64_t used, limit;
  bool is_over; /* why the last call failed: the limit, or else the host has no memory */
} weir__budget;

bool weir__budget_take(weir__budget *budget, uint64_t size);

void *weir__grow_slow(weir__budget *budget, void *items, size_t *capacity, size_t needed, size_t item_size);

/* An array with room for `needed` items: `items` itself, or moved. NULL: no room, and `items` is as before. It is given back
 * with weir__drop: a large one is not malloc's, so that it grows without being copied. */
static inline void *weir__grow(weir__budget *budget, void *items, size_t *capacity, size_t needed, size_t item_size) {
  return needed <= *capacity ? items : weir__grow_slow(budget, items, capacity, needed, item_size);
}

/* `items` may be NULL. */
void weir__drop(void *items);

/* Bytes that stay where they are until all of them go. All zero is empty. */
typedef struct weir__chunks {
  char *at, *end; /* what is left of the newest chunk */
  void *first;    /* all chunks, linked through their first word */
  size_t growth;  /* bytes of the newest chunk */
} weir__chunks;

/* `align` is a power of two up to 16. NULL: no room. */
void *weir__chunks_take(weir__chunks *chunks, weir__budget *budget, size_t size, size_t align);
void weir__chunks_clear(weir__chunks *chunks);

/* Finds numbers by hash; what a number stands for, and whether it is equal, only the owner knows:
 *
 *   size_t cursor = weir__table_begin(table, hash);
 *   for (uint32_t id; (id = weir__table_next(table, hash, &cursor)) != WEIR__TABLE_END;)
 *     if (is_equal(id)) ...
 */
typedef struct weir__table {
  uint64_t *slots; /* the hash above, the number + 1 below; 0: empty */
  size_t capacity; /* a power of two, or 0 */
  size_t count;
} weir__table;

#define WEIR__TABLE_END UINT32_MAX

static inline size_t weir__table_begin(const weir__table *table, uint32_t hash) { return hash & (table->capacity - 1); }

static inline uint32_t weir__table_next(const weir__table *table, uint32_t hash, size_t *cursor) {
  if (table->capacity == 0)
    return WEIR__TABLE_END;
  for (;;) {
    uint64_t slot = table->slots[*cursor];
    if (slot == 0)
      return WEIR__TABLE_END;
    *cursor = (*cursor + 1) & (table->capacity - 1);
    if (slot >> 32 == hash)
      return (uint32_t)slot - 1;
  }
}

/* `id` is below WEIR__TABLE_END. false: no room. */
bool weir__table_add(weir__table *table, weir__budget *budget, uint32_t hash, uint32_t id);
void weir__table_clear(weir__table *table);

/* Finds an item with the bytes of `item` in an array, or appends it; *id is its number. `index` is of that array alone. The
 * array itself, or moved as by weir__grow; NULL: no room. */
void *weir__table_intern(weir__table *index, weir__budget *budget, uint64_t seed, void *items, size_t *count,
                         size_t *capacity, const void *item, size_t size, uint32_t *id);

__extension__ typedef unsigned __int128 weir__u128;

/* Two words into one, every bit of both in every bit of it. */
static inline uint64_t weir__hash_mix(uint64_t a, uint64_t b) {
  weir__u128 product = (weir__u128)(a ^ 0x9e3779b97f4a7c15) * (b ^ 0xc2b2ae3d27d4eb4f);
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint32_t weir__hash_end(uint64_t hash) { return (uint32_t)(hash ^ hash >> 32); }

/* `seed` is not known to whoever wrote the bytes, so that they cannot choose them to collide. */
static inline uint64_t weir__hash_bytes(uint64_t seed, const void *bytes, size_t size) {
  const unsigned char *at = bytes;
  uint64_t hash = seed ^ size, word;
  for (; size > 8; size -= 8, at += 8) {
    memcpy(&word, at, 8);
    hash = weir__hash_mix(hash, word);
  }
  if (size >= 4) {
    uint32_t low, high;
    memcpy(&low, at, 4);
    memcpy(&high, at + size - 4, 4);
    word = (uint64_t)high << 32 | low;
  } else {
    word = size == 0 ? 0 : (uint64_t)at[0] << 16 | (uint64_t)at[size / 2] << 8 | at[size - 1];
  }
  return weir__hash_mix(hash, word);
}

uint64_t weir__hash_seed(void);

/* A text with its length; a NUL follows it, and there may be others inside. */
typedef struct weir__string {
  const char *text;
  uint32_t length;
} weir__string;

/* Texts kept once each, known by number. */
typedef struct weir__strings {
  weir__string *items;
  size_t count, capacity;
  weir__table table;
  weir__chunks chars;
  uint64_t seed;
} weir__strings;

static inline uint32_t weir__strings_hash(const weir__strings *strings, const char *text, size_t length) {
  return weir__hash_end(weir__hash_bytes(strings->seed, text, length));
}

/* Its number, or WEIR__TABLE_END. */
static inline uint32_t weir__strings_find(const weir__strings *strings, uint32_t hash, const char *text,
                                          size_t length) {
  size_t cursor = weir__table_begin(&strings->table, hash);
  for (;;) {
    uint32_t id = weir__table_next(&strings->table, hash, &cursor);
    if (id == WEIR__TABLE_END)
      return id;
    const weir__string *string = &strings->items[id];
    if (string->length == length && memcmp(string->text, text, length) == 0)
      return id;
  }
}

/* A copy of `text` under a new number, which `find` finds from then on if `is_shared`. WEIR__TABLE_END: no room. */
uint32_t weir__strings_add(weir__strings *strings, weir__budget *budget, uint32_t hash, const char *text, size_t length,
                           bool is_shared);
void weir__strings_clear(weir__strings *strings);

#endif
