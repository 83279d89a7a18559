/*
 * Starting and shutting down the runtime, deferred calls, and the effect of fork.
 */
#include "weir/runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/text.h"
#include "base/thread.h"
#include "driver/access.h"
#include "driver/client.h"
#include "runtime/runtime.h"

enum {
  STOPPED,
  STARTING,
  STARTED,
  FORKED /* final state of a child that was forked after the driver was initialized */
};

weir__runtime weir__rt;
atomic_uint weir__epoch = 1;
atomic_int weir__last_device_count;

/* Written under start_lock, or in the child of a fork. */
static atomic_int state = STOPPED;

/* Held while the runtime starts or shuts down, including while deferred calls run. */
static weir__mutex start_lock = WEIR__MUTEX_INIT;
static weir_driver *chosen; /* the driver that the program chose, or NULL; guarded by start_lock */
static bool owns_driver;    /* the runtime opened its driver, and closes it; guarded by start_lock */

/* A driver that does not survive a fork was initialized. It cannot be stopped, so no later child can use one. */
static atomic_bool fork_is_fatal;

typedef struct queued_call {
  weir_lazy_fn fn;
  void *context;
  char *where;
} queued_call;

/* Held only briefly, and never while code of the program runs, because fork waits for it. */
static weir__mutex lists_lock = WEIR__MUTEX_INIT;
static queued_call *queue; /* this and the next three are guarded by lists_lock */
static size_t queue_length;
static size_t queue_capacity;
static weir__object *objects;

static void before_fork(void) { weir__mutex_lock(&lists_lock); }
static void after_fork_in_parent(void) { weir__mutex_unlock(&lists_lock); }
static void after_fork_in_child(void) {
  weir__mutex_unlock(&lists_lock);
  /* Initialized instead of unlocked: the thread that held it does not exist in the child. */
  weir__mutex_init(&start_lock);
  weir__thread_state()->is_starting = false;
  if (state != STOPPED || fork_is_fatal)
    state = FORKED;
}
WEIR__AT_LOAD(WEIR__LOAD_LISTS) void watch_forks(void) {
  weir__at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void lock_lists(void) { weir__mutex_lock(&lists_lock); }
static void unlock_lists(void) { weir__mutex_unlock(&lists_lock); }

const char *weir_version(void) {
#define VERSION(major, minor, patch) WEIR__STRING(major) "." WEIR__STRING(minor) "." WEIR__STRING(patch)
  return VERSION(WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH);
}

int weir_is_initialized(void) { return state == STARTED; }

int weir_is_in_bad_fork(void) { return state == FORKED; }

bool weir__is_running(void) {
  return atomic_load_explicit(&state, memory_order_acquire) == STARTED || weir__thread_state()->is_starting;
}

weir_status weir__check_fork(const char *caller) {
  if (state != FORKED)
    return WEIR_OK;
  return weir__bad_fork(caller);
}

void weir__note_driver_init(const weir_driver *driver) {
  if (!weir__driver_can(driver, WEIR_DRIVER_SURVIVES_FORK))
    fork_is_fatal = true;
}

/* ---- Objects ---- */

void weir__object_add(weir__object *object) {
  lock_lists();
  object->link = &objects;
  if ((object->next = objects))
    objects->link = &object->next;
  objects = object;
  unlock_lists();
}

/* A use of a destroyed object is reported. */
static void report_destroyed(const char *caller, const weir__object *object, const char *what) {
  weir__destroyed_observer_fn observer = atomic_load_explicit(&weir__destroyed_observer, memory_order_acquire);
  if (observer)
    observer(what, caller, (uint64_t)object, object->stack);
}

bool weir__object_remove(const char *caller, weir__object *object, const char *what) {
  if (atomic_load(&object->destroyed)) {
    report_destroyed(caller, object, what);
    return false;
  }
  lock_lists();
  if ((*object->link = object->next))
    object->next->link = object->link;
  unlock_lists();
  return true;
}

void weir__object_free(weir__object *object, const char *what) {
  enum { KEPT = 256 };
  static weir__object *kept[KEPT]; /* a ring; guarded by the lock of the lists */
  static size_t next;
  weir__destroyed_observer_fn observer = atomic_load_explicit(&weir__destroyed_observer, memory_order_acquire);
  if (observer) {
    object->stack = observer(what, NULL, (uint64_t)object, 0);
    atomic_store(&object->destroyed, true);
    lock_lists();
    weir__object *oldest = kept[next];
    kept[next] = object;
    next = (next + 1) % KEPT;
    unlock_lists();
    object = oldest;
  }
  free(object);
}

weir_status weir__object_check(const char *caller, const weir__object *object, const char *what) {
  if (atomic_load(&object->destroyed)) {
    report_destroyed(caller, object, what);
    return weir__fail(WEIR_ERROR_INVALID_HANDLE, "%s: the %s was destroyed", caller, what);
  }
  if (!object->expired)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_HANDLE,
                    "%s: the %s belongs to a runtime that was shut down; it can only be destroyed", caller, what);
}

