/*
 * Devices, their primary contexts, peers; and the entries that need no device.
 */
#include "driver/model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "driver/call.h"
#include "driver/visible.h"

/* The newest CUDA whose rules the model follows. */
enum { VERSION = 13000 };

/* As NVIDIA's driver, Init of a table that filters reads CUDA_VISIBLE_DEVICES. It does so again while no device is in
 * use, so that a program that shuts the runtime down and starts it anew can choose again. */
static void number_devices(model *m, int all) {
  char texts[MODEL_MAX_DEVICES][WEIR__UUID_SIZE];
  const char *uuids[MODEL_MAX_DEVICES];
  int ordinals[WEIR_MAX_DEVICES];
  for (int i = 0; i < all; i++) {
    if (m->devices[i]->retains || m->devices[i]->used)
      return;
    weir_cu_uuid uuid = weir__model_uuid(m, i);
    weir__format_uuid(&uuid, texts[i]);
    uuids[i] = texts[i];
  }
  int count = weir__visible_ordinals(weir__env_text(WEIR__ENV_VISIBLE_DEVICES), uuids, all, ordinals);
  m->device_count = count == WEIR__VISIBLE_MIG ? 0 : count;
  for (int i = 0; i < m->device_count && i < all; i++)
    m->devices[i]->physical = ordinals[i];
}

weir_cu_result weir__model_Init(model *m, unsigned flags) {
  if (flags)
    return WEIR_CU_INVALID_VALUE;
  int all = 0;
  while (all < MODEL_MAX_DEVICES && m->devices[all])
    all++;
  if (m->table.capabilities & WEIR_DRIVER_FILTERS_VISIBLE)
    number_devices(m, all);
  m->ready = m->device_count > 0;
  return m->ready ? WEIR_CU_SUCCESS : WEIR_CU_NO_DEVICE;
}

