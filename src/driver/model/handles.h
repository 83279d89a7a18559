/*
 * Objects behind handles. A handle is a number, not an address: the kind of object (5 bits), a generation that counts
 * the uses of the slot (20 bits), the slot in its table (24 bits), and 4 bits of zero. A handle that was never made,
 * was destroyed, or is of another kind is therefore detected and never followed into memory. It is below 2^53, so that
 * JavaScript can read it in a snapshot.
 *
 * An object never moves, and starts with a weir__handle. A slot can be used a million times before an old handle
 * matches a new one. Where pointers have 32 bits, which a handle has to fit into, it can be used 64 times.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct weir__handle {
  uint32_t link; /* of a live object its own index, of a dropped one the index + 1 of the one dropped before */
  uint32_t uses; /* odd while the object is live */
} weir__handle;

typedef struct weir__handles {
  uint64_t tag;   /* the kind, in the highest bits of every handle of this table; 0 if the table has no handles */
  size_t size;    /* of an object */
  char **chunks;  /* WEIR__HANDLES_CHUNK objects each */
  size_t room;    /* chunks that `chunks` has place for */
  uint32_t made;  /* slots in use or dropped */
  uint32_t spare; /* index + 1 of the slot dropped last */
} weir__handles;

enum {
  WEIR__HANDLES_CHUNK = 64,
  WEIR__HANDLE_SLOT_BITS = sizeof(void *) < 8 ? 17 : 24,
  WEIR__HANDLE_USE_BITS = sizeof(void *) < 8 ? 6 : 20,
  WEIR__HANDLE_KIND_SHIFT = 4 + WEIR__HANDLE_SLOT_BITS + WEIR__HANDLE_USE_BITS
};

static inline uint64_t weir__handle_pack(uint64_t tag, uint32_t generation, uint32_t slot) {
  const uint64_t uses = generation & ((1u << WEIR__HANDLE_USE_BITS) - 1);
  return tag | uses << (4 + WEIR__HANDLE_SLOT_BITS) | (uint64_t)slot << 4;
}

static inline uint32_t weir__handle_slot(uint64_t handle) {
  return (uint32_t)(handle >> 4) & ((1u << WEIR__HANDLE_SLOT_BITS) - 1);
}

/* An empty table. `kind` is 1 to 31; 0 for a table whose objects are known by their index alone. */
void weir__handles_init(weir__handles *table, unsigned kind, size_t object_size);

/* A new object, all zero behind its weir__handle; NULL when the host has no memory. */
void *weir__handles_make(weir__handles *table);

void weir__handles_drop(weir__handles *table, void *object);

/* Frees every object. */
void weir__handles_clear(weir__handles *table);

/* The first live object at or behind *index, which moves on; NULL at the end. Objects may be dropped during the walk.
 * */
void *weir__handles_next(const weir__handles *table, uint32_t *index);

static inline uint64_t weir__handle_of(const weir__handles *table, const void *object) {
  const weir__handle *head = object;
  return weir__handle_pack(table->tag, head->uses >> 1, head->link);
}

static inline void *weir__handles_slot(const weir__handles *table, uint32_t index) {
  return table->chunks[index / WEIR__HANDLES_CHUNK] + index % WEIR__HANDLES_CHUNK * table->size;
}

/* Whether a handle is of the kind that this table makes, live or not. */
static inline bool weir__handles_made(const weir__handles *table, uint64_t handle) {
  return handle >> WEIR__HANDLE_KIND_SHIFT == table->tag >> WEIR__HANDLE_KIND_SHIFT;
}

/* The live object of an index, or NULL. */
static inline void *weir__handles_live(const weir__handles *table, uint32_t index) {
  if (index >= table->made)
    return NULL;
  weir__handle *head = weir__handles_slot(table, index);
  return (head->uses & 1) != 0 ? head : NULL;
}

/* The live object of a handle, or NULL. */
static inline void *weir__handles_get(const weir__handles *table, uint64_t handle) {
  weir__handle *head = weir__handles_live(table, weir__handle_slot(handle));
  return head && weir__handle_of(table, head) == handle ? head : NULL;
}

/* What is wrong with the table, or NULL. */
const char *weir__handles_fault(const weir__handles *table);
