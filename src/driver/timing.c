/*
 * A table that wraps another one, and counts and times its calls.
 *
 * Every entry has a wrapper, generated from the list of entries. The counters are atomic, so calls of several threads
 * are not ordered by the wrapper; a reader may see a call whose time has not been added yet.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/base.h"
#include "driver/call.h"
#include "weir/driver.h"

typedef struct call_times {
  atomic_uint_least64_t calls, ns, longest_ns;
} call_times;

typedef struct timing {
  weir_driver table; /* first, so that a weir_driver * can be cast to a timing * */
  weir_driver *inner;
  call_times times[WEIR_CALL_COUNT];
} timing;

static void add_call(timing *t, weir_driver_call call, uint64_t ns) {
  call_times *times = &t->times[call];
  atomic_fetch_add_explicit(&times->calls, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&times->ns, ns, memory_order_relaxed);
  uint_least64_t longest = atomic_load_explicit(&times->longest_ns, memory_order_relaxed);
  while (longest < ns && !atomic_compare_exchange_weak_explicit(&times->longest_ns, &longest, ns, memory_order_relaxed,
                                                                memory_order_relaxed))
    ;
}

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result name(weir_driver *self WEIR__AND params) {                                                     \
    timing *t = (timing *)self;                                                                                        \
    uint64_t begin = weir__monotonic_ns();                                                                             \
    weir_cu_result result = t->inner->name(t->inner WEIR__AND args);                                                   \
    add_call(t, WEIR_CALL_##name, weir__monotonic_ns() - begin);                                                       \
    return result;                                                                                                     \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result name(weir_driver *self) {                                                                      \
    timing *t = (timing *)self;                                                                                        \
    uint64_t begin = weir__monotonic_ns();                                                                             \
    weir_cu_result result = t->inner->name(t->inner);                                                                  \
    add_call(t, WEIR_CALL_##name, weir__monotonic_ns() - begin);                                                       \
    return result;                                                                                                     \
  }
#include "weir/driver_entries.h"

static void destroy(weir_driver *self) { free(self); }

weir_status weir_driver_open_timing(weir_driver *inner, weir_driver **driver) {
  WEIR__CHECK_ARGUMENT(inner);
  WEIR__CHECK_ARGUMENT(driver);
  timing *t = calloc(1, sizeof *t);
  if (!t)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the table", __func__);
  t->inner = inner;
  t->table.size = sizeof t->table;
  t->table.name = inner->name;
  t->table.capabilities = inner->capabilities;
  t->table.destroy = destroy;
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  t->table.name = WEIR__DRIVER_HAS(inner, name) ? name : NULL;
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) t->table.name = inner->name ? name : NULL;
#include "weir/driver_entries.h"
  *driver = &t->table;
  return WEIR_OK;
}

weir_status weir_timing_counts(weir_driver *driver, weir_driver_call call, uint64_t *calls, uint64_t *ns,
                               uint64_t *longest_ns) {
  if (!driver || driver->destroy != destroy)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: driver \"%s\" was not opened by weir_driver_open_timing",
                      __func__, driver ? driver->name : "NULL");
  if ((unsigned)call > WEIR_CALL_COUNT)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: call is %d; expected a weir_driver_call", __func__, (int)call);
  timing *t = (timing *)driver;
  uint64_t sum = 0, sum_ns = 0, longest = 0;
  int first = call == WEIR_CALL_COUNT ? 0 : (int)call, last = call == WEIR_CALL_COUNT ? WEIR_CALL_COUNT - 1 : (int)call;
  for (int i = first; i <= last; i++) {
    uint64_t of_call = atomic_load_explicit(&t->times[i].longest_ns, memory_order_relaxed);
    sum += atomic_load_explicit(&t->times[i].calls, memory_order_relaxed);
    sum_ns += atomic_load_explicit(&t->times[i].ns, memory_order_relaxed);
    longest = longest < of_call ? of_call : longest;
  }
  if (calls)
    *calls = sum;
  if (ns)
    *ns = sum_ns;
  if (longest_ns)
    *longest_ns = longest;
  return WEIR_OK;
}