weir_cu_result weir__model_DriverGetVersion(model *m, int *version) {
  (void)m;
  if (!version)
    return WEIR_CU_INVALID_VALUE;
  *version = VERSION;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_GetErrorName(model *m, weir_cu_result code, const char **name) {
  (void)m;
  if (!name)
    return WEIR_CU_INVALID_VALUE;
  *name = weir__result_is_known(code) ? weir_cu_result_name(code) : NULL;
  return *name ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

weir_cu_result weir__model_GetErrorString(model *m, weir_cu_result code, const char **text) {
  (void)m;
  if (!text)
    return WEIR_CU_INVALID_VALUE;
  *text = weir__result_is_known(code) ? weir_cu_result_string(code) : NULL;
  return *text ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

static weir_cu_result profile(model *m, bool on) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (!r)
    r = weir__model_unsafe(m);
  if (!r)
    m->is_profiled = on;
  return r;
}

weir_cu_result weir__model_ProfilerStart(model *m) { return profile(m, true); }
weir_cu_result weir__model_ProfilerStop(model *m) { return profile(m, false); }

/* What only some tables can do. */
#define SHARING(name, params, args)                                                                                    \
  weir_cu_result weir__model_##name(model *m WEIR__AND params) {                                                       \
    return m->hooks->name ? m->hooks->name(m WEIR__AND args) : WEIR_CU_NOT_SUPPORTED;                                  \
  }
SHARING(MemExportToShareableHandle, (void *out, weir_cu_mem_handle handle, int type, unsigned long long flags),
        (out, handle, type, flags))
SHARING(MemImportFromShareableHandle, (weir_cu_mem_handle * handle, void *in, int type), (handle, in, type))
SHARING(IpcGetMemHandle, (weir_cu_ipc_mem_handle * handle, weir_cu_deviceptr pointer), (handle, pointer))
SHARING(IpcOpenMemHandle, (weir_cu_deviceptr * pointer, weir_cu_ipc_mem_handle handle, unsigned flags),
        (pointer, handle, flags))
SHARING(IpcCloseMemHandle, (weir_cu_deviceptr pointer), (pointer))
SHARING(IpcGetEventHandle, (weir_cu_ipc_event_handle * handle, weir_cu_event event), (handle, event))
SHARING(IpcOpenEventHandle, (weir_cu_event * event, weir_cu_ipc_event_handle handle), (event, handle))

/* ---- Devices ---- */

weir_cu_result weir__model_DeviceGetCount(model *m, int *count) {
  if (!count)
    return WEIR_CU_INVALID_VALUE;
  *count = m->device_count;
  return WEIR_CU_SUCCESS;
}

/* For an entry that writes something about a device. */
static weir_cu_result check_device(const model *m, const void *output, weir_cu_device device) {
  if (!output)
    return WEIR_CU_INVALID_VALUE;
  return weir__model_device(m, device) ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_DEVICE;
}

weir_cu_result weir__model_DeviceGet(model *m, weir_cu_device *device, int ordinal) {
  weir_cu_result r = check_device(m, device, ordinal);
  if (!r)
    *device = ordinal;
  return r;
}

weir_cu_result weir__model_DeviceGetName(model *m, char *name, int size, weir_cu_device device) {
  weir_cu_result r = check_device(m, size > 0 ? name : NULL, device);
  if (!r)
    snprintf(name, (size_t)size, "%s", m->hooks->device_name);
  return r;
}

weir_cu_uuid weir__model_uuid(const model *m, int physical) {
  weir_cu_uuid uuid;
  memcpy(uuid.bytes, m->hooks->uuid, sizeof uuid.bytes);
  uuid.bytes[3] = (char)physical;
  return uuid;
}

weir_cu_result weir__model_DeviceGetUuid(model *m, weir_cu_uuid *uuid, weir_cu_device device) {
  weir_cu_result r = check_device(m, uuid, device);
  if (!r)
    *uuid = weir__model_uuid(m, m->devices[device]->physical);
  return r;
}

weir_cu_result weir__model_DeviceGetPCIBusId(model *m, char *id, int size, weir_cu_device device) {
  weir_cu_result r = check_device(m, size > 0 ? id : NULL, device);
  if (!r)
    snprintf(id, (size_t)size, "0000:%02x:00.0", (unsigned)m->devices[device]->physical + 1);
  return r;
}

weir_cu_result weir__model_DeviceGetAttribute(model *m, int *value, int attribute, weir_cu_device device) {
  weir_cu_result r = check_device(m, value, device);
  if (r)
    return r;
  const struct {
    int attribute, value;
  } known[] = {
      {WEIR_CU_ATTR_MAX_THREADS_PER_BLOCK, MODEL_MAX_THREADS},
      {WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
      {WEIR_CU_ATTR_WARP_SIZE, 32},
      {WEIR_CU_ATTR_CLOCK_RATE, m->hooks->clock_khz},
      {WEIR_CU_ATTR_MULTIPROCESSOR_COUNT, 1},
      {WEIR_CU_ATTR_INTEGRATED, 0},
      {WEIR_CU_ATTR_PCI_BUS_ID, m->devices[device]->physical + 1},
      {WEIR_CU_ATTR_PCI_DEVICE_ID, 0},
      {WEIR_CU_ATTR_L2_CACHE_SIZE, 1 << 20},
      {WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {WEIR_CU_ATTR_UNIFIED_ADDRESSING, 1},
      {WEIR_CU_ATTR_PCI_DOMAIN_ID, 0},
      {WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, m->hooks->capability_major},
      {WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR, m->hooks->capability_minor},
      {WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 << 10},
      {WEIR_CU_ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR, 64 << 10},
      {WEIR_CU_ATTR_MULTI_GPU_BOARD, 0},
      {WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 << 10},
      {WEIR_CU_ATTR_HOST_REGISTER_SUPPORTED, 1},
      {WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED, 1},
      {WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED, m->hooks->shares},
      {WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED, 0},
      {WEIR_CU_ATTR_MEMORY_POOLS_SUPPORTED, 1},
      {WEIR_CU_ATTR_IPC_EVENT_SUPPORTED, m->hooks->shares},
      {WEIR_CU_ATTR_HANDLE_FABRIC_SUPPORTED, 0},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(known); i++)
    if (known[i].attribute == attribute) {
      *value = known[i].value;
      return WEIR_CU_SUCCESS;
    }
  return WEIR_CU_INVALID_VALUE;
}

weir_cu_result weir__model_DeviceTotalMem(model *m, uint64_t *bytes, weir_cu_device device) {
  weir_cu_result r = check_device(m, bytes, device);
  if (!r)
    *bytes = m->bytes;
  return r;
}

weir_cu_result weir__model_DeviceCanAccessPeer(model *m, int *can, weir_cu_device device, weir_cu_device peer) {
  weir_cu_result r = check_device(m, can, device);
  if (!r && !(r = check_device(m, can, peer)))
    *can = device != peer;
  return r;
}

/* ---- Contexts ---- */

model_device *weir__model_device_of(const model *m, weir_cu_context context) {
  model_device *device = weir__model_device(m, (int)weir__handle_slot((uintptr_t)context));
  return device && device->retains && weir__model_context_of(m, device) == context ? device : NULL;
}

weir_cu_result weir__model_DevicePrimaryCtxRetain(model *m, weir_cu_context *context, weir_cu_device number) {
  weir_cu_result r = check_device(m, context, number);
  if (r)
    return r;
  model_device *device = m->devices[number];
  if (!device->retains) {
    if (!weir__model_take_bytes(m, device, m->context_bytes))
      return WEIR_CU_OUT_OF_MEMORY;
    device->legacy = weir__model_new_stream(m, device, WEIR_CU_STREAM_DEFAULT, 0);
    if (!device->legacy) {
      device->used -= m->context_bytes;
      return WEIR_CU_OUT_OF_MEMORY;
    }
    device->legacy->is_default = device->legacy->is_legacy = true;
    device->error = WEIR_CU_SUCCESS;
    device->generation++;
  }
  device->retains++;
  *context = weir__model_context_of(m, device);
  return WEIR_CU_SUCCESS;
}

/* Drops the objects of a table that belong to the device. */
#define DROP_ALL(type, handles, drop)                                                                                  \
  do {                                                                                                                 \
    uint32_t index = 0;                                                                                                \
    for (type * object; (object = weir__handles_next(&m->handles, &index));)                                           \
      if (object->device == device)                                                                                    \
        drop(m, object);                                                                                               \
  } while (0)

/* Address space and memory of MemCreate belong to no context. Ranges of graphs and of work go with these. */
static void end_of_context(model *m, model_range *range, void *device) {
  if (range->device == device && range->kind != MODEL_RANGE_RESERVATION && range->kind != MODEL_RANGE_POOLED)
    weir__model_free_range(m, range);
}

static void drop_stream(model *m, model_stream *stream) {
  if (!stream->dropped)
    weir__model_drop_stream(m, stream);
}

/* The context goes with all that was made in it. No work is left. */
static void end_context(model *m, model_device *device) {
  DROP_ALL(model_stream, streams, drop_stream);
  device->legacy = NULL;
  DROP_ALL(model_exec, execs, weir__model_drop_exec);
  DROP_ALL(model_graph, graphs, weir__model_drop_graph);
  DROP_ALL(model_event, events, weir__model_drop_event);
  DROP_ALL(model_module, modules, weir__model_drop_module);
  weir__model_end_pools(m, device);
  weir__model_each_range(m, end_of_context, device);
  device->used -= m->context_bytes;
  device->peers = 0;
  for (int i = 0; i < m->device_count; i++)
    m->devices[i]->peers &= ~weir__model_bit(device);
}

/* The work is done first, as far as a broken context gets. Meanwhile other threads may retain, release and enqueue:
 * busy again is waited for again. */
weir_cu_result weir__model_DevicePrimaryCtxRelease(model *m, weir_cu_device number) {
  model_device *device = weir__model_device(m, number);
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  for (uint32_t index = 0; m->hooks->is_busy && device->retains == 1;) {
    const model_stream *stream = weir__handles_next(&m->streams, &index);
    if (!stream)
      break;
    if (stream->device != device || !m->hooks->is_busy(m, stream))
      continue;
    m->hooks->wait_device(m, device);
    index = 0;
  }
  if (!device->retains)
    return WEIR_CU_INVALID_CONTEXT;
  if (--device->retains == 0)
    end_context(m, device);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_DevicePrimaryCtxGetState(model *m, weir_cu_device number, unsigned *flags, int *active) {
  weir_cu_result r = check_device(m, flags ? active : NULL, number);
  if (r)
    return r;
  *flags = 0;
  *active = m->devices[number]->retains > 0;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_CtxGetCurrent(model *m, weir_cu_context *context) {
  if (!context)
    return WEIR_CU_INVALID_VALUE;
  const model_thread *thread = m->thread;
  *context = thread->current ? weir__model_context_handle(m, thread->current, thread->generation) : NULL;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_CtxSetCurrent(model *m, weir_cu_context context) {
  model_device *device = weir__model_device_of(m, context);
  if (context && !device)
    return WEIR_CU_INVALID_CONTEXT;
  model_thread *thread = m->thread;
  thread->current = device;
  thread->generation = device ? device->generation : 0;
  return WEIR_CU_SUCCESS;
}

/* A broken context may still be asked. */
weir_cu_result weir__model_CtxGetDevice(model *m, weir_cu_device *number) {
  model_device *device = NULL;
  weir_cu_result r = weir__model_context(m, &device);
  if (!device)
    return r;
  if (!number)
    return WEIR_CU_INVALID_VALUE;
  *number = device->ordinal;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_CtxSynchronize(model *m) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (!r)
    r = weir__model_no_capture_on(m, device);
  return r ? r : m->hooks->wait_device(m, device);
}

weir_cu_result weir__model_CtxGetStreamPriorityRange(model *m, int *least, int *greatest) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  if (least)
    *least = MODEL_LOWEST_PRIORITY;
  if (greatest)
    *greatest = MODEL_GREATEST_PRIORITY;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_CtxEnablePeerAccess(model *m, weir_cu_context context, unsigned flags) {
  model_device *device, *peer = weir__model_device_of(m, context);
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  if (flags)
    return WEIR_CU_INVALID_VALUE;
  if (!peer)
    return WEIR_CU_INVALID_CONTEXT;
  if (peer == device)
    return WEIR_CU_PEER_ACCESS_UNSUPPORTED;
  if (device->peers & weir__model_bit(peer))
    return WEIR_CU_PEER_ACCESS_ALREADY_ENABLED;
  device->peers |= weir__model_bit(peer);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_CtxDisablePeerAccess(model *m, weir_cu_context context) {
  model_device *device, *peer = weir__model_device_of(m, context);
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  if (!peer)
    return WEIR_CU_INVALID_CONTEXT;
  if (!(device->peers & weir__model_bit(peer)))
    return WEIR_CU_PEER_ACCESS_NOT_ENABLED;
  device->peers &= ~weir__model_bit(peer);
  return WEIR_CU_SUCCESS;
}

/* ---- The whole ---- */

void weir__model_init(model *m, const model_hooks *hooks, uint64_t bytes) {
  m->hooks = hooks;
  m->bytes = bytes;
  for (int order = 0; order < MODEL_ORDERS; order++)
    weir__handles_init(&m->slots[order], 0, hooks->range_size);
  weir__handles_init(&m->streams, hooks->first_kind + MODEL_KIND_STREAM, hooks->stream_size);
  weir__handles_init(&m->events, hooks->first_kind + MODEL_KIND_EVENT, hooks->event_size);
  weir__handles_init(&m->memories, hooks->first_kind + MODEL_KIND_MEMORY, hooks->memory_size);
  weir__handles_init(&m->pools, hooks->first_kind + MODEL_KIND_POOL, hooks->pool_size);
  weir__handles_init(&m->graphs, hooks->first_kind + MODEL_KIND_GRAPH, sizeof(model_graph));
  weir__handles_init(&m->nodes, hooks->first_kind + MODEL_KIND_NODE, sizeof(model_node));
  weir__handles_init(&m->execs, hooks->first_kind + MODEL_KIND_EXEC, hooks->exec_size);
  weir__handles_init(&m->modules, hooks->first_kind + MODEL_KIND_MODULE, sizeof(model_module));
  weir__handles_init(&m->functions, hooks->first_kind + MODEL_KIND_FUNCTION, sizeof(model_function));
  weir__handles_init(&m->user_objects, hooks->first_kind + MODEL_KIND_USER_OBJECT, sizeof(model_user_object));
}

static void free_range(model *m, model_range *range, void *data) {
  (void)data;
  weir__model_free_range(m, range);
}

void weir__model_end(model *m) {
  for (int i = 0; i < m->device_count; i++)
    if (m->devices[i]->retains) {
      m->devices[i]->retains = 0;
      end_context(m, m->devices[i]);
    }
  weir__model_each_range(m, free_range, NULL);
  uint32_t index = 0;
  for (model_memory *memory; (memory = weir__handles_next(&m->memories, &index));) {
    memory->released = true;
    weir__model_drop_memory(m, memory);
  }
  weir__handles *tables[] = {&m->streams, &m->events, &m->memories, &m->pools,     &m->graphs,
                             &m->nodes,   &m->execs,  &m->modules,  &m->functions, &m->user_objects};
  for (size_t i = 0; i < WEIR_COUNT_OF(tables); i++)
    weir__handles_clear(tables[i]);
  for (int order = 0; order < MODEL_ORDERS; order++)
    weir__handles_clear(&m->slots[order]);
  weir__rangemap_clear(&m->placed);
  weir__slab_clear(&m->placed_slab);
  weir__slab_clear(&m->mapping_slab);
  weir__slab_clear(&m->table_slab);
}
