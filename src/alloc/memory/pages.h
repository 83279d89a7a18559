/*
 * Pages: physical memory of the driver, and the addresses where it is mapped.
 *
 * A page is the memory of one handle, which is mapped and unmapped as a whole. It belongs to one address, that of its
 * owner mapping: there the books count it. It may be mapped at more addresses, as aliases: left behind where a page has
 * moved away from, they let it return without a call of the driver, and let work that is still in flight complete.
 *
 * The heap's lock is held, and that of the arena of each segment that is named.
 */
#ifndef WEIR_ALLOC_MEMORY_PAGES_H
#define WEIR_ALLOC_MEMORY_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slab.h"
#include "weir/driver.h"

struct weir__heap;
struct weir__segment;
struct weir__block;

typedef struct weir__page weir__page;
typedef struct weir__mapping weir__mapping;

struct weir__mapping {
  weir__page *page;
  struct weir__segment *segment;
  uint64_t address;
  weir__mapping *next;          /* of the page */
  weir__mapping *older, *newer; /* of an alias: in heap->aliases */
  bool is_alias;
  uint8_t batch; /* of an alias that will be unmapped: 1 + its number in heap->aliases.batches; 0 if it is in none */
  bool is_stuck; /* it could not be unmapped after a failure. Nothing may use it */
};

struct weir__page {
  weir_cu_mem_handle handle;
  uint64_t bytes;
  weir__mapping *owner;    /* NULL if all of its mappings are stuck */
  weir__mapping *home;     /* the owner before this one, now an alias; NULL if there is none */
  weir__mapping *mappings; /* all of them */
  int file;                /* exported to other processes: its descriptor plus 1; 0 if it is not */
  uint32_t export_number;  /* of that export, among all of this process */
  bool is_shared;          /* by weir_ipc_share: exported until it is released. Otherwise ... */
  uint32_t sent_blocks;    /* ... while it has blocks that were sent */
  bool is_fixed;           /* the program has fixed it in place: it never moves */
  uint64_t search;         /* the search for movable pages that found it (move.c) ... */
  struct weir__block *in;  /* ... in this free block */
  weir__page *next;        /* ... in a list of that search */
  uint64_t tried;          /* the place that it was last tried for */
};

/* Aliases that will be unmapped once a stream has passed a point behind their last use. */
typedef struct weir__alias_batch {
  weir_cu_stream stream;
  weir_cu_event passed; /* NULL if the batch is not in use */
  size_t count;
} weir__alias_batch;

/* Aliases of a heap, the least recently used first. A stream has one batch at a time, so that one that is stalled does
 * not keep the others from retiring aliases. */
typedef struct weir__aliases {
  weir__mapping *oldest, *newest;
  size_t count;
  size_t retiring; /* how many of them are in batches */
  weir__alias_batch batches[8];
} weir__aliases;

/* A page at an address of a segment. */
typedef struct weir__piece {
  uint64_t address, bytes;
  weir__page *page;       /* NULL for a page that has to be made */
  weir__mapping *mapping; /* of the page at this address; NULL if it has to be mapped */
} weir__piece;

/* Asks the driver about the device's pages. */
void weir__pages_prepare(struct weir__heap *heap);

/* Makes and maps what the pieces lack, of which there is one at least; they are in the order of their addresses. Pages that were made belong to their
 * piece's address; those that were there before are mapped as aliases. On failure nothing has changed, and every new
 * mapping is gone or stuck. */
bool weir__pages_map(struct weir__heap *heap, struct weir__segment *segment, weir__piece *pieces, size_t count);

/* Unmaps all mappings of the pages that belong to a range, and releases them. Returns false if the driver fails: the
 * pages are still mapped in the range. */
bool weir__pages_release(struct weir__heap *heap, struct weir__segment *segment, uint64_t address, uint64_t bytes);

/* Unmaps everything in a range that has no owner there: aliases and stuck mappings. False if the driver fails. */
bool weir__pages_clear(struct weir__heap *heap, struct weir__segment *segment, uint64_t address, uint64_t bytes);

/* The mapping at an address; NULL if there is none. */
weir__mapping *weir__mapping_at(const struct weir__segment *segment, uint64_t address);

/* Whether an address is where a page belongs. */
bool weir__is_owner(const weir__mapping *mapping);

/* Makes a mapping of a page its owner; the old one becomes an alias. */
void weir__page_belong(struct weir__heap *heap, weir__mapping *mapping);

/* Unmaps the aliases beyond `most`, the least recently used first, as far as streams are known to have passed their
 * last use. `stream` is the one of the current request. */
void weir__aliases_retire(struct weir__heap *heap, weir_cu_stream stream, uint64_t most);

/* Lets another device access everything that is mapped now. */
weir_cu_result weir__pages_share(struct weir__heap *heap, int device);

/* The devices that may access pages: this one and its peers. Returns their number. */
size_t weir__list_access(const struct weir__heap *heap, weir_cu_mem_access access[64]);

/* Releases physical memory that the driver refused to release before. Needs no arena's lock. */
void weir__release_orphans(struct weir__heap *heap);

/* The end of a segment: unmaps everything in it, whatever the driver says. */
void weir__pages_end(struct weir__heap *heap, struct weir__segment *segment);

/* The end of a heap without segments. */
void weir__pages_finish(struct weir__heap *heap);

#endif
