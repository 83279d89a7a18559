/*
 * libweir_torch_pluggable.so: Weir through torch.cuda.memory.CUDAPluggableAllocator, and as the source of memory of a
 * torch.cuda.MemPool(allocator=...). It needs no headers and libraries of PyTorch to build, so it works with every
 * version.
 *
 * It has its own allocator, separate from other uses of Weir in the process. It cannot raise exceptions: failures are
 * printed to stderr and return NULL. A MemPool treats NULL as out of memory; PyTorch treats it as valid memory if this
 * is its only allocator.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "weir/weir.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT void *weir_torch_alloc(ssize_t size, int device, weir_cu_stream stream);
EXPORT void weir_torch_free(void *pointer, size_t size, int device, weir_cu_stream stream);
EXPORT void weir_torch_init(int device_count);
EXPORT void weir_torch_reset(void);
EXPORT void weir_torch_memory_fraction(double fraction, int device);
EXPORT void *weir_torch_base_alloc(void *pointer, size_t *size);
EXPORT void weir_torch_record_stream(void *pointer, weir_cu_stream stream);
EXPORT void weir_torch_begin_pool(int device, weir_pool_id pool, void *filter);
EXPORT void weir_torch_end_pool(int device, weir_pool_id pool);
EXPORT void weir_torch_release_pool(int device, weir_pool_id pool);
EXPORT weir_allocator *weir_torch_pluggable_allocator(void);

static weir_driver *driver;
static weir_allocator *allocator; /* NULL if the start failed, which was reported */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void complain(weir_status status) {
  if (status)
    fprintf(stderr, "weir: error: %s\n", weir_last_error());
}

/* Takes the settings from the environment: WEIR_ALLOC_CONF, or PyTorch's variables. */
static void start(void) {
  weir_status status = weir_driver_open_cuda(&driver);
  if (!status && driver->Init(driver, 0)) {
    fprintf(stderr, "weir: error: cuInit failed: no usable CUDA device was found\n");
    return;
  }
  if (!status)
    status = weir_allocator_create(driver, NULL, &allocator);
  complain(status);
}

EXPORT weir_allocator *weir_torch_pluggable_allocator(void) {
  pthread_once(&once, start);
  return allocator;
}

/* ---- Scopes ---- */

/* PyTorch opens a scope for a graph just before the capture begins, and for a MemPool in use_mem_pool. It does not
 * state which: the filter would, but it is a C++ object, which C cannot call. The ids of the pools do: {n, 0} for
 * graphs, {0, n} for the program's. A graph may also be captured into a pool of the program, which is detected when a
 * capturing stream allocates. */
typedef struct scope {
  struct scope *outer;
  int device;
  weir_pool_id pool;
  pthread_t thread;
  bool is_open;    /* in Weir; false if its begin failed, so that the end is not passed to Weir either */
  bool is_capture; /* and Weir was notified */
} scope;

static pthread_mutex_t scopes_lock = PTHREAD_MUTEX_INITIALIZER;
static scope *scopes;             /* the innermost; guarded by the lock, as are the fields of all scopes */
static atomic_int program_scopes; /* the number of scopes of the program's pools */

static bool is_of_graph(weir_pool_id pool) { return pool.first != 0; }

static int is_captured(void *context, weir_cu_stream stream) {
  int status = WEIR_CU_CAPTURE_STATUS_NONE;
  (void)context;
  return !driver->StreamIsCapturing(driver, stream, &status) && status == WEIR_CU_CAPTURE_STATUS_ACTIVE;
}

/* A scope of the thread in Weir would come before a graph's that begins in it; PyTorch asks the newer one first. */
static int is_of_thread(void *s, weir_cu_stream stream) {
  (void)stream;
  return pthread_equal(((const scope *)s)->thread, pthread_self());
}

static void begin_capture(scope *s) {
  weir_status status = weir_allocator_begin_capture(allocator, s->device);
  s->is_capture = !status;
  complain(status);
}

