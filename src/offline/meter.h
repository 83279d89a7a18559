/*
 * A driver table around another that counts what memory costs: how often each call was made, on how many handles and bytes.
 * As the ledger, it is for one thread at a time.
 */
#ifndef WEIR_OFFLINE_METER_H
#define WEIR_OFFLINE_METER_H

#include <stdint.h>

#include "weir/driver.h"

/* name, as written */
#define WEIR__METER_MAP(X)                                                                                             \
  X(ALLOC, "alloc")           /* cuMemAlloc */                                                                         \
  X(FREE, "free")             /* cuMemFree */                                                                          \
  X(RESERVE, "reserve")       /* cuMemAddressReserve */                                                                \
  X(UNRESERVE, "unreserve")   /* cuMemAddressFree */                                                                   \
  X(CREATE, "create")         /* cuMemCreate */                                                                        \
  X(MAP, "map")               /* cuMemMap */                                                                           \
  X(SET_ACCESS, "set_access") /* cuMemSetAccess */                                                                     \
  X(UNMAP, "unmap")           /* cuMemUnmap */                                                                         \
  X(RELEASE, "release")       /* cuMemRelease */

typedef enum weir__meter_kind {
#define X(name, text) WEIR__METER_##name,
  WEIR__METER_MAP(X)
#undef X
      WEIR__METER_KINDS
} weir__meter_kind;

typedef struct weir__meter_count {
  uint64_t calls;   /* those that failed too */
  uint64_t failed;  /* of them, for want of memory or for any other reason */
  uint64_t handles; /* that calls which succeeded were about: set_access and unmap take many at once, the others one */
  uint64_t bytes;   /* likewise; of free: 0, since the call does not say */
} weir__meter_count;

typedef struct weir__meter_counts {
  weir__meter_count of[WEIR__METER_KINDS];
} weir__meter_counts;

const char *weir__meter_name(weir__meter_kind kind);

/* `inner` stays the caller's, and must outlive it. */
weir_status weir__meter_open(weir_driver *inner, weir_driver **driver);

/* What was counted so far. `driver` is one of weir__meter_open's. */
const weir__meter_counts *weir__meter_read(const weir_driver *driver);

/* Counts from here on. */
void weir__meter_reset(weir_driver *driver);

#endif
