/*
 * NVTX: the handshake with a tool, ranges and marks.
 */
#include "weir/compute/nvtx.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/base.h"
#include "src/environment.h"
#include "src/hash_map.h"
#include "src/nvtx.h"
#include "weir/device.h"
#include "weir/history.h"
#include "weir/runtime.h"

/* ---- The handshake ---- */

enum { MAX_SLOTS = 16 };

static const unsigned slot_counts[WEIR__NVTX_MODULES] = {
    [WEIR__NVTX_CORE] = 16,  [WEIR__NVTX_CUDA] = 9,   [WEIR__NVTX_OPENCL] = 15,
    [WEIR__NVTX_CUDART] = 7, [WEIR__NVTX_CORE2] = 16, [WEIR__NVTX_SYNC] = 7};

static weir__nvtx_function functions[WEIR__NVTX_MODULES][MAX_SLOTS]; /* written by the tool, during the handshake */
static weir__nvtx_function *slots[WEIR__NVTX_MODULES][MAX_SLOTS + 1];
static void *tool; /* its library */

/* Whether a tool listens; read by every call. */
enum { NOT_ASKED, NO_TOOL, LISTENS };
static atomic_int listening;

static int get_module(int module, weir__nvtx_function ***table, unsigned *count) {
  if (module <= 0 || module >= WEIR__NVTX_MODULES)
    return 0;
  for (unsigned i = 1; i < slot_counts[module]; i++)
    slots[module][i] = &functions[module][i];
  if (table)
    *table = slots[module];
  if (count)
    *count = slot_counts[module];
  return 1;
}

static void set_tool_version(uint32_t version) { (void)version; }

static const void *get_table(uint32_t table) {
  static const weir__nvtx_callbacks callbacks = {sizeof callbacks, get_module};
  static const weir__nvtx_version version = {sizeof version, WEIR__NVTX_VERSION, 0, set_tool_version};
  return table == WEIR__NVTX_TABLE_CALLBACKS ? (const void *)&callbacks
         : table == WEIR__NVTX_TABLE_VERSION ? (const void *)&version
                                             : NULL;
}

static void *symbol_of(void *library, const char *name, void *function, size_t size) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, size); /* ISO C has no conversion from an object pointer to a function pointer */
  return symbol;
}

static void look_for_tool(void) {
  const char *path = weir__compute_env(WEIR__ENV_NVTX_TOOL);
  weir__nvtx_initialize initialize;
  int found = NO_TOOL;
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library && symbol_of(library, "InitializeInjectionNvtx2", &initialize, sizeof initialize) &&
      initialize(get_table)) {
    tool = library;
    found = LISTENS;
  } else {
    memset(functions, 0, sizeof functions);
    if (library)
      dlclose(library);
    if (path)
      weir__log(WEIR_LOG_INFO, "NVTX_INJECTION64_PATH=%s is not an NVTX tool, or refused to start", path);
  }
  atomic_store_explicit(&listening, found, memory_order_release);
}

static __attribute__((noinline)) int ask(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, look_for_tool);
  return atomic_load_explicit(&listening, memory_order_acquire);
}

static inline bool has_tool(void) {
  int state = atomic_load_explicit(&listening, memory_order_acquire);
  return __builtin_expect(state != NO_TOOL, 0) && (state == LISTENS || ask() == LISTENS);
}

int weir_nvtx_is_listening(void) { return has_tool(); }

weir__nvtx_function weir__nvtx_find(int module, unsigned slot) {
  return has_tool() && module < WEIR__NVTX_MODULES && slot < slot_counts[module] ? functions[module][slot] : NULL;
}

bool weir__nvtx_extend(weir__nvtx_extension *extension) {
  weir__nvtx_initialize_extension initialize;
  if (!has_tool() || !symbol_of(tool, "InitializeInjectionNvtxExtension", &initialize, sizeof initialize))
    return false;
  weir__nvtx_function start = functions[WEIR__NVTX_CORE2][WEIR__NVTX_INITIALIZE];
  if (start)
    ((void (*)(const void *))start)(NULL);
  return initialize(extension) != 0;
}