/* Marks this thread's innermost scope as a capture, unless it is inside one that is known to be a capture. */
static void note_capture(int device) {
  scope *mine = NULL;
  pthread_mutex_lock(&scopes_lock);
  for (scope *s = scopes; s; s = s->outer)
    if (s->device == device && s->is_open && pthread_equal(s->thread, pthread_self())) {
      if (s->is_capture) {
        mine = NULL;
        break;
      }
      if (!mine)
        mine = s;
    }
  if (mine)
    begin_capture(mine);
  pthread_mutex_unlock(&scopes_lock);
}

EXPORT void weir_torch_begin_pool(int device, weir_pool_id pool, void *filter) {
  weir_allocator *a = weir_torch_pluggable_allocator();
  (void)filter;
  if (!a)
    return;
  scope *s = calloc(1, sizeof *s);
  if (!s) {
    fprintf(stderr, "weir: error: out of host memory for a scope; its allocations do not come from the pool\n");
    return;
  }
  *s = (scope){.device = device, .pool = pool, .thread = pthread_self()};
  pthread_mutex_lock(&scopes_lock);
  weir_status status = weir_pool_begin(a, device, pool, is_of_graph(pool) ? is_captured : is_of_thread, s);
  s->is_open = !status;
  complain(status);
  if (s->is_open && is_of_graph(pool))
    begin_capture(s);
  s->outer = scopes;
  scopes = s;
  if (!is_of_graph(pool))
    atomic_fetch_add(&program_scopes, 1);
  pthread_mutex_unlock(&scopes_lock);
}

EXPORT void weir_torch_end_pool(int device, weir_pool_id pool) {
  if (!allocator)
    return;
  pthread_mutex_lock(&scopes_lock);
  scope **at = &scopes;
  while (*at && ((*at)->device != device || (*at)->pool.first != pool.first || (*at)->pool.second != pool.second))
    at = &(*at)->outer;
  scope *s = *at;
  if (s) {
    *at = s->outer;
    if (!is_of_graph(pool))
      atomic_fetch_sub(&program_scopes, 1);
    if (s->is_open)
      complain(weir_pool_end(allocator, device, pool));
    if (s->is_capture)
      complain(weir_allocator_end_capture(allocator, device));
  }
  pthread_mutex_unlock(&scopes_lock);
  free(s);
}

EXPORT void weir_torch_release_pool(int device, weir_pool_id pool) {
  if (!allocator)
    return;
  weir_status status = weir_pool_release(allocator, device, pool);
  if (status != WEIR_ERROR_BAD_FORK)
    complain(status);
}

/* ---- Memory ---- */

EXPORT void *weir_torch_alloc(ssize_t size, int device, weir_cu_stream stream) {
  void *pointer = NULL;
  weir_allocator *a = weir_torch_pluggable_allocator();
  if (!a || size <= 0)
    return NULL;
  if (atomic_load(&program_scopes) && is_captured(NULL, stream))
    note_capture(device);
  complain(weir_allocator_alloc(a, device, (size_t)size, stream, &pointer));
  return pointer;
}

EXPORT void weir_torch_free(void *pointer, size_t size, int device, weir_cu_stream stream) {
  (void)size;
  (void)device;
  (void)stream;
  if (!allocator)
    return;
  weir_status status = weir_allocator_free(allocator, pointer);
  if (status != WEIR_ERROR_BAD_FORK) /* the memory of a forked child's parent */
    complain(status);
}

/* ---- Optional hooks: set_init_fn, set_reset_fn and so on ---- */

EXPORT void weir_torch_init(int device_count) {
  (void)device_count;
  weir_torch_pluggable_allocator();
}

EXPORT void weir_torch_reset(void) {
  if (allocator)
    complain(weir_allocator_empty_cache(allocator));
}

EXPORT void weir_torch_memory_fraction(double fraction, int device) {
  weir_allocator *a = weir_torch_pluggable_allocator();
  if (a)
    complain(weir_allocator_set_fraction(a, device, fraction));
}

EXPORT void *weir_torch_base_alloc(void *pointer, size_t *size) {
  void *base = pointer;
  size_t bytes = 0;
  if (allocator)
    complain(weir_allocator_base(allocator, pointer, &base, &bytes));
  if (size)
    *size = bytes;
  return base;
}

EXPORT void weir_torch_record_stream(void *pointer, weir_cu_stream stream) {
  if (allocator)
    complain(weir_allocator_record_stream(allocator, pointer, stream));
}
