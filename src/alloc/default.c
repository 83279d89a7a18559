/*
 * Memory by weir_stream: the process default allocator, and the allocator's calls that take a weir_stream. This is the
 * only file of the allocator, beside graph hooks, that uses the runtime, and it uses the runtime's public calls alone.
 */
#include "weir/memory.h"

#include <stdatomic.h>
#include <stdio.h>

#include "alloc/cache/heap.h"
#include "base/thread.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/host.h"
#include "weir/runtime.h"

/* The default allocator, or NULL until first use and after a shutdown. Written under create_lock, or by weir_shutdown,
 * which runs alone. create_lock is only held while the runtime is started: in a forked child such a runtime refuses
 * every call before the lock is tried, whatever state the fork left it in. */
static _Atomic(weir_allocator *) default_allocator;
static weir__mutex create_lock = WEIR__MUTEX_INIT;

/* ---- Destruction of the default allocator, by weir_shutdown ---- */

/* Counts allocations that the program has not freed. */
static int64_t live_allocations(weir_allocator *allocator, uint64_t *bytes) {
  int64_t count = 0;
  *bytes = 0;
  for (int i = 0; i < allocator->heap_count; i++) {
    weir_allocator_stats stats = {.size = sizeof stats};
    weir_allocator_get_stats(allocator, i, &stats);
    count += stats.allocation[WEIR_STAT_ALL].current;
    *bytes += (uint64_t)stats.allocated_bytes[WEIR_STAT_ALL].current;
  }
  /* With caching off allocations are not counted, but they are listed. */
  weir__mutex_lock(&allocator->uncached_lock);
  uint64_t address = 0, size;
  while (weir__rangemap_at_or_after(&allocator->uncached, address, &address, &size)) {
    count++;
    *bytes += size;
    address += size;
  }
  weir__mutex_unlock(&allocator->uncached_lock);
  return count;
}

static bool is_idle(const weir__client *client) {
  uint64_t bytes;
  return live_allocations((weir_allocator *)client->object, &bytes) == 0;
}

static void describe(const weir__client *client, char *text, size_t size) {
  uint64_t bytes;
  char readable[32];
  int64_t count = live_allocations((weir_allocator *)client->object, &bytes);
  snprintf(text, size, "the process default, with %lld allocation%s of %s that weir_free has to free", (long long)count,
           count == 1 ? "" : "s", weir__format_bytes(bytes, readable));
}

static void end(weir__client *client) {
  weir_allocator *allocator = (weir_allocator *)client->object;
  atomic_store(&default_allocator, NULL);
  weir_allocator_destroy(allocator);
}

/* ---- Creation of the default allocator ---- */

/* Does not replace memory hooks that the program installed. */
static weir_status serve_graphs(weir_allocator *allocator) {
  weir_graph_memory_hooks hooks;
  weir_graph_memory_hooks_init(&hooks);
  weir_status status = weir_graph_get_memory_hooks(&hooks);
  bool has_hooks = hooks.begin || hooks.end || hooks.release;
  return status || has_hooks ? status : weir_graph_use_allocator(allocator);
}

/* create_lock is held. */
static weir_status create(weir_driver *driver) {
  weir_allocator *made;
  weir_status status = weir_allocator_create(driver, NULL, &made);
  if (status)
    return status;
  status = serve_graphs(made);
  if (status) {
    weir_allocator_destroy(made);
    return status;
  }
  made->client.describe = describe;
  made->client.is_idle = is_idle;
  made->client.end = end;
  atomic_store_explicit(&default_allocator, made, memory_order_release);
  return WEIR_OK;
}

static weir_status find(weir_allocator **allocator) {
  *allocator = atomic_load_explicit(&default_allocator, memory_order_acquire);
  if (*allocator)
    return WEIR_OK;
  weir_driver *driver;
  weir_status status = weir_get_driver(&driver); /* starts the runtime, before the lock */
  if (status)
    return status;
  weir__mutex_lock(&create_lock);
  if (!atomic_load_explicit(&default_allocator, memory_order_acquire))
    status = create(driver);
  *allocator = atomic_load_explicit(&default_allocator, memory_order_acquire);
  weir__mutex_unlock(&create_lock);
  return status;
}

weir_status weir_default_allocator(weir_allocator **allocator) {
  WEIR__CHECK_ARGUMENT(allocator);
  weir_allocator *found;
  weir_status status = find(&found);
  if (!status)
    status = weir__allocator_check(__func__, found);
  if (!status)
    *allocator = found;
  return weir__fail_as(__func__, status);
}

/* ---- Calls of the default allocator ---- */

weir_status weir_malloc(uint64_t bytes, weir_stream stream, void **pointer) {
  weir_allocator *allocator;
  weir_cu_stream raw;
  weir_status status = find(&allocator);
  if (!status && !(status = weir_stream_raw(stream, &raw)))
    status = weir_allocator_alloc(allocator, stream.device, bytes, raw, pointer);
  return weir__fail_as(__func__, status);
}

weir_status weir_free(void *pointer) {
  weir_allocator *allocator = atomic_load_explicit(&default_allocator, memory_order_acquire);
  if (allocator)
    return weir__fail_as(__func__, weir_allocator_free(allocator, pointer));
  if (weir_is_in_bad_fork())
    return weir__bad_fork(__func__);
  return pointer ? weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                              "%s: invalid device pointer: %p: weir_malloc has allocated no memory", __func__, pointer)
                 : WEIR_OK;
}

weir_status weir_memory_record_stream(void *pointer, weir_stream stream) {
  weir_allocator *allocator;
  weir_cu_stream raw;
  weir_status status = find(&allocator);
  if (!status && !(status = weir_stream_raw(stream, &raw)))
    status = weir_allocator_record_stream(allocator, pointer, raw);
  return weir__fail_as(__func__, status);
}