/* ---- Recordings ---- */

/* Ranges are annotations of the thread's current device. */
static int device_here(void) {
  int device = 0;
  return weir_is_initialized() && !weir_is_in_bad_fork() && !weir_device_get_current(&device) ? device : 0;
}

static int thread_here(void) { return (int)syscall(SYS_gettid); }

/* A thread of 0 is left out. A failure is for want of host memory, and the annotation is missing. */
static void annotate(uint32_t text, const char *stage, int device, int thread) {
  char number[16];
  snprintf(number, sizeof number, "%d", thread);
  const char *const pairs[] = {"name", weir_history_text_of(text), "stage", stage, "thread", number};
  weir_history_annotate_all(device, pairs, thread ? 3 : 2);
}

/* ---- Ranges of a thread ---- */

typedef struct open_range {
  uint32_t text;   /* 0 if the range began while nothing was recorded */
  uint32_t before; /* the phase outside of it */
} open_range;

typedef struct thread_ranges {
  open_range *items;
  size_t count, room;
} thread_ranges;

static _Thread_local thread_ranges *here; /* NULL until the thread's first range that is kept */
static pthread_key_t key;
static bool has_key;

static void end_thread(void *value) {
  thread_ranges *ranges = value;
  here = NULL;
  free(ranges->items);
  free(ranges);
}

static void make_key(void) { has_key = !pthread_key_create(&key, end_thread); }

static thread_ranges *ranges_here(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (here)
    return here;
  pthread_once(&once, make_key);
  thread_ranges *made = has_key ? calloc(1, sizeof *made) : NULL;
  if (made && pthread_setspecific(key, made)) {
    free(made);
    made = NULL;
  }
  return here = made;
}

static bool keep_range(const char *message, int *depth) {
  thread_ranges *ranges = ranges_here();
  if (!ranges || !WEIR__RESERVE(ranges->items, ranges->room, ranges->count + 1))
    return false;
  open_range range = {.text = weir_history_is_on_anywhere() ? weir_history_text(message) : 0};
  if (range.text) {
    range.before = weir_history_enter_phase(message);
    annotate(range.text, "START", device_here(), thread_here());
  }
  *depth = (int)ranges->count;
  ranges->items[ranges->count++] = range;
  return true;
}

static int end_range(thread_ranges *ranges) {
  open_range range = ranges->items[--ranges->count];
  if (range.text) {
    annotate(range.text, "END", device_here(), thread_here());
    weir_history_leave_phase(range.before);
  }
  return (int)ranges->count;
}

int weir_nvtx_range_push(const char *message) {
  int depth = WEIR_NVTX_NOT_TRACKED;
  message = message ? message : "";
  /* Once a range is kept, those inside it are too, so that each pop ends its own. */
  if (weir_history_is_on_anywhere() || (here && here->count))
    keep_range(message, &depth);
  if (has_tool()) {
    weir__nvtx_function push = functions[WEIR__NVTX_CORE][WEIR__NVTX_RANGE_PUSH];
    if (push)
      depth = ((int (*)(const char *))push)(message);
  }
  return depth;
}

int weir_nvtx_range_pop(void) {
  int depth = WEIR_NVTX_NOT_TRACKED;
  if (here && here->count)
    depth = end_range(here);
  if (has_tool()) {
    weir__nvtx_function pop = functions[WEIR__NVTX_CORE][WEIR__NVTX_RANGE_POP];
    if (pop)
      depth = ((int (*)(void))pop)();
  }
  return depth;
}

/* ---- Ranges across threads ---- */

typedef struct started_range {
  uint64_t key; /* its number */
  uint32_t text;
  int device;
} started_range;

