/*
 * The ledger: the model (model/model.h) with books only. Memory is a count of bytes, an address comes from the model or
 * from options.place, and work is done the moment it is enqueued: a stream is never busy, and an event that was
 * recorded has happened. The clock counts pieces of work, a microsecond each.
 *
 * With options.is_done there are also the streams of a recorded history, known by the handles that they had. Each
 * stands for the legacy stream, but only the owner of the ledger knows how far it got.
 */
#include <stdlib.h>

#include "driver/model/model.h"

typedef struct ledger {
  model m; /* first: a model * of a ledger is a ledger * */
  weir_ledger_options options;
  model_thread thread;
  model_device *devices;
  uint64_t clock; /* pieces of work done, and so microseconds of the ledger's time */
} ledger;

typedef struct ledger_event {
  model_event e;
  weir_cu_stream foreign; /* where it was recorded, if that stream was not made here and may be busy */
  uint64_t tick;          /* the clock at the record */
} ledger_event;

/* ---- Memory ---- */

/* The address that options.place or the caller's wish gives a range; 0 for any. */
static uint64_t address_for(model *m, const model_request *request) {
  const weir_ledger_options *options = &((ledger *)m)->options;
  bool reserves = request->kind == MODEL_RANGE_RESERVATION;
  uint64_t address = 0, wish = request->wish;
  if (options->place && (reserves || request->kind == MODEL_RANGE_PLAIN))
    address = options->place(options->place_context, reserves ? WEIR_CALL_MemAddressReserve : WEIR_CALL_MemAlloc,
                             request->bytes);
  bool granted = !address && wish && wish % request->alignment == 0 && request->bytes - 1 <= UINT64_MAX - wish &&
                 !weir__model_overlap(m, wish, request->bytes);
  return granted ? wish : address;
}

static weir_cu_result new_range(model *m, const model_request *request, model_range **range) {
  bool charged = request->kind == MODEL_RANGE_PLAIN || request->kind == MODEL_RANGE_POOLED;
  if (charged && !weir__model_take_bytes(m, request->device, request->bytes))
    return WEIR_CU_OUT_OF_MEMORY;
  uint64_t address = address_for(m, request);
  weir_cu_result r = request->kind == MODEL_RANGE_RESERVATION && address % MODEL_GRANULARITY
                         ? WEIR_CU_INVALID_VALUE
                         : weir__model_add_range(m, request, address, request->bytes, range);
  if (r && charged)
    request->device->used -= request->bytes;
  return r;
}

/* A pool frees what it holds itself. */
static void end_range(model *m, model_range *range) {
  (void)m;
  if (range->kind == MODEL_RANGE_PLAIN || (range->kind == MODEL_RANGE_POOLED && !range->pool))
    range->device->used -= range->bytes;
}

/* ---- Pools: where in the pool a range lies is of no concern, so that a pool has no fragmentation ---- */

static void pool_trim(model *m, model_pool *pool, uint64_t keep) {
  (void)m;
  if (keep < pool->used)
    keep = pool->used;
  if (pool->reserved <= keep)
    return;
  pool->device->used -= pool->reserved - keep;
  pool->reserved = keep;
}

