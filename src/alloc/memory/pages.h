/*
 * Pages: physical memory of the driver, and the addresses where it is mapped.
 *
 * A page is the memory of one handle, which is mapped and unmapped as a whole. A reservation is a range of addresses,
 * cut into slots of one size, into which pages are mapped; a page takes one slot or more. A page belongs to one
 * address, that of its owner mapping: there the books count it. It may be mapped at more addresses, as aliases: left
 * behind where a page has moved away from, they let it return without a call of the driver, and let work that is still
 * in flight complete.
 *
 *   page:     none --make, import--> owned --release--> none;  owned --sleep--> asleep --wake--> owned
 *             asleep --release--> none
 *   mapping:  none --make, move, import--> OWNER --the page moves on--> ALIAS --return--> OWNER
 *             ALIAS --retire--> RETIRING --unmap--> none;  RETIRING --return--> OWNER;  any --release--> none
 *             OWNER --sleep--> ASLEEP --wake--> OWNER, and all others of the page --sleep--> none
 *
 * A page that is asleep keeps its address and has no memory. Its bytes are the caller's concern.
 *
 * All of it changes by weir__pages_change, a transaction, and by weir__mapping_retire, which only marks. A failed call
 * of the driver undoes the transaction; a mapping that cannot be undone is STUCK, and is used for nothing but to be
 * unmapped. A page whose sleep can neither be completed nor undone is asleep, and keeps its memory until it wakes.
 *
 * This module sees the driver table alone. The caller guards a set of pages and all that is in it by one lock, and has
 * made the device's context current.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slab.h"
#include "weir/driver.h"

struct weir__block;

typedef struct weir__page weir__page;
typedef struct weir__mapping weir__mapping;
typedef struct weir__reservation weir__reservation;

/* ---- Pins: why a page stays where it is ---- */

enum {
  WEIR__PIN_FIXED = 1 << 0,    /* of a page: by the program, for hardware that knows its address */
  WEIR__PIN_EXPORTED = 1 << 1, /* of a page: other processes may have it mapped */
  WEIR__PIN_RECEIVED = 1 << 2, /* of a reservation: the memory of another process */
  WEIR__PIN_GRAPH = 1 << 3,    /* of a reservation: graphs write to it whenever they are launched */
  WEIR__PIN_PEERS = 1 << 4     /* of a set: other devices may write to it, in an order that its streams do not know */
};

/* ---- Objects ---- */

enum { WEIR__ALIAS_FENCES = 8 };

typedef enum weir__mapping_state {
  WEIR__MAPPING_OWNER,    /* where its page belongs */
  WEIR__MAPPING_ALIAS,    /* in the list of aliases */
  WEIR__MAPPING_RETIRING, /* an alias, in the same list, that will be unmapped when a fence has passed */
  WEIR__MAPPING_STUCK,    /* it could not be unmapped, or is not accessible yet */
  WEIR__MAPPING_ASLEEP    /* where its page belongs, which has no memory */
} weir__mapping_state;

struct weir__mapping {
  weir__page *page;
  weir__reservation *reservation;
  uint64_t address;
  weir__mapping *next;          /* of the page */
  weir__mapping *older, *newer; /* of an alias: in the set's list */
  uint8_t state;                /* weir__mapping_state */
  uint64_t number;              /* of an alias: how many had been made when it became one */
  uint8_t fence;                /* of a retiring alias: what the owner of the fences gave to weir__mapping_retire */
};

struct weir__page {
  weir_cu_mem_handle handle; /* 0 while it is asleep, unless its memory could not be released */
  uint64_t bytes;
  weir__mapping *owner;    /* where it belongs, asleep or not; NULL if all of its mappings are stuck */
  weir__mapping *home;     /* the owner before this one, now an alias; NULL if there is none */
  weir__mapping *mappings; /* all of them */
  unsigned pins;
  int file;               /* of an exported page: its descriptor plus 1; otherwise 0 */
  uint32_t export_number; /* of that export, among all of this process */
  bool stays_mapped;      /* asleep: the driver has the mapping still, without access */
  uint32_t sent_blocks;   /* how many of its blocks were sent, ... */
  bool is_shared;         /* ... or whether it was shared for as long as it exists (ipc/) */
  uint64_t search;        /* the search for movable pages that found it ... */
  struct weir__block *in; /* ... in this free block (cache/move.c) */
  size_t order;           /* ... at this place of its list */
};

