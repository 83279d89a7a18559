#include "inspect/publish.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/backends/backend.h"
#include "base/base.h"
#include "base/clock.h"
#include "base/environment.h"
#include "base/maintain.h"
#include "base/system.h"
#include "base/thread.h"
#include "driver/call.h"
#include "driver/visible.h"
#include "inspect/record_env.h"
#include "record/live_page.h"
#include "weir/history.h"
#include "weir/snapshot.h"

enum { PERIOD_MS = 1000, FEWEST_DEVICES = 4, FEWEST_LEVELS = 64 };

/* The counts of a heap that its lock guards, as of the last time that it was free. */
typedef struct guarded {
  uint64_t read_ns; /* 0: never */
  int64_t retries, ooms, driver_allocations, driver_frees;
  int64_t async_reserved, async_peak;
} guarded;

/* How many allocations a heap makes in a second. */
typedef struct rate {
  uint64_t since_ns; /* when they were counted; 0: never */
  int64_t counted, per_second;
  bool is_known;
} rate;

typedef struct member {
  struct member *next;
  weir_allocator *allocator;
  uint32_t number;
  int *places;    /* of its devices: indices of `devices`; -1 if there was no room for one */
  guarded *heaps; /* of its devices, as the rates */
  rate *rates;
} member;

typedef struct published_device {
  weir__page_device said;
  uint64_t window_ns; /* when the window began that is under way; 0: none is */
  weir__page_sample window;
  uint64_t allocated, reserved; /* now, of all allocators */
  int number;                   /* by which reporters of outside memory know it */
} published_device;

/* Held while an allocator comes or goes, so that the task is in the worker's list while there are any. */
static weir__mutex coming_lock = WEIR__MUTEX_INIT;
static weir__mutex lock = WEIR__MUTEX_INIT; /* guards what follows; taken after that one, and before those of heaps */
static member *members;                     /* in the order of their numbers */
static weir__live_page *page;
static published_device devices[WEIR__RING_DEVICES];
static int device_count, device_room;
static weir__account_levels *levels;
static size_t level_room;
static weir__page_row *rows;
static weir__page_device *said; /* room for a copy */
static size_t row_room, row_count;
static uint32_t last_number;
static bool has_handler, has_failed;
static int owner; /* the process of the page */

static uint64_t publish(void *unused, uint64_t now);
static weir__task task = {.run = publish};

/* ---- Rows ---- */

static void put(weir__page_row *row, weir__page_count count, int64_t value) {
  row->count[count] = value > 0 ? (uint64_t)value : 0; /* a count under way may be ahead of another */
  row->known |= 1u << count;
}

static weir__page_row *new_row(weir__page_row_kind kind, const member *m, int device) {
  if (row_count == row_room) {
    size_t room = row_room ? 2 * row_room : FEWEST_LEVELS;
    weir__page_row *grown = room <= WEIR__PAGE_MAX_ROWS ? realloc(rows, room * sizeof *rows) : NULL;
    if (!grown)
      return NULL;
    rows = grown;
    row_room = room;
  }
  weir__page_row *row = &rows[row_count++];
  *row = (weir__page_row){.kind = kind, .device = (uint32_t)m->places[device], .allocator = m->number};
  return row;
}

static void put_levels(weir__page_row *row, const weir_allocator *allocator, const weir__account_levels *of) {
  if (atomic_load(&allocator->caching)) { /* otherwise nothing is counted */
    put(row, WEIR__PAGE_ALLOCATED, of->counted.allocated_bytes);
    put(row, WEIR__PAGE_REQUESTED, of->counted.requested_bytes);
    put(row, WEIR__PAGE_WAITING, of->counted.waiting_bytes);
    put(row, WEIR__PAGE_SPLIT, of->counted.split_bytes);
    put(row, WEIR__PAGE_BLOCKS, of->counted.allocations);
  }
  if (!weir__backend_is_async(allocator)) {
    put(row, WEIR__PAGE_RESERVED, of->reserved.current);
    put(row, WEIR__PAGE_PEAK_RESERVED, of->reserved.peak);
    put(row, WEIR__PAGE_SEGMENTS, of->segments.current);
  }
  if (of->limit[WEIR__LIMIT_SOFT] != UINT64_MAX)
    put(row, WEIR__PAGE_SOFT_LIMIT, (int64_t)of->limit[WEIR__LIMIT_SOFT]);
  if (of->limit[WEIR__LIMIT_HARD] != UINT64_MAX)
    put(row, WEIR__PAGE_HARD_LIMIT, (int64_t)of->limit[WEIR__LIMIT_HARD]);
}

