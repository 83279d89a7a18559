#include "offline/read/budget.h"

#include <stdlib.h>

#include "base/memory_map.h"
#include "base/system.h"

enum { SMALLEST_ARRAY = 16, MAPPED_ARRAY = 256 * 1024, SMALLEST_CHUNK = 4096, LARGEST_CHUNK = 1 << 20 };

bool weir__budget_take(weir__budget *budget, uint64_t size) {
  budget->is_over = size > budget->limit - budget->used;
  if (!budget->is_over)
    budget->used += size;
  return !budget->is_over;
}

/* The header of an array, before its items. */
typedef union array {
  size_t mapped; /* bytes of the mapping; 0 if it is from malloc */
  char line[64]; /* items begin on a cache line where the array is mapped */
} array;

/* Resizes an array with its header to `size` bytes. NULL on failure; `old` is then as before. */
static array *resize(array *old, size_t old_size, size_t size) {
  if (size < MAPPED_ARRAY) { /* arrays never shrink, so the old one is not mapped either */
    array *heap = realloc(old, size);
    if (heap)
      heap->mapped = 0;
    return heap;
  }
  bool was_mapped = old != NULL && old->mapped != 0;
  array *mapped = was_mapped ? weir__map_grow(old, old->mapped, size) : weir__map_memory(size);
  if (!mapped)
    return NULL;
  if (old && !was_mapped) {
    memcpy(mapped, old, old_size);
    free(old);
  }
  mapped->mapped = size;
  return mapped;
}

void *weir__grow_slow(weir__budget *budget, void *items, size_t *capacity, size_t needed, size_t item_size) {
  size_t target = *capacity > SIZE_MAX / 2 ? needed : 2 * *capacity;
  if (target < SMALLEST_ARRAY)
    target = SMALLEST_ARRAY;
  if (target < needed)
    target = needed;
  uint64_t left = budget->limit - budget->used;
  if ((target - *capacity) > left / item_size) /* no room to double; perhaps for what is needed */
    target = needed;
  budget->is_over = (target - *capacity) > left / item_size;
  if (budget->is_over || target > (SIZE_MAX - sizeof(array)) / item_size)
    return NULL;
  array *old = items ? (array *)items - 1 : NULL;
  array *grown = resize(old, sizeof *old + *capacity * item_size, sizeof *grown + target * item_size);
  if (!grown)
    return NULL;
  budget->used += (uint64_t)(target - *capacity) * item_size;
  *capacity = target;
  return grown + 1;
}

void weir__drop(void *items) {
  array *a = items ? (array *)items - 1 : NULL;
  if (a && a->mapped != 0)
    weir__unmap(a, a->mapped);
  else
    free(a);
}

/* The link of a chunk takes 16 bytes, so that what follows is aligned for any type. */
static char *new_chunk(weir__chunks *chunks, weir__budget *budget, size_t size) {
  if (size > SIZE_MAX - 16 || !weir__budget_take(budget, size + 16))
    return NULL;
  void **chunk = malloc(size + 16);
  if (!chunk) {
    budget->used -= size + 16;
    return NULL;
  }
  *chunk = chunks->first;
  chunks->first = chunk;
  return (char *)chunk + 16;
}

void *weir__chunks_take(weir__chunks *chunks, weir__budget *budget, size_t size, size_t align) {
  size_t skip = -(uintptr_t)chunks->at & (align - 1);
  size_t left = (size_t)(chunks->end - chunks->at);
  if (skip <= left && size <= left - skip) {
    char *taken = chunks->at + skip;
    chunks->at = taken + size;
    return taken;
  }
  size_t growth = chunks->growth == 0               ? SMALLEST_CHUNK
                  : chunks->growth >= LARGEST_CHUNK ? LARGEST_CHUNK
                                                    : 2 * chunks->growth;
  if (size > growth / 4) /* a chunk of its own; the newest one still has room for others */
    return new_chunk(chunks, budget, size);
  char *chunk = new_chunk(chunks, budget, growth);
  if (!chunk)
    return NULL;
  chunks->growth = growth;
  chunks->at = chunk + size;
  chunks->end = chunk + growth;
  return chunk;
}

