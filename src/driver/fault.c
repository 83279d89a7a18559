/*
 * A table that wraps another one and makes chosen calls fail.
 *
 * Every entry has a wrapper, generated from the list of entries. It decides whether the call fails, and forwards it
 * otherwise. Rules and counts are guarded by one mutex, which is not held during the forwarded call.
 */
#include <stdlib.h>

#include "base/base.h"
#include "base/thread.h"
#include "driver/call.h"
#include "weir/driver.h"

/* The kind of an entry decides which rules apply to it. */
typedef enum trait {
  PLAIN,
  DESCRIBES, /* hit only by a rule for this very call: programs use it to report an error */
  RELEASES,  /* not counted by nth_any: a program cannot handle a failure to release */
  ACQUIRES   /* can run out of a resource, so random failures apply */
} trait;

static const trait traits[WEIR_CALL_COUNT] = {
    [WEIR_CALL_DriverGetVersion] = DESCRIBES,
    [WEIR_CALL_GetErrorName] = DESCRIBES,
    [WEIR_CALL_GetErrorString] = DESCRIBES,

    [WEIR_CALL_DevicePrimaryCtxRelease] = RELEASES,
    [WEIR_CALL_MemFree] = RELEASES,
    [WEIR_CALL_MemFreeHost] = RELEASES,
    [WEIR_CALL_MemHostUnregister] = RELEASES,
    [WEIR_CALL_MemAddressFree] = RELEASES,
    [WEIR_CALL_MemRelease] = RELEASES,
    [WEIR_CALL_MemUnmap] = RELEASES,
    [WEIR_CALL_IpcCloseMemHandle] = RELEASES,
    [WEIR_CALL_MemFreeAsync] = RELEASES,
    [WEIR_CALL_MemPoolDestroy] = RELEASES,
    [WEIR_CALL_StreamDestroy] = RELEASES,
    [WEIR_CALL_EventDestroy] = RELEASES,
    [WEIR_CALL_GraphDestroy] = RELEASES,
    [WEIR_CALL_GraphExecDestroy] = RELEASES,
    [WEIR_CALL_ModuleUnload] = RELEASES,
    [WEIR_CALL_UserObjectRelease] = RELEASES,

    [WEIR_CALL_DevicePrimaryCtxRetain] = ACQUIRES,
    [WEIR_CALL_CtxEnablePeerAccess] = ACQUIRES,
    [WEIR_CALL_MemAlloc] = ACQUIRES,
    [WEIR_CALL_MemHostAlloc] = ACQUIRES,
    [WEIR_CALL_MemHostRegister] = ACQUIRES,
    [WEIR_CALL_MemAddressReserve] = ACQUIRES,
    [WEIR_CALL_MemCreate] = ACQUIRES,
    [WEIR_CALL_MemMap] = ACQUIRES,
    [WEIR_CALL_MemSetAccess] = ACQUIRES,
    [WEIR_CALL_MemExportToShareableHandle] = ACQUIRES,
    [WEIR_CALL_MemImportFromShareableHandle] = ACQUIRES,
    [WEIR_CALL_IpcGetMemHandle] = ACQUIRES,
    [WEIR_CALL_IpcOpenMemHandle] = ACQUIRES,
    [WEIR_CALL_IpcGetEventHandle] = ACQUIRES,
    [WEIR_CALL_IpcOpenEventHandle] = ACQUIRES,
    [WEIR_CALL_MemAllocAsync] = ACQUIRES,
    [WEIR_CALL_MemAllocFromPoolAsync] = ACQUIRES,
    [WEIR_CALL_MemPoolCreate] = ACQUIRES,
    [WEIR_CALL_StreamCreateWithPriority] = ACQUIRES,
    [WEIR_CALL_EventCreate] = ACQUIRES,
    [WEIR_CALL_GraphInstantiate] = ACQUIRES,
    [WEIR_CALL_GraphUpload] = ACQUIRES,
    [WEIR_CALL_ModuleLoadData] = ACQUIRES,
    [WEIR_CALL_ModuleLoadDataEx] = ACQUIRES,
    [WEIR_CALL_UserObjectCreate] = ACQUIRES,
    [WEIR_CALL_GraphRetainUserObject] = ACQUIRES,
};

