/*
 * A pluggable back end for tests: memory of the software device, and a log of the calls. Its calls bypass the fault
 * table, because the allocator under test does not make them.
 */
#pragma once

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "support/alloc.h"

typedef struct plug_log {
  atomic_int allocs, frees, inits, resets;
  size_t last_bytes;
  int last_device;
  weir_cu_stream last_stream;
  void *last_freed;
  int refuse; /* the number of requests to refuse */
  int holds;  /* bytes that a reset releases to serve a request; refuse becomes 0 then */
  double fraction;
  char call_log[512]; /* calls about pools, streams and bases */
} plug_log;

static plug_log plugged;

static __attribute__((unused)) void note_call(const char *what, int device, weir_pool_id pool) {
  size_t used = strlen(plugged.call_log);
  snprintf(plugged.call_log + used, sizeof plugged.call_log - used, "%s%s %d {%d,%d}", used ? "; " : "", what, device,
           (int)pool.first, (int)pool.second);
}

static __attribute__((unused)) void *plug_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  plug_log *log = context;
  weir_cu_deviceptr p = 0;
  if (log->refuse) {
    log->refuse -= log->refuse > 0;
    return NULL;
  }
  weir_cu_context before;
  d->CtxGetCurrent(d, &before);
  d->CtxSetCurrent(d, contexts[device]);
  weir_cu_result r = d->MemAlloc(d, &p, bytes);
  d->CtxSetCurrent(d, before);
  if (r)
    return NULL;
  atomic_fetch_add(&log->allocs, 1);
  log->last_bytes = bytes;
  log->last_device = device;
  log->last_stream = stream;
  return (void *)p;
}

static __attribute__((unused)) void plug_free(void *context, void *pointer, size_t bytes, int device,
                                              weir_cu_stream stream) {
  plug_log *log = context;
  d->MemFree(d, (weir_cu_deviceptr)pointer);
  atomic_fetch_add(&log->frees, 1);
  log->last_freed = pointer;
  log->last_bytes = bytes;
  log->last_device = device;
  log->last_stream = stream;
}

static __attribute__((unused)) weir_backend plug_backend(void) {
  plugged = (plug_log){.fraction = -1};
  return (weir_backend){.size = sizeof(weir_backend), .context = &plugged, .alloc = plug_alloc, .free = plug_free};
}

/* An allocator on this back end in stepped time. */
static __attribute__((unused)) void plug_open_on(weir_soft_clock clock, int devices, const weir_backend *backend,
                                                 const char *conf) {
  alloc_open_devices(clock, devices, GIB);
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf ? conf : "";
  options.backend = backend;
  assert_ok(weir_allocator_create(faults, &options, &allocator));
}

static __attribute__((unused)) void plug_open(const weir_backend *backend, const char *conf) {
  plug_open_on(WEIR_SOFT_STEPPED, 1, backend, conf);
}