/* What the lock of the heap guards, if it is free: its holder may be waiting for the device. */
static void read_guarded(weir__heap *heap, guarded *to, uint64_t now) {
  if (!weir__mutex_trylock(&heap->lock))
    return;
  const weir_allocator_stats *stats = &heap->stats;
  *to =
      (guarded){now, stats->num_alloc_retries, stats->num_ooms, stats->num_device_alloc, stats->num_device_free, 0, 0};
  if (weir__backend_is_async(heap->allocator)) {
    weir_allocator_stats async = {.size = sizeof async};
    weir__async_read_stats(heap, &async);
    to->async_reserved = async.reserved_bytes[WEIR_STAT_ALL].current;
    to->async_peak = async.reserved_bytes[WEIR_STAT_ALL].peak;
  }
  weir__mutex_unlock(&heap->lock);
}

static void put_guarded(weir__page_row *row, const weir_allocator *allocator, const guarded *of, uint64_t now) {
  if (!of->read_ns)
    return;
  row->age_ms = (int64_t)((now - of->read_ns) / 1000000);
  put(row, WEIR__PAGE_RETRIES, of->retries);
  put(row, WEIR__PAGE_OOMS, of->ooms);
  put(row, WEIR__PAGE_DRIVER_ALLOCATIONS, of->driver_allocations);
  put(row, WEIR__PAGE_DRIVER_FREES, of->driver_frees);
  if (weir__backend_is_async(allocator)) {
    put(row, WEIR__PAGE_RESERVED, of->async_reserved);
    put(row, WEIR__PAGE_PEAK_RESERVED, of->async_peak);
  }
}

static void put_rate(weir__page_row *row, rate *r, int64_t counted, uint64_t now) {
  if (!r->since_ns || counted < r->counted) /* the first reading, or the totals were reset */
    *r = (rate){.since_ns = now, .counted = counted};
  uint64_t passed = now - r->since_ns;
  if (passed >= PERIOD_MS * 900000ull)
    *r = (rate){now, counted, (int64_t)((double)(counted - r->counted) * 1e9 / (double)passed), true};
  if (r->is_known)
    put(row, WEIR__PAGE_RATE, r->per_second);
}

static void add_outside(void *context, const weir_outside_memory *memory) { *(uint64_t *)context += memory->bytes; }

/* The device and all private pools that a reading has room for. */
static size_t read_levels(weir__heap *heap, weir__amounts *peak, weir__amounts *added) {
  for (;;) {
    size_t count = levels ? weir__accounts_poll(&heap->accounts, levels, level_room, peak, added) : 0;
    size_t room = level_room ? 2 * level_room : FEWEST_LEVELS;
    if ((levels && count < level_room) || room > WEIR__PAGE_MAX_ROWS)
      return count;
    weir__account_levels *grown = realloc(levels, room * sizeof *levels);
    if (!grown)
      return count;
    levels = grown;
    level_room = room;
  }
}

static int by_reserved(const void *a, const void *b) {
  const weir__account_levels *x = a, *y = b;
  return (x->reserved.current < y->reserved.current) - (x->reserved.current > y->reserved.current);
}

/* The largest pools, and the sum of the others. */
static void add_pools(const member *m, int device, size_t count) {
  weir__account_levels *pools = levels + 1, others = {.limit = {UINT64_MAX, UINT64_MAX}};
  size_t used = 0, left = 0;
  for (size_t i = 1; i < count; i++)
    if (levels[i].reserved.current || (i > 1 && levels[i].limit[WEIR__LIMIT_HARD] != UINT64_MAX))
      pools[used++] = levels[i];
  qsort(pools, used, sizeof *pools, by_reserved);
  for (size_t i = 0; i < used; i++) {
    if (i < WEIR__PAGE_POOLS) {
      weir__page_row *row = new_row(WEIR__PAGE_POOL, m, device);
      if (!row)
        return;
      row->pool[0] = pools[i].id.first;
      row->pool[1] = pools[i].id.second;
      snprintf(row->tag, sizeof row->tag, "%s", pools[i].tag ? pools[i].tag : "");
      put_levels(row, m->allocator, &pools[i]);
      continue;
    }
    left++;
    others.reserved.current += pools[i].reserved.current;
    others.segments.current += pools[i].segments.current;
    others.counted.allocated_bytes += pools[i].counted.allocated_bytes;
    others.counted.requested_bytes += pools[i].counted.requested_bytes;
    others.counted.waiting_bytes += pools[i].counted.waiting_bytes;
    others.counted.split_bytes += pools[i].counted.split_bytes;
    others.counted.allocations += pools[i].counted.allocations;
  }
  weir__page_row *row = left ? new_row(WEIR__PAGE_OTHER_POOLS, m, device) : NULL;
  if (!row)
    return;
  put_levels(row, m->allocator, &others);
  row->known &= ~(1u << WEIR__PAGE_PEAK_RESERVED);
}

