/*
 * The table itself: opening and closing, the lock around every entry, threads, handles.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/soft/soft.h"

/* ---- Handles: 24 bits of slot and as many of generation, above four bits of zero ---- */

static uintptr_t handle_of(size_t slot, uint32_t generation) {
  return ((uintptr_t)generation << 28) | ((uintptr_t)(slot + 1) << 4);
}

uintptr_t weir__soft_handle_new(struct soft *soft, enum soft_kind kind, void *object) {
  size_t slot = soft->free_slot ? soft->free_slot - 1 : soft->slot_count;
  if (soft->free_slot)
    soft->free_slot = (size_t)(uintptr_t)soft->slots[slot].object;
  else {
    if (soft->slot_count == soft->slot_room) {
      size_t room = soft->slot_room ? 2 * soft->slot_room : 256;
      struct soft_slot *slots = room >> 24 ? NULL : realloc(soft->slots, room * sizeof *slots);
      if (!slots)
        return 0;
      soft->slots = slots;
      soft->slot_room = room;
    }
    soft->slots[soft->slot_count++].generation = 0;
  }
  struct soft_slot *s = &soft->slots[slot];
  *s = (struct soft_slot){object, (s->generation + 1) & 0xffffff, (uint8_t)kind};
  soft->live[kind]++;
  return handle_of(slot, s->generation);
}

void *weir__soft_handle_get(const struct soft *soft, enum soft_kind kind, uintptr_t handle) {
  size_t slot = ((handle >> 4) & 0xffffff) - 1;
  if (slot >= soft->slot_count)
    return NULL;
  const struct soft_slot *s = &soft->slots[slot];
  return s->kind == kind && handle_of(slot, s->generation) == handle ? s->object : NULL;
}

void weir__soft_handle_free(struct soft *soft, uintptr_t handle) {
  size_t slot = ((handle >> 4) & 0xffffff) - 1;
  struct soft_slot *s = &soft->slots[slot];
  soft->live[s->kind]--;
  s->kind = SOFT_FREE;
  s->object = (void *)(uintptr_t)soft->free_slot;
  soft->free_slot = slot + 1;
}

/* ---- Threads ---- */

static void thread_forget(struct soft *soft, struct soft_thread *thread) {
  for (int i = 0; i < soft->device_count; i++)
    if (thread->streams[i])
      weir__soft_stream_drop(soft, thread->streams[i]);
  for (struct soft_capture *c = soft->captures; c; c = c->next)
    if (c->thread == thread)
      c->thread = NULL;
  for (struct soft_thread **at = &soft->threads; *at; at = &(*at)->next)
    if (*at == thread) {
      *at = thread->next;
      break;
    }
  free(thread);
}

static void thread_exits(void *value) {
  struct soft_thread *thread = value;
  struct soft *soft = thread->soft;
  pthread_mutex_lock(&soft->lock);
  thread_forget(soft, thread);
  pthread_mutex_unlock(&soft->lock);
}

struct soft_thread *weir__soft_thread(struct soft *soft) {
  struct soft_thread *thread = pthread_getspecific(soft->thread_key);
  if (thread)
    return thread;
  thread = calloc(1, sizeof *thread);
  if (!thread)
    return NULL;
  thread->soft = soft;
  if (pthread_setspecific(soft->thread_key, thread)) {
    free(thread);
    return NULL;
  }
  thread->next = soft->threads;
  soft->threads = thread;
  return thread;
}

/* ---- Entries ---- */

/* What may be called before Init. */
static bool needs_init(weir_driver_call call) {
  return call != WEIR_CALL_Init && call != WEIR_CALL_DriverGetVersion && call != WEIR_CALL_GetErrorName &&
         call != WEIR_CALL_GetErrorString;
}

/* Every thread that calls is known first, so that nothing below has to ask for memory to find out which thread it is on. */
static weir_cu_result enter(struct soft *soft, weir_driver_call call) {
  pthread_mutex_lock(&soft->lock);
  if (needs_init(call) && !soft->initialized)
    return WEIR_CU_NOT_INITIALIZED;
  return weir__soft_thread(soft) ? WEIR_CU_SUCCESS : WEIR_CU_OUT_OF_MEMORY;
}

