/*
 * The table: opening and closing, the lock around every entry, per-thread state, the census.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/thread.h"
#include "driver/metrics.h"
#include "driver/soft/soft.h"

/* ---- Threads ---- */

static void thread_forget(struct soft *soft, struct soft_thread *thread) {
  for (int i = 0; i < soft->m.device_count; i++) {
    model_stream *stream = weir__handles_get(&soft->m.streams, (uintptr_t)thread->t.streams[i]);
    if (stream && !stream->dropped)
      weir__model_drop_stream(&soft->m, stream);
  }
  for (model_capture *c = soft->m.captures; c; c = c->next)
    if (c->thread == &thread->t)
      c->thread = NULL;
  struct soft_thread **at = &soft->threads;
  while (*at != thread)
    at = &(*at)->next;
  *at = thread->next;
  free(thread);
}

static void thread_exits(void *value) {
  struct soft_thread *thread = value;
  struct soft *soft = thread->soft;
  weir__mutex_lock(&soft->lock);
  thread_forget(soft, thread);
  weir__mutex_unlock(&soft->lock);
}

bool weir__soft_enter_thread(struct soft *soft) {
  struct soft_thread *thread = weir__thread_key_get(soft->thread_key);
  if (!thread) {
    thread = calloc(1, sizeof *thread);
    if (!thread)
      return false;
    thread->soft = soft;
    if (weir__thread_key_set(soft->thread_key, thread)) {
      free(thread);
      return false;
    }
    thread->next = soft->threads;
    soft->threads = thread;
  }
  soft->m.thread = &thread->t;
  return true;
}

/* ---- Entries ---- */

/* Acquires the lock. The state of the thread is created here, so that no code below needs memory to find it. */
static weir_cu_result enter(struct soft *soft, weir_driver_call call) {
  weir__mutex_lock(&soft->lock);
  if (weir__model_needs_init(call) && !soft->m.ready)
    return WEIR_CU_NOT_INITIALIZED;
  return weir__soft_enter_thread(soft) ? WEIR_CU_SUCCESS : WEIR_CU_OUT_OF_MEMORY;
}

void weir__soft_leave(struct soft *soft) {
#ifdef WEIR_EXPENSIVE_CHECKS
  weir__soft_is_valid(soft);
#endif
  weir__mutex_unlock(&soft->lock);
}

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result entry_##name(weir_driver *self WEIR__AND params) {                                             \
    struct soft *soft = (struct soft *)self;                                                                           \
    weir_cu_result r = enter(soft, WEIR_CALL_##name);                                                                  \
    if (!r)                                                                                                            \
      r = weir__model_##name(&soft->m WEIR__AND args);                                                                 \
    weir__soft_leave(soft);                                                                                            \
    return r;                                                                                                          \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result entry_##name(weir_driver *self) {                                                              \
    struct soft *soft = (struct soft *)self;                                                                           \
    weir_cu_result r = enter(soft, WEIR_CALL_##name);                                                                  \
    if (!r)                                                                                                            \
      r = weir__model_##name(&soft->m);                                                                                \
    weir__soft_leave(soft);                                                                                            \
    return r;                                                                                                          \
  }
#include "weir/driver_entries.h"

static const weir_driver entries = {
    .size = sizeof(weir_driver),
    .name = "soft",
    .capabilities = WEIR_DRIVER_FILTERS_VISIBLE | WEIR_DRIVER_SURVIVES_FORK | WEIR_DRIVER_HOST_ACCESS |
                    WEIR_DRIVER_CHECKS_STREAMS | WEIR_DRIVER_HOST_KERNELS | WEIR_DRIVER_NAMES_FAULTS,
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) .name = entry_##name,
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) .name = entry_##name,
#include "weir/driver_entries.h"
};

/* ---- Opening and closing ---- */

static void destroy(weir_driver *self) {
  struct soft *soft = (struct soft *)self;
  weir__soft_engine_stop(soft);
  weir__mutex_lock(&soft->lock);
  while (soft->m.captures)
    weir__model_abandon(&soft->m, soft->m.captures);
  /* Finish the work of all devices first: it may use memory of another device. */
  for (int i = 0; i < soft->m.device_count; i++)
    weir__soft_wait_device(&soft->m, soft->m.devices[i]);
  weir__model_end(&soft->m);
  weir__soft_return_kept(soft);
  for (int i = 0; i < soft->options.devices; i++)
    if (soft->devices[i].fd >= 0)
      close(soft->devices[i].fd);
  while (soft->threads) {
    struct soft_thread *thread = soft->threads;
    soft->threads = thread->next;
    free(thread);
  }
  while (soft->m.kernels) {
    model_kernel *kernel = soft->m.kernels;
    soft->m.kernels = kernel->next;
    free(kernel);
  }
  weir__mutex_unlock(&soft->lock);
  weir__thread_key_delete(soft->thread_key);
  weir__cond_destroy(&soft->stop);
  weir__cond_destroy(&soft->changed);
  weir__cond_destroy(&soft->work);
  weir__mutex_destroy(&soft->lock);
  free(soft);
}