void weir__chunks_clear(weir__chunks *chunks) {
  for (void *chunk = chunks->first, *next; chunk; chunk = next) {
    next = *(void **)chunk;
    free(chunk);
  }
  *chunks = (weir__chunks){0};
}

static void put(uint64_t *slots, size_t capacity, uint64_t slot) {
  size_t at = (slot >> 32) & (capacity - 1);
  while (slots[at] != 0)
    at = (at + 1) & (capacity - 1);
  slots[at] = slot;
}

bool weir__table_add(weir__table *table, weir__budget *budget, uint32_t hash, uint32_t id) {
  if (2 * (table->count + 1) > table->capacity) {
    size_t capacity = table->capacity == 0 ? 64 : 2 * table->capacity;
    if (!weir__budget_take(budget, (uint64_t)(capacity - table->capacity) * sizeof *table->slots))
      return false;
    uint64_t *slots = calloc(capacity, sizeof *slots);
    if (!slots)
      return false;
    for (size_t i = 0; i < table->capacity; i++)
      if (table->slots[i] != 0)
        put(slots, capacity, table->slots[i]);
    free(table->slots);
    table->slots = slots;
    table->capacity = capacity;
  }
  put(table->slots, table->capacity, (uint64_t)hash << 32 | (id + 1));
  table->count++;
  return true;
}

void weir__table_clear(weir__table *table) {
  free(table->slots);
  *table = (weir__table){0};
}

void *weir__table_intern(weir__table *index, weir__budget *budget, uint64_t seed, void *items, size_t *count,
                         size_t *capacity, const void *item, size_t size, uint32_t *id) {
  uint32_t hash = weir__hash_end(weir__hash_bytes(seed, item, size));
  size_t cursor = weir__table_begin(index, hash);
  while ((*id = weir__table_next(index, hash, &cursor)) != WEIR__TABLE_END)
    if (memcmp((const char *)items + *id * size, item, size) == 0)
      return items;
  budget->is_over = *count >= WEIR__TABLE_END;
  if (budget->is_over || !weir__table_add(index, budget, hash, (uint32_t)*count))
    return NULL;
  void *grown = weir__grow(budget, items, capacity, *count + 1, size);
  if (!grown)
    return NULL;
  memcpy((char *)grown + *count * size, item, size);
  *id = (uint32_t)(*count)++;
  return grown;
}

uint64_t weir__hash_seed(void) {
  uint64_t seed;
  if (!weir__random_bytes(&seed, sizeof seed))
    seed = (uintptr_t)&weir__hash_seed; /* at least the load address is random */
  return seed;
}

uint32_t weir__strings_add(weir__strings *strings, weir__budget *budget, uint32_t hash, const char *text, size_t length,
                           bool is_shared) {
  budget->is_over = length >= UINT32_MAX || strings->count >= WEIR__TABLE_END - 1;
  if (budget->is_over)
    return WEIR__TABLE_END;
  weir__string *items = weir__grow(budget, strings->items, &strings->capacity, strings->count + 1, sizeof *items);
  if (!items)
    return WEIR__TABLE_END;
  strings->items = items;
  char *copy = weir__chunks_take(&strings->chars, budget, length + 1, 1);
  uint32_t id = (uint32_t)strings->count;
  if (!copy || (is_shared && !weir__table_add(&strings->table, budget, hash, id)))
    return WEIR__TABLE_END;
  memcpy(copy, text, length);
  copy[length] = '\0';
  items[id] = (weir__string){copy, (uint32_t)length};
  strings->count++;
  return id;
}

void weir__strings_clear(weir__strings *strings) {
  weir__drop(strings->items);
  weir__table_clear(&strings->table);
  weir__chunks_clear(&strings->chars);
  *strings = (weir__strings){0};
}