void weir__soft_leave(struct soft *soft) {
#ifdef WEIR_EXPENSIVE_CHECKS
  weir__soft_is_valid(soft);
#endif
  pthread_mutex_unlock(&soft->lock);
}

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result entry_##name(weir_driver *self WEIR__AND params) {                                             \
    struct soft *soft = (struct soft *)self;                                                                           \
    weir_cu_result r = enter(soft, WEIR_CALL_##name);                                                                  \
    if (!r)                                                                                                            \
      r = weir__soft_##name(soft WEIR__AND args);                                                                      \
    weir__soft_leave(soft);                                                                                            \
    return r;                                                                                                          \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result entry_##name(weir_driver *self) {                                                              \
    struct soft *soft = (struct soft *)self;                                                                           \
    weir_cu_result r = enter(soft, WEIR_CALL_##name);                                                                  \
    if (!r)                                                                                                            \
      r = weir__soft_##name(soft);                                                                                     \
    weir__soft_leave(soft);                                                                                            \
    return r;                                                                                                          \
  }
#include "weir/driver_entries.h"

static const weir_driver entries = {
    .size = sizeof(weir_driver),
    .name = "soft",
    .capabilities = WEIR_DRIVER_FILTERS_VISIBLE | WEIR_DRIVER_SURVIVES_FORK | WEIR_DRIVER_HOST_ACCESS,
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) .name = entry_##name,
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) .name = entry_##name,
#include "weir/driver_entries.h"
};

/* ---- Opening and closing ---- */

static void destroy(weir_driver *self) {
  struct soft *soft = (struct soft *)self;
  weir__soft_engine_stop(soft);
  pthread_mutex_lock(&soft->lock);
  while (soft->captures)
    weir__soft_capture_end(soft, soft->captures, NULL);
  /* All work first: a device's may use memory of another. */
  for (int i = 0; i < soft->device_count; i++)
    weir__soft_wait_device(soft, &soft->devices[i]);
  for (int i = 0; i < soft->device_count; i++) {
    struct soft_device *device = &soft->devices[i];
    if (device->context) {
      device->retains = 1;
      weir__soft_DevicePrimaryCtxRelease(soft, i);
    }
    weir__soft_pools_close(soft, device);
  }
  /* Address space and handles belong to no context: what the program left behind goes here. */
  for (size_t i = 0; i < soft->slot_count; i++)
    if (soft->slots[i].kind == SOFT_HANDLE)
      weir__soft_MemRelease(soft, handle_of(i, soft->slots[i].generation));
  struct soft_range *range;
  while ((range = weir__rangemap_at_or_after(&soft->space, 0, NULL, NULL)))
    weir__soft_range_free(soft, range);
  weir__rangemap_clear(&soft->space);
  for (int i = 0; i < soft->options.devices; i++)
    if (soft->devices[i].fd >= 0)
      close(soft->devices[i].fd);
  while (soft->threads)
    thread_forget(soft, soft->threads);
  while (soft->kernels) {
    struct soft_kernel *kernel = soft->kernels;
    soft->kernels = kernel->next;
    free(kernel->name);
    free(kernel->param_bytes);
    free(kernel);
  }
  pthread_mutex_unlock(&soft->lock);
  pthread_key_delete(soft->thread_key);
  pthread_cond_destroy(&soft->stop);
  pthread_cond_destroy(&soft->changed);
  pthread_cond_destroy(&soft->work);
  pthread_mutex_destroy(&soft->lock);
  free(soft->slots);
  free(soft);
}

void weir_soft_options_init(weir_soft_options *options) {
  if (!options)
    return;
  *options = (weir_soft_options){.size = sizeof *options,
                                 .clock = WEIR_SOFT_THREADS,
                                 .devices = 1,
                                 .bytes = 16ull << 30,
                                 .capability_major = 9,
                                 .capability_minor = 0,
                                 .clock_khz = 1000000,
                                 .copy_bytes_per_second = 0};
}

