#include "offline/replay/meter.h"

#include <stdlib.h>

#include "base/base.h"
#include "base/hash_map.h"
#include "base/rangemap.h"
#include "driver/call.h"

/* A handle that was created and not released. */
typedef struct created {
  uint64_t handle, bytes;
} created;

typedef struct meter {
  weir_driver table; /* must be first: a weir_driver * of a meter is a meter * */
  weir_driver *inner;
  weir__meter_counts counts;
  /* What is mapped, one range for each mapping: a call for a range costs as much as the handles in it. The values are
   * not used. */
  weir__rangemap mappings;
  weir__hash_map handles; /* created */
  weir__meter_is_idle *is_idle;
  void *is_idle_context;
  bool has_waited; /* since the last weir__meter_work */
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
  return count((meter *)self, WEIR__METER_RESERVE, MemAddressReserve(self, pointer, bytes, alignment, wish, flags), 1,
               bytes);
}

static weir_cu_result count_unreserve(weir_driver *self, weir_cu_deviceptr pointer, uint64_t bytes) {
  return count((meter *)self, WEIR__METER_UNRESERVE, MemAddressFree(self, pointer, bytes), 1, bytes);
}

static weir_cu_result count_create(weir_driver *self, weir_cu_mem_handle *handle, uint64_t bytes,
                                   const weir_cu_mem_prop *prop, unsigned long long flags) {
  meter *m = (meter *)self;
  weir_cu_result result = MemCreate(self, handle, bytes, prop, flags);
  created *made = result || !*handle ? NULL : weir__hash_map_put(&m->handles, sizeof *made, *handle);
  if (made)
    made->bytes = bytes;
  return count(m, WEIR__METER_CREATE, result, 1, bytes);
}

static weir_cu_result count_release(weir_driver *self, weir_cu_mem_handle handle) {
  meter *m = (meter *)self;
  weir_cu_result result = MemRelease(self, handle);
  created *made = result ? NULL : weir__hash_map_find(&m->handles, sizeof *made, handle);
  uint64_t bytes = made ? made->bytes : 0;
  if (made)
    weir__hash_map_remove(&m->handles, sizeof *made, made);
  return count(m, WEIR__METER_RELEASE, result, 1, bytes);
}

static weir_cu_result count_map(weir_driver *self, weir_cu_deviceptr pointer, uint64_t bytes, uint64_t offset,
                                weir_cu_mem_handle handle, unsigned long long flags) {
  meter *m = (meter *)self;
  weir_cu_result result = MemMap(self, pointer, bytes, offset, handle, flags);
  if (!result)
    weir__rangemap_insert(&m->mappings, pointer, bytes, m);
  return count(m, WEIR__METER_MAP, result, 1, bytes);
}

/* The number of handles that are mapped in a range. With `forget`, they are no longer. */
static uint64_t handles_in(meter *m, weir_cu_deviceptr pointer, uint64_t bytes, bool forget) {
  uint64_t found = 0, base, size;
  for (uint64_t at = pointer; at < pointer + bytes; at = base + size) {
    if (!weir__rangemap_at_or_after(&m->mappings, at, &base, &size) || base >= pointer + bytes)
      break;
    found++;
    if (forget)
      weir__rangemap_remove(&m->mappings, base);
  }
  return found ? found : 1;
}

static weir_cu_result count_set_access(weir_driver *self, weir_cu_deviceptr pointer, uint64_t bytes,
                                       const weir_cu_mem_access *access, size_t accesses) {
  meter *m = (meter *)self;
  weir_cu_result result = MemSetAccess(self, pointer, bytes, access, accesses);
  return count(m, WEIR__METER_SET_ACCESS, result, handles_in(m, pointer, bytes, false), bytes);
}

static weir_cu_result count_unmap(weir_driver *self, weir_cu_deviceptr pointer, uint64_t bytes) {
  meter *m = (meter *)self;
  weir_cu_result result = MemUnmap(self, pointer, bytes);
  return count(m, WEIR__METER_UNMAP, result, result ? 0 : handles_in(m, pointer, bytes, true), bytes);
}

static weir_cu_result count_stream_query(weir_driver *self, weir_cu_stream stream) {
  meter *m = (meter *)self;
  weir_cu_result result = StreamQuery(self, stream);
  if (!result && m->is_idle && !m->has_waited && !m->is_idle(m->is_idle_context, stream))
    result = WEIR_CU_NOT_READY;
  count(m, WEIR__METER_STREAM_QUERY, WEIR_CU_SUCCESS, 1, 0); /* an answer either way */
  return result;
}

/* ---- Waiting ---- */

static weir_cu_result wait_stream(weir_driver *self, weir_cu_stream stream) {
  ((meter *)self)->has_waited = true;
  return StreamSynchronize(self, stream);
}

static weir_cu_result wait_context(weir_driver *self) {
  ((meter *)self)->has_waited = true;
  return CtxSynchronize(self);
}

/* ---- The table ---- */

static void destroy(weir_driver *self) {
  meter *m = (meter *)self;
  weir__rangemap_clear(&m->mappings);
  weir__hash_map_clear(&m->handles);
  free(m);
}

weir_status weir__meter_open(weir_driver *inner, weir_driver **driver) {
  meter *m = calloc(1, sizeof *m);
  if (!m)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "meter: out of host memory for the table");
  m->inner = inner;
  m->table.size = sizeof m->table;
  m->table.name = inner->name;
  m->table.destroy = destroy;
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  m->table.name = WEIR__DRIVER_HAS(inner, name) ? name : NULL;
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
  COUNT(StreamQuery, count_stream_query);
  COUNT(StreamSynchronize, wait_stream);
  COUNT(CtxSynchronize, wait_context);
#undef COUNT
  *driver = &m->table;
  return WEIR_OK;
}

const weir__meter_counts *weir__meter_read(const weir_driver *driver) { return &((const meter *)driver)->counts; }

void weir__meter_reset(weir_driver *driver) { ((meter *)driver)->counts = (weir__meter_counts){0}; }

void weir__meter_ask(weir_driver *driver, weir__meter_is_idle *is_idle, void *context) {
  meter *m = (meter *)driver;
  m->is_idle = is_idle;
  m->is_idle_context = context;
}

void weir__meter_work(weir_driver *driver) { ((meter *)driver)->has_waited = false; }
