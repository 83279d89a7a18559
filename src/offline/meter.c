#include "offline/meter.h"

#include <stdlib.h>

#include "base/base.h"
#include "base/rangemap.h"

typedef struct meter {
  weir_driver table; /* must be first: a weir_driver * of a meter is a meter * */
  weir_driver *inner;
  weir__meter_counts counts;
  /* An allocator maps handles of one size into a reservation, so the range of a call shows their number. The values are
   * the handles' sizes, and the meter itself until the first is mapped. */
  weir__rangemap reservations;
  weir__rangemap handles; /* handles that were created and not released: the values are their sizes */
} meter;

const char *weir__meter_name(weir__meter_kind kind) {
  static const char *const names[] = {
#define X(name, text) [WEIR__METER_##name] = text,
      WEIR__METER_MAP(X)
#undef X
  };
  return names[kind];
}

static weir_cu_result count(meter *m, weir__meter_kind kind, weir_cu_result result, uint64_t handles, uint64_t bytes) {
  weir__meter_count *c = &m->counts.of[kind];
  c->calls++;
  if (result)
    c->failed++;
  else {
    c->handles += handles;
    c->bytes += bytes;
  }
  return result;
}

/* ---- Calls that are only forwarded ---- */

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result name(weir_driver *self WEIR__AND params) {                                                     \
    weir_driver *inner = ((meter *)self)->inner;                                                                       \
    return inner->name(inner WEIR__AND args);                                                                          \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result name(weir_driver *self) {                                                                      \
    weir_driver *inner = ((meter *)self)->inner;                                                                       \
    return inner->name(inner);                                                                                         \
  }
#include "weir/driver_entries.h"

/* ---- Calls that are counted ---- */

static weir_cu_result count_alloc(weir_driver *self, weir_cu_deviceptr *pointer, uint64_t bytes) {
  return count((meter *)self, WEIR__METER_ALLOC, MemAlloc(self, pointer, bytes), 1, bytes);
}

static weir_cu_result count_free(weir_driver *self, weir_cu_deviceptr pointer) {
  return count((meter *)self, WEIR__METER_FREE, MemFree(self, pointer), 1, 0);
}

static weir_cu_result count_reserve(weir_driver *self, weir_cu_deviceptr *pointer, uint64_t bytes, uint64_t alignment,
                                    weir_cu_deviceptr wish, unsigned long long flags) {
  meter *m = (meter *)self;
  weir_cu_result result = MemAddressReserve(self, pointer, bytes, alignment, wish, flags);
  if (!result)
    weir__rangemap_insert(&m->reservations, *pointer, bytes, m);
  return count(m, WEIR__METER_RESERVE, result, 1, bytes);
}

static weir_cu_result count_unreserve(weir_driver *self, weir_cu_deviceptr pointer, uint64_t bytes) {
  meter *m = (meter *)self;
  weir_cu_result result = MemAddressFree(self, pointer, bytes);
  if (!result)
    weir__rangemap_remove(&m->reservations, pointer);
  return count(m, WEIR__METER_UNRESERVE, result, 1, bytes);
}

static weir_cu_result count_create(weir_driver *self, weir_cu_mem_handle *handle, uint64_t bytes,
                                   const weir_cu_mem_prop *prop, unsigned long long flags) {
  meter *m = (meter *)self;
  weir_cu_result result = MemCreate(self, handle, bytes, prop, flags);
  if (!result)
    weir__rangemap_insert(&m->handles, *handle, 1, (void *)(uintptr_t)bytes);
  return count(m, WEIR__METER_CREATE, result, 1, bytes);
}

static weir_cu_result count_release(weir_driver *self, weir_cu_mem_handle handle) {
  meter *m = (meter *)self;
  weir_cu_result result = MemRelease(self, handle);
  const void *bytes = result ? NULL : weir__rangemap_remove(&m->handles, handle);
  return count(m, WEIR__METER_RELEASE, result, 1, (uintptr_t)bytes);
}

static weir_cu_result count_map(weir_driver *self, weir_cu_deviceptr pointer, uint64_t bytes, uint64_t offset,
                                weir_cu_mem_handle handle, unsigned long long flags) {
  meter *m = (meter *)self;
  uint64_t base, size;
  weir_cu_result result = MemMap(self, pointer, bytes, offset, handle, flags);
  if (!result && weir__rangemap_find(&m->reservations, pointer, &base, &size) == m) {
    weir__rangemap_remove(&m->reservations, base);
    weir__rangemap_insert(&m->reservations, base, size, (void *)(uintptr_t)bytes);
  }
  return count(m, WEIR__METER_MAP, result, 1, bytes);
}

/* The number of handles that are mapped into a range without holes. */
static uint64_t handles_in(const meter *m, weir_cu_deviceptr pointer, uint64_t bytes) {
  const void *size = weir__rangemap_find(&m->reservations, pointer, NULL, NULL);
  return size && size != m ? (bytes + (uintptr_t)size - 1) / (uintptr_t)size : 1;
}

static weir_cu_result count_set_access(weir_driver *self, weir_cu_deviceptr pointer, uint64_t bytes,
                                       const weir_cu_mem_access *access, size_t accesses) {
  meter *m = (meter *)self;
  weir_cu_result result = MemSetAccess(self, pointer, bytes, access, accesses);
  return count(m, WEIR__METER_SET_ACCESS, result, handles_in(m, pointer, bytes), bytes);
}

static weir_cu_result count_unmap(weir_driver *self, weir_cu_deviceptr pointer, uint64_t bytes) {
  meter *m = (meter *)self;
  return count(m, WEIR__METER_UNMAP, MemUnmap(self, pointer, bytes), handles_in(m, pointer, bytes), bytes);
}

/* ---- The table ---- */

static void destroy(weir_driver *self) {
  meter *m = (meter *)self;
  weir__rangemap_clear(&m->reservations);
  weir__rangemap_clear(&m->handles);
  free(m);
}

weir_status weir__meter_open(weir_driver *inner, weir_driver **driver) {
  meter *m = calloc(1, sizeof *m);
  if (!m)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "meter: no host memory for the table");
  m->inner = inner;
  m->table.size = sizeof m->table;
  m->table.name = inner->name;
  m->table.destroy = destroy;
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) m->table.name = inner->name ? name : NULL;
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) m->table.name = inner->name ? name : NULL;
#include "weir/driver_entries.h"
#define COUNT(name, counting) m->table.name = inner->name ? counting : NULL
  COUNT(MemAlloc, count_alloc);
  COUNT(MemFree, count_free);
  COUNT(MemAddressReserve, count_reserve);
  COUNT(MemAddressFree, count_unreserve);
  COUNT(MemCreate, count_create);
  COUNT(MemMap, count_map);
  COUNT(MemSetAccess, count_set_access);
  COUNT(MemUnmap, count_unmap);
  COUNT(MemRelease, count_release);
#undef COUNT
  *driver = &m->table;
  return WEIR_OK;
}

const weir__meter_counts *weir__meter_read(const weir_driver *driver) { return &((const meter *)driver)->counts; }

void weir__meter_reset(weir_driver *driver) { ((meter *)driver)->counts = (weir__meter_counts){0}; }