static void add_heap(const member *m, int device, uint64_t now) {
  weir__heap *heap = &m->allocator->heaps[device];
  weir__amounts peak, added;
  size_t count = read_levels(heap, &peak, &added);
  if (m->places[device] < 0 || !count || (!levels->segments.allocated && !added.allocations))
    return;
  read_guarded(heap, &m->heaps[device], now);
  weir__page_row *row = new_row(WEIR__PAGE_DEVICE, m, device);
  if (!row)
    return;
  put_levels(row, m->allocator, levels);
  if (row->known & 1u << WEIR__PAGE_ALLOCATED) {
    put(row, WEIR__PAGE_PEAK_ALLOCATED, peak.allocated_bytes);
    put(row, WEIR__PAGE_ALLOCATIONS, added.allocations);
    put_rate(row, &m->rates[device], added.allocations, now);
  }
  put_guarded(row, m->allocator, &m->heaps[device], now);
  published_device *on = &devices[m->places[device]];
  on->allocated += row->count[WEIR__PAGE_ALLOCATED];
  on->reserved += row->count[WEIR__PAGE_RESERVED];
  add_pools(m, device, count);
}

/* Memory that others in the process have reported is in the first row of its device. */
static void put_outside(void) {
  bool has[WEIR__RING_DEVICES] = {false};
  for (size_t i = 0; i < row_count; i++) {
    uint64_t bytes = 0;
    if (rows[i].kind != WEIR__PAGE_DEVICE || has[rows[i].device])
      continue;
    has[rows[i].device] = true;
    weir_outside_memory_visit(devices[rows[i].device].number, add_outside, &bytes);
    if (bytes)
      put(&rows[i], WEIR__PAGE_OUTSIDE, (int64_t)bytes);
  }
}

/* ---- Samples ---- */

/* Adds the present levels to the window, and begins a new one if it is over. */
static void sample(published_device *device, uint64_t now) {
  weir__page_sample *w = &device->window;
  weir__page_device *to = &device->said;
  if (!device->window_ns) {
    device->window_ns = now;
    *w = (weir__page_sample){device->allocated, device->allocated, device->reserved};
  }
  w->least = device->allocated < w->least ? device->allocated : w->least;
  w->most = device->allocated > w->most ? device->allocated : w->most;
  w->reserved = device->reserved > w->reserved ? device->reserved : w->reserved;
  if (now - device->window_ns < WEIR__PAGE_WINDOW_MS * 1000000ull)
    return;
  if (to->sample_count == WEIR__PAGE_SAMPLES)
    memmove(to->samples, to->samples + 1, (WEIR__PAGE_SAMPLES - 1) * sizeof *to->samples);
  else
    to->sample_count++;
  to->samples[to->sample_count - 1] = *w;
  device->window_ns = now;
  *w = (weir__page_sample){device->allocated, device->allocated, device->reserved};
}

/* ---- Requests of other processes ---- */

static member *recorded;         /* the allocator that is recorded on request; NULL if none is */
static uint64_t record_until_ns; /* WEIR__NO_DEADLINE: until it is asked to stop */

/* Of several allocators, the one that holds most. */
static member *largest_member(void) {
  member *largest = members;
  int64_t most = -1;
  for (member *m = members; m; m = m->next) {
    int64_t bytes = 0;
    for (int i = 0; i < m->allocator->heap_count; i++) {
      weir__amounts peak, added;
      weir__account_levels device;
      if (weir__accounts_poll(&m->allocator->heaps[i].accounts, &device, 1, &peak, &added))
        bytes += device.reserved.current;
    }
    if (bytes > most) {
      most = bytes;
      largest = m;
    }
  }
  return largest;
}