/* No rule if nth is 0. */
typedef struct rule {
  uint64_t nth; /* calls until it hits, including the one hit */
  weir_cu_result result;
  bool sticky;
} rule;

typedef struct call_count {
  uint64_t calls, faults;
} call_count;

typedef struct fault {
  weir_driver table; /* first, so that a weir_driver * can be cast to a fault * */
  weir_driver *inner;
  weir__mutex mutex;               /* guards the members below */
  rule call_rule[WEIR_CALL_COUNT]; /* weir_fault_nth */
  rule any_rule;                   /* weir_fault_nth_any */
  weir_cu_result sticky_result;    /* the result of every call after a sticky rule hit; SUCCESS before */
  unsigned per_million;            /* weir_fault_random; 0 if off */
  weir_cu_result random_result;
  uint64_t random_state;
  call_count counts[WEIR_CALL_COUNT];
} fault;

/* splitmix64: the same sequence for the same seed on every machine. */
static uint64_t next_random(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

/* Counts a call for a rule. True if the rule hits this call. */
static bool hits(rule *r) { return r->nth != 0 && --r->nth == 0; }

/* The injected result, or SUCCESS. Every rule counts every call it applies to, whichever rule hits. */
static weir_cu_result decide(fault *f, weir_driver_call call) {
  trait is = traits[call];
  bool call_hit = hits(&f->call_rule[call]);
  bool any_hit = (is == PLAIN || is == ACQUIRES) && hits(&f->any_rule);
  bool random_hit = is == ACQUIRES && f->per_million != 0 && next_random(&f->random_state) % 1000000 < f->per_million;
  if (f->sticky_result && is != DESCRIBES)
    return f->sticky_result;
  if (call_hit) {
    if (f->call_rule[call].sticky)
      f->sticky_result = f->call_rule[call].result;
    return f->call_rule[call].result;
  }
  if (any_hit)
    return f->any_rule.result;
  return random_hit ? f->random_result : WEIR_CU_SUCCESS;
}

static weir_cu_result count_and_decide(fault *f, weir_driver_call call) {
  weir__mutex_lock(&f->mutex);
  weir_cu_result result = decide(f, call);
  f->counts[call].calls++;
  f->counts[call].faults += result ? 1 : 0;
  weir__mutex_unlock(&f->mutex);
  return result;
}

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result name(weir_driver *self WEIR__AND params) {                                                     \
    fault *f = (fault *)self;                                                                                          \
    weir_cu_result result = count_and_decide(f, WEIR_CALL_##name);                                                     \
    return result ? result : f->inner->name(f->inner WEIR__AND args);                                                  \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result name(weir_driver *self) {                                                                      \
    fault *f = (fault *)self;                                                                                          \
    weir_cu_result result = count_and_decide(f, WEIR_CALL_##name);                                                     \
    return result ? result : f->inner->name(f->inner);                                                                 \
  }
#include "weir/driver_entries.h"

/* StreamEndCapture writes its output on failure too. */
static weir_cu_result end_capture(weir_driver *self, weir_cu_stream stream, weir_cu_graph *graph) {
  weir_cu_result result = StreamEndCapture(self, stream, graph);
  if (result && graph)
    *graph = NULL;
  return result;
}

static void destroy(weir_driver *self) {
  fault *f = (fault *)self;
  weir__mutex_destroy(&f->mutex);
  free(f);
}

weir_status weir_driver_open_fault(weir_driver *inner, weir_driver **driver) {
  WEIR__CHECK_ARGUMENT(inner);
  WEIR__CHECK_ARGUMENT(driver);
  fault *f = calloc(1, sizeof *f);
  if (!f)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the table", __func__);
  f->inner = inner;
  weir__mutex_init(&f->mutex);
  f->table.size = sizeof f->table;
  f->table.name = inner->name;
  f->table.capabilities = inner->capabilities;
  f->table.destroy = destroy;
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  f->table.name = WEIR__DRIVER_HAS(inner, name) ? name : NULL;
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) f->table.name = inner->name ? name : NULL;
#include "weir/driver_entries.h"
  f->table.StreamEndCapture = end_capture;
  *driver = &f->table;
  return WEIR_OK;
}

/* ---- Rules ---- */

/* Locks the fault table of a driver. For any other table NULL is returned and the last error set. */
static fault *lock(weir_driver *driver, const char *caller) {
  if (!driver || driver->DriverGetVersion != DriverGetVersion) {
    weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: driver \"%s\" was not opened by weir_driver_open_fault", caller,
               driver ? driver->name : "NULL");
    return NULL;
  }
  fault *f = (fault *)driver;
  weir__mutex_lock(&f->mutex);
  return f;
}

static weir_status reject_success(const char *caller) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: result is WEIR_CU_SUCCESS; expected an error", caller);
}

weir_status weir_fault_nth(weir_driver *driver, weir_driver_call call, uint64_t nth, weir_cu_result result,
                           int sticky) {
  if ((unsigned)call >= WEIR_CALL_COUNT)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: call is %d; expected a weir_driver_call", __func__, (int)call);
  if (nth != 0 && !result)
    return reject_success(__func__);
  fault *f = lock(driver, __func__);
  if (!f)
    return WEIR_ERROR_INVALID_ARGUMENT;
  f->call_rule[call] = (rule){nth, result, sticky != 0};
  weir__mutex_unlock(&f->mutex);
  return WEIR_OK;
}

weir_status weir_fault_nth_any(weir_driver *driver, uint64_t nth, weir_cu_result result) {
  if (nth != 0 && !result)
    return reject_success(__func__);
  fault *f = lock(driver, __func__);
  if (!f)
    return WEIR_ERROR_INVALID_ARGUMENT;
  f->any_rule = (rule){nth, result, false};
  weir__mutex_unlock(&f->mutex);
  return WEIR_OK;
}

weir_status weir_fault_random(weir_driver *driver, uint64_t seed, unsigned per_million, weir_cu_result result) {
  if (per_million > 1000000)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: per_million is %u; allowed are 0 to 1000000", __func__,
                      per_million);
  if (per_million != 0 && !result)
    return reject_success(__func__);
  fault *f = lock(driver, __func__);
  if (!f)
    return WEIR_ERROR_INVALID_ARGUMENT;
  f->random_state = seed;
  f->per_million = per_million;
  f->random_result = result;
  weir__mutex_unlock(&f->mutex);
  return WEIR_OK;
}