/* The first member of what it belongs to, a segment or memory of another process. */
struct weir__reservation {
  uint64_t base, bytes;
  uint64_t slot;         /* bytes of a slot; 0 if this is not a reservation, but memory without pages */
  weir__mapping **slots; /* of the first `room` slots: what is mapped there */
  size_t room;
  size_t owned; /* slots where pages belong that are not asleep */
  unsigned pins;
  weir_cu_stream stream; /* whose work uses the addresses */
  weir__reservation *previous, *next;
};

/* The pages of a device. All zero but for what weir__pages_begin sets. */
typedef struct weir__pages {
  weir_driver *driver;
  int device;
  weir_cu_mem_prop prop; /* of new pages */
  uint64_t granularity;  /* of their sizes; 0 if the device has no virtual memory */
  uint64_t peers;        /* bit i: device i may access all pages */
  weir__reservation *reservations;
  weir__slab pages, mappings;
  struct {
    weir__mapping *oldest, *newest; /* least recently used first */
    size_t count, retiring;
    size_t waiting[WEIR__ALIAS_FENCES + 1]; /* retiring aliases, by the number of their fence */
    int64_t unmapped;                       /* aliases that retired, ever */
    uint64_t made;                          /* how many there have been */
  } aliases;
  weir_cu_mem_handle *orphans; /* of unmapped pages that the driver has refused to release so far */
  size_t orphan_count, orphan_room;
  weir_cu_result failure;  /* the first failure of a call, other than out of memory, since the user cleared it */
  const char *failed_call; /* of that failure; without one, the last call for which memory ran out */
} weir__pages;

/* Asks the driver about the device's pages. `is_shared`: other processes may open them. */
void weir__pages_begin(weir__pages *pages, weir_driver *driver, int device, bool is_shared);

/* The end of a set whose reservations are closed. */
void weir__pages_end(weir__pages *pages);

/* Notes a failed call of the driver. Returns whether the call succeeded. */
bool weir__pages_ok(weir__pages *pages, weir_cu_result result, const char *call);

/* The result of the failure, or of the last call for which memory ran out. */
weir_cu_result weir__pages_failure(const weir__pages *pages);

/* ---- Reservations ---- */

/* Reserves addresses. `bytes` and `slot` are multiples of the granularity, and `bytes` of `slot`. */
weir_cu_result weir__reservation_open(weir__pages *pages, weir__reservation *reservation, uint64_t bytes,
                                      uint64_t slot);

/* Unmaps what has no owner in it, and frees the addresses. No page belongs there, asleep or not. On failure the
 * reservation can still be used. */
weir_cu_result weir__reservation_close(weir__pages *pages, weir__reservation *reservation);

/* The end, whatever the driver says: also pages that belong there are unmapped and released. */
void weir__reservation_end(weir__pages *pages, weir__reservation *reservation);

/* The mapping at an address; NULL if there is none. */
static inline weir__mapping *weir__mapping_at(const weir__reservation *reservation, uint64_t address) {
  size_t slot = (size_t)((address - reservation->base) / reservation->slot);
  return slot < reservation->room ? reservation->slots[slot] : NULL;
}

/* Whether an address is where a page with memory belongs. */
static inline bool weir__is_owner(const weir__mapping *mapping) {
  return mapping && mapping->state == WEIR__MAPPING_OWNER;
}

static inline bool weir__is_asleep(const weir__mapping *mapping) {
  return mapping && mapping->state == WEIR__MAPPING_ASLEEP;
}

static inline bool weir__is_alias(const weir__mapping *mapping) {
  return mapping->state == WEIR__MAPPING_ALIAS || mapping->state == WEIR__MAPPING_RETIRING;
}