/* ---- Calls at the shutdown ---- */

typedef struct shutdown_hook shutdown_hook;
struct shutdown_hook {
  weir_shutdown_fn fn;
  void *context;
  shutdown_hook *older;
};
static shutdown_hook *shutdown_hooks; /* guarded by lists_lock */

weir_status weir_shutdown_hook_add(weir_shutdown_fn fn, void *context) {
  WEIR__CHECK_ARGUMENT(fn);
  shutdown_hook *hook = malloc(sizeof *hook);
  if (!hook)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the hook", __func__);
  lock_lists();
  *hook = (shutdown_hook){fn, context, shutdown_hooks};
  shutdown_hooks = hook;
  unlock_lists();
  return WEIR_OK; /* cppcheck-suppress memleak ; the list owns it */
}

weir_status weir_shutdown_hook_remove(weir_shutdown_fn fn, void *context) {
  WEIR__CHECK_ARGUMENT(fn);
  lock_lists();
  shutdown_hook **link = &shutdown_hooks;
  while (*link && ((*link)->fn != fn || (*link)->context != context))
    link = &(*link)->older;
  shutdown_hook *found = *link;
  if (found)
    *link = found->older;
  unlock_lists();
  free(found);
  return found ? WEIR_OK
               : weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: this function and context were not added", __func__);
}

static void run_shutdown_hooks(void) {
  lock_lists();
  shutdown_hook *hook = shutdown_hooks;
  unlock_lists();
  while (hook) {
    shutdown_hook *next = hook->older; /* the function may remove its own */
    hook->fn(hook->context);
    hook = next;
  }
}

/* ---- Start and shutdown ---- */

/* Destroys what the runtime created, and closes a driver that it opened. After a failed start, objects without driver
 * handles stay valid; after a shutdown none do. */
static void tear_down(bool shutdown) {
  run_shutdown_hooks();
  for (weir__object *object = objects; object; object = object->next) {
    if (object->has_handle(object)) {
      object->release(object);
      object->expired = true;
    } else if (shutdown) {
      object->expired = true;
    }
  }
  if (shutdown)
    state = STOPPED;

  weir__clients_end(weir__rt.driver); /* after the graphs, which use their memory */
  for (int i = 0; i < weir__rt.device_count; i++)
    weir__device_end(&weir__rt.devices[i]);
  weir__rt.driver->CtxSetCurrent(weir__rt.driver, NULL);
  if (owns_driver)
    weir_driver_close(weir__rt.driver);
  weir__rt.driver = NULL;
  weir__rt.device_count = 0;
  weir__epoch++;
}