/* Limits of the memory of a device: 2 MiB to 16 TiB. */
static const unsigned long long least_bytes = MODEL_GRANULARITY, max_bytes = 1ull << 44;

static weir_status check_options(const weir_soft_options *o) {
  if (o->clock != WEIR_SOFT_THREADS && o->clock != WEIR_SOFT_STEPPED)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "weir_driver_open_soft: clock is %d; allowed are WEIR_SOFT_THREADS and WEIR_SOFT_STEPPED",
                      (int)o->clock);
  if (o->devices < 1 || o->devices > WEIR_SOFT_MAX_DEVICES)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_driver_open_soft: devices is %d; allowed are 1 to %d",
                      o->devices, WEIR_SOFT_MAX_DEVICES);
  if (o->bytes < least_bytes || o->bytes > max_bytes)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_driver_open_soft: bytes is %llu; allowed are 2 MiB to 16 TiB",
                      (unsigned long long)o->bytes);
  if (o->context_bytes > o->bytes && o->context_bytes != WEIR_SOFT_CONTEXT_AUTO)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "weir_driver_open_soft: context_bytes is %llu; a device has %llu bytes",
                      (unsigned long long)o->context_bytes, (unsigned long long)o->bytes);
  if (o->capability_major < 1 || o->capability_minor < 0 || o->clock_khz < 1)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "weir_driver_open_soft: capability %d.%d and clock_khz %d must be positive", o->capability_major,
                      o->capability_minor, o->clock_khz);
  return WEIR_OK;
}

/* As on a GPU, the memory of a device cannot be had to the last byte; of a small one, a context takes a small part. */
static uint64_t context_bytes(const weir_soft_options *o) {
  enum { SHARE = 64, MAX = 256 << 20 };
  if (o->context_bytes != WEIR_SOFT_CONTEXT_AUTO)
    return weir__round_up(o->context_bytes, SOFT_PAGE);
  uint64_t part = o->bytes / SHARE < MAX ? o->bytes / SHARE : MAX;
  return part - part % MODEL_GRANULARITY;
}

weir_status weir_driver_open_soft(const weir_soft_options *options, weir_driver **driver) {
  WEIR__CHECK_ARGUMENT(driver);
  weir_soft_options o;
  weir_soft_options_init(&o);
  weir_status status = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (status)
    return status;
  o.size = sizeof o;
  status = check_options(&o);
  if (status)
    return status;

  struct soft *soft = calloc(1, sizeof *soft);
  if (!soft)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the device", __func__);
  soft->m.table = entries;
  soft->m.table.destroy = destroy;
  soft->options = o;
  soft->hooks = (model_hooks){.first_kind = 16,
                              .device_name = "Weir Software Device",
                              .uuid = {0x50, 0xf7, 0, 0, 'w', 'e', 0x40, 'i', 0x80, 'r', 's', 'o', 'f', 't'},
                              .clock_khz = o.clock_khz,
                              .capability_major = o.capability_major,
                              .capability_minor = o.capability_minor,
                              .stream_size = sizeof(struct soft_stream),
                              .event_size = sizeof(struct soft_event),
                              .exec_size = sizeof(struct soft_exec),
                              .memory_size = sizeof(struct soft_memory),
                              .range_size = sizeof(struct soft_range),
                              .pool_size = sizeof(struct soft_pool)};
  weir__soft_add_memory_hooks(&soft->hooks);
  weir__soft_add_pool_hooks(&soft->hooks);
  weir__soft_add_engine_hooks(&soft->hooks);
  weir__soft_add_event_hooks(&soft->hooks);
  weir__soft_add_ipc_hooks(&soft->hooks);
  weir__model_init(&soft->m, &soft->hooks, o.bytes);
  soft->m.context_bytes = context_bytes(&o);
  for (int i = 0; i < o.devices; i++) {
    soft->devices[i] = (struct soft_device){.d = {.ordinal = i, .physical = i}, .fd = -1};
    soft->m.devices[i] = &soft->devices[i].d;
  }
  int error = weir__thread_key_create(&soft->thread_key, thread_exits);
  if (error) {
    free(soft);
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot create a thread key: %s", __func__, strerror(error));
  }
  weir__mutex_init(&soft->lock);
  weir__cond_init(&soft->work);
  weir__cond_init(&soft->changed);
  weir__cond_init(&soft->stop);

  status = weir__soft_add_kernels(soft);
  if (status) {
    destroy(&soft->m.table);
    return status;
  }
  *driver = &soft->m.table;
  return WEIR_OK;
}

/* ---- Options from the environment ---- */

static weir_status read_count(weir__variable variable, int *value) {
  int64_t number = *value;
  if (!weir__env_integer(variable, &number))
    return weir__env_refuse(variable);
  *value = (int)number;
  return WEIR_OK;
}