/* 2 MiB to 16 TiB of memory. */
static const unsigned long long least_bytes = SOFT_GRANULE, most_bytes = 1ull << 44;

static weir_status check_options(const weir_soft_options *o) {
  if (o->clock != WEIR_SOFT_THREADS && o->clock != WEIR_SOFT_STEPPED)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_driver_open_soft: clock %d is neither threads nor stepped",
                      (int)o->clock);
  if (o->devices < 1 || o->devices > WEIR_SOFT_MAX_DEVICES)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_driver_open_soft: %d devices, allowed are 1 to %d", o->devices,
                      WEIR_SOFT_MAX_DEVICES);
  if (o->bytes < least_bytes || o->bytes > most_bytes)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "weir_driver_open_soft: a device of %llu bytes, allowed are 2 MiB to 16 TiB", o->bytes);
  if (o->capability_major < 1 || o->capability_minor < 0 || o->clock_khz < 1)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "weir_driver_open_soft: capability %d.%d at %d kHz: they are to be positive", o->capability_major,
                      o->capability_minor, o->clock_khz);
  return WEIR_OK;
}

weir_status weir_driver_open_soft(const weir_soft_options *options, weir_driver **driver) {
  weir_soft_options o;
  weir_soft_options_init(&o);
  if (!driver)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_driver_open_soft: driver is NULL");
  weir_status status = weir__read_options("weir_driver_open_soft", "options", &o, sizeof o, options);
  if (status)
    return status;
  o.size = sizeof o;
  status = check_options(&o);
  if (status)
    return status;

  struct soft *soft = calloc(1, sizeof *soft);
  if (!soft)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "weir_driver_open_soft: no host memory");
  soft->table = entries;
  soft->table.destroy = destroy;
  soft->options = o;
  for (int i = 0; i < WEIR_SOFT_MAX_DEVICES; i++)
    soft->devices[i] = (struct soft_device){.soft = soft, .ordinal = i, .fd = -1};
  int error = pthread_key_create(&soft->thread_key, thread_exits);
  if (error) {
    free(soft);
    return weir__fail(WEIR_ERROR_SYSTEM, "weir_driver_open_soft: pthread_key_create: %s", strerror(error));
  }
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&soft->lock, NULL);
  pthread_cond_init(&soft->work, &attributes);
  pthread_cond_init(&soft->changed, &attributes);
  pthread_cond_init(&soft->stop, &attributes);
  pthread_condattr_destroy(&attributes);

  static const size_t spin_params[] = {sizeof(uint64_t)};
  status = weir_soft_register_kernel(&soft->table, "weir_spin", NULL, 1, spin_params);
  if (status) {
    destroy(&soft->table);
    return status;
  }
  *driver = &soft->table;
  return WEIR_OK;
}

/* ---- Options from the environment ---- */

static weir_status bad_variable(const char *name, const char *value, const char *allowed) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s=%s: %s", name, value, allowed);
}

static weir_status read_count(const char *name, long least, long most, int *value) {
  const char *text = getenv(name);
  if (!text || !*text)
    return WEIR_OK;
  char *end;
  errno = 0;
  long n = strtol(text, &end, 10);
  if (*end || errno || n < least || n > most) {
    char allowed[80];
    snprintf(allowed, sizeof allowed, "a number from %ld to %ld is expected", least, most);
    return bad_variable(name, text, allowed);
  }
  *value = (int)n;
  return WEIR_OK;
}

static weir_status read_bytes(const char *name, unsigned long long least, unsigned long long most, const char *allowed,
                              unsigned long long *value) {
  const char *text = getenv(name);
  unsigned long long n;
  if (!text || !*text)
    return WEIR_OK;
  if (!weir__parse_bytes(text, &n) || n < least || n > most)
    return bad_variable(name, text, allowed);
  *value = n;
  return WEIR_OK;
}