static weir_status deferred_call_failed(const char *caller, const queued_call *call, weir_status status,
                                        const char *text_before) {
  /* A function of the program may fail without setting a last error. */
  bool has_text = strcmp(weir_last_error(), text_before) != 0;
  return weir__fail_result(WEIR_ERROR_DEFERRED_CALL, has_text ? weir_last_driver_result() : 0,
                           "%s: Device call failed lazily at initialization with error: %s\n\n"
                           "Device call was originally invoked at:\n\n%s",
                           caller, has_text ? weir_last_error() : weir_status_string(status), call->where);
}

/* Runs the deferred calls, including those that other threads add meanwhile. When the queue is empty it is freed, and
 * the runtime has started. */
static weir_status run_queue(const char *caller) {
  for (size_t i = 0;; i++) {
    lock_lists();
    if (i == queue_length) {
      for (size_t done = 0; done < queue_length; done++)
        free(queue[done].where);
      free(queue);
      queue = NULL;
      queue_length = queue_capacity = 0;
      state = STARTED;
      unlock_lists();
      return WEIR_OK;
    }
    queued_call call = queue[i];
    unlock_lists();

    char text_before[WEIR__TEXT_SIZE];
    snprintf(text_before, sizeof text_before, "%s", weir_last_error());
    weir_status status = call.fn(call.context);
    if (status)
      return deferred_call_failed(caller, &call, status, text_before);
  }
}

static weir_status start(const char *caller) {
  weir_driver *driver = chosen;
  weir_status status = driver ? WEIR_OK : weir_driver_open(NULL, &driver);
  if (status)
    return status;
  owns_driver = !chosen;

  int count = 0;
  status = weir__init_driver(caller, driver, &count);
  if (status)
    goto close_driver;
  if (count == 0) {
    const char *visible =
        weir__driver_can(driver, WEIR_DRIVER_FILTERS_VISIBLE) ? weir__env_text(WEIR__ENV_VISIBLE_DEVICES) : NULL;
    status = weir__fail(WEIR_ERROR_NO_DEVICE, "%s: the driver \"%s\" has no device%s%s%s", caller, driver->name,
                        visible ? " that CUDA_VISIBLE_DEVICES=\"" : "", visible ? visible : "",
                        visible ? "\" makes visible" : "");
    goto close_driver;
  }
  weir_cu_device handles[WEIR_MAX_DEVICES];
  for (int i = 0; i < count; i++) {
    status = WEIR__CALL_FOR(caller, driver, DeviceGet(driver, &handles[i], i));
    if (status)
      goto close_driver;
  }
  for (int i = 0; i < count; i++)
    weir__device_init(&weir__rt.devices[i], handles[i]);
  weir__rt.driver = driver;
  weir__rt.device_count = count;
  weir__last_device_count = count;

  weir__thread_state()->is_starting = true;
  status = run_queue(caller);
  if (status)
    tear_down(false);
  weir__thread_state()->is_starting = false;
  return status;

close_driver:
  if (owns_driver)
    weir_driver_close(driver);
  return status;
}

weir_status weir__start(const char *caller) {
  if (weir__is_running())
    return WEIR_OK;
  weir_status status = weir__check_fork(caller);
  if (status)
    return status;

  weir__mutex_lock(&start_lock);
  if (state == STOPPED) {
    state = STARTING;
    status = start(caller);
    if (status)
      state = STOPPED;
  }
  weir__mutex_unlock(&start_lock);
  return status;
}

weir_status weir_init(void) { return weir__start(__func__); }

/* An allocator calls the driver until it is destroyed. A driver that the program chose stays open, and the program's
 * allocators on it keep working. */
static weir_status check_clients(const char *caller) {
  char list[768];
  size_t count = weir__clients_in_use(weir__rt.driver, owns_driver, list, sizeof list);
  if (!count)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_BAD_STATE,
                    "%s: %zu allocator%s the runtime's driver, and nothing was shut down; destroy or free first: %s",
                    caller, count, count == 1 ? " still uses" : "s still use", list);
}