static weir_status read_bytes(weir__variable variable, uint64_t *value) {
  unsigned long long bytes = *value;
  if (!weir__env_bytes(variable, &bytes))
    return weir__env_refuse(variable);
  *value = bytes;
  return WEIR_OK;
}

static weir_status read_capability(int *major, int *minor) {
  const char *text = weir__env_value(WEIR__ENV_SOFT_CAPABILITY);
  if (!text)
    return WEIR_OK;
  int ends = 0;
  char first[4], second[4]; /* a longer number leaves characters after the match */
  if (sscanf(text, "%3[0-9].%3[0-9]%n", first, second, &ends) != 2 || text[ends] || !atoi(first))
    return weir__env_refuse(WEIR__ENV_SOFT_CAPABILITY);
  *major = atoi(first);
  *minor = atoi(second);
  return WEIR_OK;
}

weir_status weir_soft_options_from_env(weir_soft_options *options) {
  WEIR__CHECK_ARGUMENT(options);
  weir_soft_options o = *options;
  int clock = o.clock == WEIR_SOFT_STEPPED;
  if (!weir__env_choice(WEIR__ENV_SOFT_CLOCK, &clock))
    return weir__env_refuse(WEIR__ENV_SOFT_CLOCK);
  o.clock = clock ? WEIR_SOFT_STEPPED : WEIR_SOFT_THREADS;
  weir_status status = read_count(WEIR__ENV_SOFT_DEVICES, &o.devices);
  if (!status)
    status = read_bytes(WEIR__ENV_SOFT_MEMORY, &o.bytes);
  if (!status)
    status = read_count(WEIR__ENV_SOFT_CLOCK_KHZ, &o.clock_khz);
  if (!status)
    status = read_bytes(WEIR__ENV_SOFT_COPY_SPEED, &o.copy_bytes_per_second);
  if (!status)
    status = read_capability(&o.capability_major, &o.capability_minor);
  if (!status)
    status = read_bytes(WEIR__ENV_SOFT_CONTEXT, &o.context_bytes);
  if (!status && o.context_bytes > o.bytes && o.context_bytes != WEIR_SOFT_CONTEXT_AUTO)
    status = weir__env_refuse(WEIR__ENV_SOFT_CONTEXT);
  if (!status)
    *options = o;
  return status;
}

/* ---- Census ---- */

bool weir__is_soft(const weir_driver *driver) { return driver && driver->destroy == destroy; }

struct soft *weir__soft_of(weir_driver *driver, const char *caller) {
  if (weir__is_soft(driver))
    return (struct soft *)driver;
  weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: driver \"%s\" is not a software device", caller,
             driver ? driver->name : "NULL");
  return NULL;
}

static uint64_t count_live(const weir__handles *table) {
  uint64_t count = 0;
  for (uint32_t index = 0; weir__handles_next(table, &index);)
    count++;
  return count;
}

static void count_range(model *m, model_range *range, void *data) {
  weir_soft_census *c = data;
  uint64_t *const counts[MODEL_RANGE_KINDS] = {
      [MODEL_RANGE_PLAIN] = &c->allocations,        [MODEL_RANGE_POOLED] = &c->allocations,
      [MODEL_RANGE_HOST] = &c->host_allocations,    [MODEL_RANGE_REGISTERED] = &c->registrations,
      [MODEL_RANGE_RESERVATION] = &c->reservations, [MODEL_RANGE_IPC] = &c->ipc_mappings};
  (void)m;
  ++*counts[range->kind];
  if (range->kind == MODEL_RANGE_RESERVATION)
    c->mappings += range->mappings;
}

weir_status weir_soft_get_census(weir_driver *driver, weir_soft_census *census) {
  struct soft *soft = weir__soft_of(driver, __func__);
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  WEIR__CHECK_ARGUMENT(census);
  if (census->size < sizeof census->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: census->size is %zu; call weir_soft_census_init first",
                      __func__, census->size);
  weir__mutex_lock(&soft->lock);
  model *m = &soft->m;
  weir_soft_census c = {.size = census->size,
                        .events = count_live(&m->events),
                        .graphs = count_live(&m->graphs),
                        .graph_execs = count_live(&m->execs),
                        .modules = count_live(&m->modules),
                        .unmaps_in_use = soft->unmaps_in_use};
  weir__model_each_range(m, count_range, &c);
  /* The program did not create the default streams and pools, so they are not counted. */
  FOR_EACH_HANDLE(const model_stream, stream, &m->streams)
    c.streams += !stream->is_default && !stream->dropped;
  FOR_EACH_HANDLE(const model_pool, pool, &m->pools)
    c.pools += pool != pool->device->default_pool && !pool->destroyed;
  FOR_EACH_HANDLE(const model_memory, memory, &m->memories)
    c.handles += !memory->released;
  for (int i = 0; i < m->device_count; i++) {
    c.contexts += m->devices[i]->retains > 0;
    c.device_bytes += m->devices[i]->used;
  }
  weir__mutex_unlock(&soft->lock);
  weir__copy_sized(census, census->size, &c, sizeof c);
  return WEIR_OK;
}
