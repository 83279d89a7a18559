#include "base/intern.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { chunk_bytes = 1 << 18, first_slots = 1 << 10 };

#define MULTIPLIER 0x9e3779b97f4a7c15u

static inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * MULTIPLIER;
  return hash ^ hash >> 29;
}

static inline uint64_t word_at(const unsigned char *bytes) {
  uint64_t word;
  memcpy(&word, bytes, sizeof word);
  return word;
}

/* Each step depends on the multiplication before it, so long strings, such as stacks, go through four chains at
 * once. */
static uint64_t hash_of(const unsigned char *bytes, size_t length) {
  const uint64_t k = MULTIPLIER;
  uint64_t hash = length * k;
  if (length >= 64) {
    uint64_t a = hash, b = hash + 1, c = hash + 2, d = hash + 3;
    for (; length >= 32; bytes += 32, length -= 32) {
      a = mix(a, word_at(bytes));
      b = mix(b, word_at(bytes + 8));
      c = mix(c, word_at(bytes + 16));
      d = mix(d, word_at(bytes + 24));
    }
    hash = mix(mix(mix(a, b), c), d);
  }
  for (; length >= 8; bytes += 8, length -= 8)
    hash = mix(hash, word_at(bytes));
  if (length) {
    uint64_t word = 0;
    memcpy(&word, bytes, length);
    hash = (hash ^ word) * k;
  }
  return hash ^ hash >> 32;
}

static const weir__interned *string_of(const weir__intern *intern, uint32_t number) {
  const weir__intern_page *page =
      atomic_load_explicit(&intern->pages[number / WEIR__INTERN_PAGE], memory_order_acquire);
  return page ? page->strings[number % WEIR__INTERN_PAGE] : NULL;
}

static uint32_t find(const weir__intern *intern, const weir__intern_table *table, uint32_t hash, const void *bytes,
                     size_t length) {
  if (!table)
    return 0;
  for (size_t i = hash & table->mask;; i = (i + 1) & table->mask) {
    uint64_t slot = atomic_load_explicit(&table->slots[i], memory_order_acquire);
    if (!slot)
      return 0;
    if (slot >> 32 != hash)
      continue;
    const weir__interned *string = string_of(intern, (uint32_t)slot);
    if (string->length == length && memcmp(string->bytes, bytes, length) == 0)
      return (uint32_t)slot;
  }
}

/* ---- Adding, under the lock ---- */

static void *take(weir__intern *intern, size_t bytes) {
  size_t have = atomic_load_explicit(&intern->bytes, memory_order_relaxed), all = bytes + sizeof(weir__intern_memory);
  weir__intern_memory *memory = all <= intern->max_bytes - have ? calloc(1, all) : NULL;
  if (!memory)
    return NULL;
  memory->next = intern->memory;
  intern->memory = memory;
  atomic_store_explicit(&intern->bytes, have + all, memory_order_relaxed);
  return memory + 1;
}

static void place(weir__intern_table *table, uint64_t slot) {
  size_t i = slot >> 32 & table->mask;
  while (atomic_load_explicit(&table->slots[i], memory_order_relaxed))
    i = (i + 1) & table->mask;
  atomic_store_explicit(&table->slots[i], slot, memory_order_release);
}

/* At most half of the slots are used. */
static weir__intern_table *table_for(weir__intern *intern, size_t count) {
  weir__intern_table *old = atomic_load_explicit(&intern->table, memory_order_relaxed);
  if (old && 2 * count <= old->mask)
    return old;
  size_t slots = old ? 2 * (old->mask + 1) : first_slots;
  weir__intern_table *table = take(intern, sizeof *table + slots * sizeof table->slots[0]);
  if (!table)
    return NULL;
  table->mask = slots - 1;
  for (size_t i = 0; old && i <= old->mask; i++) {
    uint64_t slot = atomic_load_explicit(&old->slots[i], memory_order_relaxed);
    if (slot)
      place(table, slot);
  }
  atomic_store_explicit(&intern->table, table, memory_order_release);
  return table;
}

static weir__interned *new_string(weir__intern *intern, size_t length) {
  size_t bytes = (sizeof(weir__interned) + length + 1 + 7) / 8 * 8;
  if (bytes > chunk_bytes / 4) /* long strings get memory of their own and waste nothing in the chunk */
    return take(intern, bytes);
  if (!intern->fresh || (size_t)(intern->end - intern->fresh) < bytes) {
    char *chunk = take(intern, chunk_bytes);
    if (!chunk)
      return NULL;
    intern->fresh = chunk;
    intern->end = chunk + chunk_bytes;
  }
  weir__interned *string = (weir__interned *)(void *)intern->fresh;
  intern->fresh += bytes;
  return string;
}

static uint32_t add(weir__intern *intern, uint32_t hash, const void *bytes, size_t length) {
  uint32_t number = atomic_load_explicit(&intern->count, memory_order_relaxed) + 1;
  if (number / WEIR__INTERN_PAGE >= WEIR__INTERN_PAGES)
    return 0;
  weir__intern_table *table = table_for(intern, number);
  weir__intern_page *page = atomic_load_explicit(&intern->pages[number / WEIR__INTERN_PAGE], memory_order_relaxed);
  if (!table || (!page && !(page = take(intern, sizeof *page))))
    return 0;
  atomic_store_explicit(&intern->pages[number / WEIR__INTERN_PAGE], page, memory_order_release);
  weir__interned *string = new_string(intern, length);
  if (!string)
    return 0;
  string->length = (uint32_t)length;
  string->hash = hash;
  memcpy(string->bytes, bytes, length);
  page->strings[number % WEIR__INTERN_PAGE] = string;
  /* A number is counted before it can be found: a log that refers to it then contains everything that is counted. */
  atomic_store_explicit(&intern->count, number, memory_order_release);
  place(table, (uint64_t)hash << 32 | number);
  return number;
}

uint32_t weir__intern_put(weir__intern *intern, const void *bytes, size_t length) {
  if (!length)
    return 0;
  uint32_t hash = (uint32_t)hash_of(bytes, length);
  uint32_t number = find(intern, atomic_load_explicit(&intern->table, memory_order_acquire), hash, bytes, length);
  if (number)
    return number;
  weir__lock_acquire(&intern->lock);
  number = find(intern, atomic_load_explicit(&intern->table, memory_order_relaxed), hash, bytes, length);
  if (!number)
    number = add(intern, hash, bytes, length);
  weir__lock_release(&intern->lock);
  if (!number)
    atomic_fetch_add_explicit(&intern->lost, 1, memory_order_relaxed);
  return number;
}

const void *weir__intern_get(const weir__intern *intern, uint32_t number, size_t *length) {
  bool known = number && number <= atomic_load_explicit(&intern->count, memory_order_acquire);
  const weir__interned *string = known ? string_of(intern, number) : NULL;
  *length = string ? string->length : 0;
  return string ? string->bytes : NULL;
}

void weir__intern_clear(weir__intern *intern) {
  for (weir__intern_memory *memory = intern->memory, *next; memory; memory = next) {
    next = memory->next;
    free(memory);
  }
  size_t max_bytes = intern->max_bytes;
  memset(intern, 0, sizeof *intern);
  intern->max_bytes = max_bytes;
}