weir_status weir_shutdown(void) {
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  if (weir__thread_state()->is_starting)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: called by a deferred call while the runtime starts", __func__);
  weir__mutex_lock(&start_lock);
  if (state == STARTED)
    status = check_clients(__func__);
  if (state == STARTED && !status)
    tear_down(true);
  weir__mutex_unlock(&start_lock);
  return status;
}

/* The first required entry that the table lacks, or NULL. */
static const char *missing_entry(const weir_driver *driver) {
  enum { REQUIRED, OPTIONAL };
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) WEIR_DRIVER_ENTRY0(name, symbol, since, need)
#define WEIR_DRIVER_ENTRY0(entry, symbol, since, need)                                                                 \
  if ((need) == REQUIRED && !driver->entry)                                                                            \
    return #entry;
#include "weir/driver_entries.h"
  return NULL;
}

weir_status weir_use_driver(weir_driver *driver) {
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  if (driver) {
    if (driver->size < WEIR__DRIVER_MIN_SIZE)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: driver->size is %zu; expected at least %zu", __func__,
                        driver->size, WEIR__DRIVER_MIN_SIZE);
    if (!driver->name)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: driver->name is NULL", __func__);
    const char *missing = missing_entry(driver);
    if (missing)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: driver \"%s\" lacks the required entry %s", __func__,
                        driver->name, missing);
  }

  bool too_late = weir__thread_state()->is_starting;
  if (!too_late) {
    weir__mutex_lock(&start_lock);
    too_late = state != STOPPED;
    if (!too_late)
      chosen = driver;
    weir__mutex_unlock(&start_lock);
  }
  if (too_late)
    return weir__fail(WEIR_ERROR_BAD_STATE,
                      "%s: the runtime has started; choose a driver before the start or after weir_shutdown", __func__);
  return WEIR_OK;
}

weir_status weir_get_driver(weir_driver **driver) {
  WEIR__CHECK_ARGUMENT(driver);
  weir_status status = weir__start(__func__);
  if (!status)
    *driver = weir__rt.driver;
  return status;
}

bool weir__block_start(weir_driver **driver) {
  weir__mutex_lock(&start_lock);
  if (state != STOPPED) {
    weir__mutex_unlock(&start_lock);
    return false;
  }
  *driver = chosen;
  return true;
}

void weir__unblock_start(void) { weir__mutex_unlock(&start_lock); }

weir_status weir_lazy_call(weir_lazy_fn fn, void *context, const char *where) {
  WEIR__CHECK_ARGUMENT(fn);
  WEIR__CHECK_ARGUMENT(where);
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  if (weir__is_running())
    return fn(context);

  char *copy = strdup(where);
  if (!copy)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory to queue the call from %s", __func__,
                      where);
  lock_lists();
  if (state == STARTED) { /* another thread has started the runtime meanwhile */
    unlock_lists();
    free(copy);
    return fn(context);
  }
  if (queue_length == queue_capacity) {
    size_t room = queue_capacity ? 2 * queue_capacity : 8;
    queued_call *grown = realloc(queue, room * sizeof *queue);
    if (!grown) {
      unlock_lists();
      free(copy);
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory to queue the call from %s", __func__,
                        where);
    }
    queue = grown;
    queue_capacity = room;
  }
  queue[queue_length++] = (queued_call){.fn = fn, .context = context, .where = copy};
  unlock_lists();
  return WEIR_OK;
}

/* The profiler works on a context, so the current device gets one. */
static weir_status profile(const char *caller, bool start) {
  weir__guard guard;
  weir_status status = weir__resolve_and_enter(caller, -1, &guard);
  if (status)
    return status;
  weir_driver *driver = weir__rt.driver;
  status = start ? WEIR__CALL_FOR(caller, driver, ProfilerStart(driver))
                 : WEIR__CALL_FOR(caller, driver, ProfilerStop(driver));
  weir__leave_device(&guard);
  return status;
}

weir_status weir_profiler_start(void) { return profile(__func__, true); }

weir_status weir_profiler_stop(void) { return profile(__func__, false); }