static weir_cu_result pool_alloc(model *m, model_pool *pool, model_stream *stream, uint64_t bytes,
                                 model_range **range) {
  (void)stream;
  uint64_t unused = pool->reserved - pool->used, more = bytes > unused ? bytes - unused : 0;
  if ((pool->max_bytes && more > pool->max_bytes - pool->reserved) || !weir__model_take_bytes(m, pool->device, more))
    return WEIR_CU_OUT_OF_MEMORY;
  const model_request request = {MODEL_RANGE_POOLED, pool->device, bytes, 0, 0};
  weir_cu_result r = weir__model_add_range(m, &request, 0, bytes, range);
  if (r) {
    pool->device->used -= more;
    return r;
  }
  (*range)->pool = pool;
  weir__model_pool_reserve(pool, more);
  weir__model_pool_use(pool, bytes);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result pool_free(model *m, model_range *range, model_stream *stream) {
  model_pool *pool = range->pool;
  pool->used -= range->bytes;
  weir__model_free_range(m, range);
  weir__model_drop_pool(m, pool);
  if (!stream)
    weir__model_settle_pools(m, NULL);
  return WEIR_CU_SUCCESS;
}

static void free_of_pool(model *m, model_range *range, void *pool) {
  if (range->kind == MODEL_RANGE_POOLED && range->pool == pool)
    weir__model_free_range(m, range);
}

static void pool_close(model *m, model_pool *pool) {
  if (pool->used)
    weir__model_each_range(m, free_of_pool, pool);
  pool->used = 0;
  pool_trim(m, pool, 0);
}

/* ---- Work and time ---- */

static weir_cu_result run(model *m, model_stream *stream, model_work *work) {
  (void)stream;
  ((ledger *)m)->clock++;
  if (work->kind == MODEL_WORK_HOST)
    work->as.host.fn(work->as.host.data);
  weir__model_work_end(m, work);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result launch(model *m, model_exec *exec, model_stream *stream) {
  weir_cu_result r = WEIR_CU_SUCCESS;
  for (size_t i = 0; !r && i < exec->count; i++) {
    const model_work *work = &exec->works[i];
    ((ledger *)m)->clock++;
    if (work->kind == MODEL_WORK_HOST)
      work->as.host.fn(work->as.host.data);
    else if (weir__model_is_of_event(work))
      r = weir__model_launch_event(m, work, stream);
  }
  return r;
}

static weir_cu_result wait_stream(model *m, model_stream *stream) {
  (void)stream;
  weir__model_settle_pools(m, NULL);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result wait_device(model *m, model_device *device) {
  (void)device;
  return wait_stream(m, NULL);
}

static weir_cu_result record(model *m, model_event *event, model_stream *stream, weir_cu_stream handle) {
  ledger_event *e = (ledger_event *)event;
  e->tick = ((ledger *)m)->clock;
  bool is_foreign = m->takes_foreign && stream->is_legacy && handle != WEIR_CU_STREAM_LEGACY;
  e->foreign = is_foreign ? handle : NULL;
  return WEIR_CU_SUCCESS;
}

/* What was done once stays done, whatever the stream does next. */
static bool is_done(const model *m, model_event *event) {
  const weir_ledger_options *options = &((const ledger *)m)->options;
  ledger_event *e = (ledger_event *)event;
  if (e->foreign && options->is_done(options->is_done_context, e->foreign))
    e->foreign = NULL;
  return !e->foreign;
}

static weir_cu_result query(model *m, model_event *event) {
  return is_done(m, event) ? WEIR_CU_SUCCESS : WEIR_CU_NOT_READY;
}

static weir_cu_result wait_event(model *m, model_event *event) {
  ((ledger_event *)event)->foreign = NULL;
  return wait_stream(m, NULL);
}

static weir_cu_result elapsed(model *m, model_event *start, model_event *end, float *milliseconds) {
  if (!is_done(m, start) || !is_done(m, end))
    return WEIR_CU_NOT_READY;
  int64_t ticks = (int64_t)(((ledger_event *)end)->tick - ((ledger_event *)start)->tick);
  *milliseconds = (float)((double)ticks / 1000.0);
  return WEIR_CU_SUCCESS;
}

static const model_hooks hooks = {
    .first_kind = 1,
    .device_name = "Weir ledger",
    .uuid = {0x50, 0xf7, 0, 0, 'w', 'e', 'i', 'r', '-', 'l', 'e', 'd', 'g', 'e', 'r'},
    .clock_khz = 1000000,
    .capability_major = 9,
    .stream_size = sizeof(model_stream),
    .event_size = sizeof(ledger_event),
    .exec_size = sizeof(model_exec),
    .memory_size = sizeof(model_memory),
    .range_size = sizeof(model_range),
    .pool_size = sizeof(model_pool),
    .new_range = new_range,
    .end_range = end_range,
    .pool_alloc = pool_alloc,
    .pool_free = pool_free,
    .pool_trim = pool_trim,
    .pool_close = pool_close,
    .run = run,
    .launch = launch,
    .wait_stream = wait_stream,
    .wait_device = wait_device,
    .record = record,
    .query = query,
    .wait_event = wait_event,
    .elapsed = elapsed,
};

/* ---- The table ---- */

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result entry_##name(weir_driver *self WEIR__AND params) {                                             \
    model *m = (model *)self;                                                                                          \
    bool refused = weir__model_needs_init(WEIR_CALL_##name) && !m->ready;                                              \
    return refused ? WEIR_CU_NOT_INITIALIZED : weir__model_##name(m WEIR__AND args);                                   \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result entry_##name(weir_driver *self) {                                                              \
    model *m = (model *)self;                                                                                          \
    return m->ready ? weir__model_##name(m) : WEIR_CU_NOT_INITIALIZED;                                                 \
  }
#include "weir/driver_entries.h"

static void destroy(weir_driver *self) {
  ledger *l = (ledger *)self;
  weir__model_end(&l->m);
  free(l->devices);
  free(l);
}

static const weir_driver entries = {
    .size = sizeof(weir_driver),
    .name = "ledger",
    .destroy = destroy,
    .capabilities = WEIR_DRIVER_SURVIVES_FORK,
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) .name = entry_##name,
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) .name = entry_##name,
#include "weir/driver_entries.h"
};

weir_status weir_driver_open_ledger(const weir_ledger_options *options, weir_driver **driver) {
  if (!driver)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: driver is NULL", __func__);
  weir_ledger_options o;
  weir_ledger_options_init(&o);
  weir_status given = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (given)
    return given;
  if (o.devices < 1 || o.devices > MODEL_MAX_DEVICES)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: devices is %d; allowed are 1 to %d", __func__, o.devices,
                      MODEL_MAX_DEVICES);
  if (!o.bytes)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: bytes is 0", __func__);

  ledger *l = calloc(1, sizeof *l);
  model_device *devices = calloc((size_t)o.devices, sizeof *devices);
  if (!l || !devices) {
    free(l);
    free(devices);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the books", __func__);
  }
  l->m.table = entries;
  l->m.table.MemExportToShareableHandle = NULL; /* absent, since nothing can be shared */
  l->m.table.MemImportFromShareableHandle = NULL;
  weir__model_init(&l->m, &hooks, o.bytes);
  l->m.thread = &l->thread;
  l->m.takes_foreign = o.is_done != NULL;
  l->m.device_count = o.devices;
  l->options = o;
  l->devices = devices;
  for (int i = 0; i < o.devices; i++) {
    devices[i] = (model_device){.ordinal = i, .physical = i};
    l->m.devices[i] = &devices[i];
  }
  *driver = &l->m.table;
  return WEIR_OK;
}