/* The request is copied first: the other process can change it meanwhile. */
static void start_recording(uint64_t now) {
  weir__page_requests *asked = page->requests;
  weir_history_options options;
  char path[WEIR__PAGE_RECORD_PATH];
  uint64_t bytes = asked->record.bytes, seconds = asked->record.seconds;
  uint32_t context = asked->record.context;
  member *m = largest_member();
  const char *refusal = NULL;
  memcpy(path, asked->record.path, sizeof path);
  path[sizeof path - 1] = '\0';
  weir_history_options_init(&options);
  options.stacks = WEIR_STACKS_EITHER;
  options.context = context <= WEIR_CONTEXT_ALL ? (weir_history_context)context : WEIR_CONTEXT_NONE;
  if (*path != '/')
    refusal = "the path is not absolute";
  else if (bytes < 1 << 20 || bytes > (uint64_t)1 << 40)
    refusal = "the size is not from 1 MiB to 1 TiB";
  else
    refusal = weir__record_start(m->allocator, path, bytes, &options);
  snprintf(asked->record.refusal, sizeof asked->record.refusal, "%s", refusal ? refusal : "");
  if (!refusal) {
    recorded = m;
    record_until_ns = seconds ? now + seconds * 1000000000ull : WEIR__NO_DEADLINE;
  }
  atomic_store(&asked->record.state, refusal ? WEIR__PAGE_RECORD_REFUSED : WEIR__PAGE_RECORD_RUNS);
}

static void stop_recording(void) {
  bool was_short = weir__record_has_stopped(recorded->allocator);
  weir__record_stop(recorded->allocator);
  recorded = NULL;
  atomic_store(&page->requests->record.state, was_short ? WEIR__PAGE_RECORD_SHORTAGE : WEIR__PAGE_RECORD_DONE);
}

/* The lock is held. */
static void obey(uint64_t now) {
  int is_on = 1;
  if (!recorded && atomic_load(&page->requests->record.state) == WEIR__PAGE_RECORD_ASKED)
    start_recording(now);
  if (recorded)
    weir_history_is_on(recorded->allocator, &is_on);
  if (recorded && (!is_on || now >= record_until_ns || atomic_load(&page->requests->record.stop)))
    stop_recording();
}

/* ---- The page ---- */

/* The lock is held. */
static void write_page(uint64_t now) {
  row_count = 0;
  for (int i = 0; i < device_count; i++)
    devices[i].allocated = devices[i].reserved = 0;
  for (const member *m = members; m; m = m->next)
    for (int i = 0; i < m->allocator->heap_count; i++)
      add_heap(m, i, now);
  put_outside();
  for (int i = 0; i < device_count; i++) {
    sample(&devices[i], now);
    said[i] = devices[i].said;
  }
  weir__page_copy copy = {.unix_ns = (int64_t)weir__realtime_ns(),
                          .device_count = (uint32_t)device_count,
                          .row_count = (uint32_t)row_count,
                          .period_ms = PERIOD_MS,
                          .is_recording = weir_history_is_on_anywhere() != 0};
  weir__live_page_write(page, copy, said, rows);
}

static uint64_t publish(void *unused, uint64_t now) {
  (void)unused;
  weir__mutex_lock(&lock);
  bool is_on = page && members;
  if (is_on) {
    obey(now);
    write_page(now);
  }
  weir__mutex_unlock(&lock);
  return is_on ? now + PERIOD_MS * 1000000ull : WEIR__NO_DEADLINE;
}

void weir__publish_now(void) {
  weir__mutex_lock(&lock);
  if (page && members)
    write_page(weir__monotonic_ns());
  weir__mutex_unlock(&lock);
}

const char *weir__publish_path(void) {
  weir__mutex_lock(&lock);
  const char *path = page ? page->path : NULL;
  weir__mutex_unlock(&lock);
  return path;
}

/* The lock is held. */
static void end_page(void) {
  if (page)
    weir__live_page_delete(page);
  page = NULL;
  device_count = 0;
}

static void lock_all(void) {
  weir__mutex_lock(&coming_lock);
  weir__mutex_lock(&lock);
}

static void unlock_all(void) {
  weir__mutex_unlock(&lock);
  weir__mutex_unlock(&coming_lock);
}

static void delete (member *m) {
  if (m) {
    free(m->places);
    free(m->heaps);
    free(m->rates);
  }
  free(m);
}

/* The page, its task and the allocators are the parent's. */
static void begin_child(void) {
  if (page)
    weir__live_page_abandon(page);
  page = NULL;
  while (members) {
    member *next = members->next;
    delete (members);
    members = next;
  }
  recorded = NULL;
  device_count = 0;
  unlock_all();
}

