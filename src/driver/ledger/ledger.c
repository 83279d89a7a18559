/*
 * A ledger as a whole: its options, its table, its end, and the entries that need no device.
 */
#include "driver/ledger/ledger.h"

#include <stdlib.h>

#include "driver/call.h"

/* The newest CUDA whose rules the ledger follows. */
enum { VERSION = 13000 };

static weir_cu_result Init(weir_driver *self, unsigned flags) {
  if (flags != 0)
    return WEIR_CU_INVALID_VALUE;
  weir__ledger_of(self)->ready = true;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DriverGetVersion(weir_driver *self, int *version) {
  (void)self;
  if (version == NULL)
    return WEIR_CU_INVALID_VALUE;
  *version = VERSION;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result GetErrorName(weir_driver *self, weir_cu_result code, const char **name) {
  (void)self;
  if (name == NULL)
    return WEIR_CU_INVALID_VALUE;
  *name = weir__result_is_known(code) ? weir_cu_result_name(code) : NULL;
  return *name != NULL ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

static weir_cu_result GetErrorString(weir_driver *self, weir_cu_result code, const char **text) {
  (void)self;
  if (text == NULL)
    return WEIR_CU_INVALID_VALUE;
  *text = weir__result_is_known(code) ? weir_cu_result_string(code) : NULL;
  return *text != NULL ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

static weir_cu_result ProfilerStart(weir_driver *self) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  return result == WEIR_CU_SUCCESS ? weir__ledger_unsafe(l) : result;
}

static weir_cu_result ProfilerStop(weir_driver *self) { return ProfilerStart(self); }

/* Another process has no part in the books. */
static weir_cu_result not_supported(weir_driver *self) {
  const ledger *l = weir__ledger_of(self);
  return l->ready ? WEIR_CU_NOT_SUPPORTED : WEIR_CU_NOT_INITIALIZED;
}

static weir_cu_result IpcGetMemHandle(weir_driver *self, weir_cu_ipc_mem_handle *handle, weir_cu_deviceptr pointer) {
  (void)handle, (void)pointer;
  return not_supported(self);
}

static weir_cu_result IpcOpenMemHandle(weir_driver *self, weir_cu_deviceptr *pointer, weir_cu_ipc_mem_handle handle,
                                       unsigned flags) {
  (void)pointer, (void)handle, (void)flags;
  return not_supported(self);
}

static weir_cu_result IpcCloseMemHandle(weir_driver *self, weir_cu_deviceptr pointer) {
  (void)pointer;
  return not_supported(self);
}

static weir_cu_result IpcGetEventHandle(weir_driver *self, weir_cu_ipc_event_handle *handle, weir_cu_event event) {
  (void)handle, (void)event;
  return not_supported(self);
}

static weir_cu_result IpcOpenEventHandle(weir_driver *self, weir_cu_event *event, weir_cu_ipc_event_handle handle) {
  (void)event, (void)handle;
  return not_supported(self);
}

static void drop_tables(ledger *l, ledger_range *range, void *data) {
  (void)data;
  if (range->kind == LEDGER_RANGE_RESERVATION)
    weir__ledger_drop_tables(l, range);
}

static void destroy(weir_driver *self) {
  ledger *l = weir__ledger_of(self);
  while (l->captures != NULL)
    weir__ledger_abandon(l, l->captures);
  for (int i = 0; l->devices != NULL && i < l->options.devices; i++) {
    weir__ledger_drop_context_graphs(l, &l->devices[i]);
    weir__ledger_drop_context_streams(l, &l->devices[i]);
    weir__ledger_drop_context_modules(l, &l->devices[i]);
  }
  weir__handles *tables[] = {&l->streams, &l->events, &l->memories, &l->pools,    &l->graphs,
                             &l->nodes,   &l->execs,  &l->modules,  &l->functions};
  for (size_t i = 0; i < WEIR_COUNT_OF(tables); i++)
    weir__handles_clear(tables[i]);
  weir__ledger_each_range(l, drop_tables, NULL);
  for (int order = 0; order < LEDGER_ORDERS; order++)
    weir__handles_clear(&l->slots[order]);
  weir__rangemap_clear(&l->placed);
  weir__slab_clear(&l->placed_slab);
  weir__slab_clear(&l->mapping_slab);
  weir__slab_clear(&l->table_slab);
  free(l->devices);
  free(l);
}

static void fill_table(weir_driver *table) {
  table->size = sizeof *table;
  table->name = "ledger";
  table->capabilities = WEIR_DRIVER_SURVIVES_FORK;
  table->destroy = destroy;
  table->Init = Init;
  table->DriverGetVersion = DriverGetVersion;
  table->GetErrorName = GetErrorName;
  table->GetErrorString = GetErrorString;
  table->ProfilerStart = ProfilerStart;
  table->ProfilerStop = ProfilerStop;
  table->IpcGetMemHandle = IpcGetMemHandle;
  table->IpcOpenMemHandle = IpcOpenMemHandle;
  table->IpcCloseMemHandle = IpcCloseMemHandle;
  table->IpcGetEventHandle = IpcGetEventHandle;
  table->IpcOpenEventHandle = IpcOpenEventHandle;
  weir__ledger_add_devices(table);
  weir__ledger_add_memory(table);
  weir__ledger_add_virtual(table);
  weir__ledger_add_pools(table);
  weir__ledger_add_streams(table);
  weir__ledger_add_kernels(table);
  weir__ledger_add_captures(table);
  weir__ledger_add_graphs(table);
}

static bool make_devices(ledger *l) {
  l->devices = calloc((size_t)l->options.devices, sizeof *l->devices);
  if (l->devices == NULL)
    return false;
  for (int i = 0; i < l->options.devices; i++) {
    ledger_device *device = &l->devices[i];
    device->ordinal = i;
    device->legacy = (ledger_stream){.device = device, .legacy = true};
    device->per_thread = (ledger_stream){.device = device};
    device->default_pool = device->pool = weir__ledger_make_pool(l, device, 0);
    if (device->pool == NULL)
      return false;
  }
  return true;
}

void weir_ledger_options_init(weir_ledger_options *options) {
  if (!options)
    return;
  *options = (weir_ledger_options){.size = sizeof *options, .devices = 1, .bytes = 80ull << 30};
}

weir_status weir_driver_open_ledger(const weir_ledger_options *options, weir_driver **driver) {
  if (driver == NULL)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: driver is NULL", __func__);
  weir_ledger_options o;
  weir_ledger_options_init(&o);
  weir_status given = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (given != WEIR_OK)
    return given;
  if (o.devices < 1 || o.devices > LEDGER_MAX_DEVICES)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: devices is %d; allowed are 1 to %d", __func__, o.devices,
                      LEDGER_MAX_DEVICES);
  if (o.bytes == 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: bytes is 0", __func__);

  ledger *l = calloc(1, sizeof *l);
  if (l == NULL)
    goto no_memory;
  l->options = o;
  for (int order = 0; order < LEDGER_ORDERS; order++)
    weir__handles_init(&l->slots[order], LEDGER_KIND_SLOT, sizeof(ledger_range));
  weir__handles_init(&l->streams, LEDGER_KIND_STREAM, sizeof(ledger_stream));
  weir__handles_init(&l->events, LEDGER_KIND_EVENT, sizeof(ledger_event));
  weir__handles_init(&l->memories, LEDGER_KIND_MEMORY, sizeof(ledger_memory));
  weir__handles_init(&l->pools, LEDGER_KIND_POOL, sizeof(ledger_pool));
  weir__handles_init(&l->graphs, LEDGER_KIND_GRAPH, sizeof(ledger_graph));
  weir__handles_init(&l->nodes, LEDGER_KIND_NODE, sizeof(ledger_node));
  weir__handles_init(&l->execs, LEDGER_KIND_EXEC, sizeof(ledger_exec));
  weir__handles_init(&l->modules, LEDGER_KIND_MODULE, sizeof(ledger_module));
  weir__handles_init(&l->functions, LEDGER_KIND_FUNCTION, sizeof(ledger_function));
  fill_table(&l->table);
  if (!make_devices(l)) {
    destroy(&l->table);
    goto no_memory;
  }
  *driver = &l->table;
  return WEIR_OK;

no_memory:
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory for the books", __func__);
}
