/*
 * A driver table around another one that counts the calls that manage memory, with their handles and bytes. Like the
 * ledger, it is used by one thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "weir/driver.h"

/* name, as written */
#define WEIR__METER_MAP(X)                                                                                             \
  X(ALLOC, "alloc")               /* cuMemAlloc */                                                                     \
  X(FREE, "free")                 /* cuMemFree */                                                                      \
  X(RESERVE, "reserve")           /* cuMemAddressReserve */                                                            \
  X(UNRESERVE, "unreserve")       /* cuMemAddressFree */                                                               \
  X(CREATE, "create")             /* cuMemCreate */                                                                    \
  X(MAP, "map")                   /* cuMemMap */                                                                       \
  X(SET_ACCESS, "set_access")     /* cuMemSetAccess */                                                                 \
  X(UNMAP, "unmap")               /* cuMemUnmap */                                                                     \
  X(RELEASE, "release")           /* cuMemRelease */                                                                   \
  X(STREAM_QUERY, "stream_query") /* cuStreamQuery */

typedef enum weir__meter_kind {
#define X(name, text) WEIR__METER_##name,
  WEIR__METER_MAP(X)
#undef X
      WEIR__METER_KINDS
} weir__meter_kind;

typedef struct weir__meter_count {
  uint64_t calls;   /* including failed ones */
  uint64_t failed;  /* failed calls, for any reason */
  uint64_t handles; /* of successful calls: set_access and unmap take many at once, the others one */
  uint64_t bytes;   /* likewise; 0 for free, which does not say */
} weir__meter_count;

typedef struct weir__meter_counts {
  weir__meter_count of[WEIR__METER_KINDS];
} weir__meter_counts;

const char *weir__meter_name(weir__meter_kind kind);

/* `inner` must outlive it, and is not closed with it. */
weir_status weir__meter_open(weir_driver *inner, weir_driver **driver);

/* The counts so far. `driver` is from weir__meter_open. */
const weir__meter_counts *weir__meter_read(const weir_driver *driver);

/* Resets the counts. */
void weir__meter_reset(weir_driver *driver);

/* Whether a stream has done all its work when cuStreamQuery asks. A ledger does everything at once, so it does not
 * know. A wait makes all streams idle until weir__meter_work: the allocator waits in one place only, before a request
 * fails, and then for each stream that has free pages. */
typedef bool weir__meter_is_idle(void *context, weir_cu_stream stream);
void weir__meter_ask(weir_driver *driver, weir__meter_is_idle *is_idle, void *context);
void weir__meter_work(weir_driver *driver);