static inline uint64_t weir__mapping_end(const weir__mapping *mapping) {
  return mapping->address + mapping->page->bytes;
}

/* ---- May this page leave? ---- */

typedef enum weir__page_use {
  WEIR__PAGE_TO_MOVE,  /* to another address of this set */
  WEIR__PAGE_TO_SLEEP, /* its bytes are copied away, and its address stays */
  WEIR__PAGE_TO_GUARD  /* its address is unmapped, so that uses of it fault */
} weir__page_use;

/* What a page's pins permit: WEIR__PAGE_MAY_IF_IDLE needs all work that could use it to have completed. */
typedef enum weir__page_answer { WEIR__PAGE_MAY_NOT, WEIR__PAGE_MAY_IF_IDLE, WEIR__PAGE_MAY } weir__page_answer;

/* The one place that says so. The pins of a page are its own, those of its reservation, and those of the set. */
weir__page_answer weir__pins_permit(unsigned pins, weir__page_use use);
unsigned weir__page_pins(const weir__pages *pages, const weir__page *page);

/* ---- The transaction ---- */

typedef enum weir__page_action {
  WEIR__PAGE_MAKE,    /* a new page, which belongs to `address` */
  WEIR__PAGE_IMPORT,  /* the same of a handle that the caller has opened, and keeps */
  WEIR__PAGE_MOVE,    /* a page is mapped at `address` and belongs there; where it belonged becomes an alias */
  WEIR__PAGE_RETURN,  /* a page belongs to its alias `mapping` again, without a call of the driver */
  WEIR__PAGE_RELEASE, /* the pages that belong to a range are unmapped everywhere, and released */
  WEIR__PAGE_SLEEP,   /* the same, but they keep their addresses; no work uses them any more */
  WEIR__PAGE_WAKE,    /* the pages of a range that is asleep get memory */
  WEIR__PAGE_FORGET,  /* the pages of a range that is asleep end */
  WEIR__PAGE_UNMAP    /* `mapping`, which is not an owner, is unmapped */
} weir__page_action;

typedef struct weir__page_change {
  weir__page_action action;
  weir__reservation *reservation; /* of the address */
  uint64_t address, bytes;
  weir__page *page;          /* MOVE: which one; MAKE and IMPORT: set to the new one */
  weir__mapping *mapping;    /* RETURN and UNMAP: which one; MAKE, IMPORT and MOVE: set to the new one */
  weir_cu_mem_handle handle; /* IMPORT */
} weir__page_change;

/* Makes all of the changes or none. RELEASE, FORGET and UNMAP stand alone in their transaction; any number of SLEEP, or
 * of WAKE, may share one. The others may be mixed, and those that are side by side come in the order of their
 * addresses, so that one call of the driver serves several. On failure aliases of pages that were to be released or to
 * sleep may be gone, which nothing relies on, a new mapping may be STUCK where it was to be, and the set has the
 * failure. Transactions of RETURN alone call no driver and cannot fail. */
bool weir__pages_change(weir__pages *pages, weir__page_change *changes, size_t count);

/* Unmaps all that is mapped in a range and belongs elsewhere, or nowhere. False if the driver fails. */
bool weir__pages_clear(weir__pages *pages, weir__reservation *reservation, uint64_t address, uint64_t bytes);

/* Marks an alias as one that is unmapped when a fence, whose number is not 0, has passed; and the reverse, with 0. */
void weir__mapping_retire(weir__pages *pages, weir__mapping *mapping, uint8_t fence);

/* ---- Access ---- */

/* Lets another device access everything that is mapped now; what will be is for those in `peers`. */
weir_cu_result weir__pages_share(weir__pages *pages, int device);

/* The file descriptor of a page, which is exported on first use, and pinned until it is withdrawn. */
weir_cu_result weir__page_export(weir__pages *pages, weir__page *page, int *file);
void weir__page_withdraw(weir__page *page);

/* Releases physical memory that the driver refused to release before. */
void weir__release_orphans(weir__pages *pages);
