/*
 * Beginning to guard an allocator.
 */
#include "alloc/guard/guard.h"
#include "alloc/cache/growth.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/environment.h"
#include "base/thread.h"

/* ---- The environment ---- */

/* WEIR_GUARD, or what the settings say. */
static weir_status read_mode(const weir_allocator *allocator, weir__guard_mode *mode) {
  static const weir__guard_mode modes[] = {WEIR__GUARD_OFF, WEIR__GUARD_LIGHT, WEIR__GUARD_OFF, WEIR__GUARD_LIGHT,
                                           WEIR__GUARD_FULL}; /* in the order of the table of variables */
  int choice = -1;
  if (!weir__env_choice(WEIR__ENV_GUARD, &choice))
    return weir__env_refuse(WEIR__ENV_GUARD);
  *mode = choice < 0 ? atomic_load(&allocator->settings)->guard : modes[choice];
  return WEIR_OK;
}

static bool read_fill(int *fill) {
  const char *text = weir__env_value(WEIR__ENV_GUARD_FILL);
  char *end;
  *fill = WEIR__GUARD_FILL_NONE;
  if (!text)
    return true;
  if (!strcmp(text, "nan")) {
    *fill = WEIR__GUARD_FILL_NAN;
    return true;
  }
  unsigned long byte = strtoul(text, &end, 0);
  *fill = (int)byte;
  return isdigit((unsigned char)*text) && !*end && byte < WEIR__GUARD_FILL_NAN;
}

static weir_status read_options(const weir_allocator *allocator, weir__guard_options *options) {
  enum { SHARE = 32, DEFAULT_SECONDS = 10 };
  int action = 0;
  double seconds = DEFAULT_SECONDS;
  int64_t sample = 1;
  unsigned long long bytes = allocator->heap_count ? allocator->heaps[0].total / SHARE : 0;
  if (bytes > 1024 * WEIR__MIB)
    bytes = 1024 * WEIR__MIB;
  if (!weir__env_choice(WEIR__ENV_GUARD_ACTION, &action))
    return weir__env_refuse(WEIR__ENV_GUARD_ACTION);
  if (!weir__env_integer(WEIR__ENV_GUARD_SAMPLE, &sample))
    return weir__env_refuse(WEIR__ENV_GUARD_SAMPLE);
  if (!weir__env_bytes(WEIR__ENV_GUARD_QUARANTINE, &bytes))
    return weir__env_refuse(WEIR__ENV_GUARD_QUARANTINE);
  if (!weir__env_number(WEIR__ENV_GUARD_SECONDS, &seconds))
    return weir__env_refuse(WEIR__ENV_GUARD_SECONDS);
  if (!read_fill(&options->fill))
    return weir__env_refuse(WEIR__ENV_GUARD_FILL);
  options->is_error = action == 1;
  options->is_abort = action == 2;
  options->sample = (uint64_t)sample;
  options->quarantine_bytes = bytes;
  options->quarantine_ns = (uint64_t)(seconds * 1e9);
  return WEIR_OK;
}

/* ---- Beginning ---- */

/* The settings are replaced as a whole: no thread uses the allocator yet, but a later change keeps the old ones. */
static bool set_mode(weir_allocator *allocator, weir__guard_mode mode) {
  const weir__settings *old = atomic_load(&allocator->settings);
  weir__settings *changed = old->guard == mode ? NULL : malloc(sizeof *changed);
  if (old->guard == mode)
    return true;
  if (!changed)
    return false;
  *changed = *old;
  changed->guard = mode;
  weir__growth_fit(allocator, changed); /* full may be more than a device can do */
  changed->older = (weir__settings *)old;
  atomic_store(&allocator->settings, changed);
  return true;
}

/* Says what it needs before anything is allocated. */
static void begin_full(weir__guard *guard) {
  char page[32];
  guard->options.sample = 1;
  guard->is_full = true;
  if (guard->allocator->heap_count)
    weir__log(WEIR_LOG_WARN,
              "WEIR_GUARD=full: each block takes whole pages of %s. weir whatif --guard full FILE says how much memory "
              "a recorded job will need",
              weir__format_bytes(guard->allocator->heaps[0].pages.granularity, page));
}

weir_status weir__guard_begin(weir_allocator *allocator,
                              void (*report)(weir_allocator *allocator, const weir_guard_finding *finding)) {
  weir__guard_mode mode = WEIR__GUARD_OFF;
  weir__guard_options options = {0};
  weir_status status = read_mode(allocator, &mode);
  if (!status && mode != WEIR__GUARD_OFF)
    status = read_options(allocator, &options);
  if (status)
    return status;
  if (mode == WEIR__GUARD_OFF)
    return set_mode(allocator, mode) ? WEIR_OK : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  if (allocator->backend) {
    weir__log(WEIR_LOG_WARN, "WEIR_GUARD: the back end %s serves requests, so frees alone are checked",
              weir__backend_name(allocator));
    mode = WEIR__GUARD_OFF;
  }
  size_t heaps = (size_t)allocator->heap_count * sizeof(weir__guard_heap);
  weir__guard *guard = calloc(1, sizeof *guard + heaps);
  if (!guard || !set_mode(allocator, mode)) {
    free(guard);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  }
  guard->port.calls = &weir__guard_light;
  guard->allocator = allocator;
  guard->options = options;
  guard->report = report;
  weir__mutex_init(&guard->lock);
  allocator->guard = &guard->port;
  for (int i = 0; i < allocator->heap_count; i++) {
    atomic_store(&guard->heaps[i].oldest_ns, UINT64_MAX);
    weir__slow_reason_set(&allocator->heaps[i], WEIR__SLOW_GUARDED, mode != WEIR__GUARD_OFF);
  }
  if (atomic_load(&allocator->settings)->guard == WEIR__GUARD_FULL)
    begin_full(guard);
  weir__guard_watch(guard);
  return WEIR_OK;
}