weir_status weir_fault_clear(weir_driver *driver) {
  fault *f = lock(driver, __func__);
  if (!f)
    return WEIR_ERROR_INVALID_ARGUMENT;
  for (int call = 0; call < WEIR_CALL_COUNT; call++)
    f->call_rule[call] = (rule){0};
  f->any_rule = (rule){0};
  f->sticky_result = WEIR_CU_SUCCESS;
  f->per_million = 0;
  weir__mutex_unlock(&f->mutex);
  return WEIR_OK;
}

weir_status weir_fault_counts(weir_driver *driver, weir_driver_call call, uint64_t *calls, uint64_t *faults) {
  if ((unsigned)call > WEIR_CALL_COUNT)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: call is %d; expected a weir_driver_call", __func__, (int)call);
  fault *f = lock(driver, __func__);
  if (!f)
    return WEIR_ERROR_INVALID_ARGUMENT;
  call_count sum = {0};
  int first = call == WEIR_CALL_COUNT ? 0 : (int)call, last = call == WEIR_CALL_COUNT ? WEIR_CALL_COUNT - 1 : (int)call;
  for (int i = first; i <= last; i++) {
    sum.calls += f->counts[i].calls;
    sum.faults += f->counts[i].faults;
  }
  weir__mutex_unlock(&f->mutex);
  if (calls)
    *calls = sum.calls;
  if (faults)
    *faults = sum.faults;
  return WEIR_OK;
}