static weir_status read_capability(int *major, int *minor) {
  const char *text = getenv("WEIR_SOFT_CAPABILITY");
  if (!text || !*text)
    return WEIR_OK;
  int ends = 0;
  char first[4], second[4]; /* longer numbers stop the scan, and the text is not at its end */
  if (sscanf(text, "%3[0-9].%3[0-9]%n", first, second, &ends) != 2 || text[ends] || !atoi(first))
    return bad_variable("WEIR_SOFT_CAPABILITY", text, "two numbers are expected, as 9.0");
  *major = atoi(first);
  *minor = atoi(second);
  return WEIR_OK;
}

weir_status weir_soft_options_from_env(weir_soft_options *options) {
  if (!options)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_soft_options_from_env: options is NULL");
  weir_soft_options o = *options;
  weir_status status;
  const char *clock = getenv("WEIR_SOFT_CLOCK");
  if (clock && *clock) {
    if (strcmp(clock, "threads") && strcmp(clock, "stepped"))
      return bad_variable("WEIR_SOFT_CLOCK", clock, "threads or stepped is expected");
    o.clock = strcmp(clock, "threads") ? WEIR_SOFT_STEPPED : WEIR_SOFT_THREADS;
  }
  if ((status = read_count("WEIR_SOFT_DEVICES", 1, WEIR_SOFT_MAX_DEVICES, &o.devices)))
    return status;
  status = read_bytes("WEIR_SOFT_MEMORY", least_bytes, most_bytes,
                      "a size from 2MiB to 16TiB is expected, as 80GiB or 500MB", &o.bytes);
  if (status)
    return status;
  if ((status = read_count("WEIR_SOFT_CLOCK_KHZ", 1, 100000000, &o.clock_khz)))
    return status;
  status = read_bytes("WEIR_SOFT_COPY_SPEED", 0, ULLONG_MAX, "bytes a second are expected, as 50GB or 500MB",
                      &o.copy_bytes_per_second);
  if (status)
    return status;
  if ((status = read_capability(&o.capability_major, &o.capability_minor)))
    return status;
  *options = o;
  return WEIR_OK;
}

/* ---- Counting ---- */

struct soft *weir__soft_of(weir_driver *driver, const char *who) {
  if (driver && driver->destroy == destroy)
    return (struct soft *)driver;
  weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the driver is not a software device", who);
  return NULL;
}

void weir_soft_census_init(weir_soft_census *census) {
  if (census)
    *census = (weir_soft_census){.size = sizeof *census};
}

weir_status weir_soft_take_census(weir_driver *driver, weir_soft_census *census) {
  struct soft *soft = weir__soft_of(driver, "weir_soft_take_census");
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  if (!census || census->size < sizeof census->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_soft_take_census: census is NULL, or its size is not set");
  pthread_mutex_lock(&soft->lock);
  weir_soft_census c = {.size = census->size,
                        .contexts = soft->live[SOFT_CONTEXT],
                        .streams = soft->live[SOFT_STREAM],
                        .events = soft->live[SOFT_EVENT],
                        .graphs = soft->live[SOFT_GRAPH],
                        .graph_execs = soft->live[SOFT_EXEC],
                        .modules = soft->live[SOFT_MODULE],
                        .pools = soft->live[SOFT_POOL], /* without the default ones, below: nobody made them */
                        .allocations = soft->range_counts[SOFT_RANGE_PLAIN] + soft->range_counts[SOFT_RANGE_CHUNK],
                        .host_allocations = soft->range_counts[SOFT_RANGE_HOST],
                        .registrations = soft->range_counts[SOFT_RANGE_REGISTERED],
                        .reservations = soft->range_counts[SOFT_RANGE_RESERVED],
                        .ipc_mappings = soft->range_counts[SOFT_RANGE_IPC],
                        .mappings = soft->mapping_count,
                        .handles = soft->live[SOFT_HANDLE]};
  for (int i = 0; i < soft->device_count; i++) {
    c.device_bytes += soft->devices[i].used;
    c.pools -= soft->devices[i].default_pool != NULL;
  }
  pthread_mutex_unlock(&soft->lock);
  weir__copy_sized(census, census->size, &c, sizeof c);
  return WEIR_OK;
}