WEIR__AT_LOAD(WEIR__LOAD_SERVICE) void watch_forks(void) { weir__at_fork(lock_all, unlock_all, begin_child); }

/* A program may end without destroying its allocators. A child of vfork that calls exit is not the owner. */
static void at_exit(void) {
  if (owner != weir__process_id())
    return;
  weir__mutex_lock(&lock);
  if (recorded)
    stop_recording();
  end_page();
  weir__mutex_unlock(&lock);
}

/* Makes the page of the process, with the lock held. */
static bool begin_page(int heaps) {
  char folders[WEIR__PAGE_FOLDERS][WEIR__PAGE_PATH], host[64] = "";
  int why = 0, count = weir__live_page_folders(folders);
  device_room = heaps < FEWEST_DEVICES ? FEWEST_DEVICES : heaps > WEIR__RING_DEVICES ? WEIR__RING_DEVICES : heaps;
  said = realloc(said, (size_t)device_room * sizeof *said);
  if (!count || !said)
    return false;
  weir__host_name(host, sizeof host);
  for (int i = 0; i < count && !page; i++)
    page = weir__live_page_create(folders[i], device_room, (size_t)device_room + 2 * WEIR__PAGE_POOLS, host,
                                  weir__rank_from_env(), &why);
  if (!page && !has_failed)
    weir__log(WEIR_LOG_INFO, "WEIR_STATS_PAGE: 'weir top' cannot see this process: %s: %s", folders[count - 1],
              strerror(why));
  has_failed = !page;
  owner = weir__process_id();
  has_handler = has_handler || atexit(at_exit) == 0;
  return page != NULL;
}

/* The index of a device in the page, with the lock held; -1 if there is no room for it. */
static int place_of(weir_driver *driver, int device, uint64_t total) {
  weir__page_device is = {.total = total, .is_shared = weir__driver_can(driver, WEIR_DRIVER_NVIDIA)};
  weir_cu_uuid uuid;
  if (driver->DeviceGetName(driver, is.name, sizeof is.name, device))
    is.name[0] = '\0';
  if (!driver->DeviceGetUuid(driver, &uuid, device))
    weir__format_uuid(&uuid, is.uuid);
  if (driver->DeviceGetPCIBusId(driver, is.bus, sizeof is.bus, device))
    is.bus[0] = '\0';
  for (int i = 0; i < device_count; i++)
    if (strcmp(devices[i].said.uuid, is.uuid) == 0 && devices[i].said.total == total)
      return i;
  if (device_count == device_room)
    return -1;
  devices[device_count] = (published_device){.said = is, .number = device};
  return device_count++;
}

static void leave(weir_allocator *allocator) {
  lock_all();
  for (member **at = &members; *at; at = &(*at)->next)
    if ((*at)->allocator == allocator) {
      member *gone = *at;
      if (recorded == gone)
        stop_recording();
      *at = gone->next;
      delete (gone);
      break;
    }
  bool was_last = !members;
  if (was_last)
    end_page();
  weir__mutex_unlock(&lock);
  if (was_last)
    weir__task_remove(&task);
  weir__mutex_unlock(&coming_lock);
}

void weir__publish_begin(weir_allocator *allocator) {
  const char *off = weir__env_value(WEIR__ENV_STATS_PAGE);
  member *made = off && strcmp(off, "0") == 0 ? NULL : calloc(1, sizeof *made);
  if (!made || allocator->heap_count < 1)
    goto free_made;
  size_t count = (size_t)allocator->heap_count;
  made->places = calloc(count, sizeof *made->places);
  made->heaps = calloc(count, sizeof *made->heaps);
  made->rates = calloc(count, sizeof *made->rates);
  if (!made->places || !made->heaps || !made->rates)
    goto free_made;
  lock_all();
  bool is_first = !members;
  if (!page && !begin_page(allocator->heap_count)) {
    unlock_all();
    goto free_made;
  }
  for (size_t i = 0; i < count; i++)
    made->places[i] = place_of(allocator->driver, (int)i, allocator->heaps[i].total);
  made->allocator = allocator;
  made->number = ++last_number;
  made->next = NULL;
  member **at = &members;
  while (*at)
    at = &(*at)->next;
  *at = made;
  allocator->unpublish = leave;
  weir__mutex_unlock(&lock);
  if (is_first && weir__task_add(&task))
    weir__task_wake(&task);
  weir__mutex_unlock(&coming_lock);
  return;

free_made:
  delete (made);
}
