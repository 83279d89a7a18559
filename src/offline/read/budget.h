/*
 * Containers for what is read from untrusted files: every byte is charged to a budget, so a hostile file results in an
 * error before the host runs out of memory. Not thread-safe: the owner guards them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The memory that may be taken in all. Freed memory is not credited. */
typedef struct weir__budget {
  uint64_t used, limit;
  bool is_over; /* the last call failed because of the limit; if not, the host has no memory */
} weir__budget;

bool weir__budget_take(weir__budget *budget, uint64_t size);

void *weir__grow_slow(weir__budget *budget, void *items, size_t *capacity, size_t needed, size_t item_size);

/* An array with room for `needed` items: `items` itself, or moved. NULL if there is no room; `items` is then as before.
 * It is freed with weir__drop: a large one is mapped, so that it grows without being copied. */
static inline void *weir__grow(weir__budget *budget, void *items, size_t *capacity, size_t needed, size_t item_size) {
  return needed <= *capacity ? items : weir__grow_slow(budget, items, capacity, needed, item_size);
}

/* `items` may be NULL. */
void weir__drop(void *items);

/* Memory that does not move, freed all at once. All zero is empty. */
typedef struct weir__chunks {
  char *at, *end; /* the rest of the newest chunk */
  void *first;    /* all chunks, linked through their first word */
  size_t growth;  /* bytes of the newest chunk */
} weir__chunks;

/* `align` is a power of two up to 16. NULL if there is no room. */
void *weir__chunks_take(weir__chunks *chunks, weir__budget *budget, size_t size, size_t align);
void weir__chunks_clear(weir__chunks *chunks);

/* An index of numbers by hash. The owner compares what they stand for:
 *
 *   size_t cursor = weir__table_begin(table, hash);
 *   for (uint32_t id; (id = weir__table_next(table, hash, &cursor)) != WEIR__TABLE_END;)
 *     if (is_equal(id)) ...
 */
typedef struct weir__table {
  uint64_t *slots; /* the hash in the upper half, the number + 1 in the lower; 0 if unused */
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

/* `id` is below WEIR__TABLE_END. false if there is no room. */
bool weir__table_add(weir__table *table, weir__budget *budget, uint32_t hash, uint32_t id);
void weir__table_clear(weir__table *table);

/* Finds an item with the bytes of `item` in an array, or appends it; *id is its number. `index` is the array's index.
 * Returns the array, which may have moved; NULL if there is no room, and the array is as before. */
void *weir__table_intern(weir__table *index, weir__budget *budget, uint64_t seed, void *items, size_t *count,
                         size_t *capacity, const void *item, size_t size, uint32_t *id);

__extension__ typedef unsigned __int128 weir__u128;

/* Mixes two words into one. */
static inline uint64_t weir__hash_mix(uint64_t a, uint64_t b) {
  weir__u128 product = (weir__u128)(a ^ 0x9e3779b97f4a7c15) * (b ^ 0xc2b2ae3d27d4eb4f);
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint32_t weir__hash_end(uint64_t hash) { return (uint32_t)(hash ^ hash >> 32); }

/* A random `seed` keeps files from being made to collide. */
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

/* A text and its length. A NUL follows it; there may be others inside. */
typedef struct weir__string {
  const char *text;
  uint32_t length;
} weir__string;

/* Interned texts, known by number. */
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

/* Adds a copy of `text` under a new number; weir__strings_find finds it if `is_shared`. WEIR__TABLE_END if there is no
 * room. */
uint32_t weir__strings_add(weir__strings *strings, weir__budget *budget, uint32_t hash, const char *text, size_t length,
                           bool is_shared);
void weir__strings_clear(weir__strings *strings);