static pthread_mutex_t started_lock = PTHREAD_MUTEX_INITIALIZER;
static weir__hash_map started; /* ranges that began while something was recorded */
static uint64_t last_number;   /* guarded by the lock, as is the map */
static atomic_size_t started_count;

/* A device of -1 is the current one. The host function of a stream gives its own, since it must not ask. */
static uint64_t start_range(const char *message, int device) {
  uint64_t number = 0;
  if (has_tool()) {
    weir__nvtx_function start = functions[WEIR__NVTX_CORE][WEIR__NVTX_RANGE_START];
    if (start)
      number = ((uint64_t(*)(const char *))start)(message);
  }
  uint32_t text = weir_history_is_on_anywhere() ? weir_history_text(message) : 0;
  if (!text)
    return number;
  device = device < 0 ? device_here() : device;
  pthread_mutex_lock(&started_lock);
  number = number ? number : ++last_number;
  started_range *range = weir__hash_map_put(&started, sizeof *range, number);
  if (range) {
    range->text = text;
    range->device = device;
  }
  atomic_store_explicit(&started_count, started.count, memory_order_relaxed);
  pthread_mutex_unlock(&started_lock);
  annotate(text, "START", device, 0);
  return number;
}

uint64_t weir_nvtx_range_start(const char *message) { return start_range(message ? message : "", -1); }

void weir_nvtx_range_end(uint64_t number) {
  uint32_t text = 0;
  int device = 0;
  if (atomic_load_explicit(&started_count, memory_order_relaxed)) {
    pthread_mutex_lock(&started_lock);
    started_range *range = number ? weir__hash_map_find(&started, sizeof *range, number) : NULL;
    if (range) {
      text = range->text;
      device = range->device;
      weir__hash_map_remove(&started, sizeof *range, range);
    }
    atomic_store_explicit(&started_count, started.count, memory_order_relaxed);
    pthread_mutex_unlock(&started_lock);
  }
  if (text)
    annotate(text, "END", device, 0);
  if (has_tool()) {
    weir__nvtx_function end = functions[WEIR__NVTX_CORE][WEIR__NVTX_RANGE_END];
    if (end)
      ((void (*)(uint64_t))end)(number);
  }
}

void weir_nvtx_mark(const char *message) {
  message = message ? message : "";
  if (weir_history_is_on_anywhere())
    weir_history_mark_all(device_here(), message);
  if (has_tool()) {
    weir__nvtx_function mark = functions[WEIR__NVTX_CORE][WEIR__NVTX_MARK];
    if (mark)
      ((void (*)(const char *))mark)(message);
  }
}

/* ---- Ranges of a stream ---- */

struct weir_nvtx_device_range {
  uint64_t number;
  int device;
  char message[];
};

static void start_on_stream(void *data) {
  weir_nvtx_device_range *range = data;
  range->number = start_range(range->message, range->device);
}

static void end_on_stream(void *data) {
  weir_nvtx_device_range *range = data;
  weir_nvtx_range_end(range->number);
  free(range);
}

weir_status weir_nvtx_device_range_start(const char *message, weir_stream stream, weir_nvtx_device_range **range) {
  WEIR__CHECK_ARGUMENT(message);
  WEIR__CHECK_ARGUMENT(range);
  size_t bytes = strlen(message) + 1;
  weir_nvtx_device_range *made = malloc(sizeof *made + bytes);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the range", __func__);
  made->number = 0;
  made->device = stream.device;
  memcpy(made->message, message, bytes);
  weir_status status = weir_stream_host_function(stream, start_on_stream, made);
  if (status) {
    free(made);
    return weir__fail_as(__func__, status);
  }
  *range = made;
  return WEIR_OK;
}

weir_status weir_nvtx_device_range_end(weir_nvtx_device_range *range, weir_stream stream) {
  WEIR__CHECK_ARGUMENT(range);
  return weir__fail_as(__func__, weir_stream_host_function(stream, end_on_stream, range));
}
