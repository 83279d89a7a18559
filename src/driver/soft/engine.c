/*
 * The engine: chooses the work item that runs next, and runs it.
 *
 * A stream can run if it has work, no item of it is running, and its first item is not a wait for an unset signal.
 * Streams that can run are in the ready list; a stream that stopped at a wait is in the list of that signal. The end of
 * an item therefore touches only the streams that it releases.
 *
 * In real time, worker threads take streams from the ready list; their number grows to the largest number of streams
 * that were ever ready at once. In stepped time, nothing runs until a call has to wait. That call then runs the work
 * that it waits for, and what that work depends on, and nothing else.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/defined.h"
#include "base/thread.h"
#include "driver/soft/soft.h"
#include "driver/soft/trap.h"
#include "driver/work.h"

/* The cost of an item in stepped time, beside its bytes or cycles. */
static const uint64_t launch_ns = 1000;
static const uint64_t stepped_bytes_per_second = 100ull * 1000 * 1000 * 1000;

/* There are no workers in stepped time and while the device closes: the thread that waits runs the work. */
static bool caller_runs_work(const struct soft *soft) {
  return soft->options.clock == WEIR_SOFT_STEPPED || soft->stopping;
}

uint64_t weir__soft_clock_ns(const struct soft *soft) {
  return soft->options.clock == WEIR_SOFT_STEPPED ? soft->now_ns : weir__monotonic_ns();
}

/* ---- Signals ---- */

struct soft_signal *weir__soft_signal_new(void) {
  struct soft_signal *signal = calloc(1, sizeof *signal);
  if (signal)
    signal->refs = 1;
  return signal;
}

struct soft_signal *weir__soft_signal_ref(struct soft_signal *signal) {
  if (signal)
    signal->refs++;
  return signal;
}

void weir__soft_signal_unref(struct soft_signal *signal) {
  if (signal && --signal->refs == 0)
    free(signal);
}

/* ---- Work items ---- */

struct soft_work *weir__soft_work_new(const model_work *work) {
  struct soft_work *item = calloc(1, sizeof *item);
  if (item)
    item->w = *work;
  return item;
}

struct soft_work *weir__soft_work_new_sync(enum soft_sync sync) {
  struct soft_work *item = weir__soft_work_new(&(model_work){.kind = MODEL_WORK_OTHER});
  if (item)
    item->sync = sync;
  return item;
}

void weir__soft_work_free(struct soft *soft, struct soft_work *work) {
  if (!work)
    return;
  weir__soft_signal_unref(work->end);
  weir__soft_signal_unref(work->signal);
  weir__soft_shared_event_unref(work->shared);
  weir__model_work_end(&soft->m, &work->w);
  free(work);
}

/* Clamps to half a century, which can be added to any time without overflow. */
static uint64_t to_ns(double ns) { return ns < 0x1p60 ? (uint64_t)ns : 1ull << 60; }

/* The duration of an item on the clock of the device; 0 if it takes as long as the host needs. */
static uint64_t cost_ns(const struct soft *soft, const model_work *work) {
  bool stepped = soft->options.clock == WEIR_SOFT_STEPPED;
  uint64_t speed = soft->options.copy_bytes_per_second, bytes = 0, ns = 0;
  if (!speed && stepped)
    speed = stepped_bytes_per_second;
  switch (work->kind) {
  case MODEL_WORK_COPY:
    bytes = work->as.copy.bytes;
    break;
  case MODEL_WORK_FILL:
    bytes = work->as.fill.count * work->as.fill.width;
    break;
  case MODEL_WORK_KERNEL:
    if (!work->as.kernel.kernel->function)
      ns = to_ns((double)*(const uint64_t *)work->as.kernel.params * 1e6 / soft->options.clock_khz);
    break;
  case MODEL_WORK_HOST:
    break;
  default:
    return 0;
  }
  if (bytes && speed)
    ns = to_ns((double)bytes * 1e9 / (double)speed);
  return stepped ? ns + launch_ns : ns;
}

static weir_cu_result run_kernel(const model_work *work) {
  const model_kernel *kernel = work->as.kernel.kernel;
  void *params[MODEL_MAX_PARAMS];
  size_t at = 0;
  if (!kernel->function)
    return WEIR_CU_SUCCESS; /* the spin kernel only takes time */
  for (int i = 0; i < kernel->param_count; i++) {
    params[i] = work->as.kernel.params + at;
    at += weir__round_up(kernel->param_bytes[i], 16);
  }
  weir_soft_launch l = {
      .shared_bytes = work->as.kernel.shared_bytes, .params = params, .device = work->device->ordinal};
  memcpy(l.grid, work->as.kernel.grid, sizeof l.grid);
  memcpy(l.block, work->as.kernel.block, sizeof l.block);
  return kernel->function(&l);
}

static void fill(uint64_t to, uint32_t value, unsigned width, uint64_t count) {
  if (width == 1) {
    memset((void *)to, (int)value, count);
    return;
  }
  uint32_t *word = (uint32_t *)to;
  for (uint64_t i = 0; i < count; i++)
    word[i] = value;
}

static void poll_pause(void) { weir__sleep_ns(50000); }

void weir__soft_pause(struct soft *soft) {
  weir__mutex_unlock(&soft->lock);
  poll_pause();
  weir__mutex_lock(&soft->lock);
}

static weir_cu_result wait_for_other_process(const struct soft *soft, const struct soft_work *item) {
  weir_cu_result r = WEIR_CU_SUCCESS;
  while (!soft->stopping && (r = weir__soft_shared_event_query(item->shared, item->shared_count)) == WEIR_CU_NOT_READY)
    poll_pause();
  return r == WEIR_CU_NOT_READY ? WEIR_CU_SUCCESS : r;
}

/* Called without the lock. An error breaks the context. */
static weir_cu_result execute(struct soft *soft, struct soft_work *item) {
  const model_work *work = &item->w;
  switch (work->kind) {
  case MODEL_WORK_COPY: {
    const void *from = work->as.copy.staged ? work->as.copy.staged : (const void *)work->as.copy.from;
    memmove((void *)work->as.copy.to, from, work->as.copy.bytes);
    break;
  }
  case MODEL_WORK_FILL:
    fill(work->as.fill.to, work->as.fill.value, work->as.fill.width, work->as.fill.count);
    break;
  case MODEL_WORK_KERNEL:
    return run_kernel(work);
  case MODEL_WORK_HOST:
    work->as.host.fn(work->as.host.data);
    break;
  case MODEL_WORK_OTHER:
    if (item->sync == SOFT_WAIT_SHARED)
      return wait_for_other_process(soft, item);
    break;
  default:
    break;
  }
  return WEIR_CU_SUCCESS;
}

typedef struct attempt {
  struct soft *soft;
  struct soft_work *item;
  weir_cu_result result;
} attempt;

static void try(void *context) {
  attempt *a = context;
  a->result = execute(a->soft, a->item);
}

/* The same, for an observer of accesses to memory that is not mapped. A host function is the program's own: it faults
 * as all of its code. */
static weir_cu_result execute_trapped(struct soft *soft, const struct soft_stream *stream, struct soft_work *item) {
  weir__access_observer_fn observer = atomic_load_explicit(&weir__access_observer, memory_order_acquire);
  const model_work *work = &item->w;
  attempt a = {soft, item, WEIR_CU_SUCCESS};
  weir__access access = {.device = work->device ? work->device->ordinal : stream->s.device->ordinal};
  bool is_device = work->kind == MODEL_WORK_COPY || work->kind == MODEL_WORK_FILL || work->kind == MODEL_WORK_KERNEL;
  if (!observer || !is_device)
    return execute(soft, item);
  if (weir__trap_run(try, &a, &access))
    return a.result;
  access.name = work->kind == MODEL_WORK_KERNEL ? work->as.kernel.kernel->name
                : work->kind == MODEL_WORK_COPY ? "copy"
                                                : "memset";
  if (!stream->s.is_legacy)
    access.stream = (weir_cu_stream)(uintptr_t)weir__handle_of(&soft->m.streams, stream);
  observer(&access);
  return WEIR_CU_ILLEGAL_ADDRESS;
}

/* ---- Reads of memory that was never written ---- */

static bool is_on_device(const struct soft *soft, uint64_t address) {
  const model_range *range = weir__model_find_range(&soft->m, address);
  return range && range->kind != MODEL_RANGE_HOST && range->kind != MODEL_RANGE_REGISTERED;
}

static void report_undefined(const struct soft *soft, const struct soft_stream *stream, const char *name,
                             uint64_t address) {
  weir__access_observer_fn observer = atomic_load_explicit(&weir__undefined_observer, memory_order_acquire);
  weir__access access = {.address = address, .device = stream->s.device->ordinal, .name = name};
  if (!stream->s.is_legacy)
    access.stream = (weir_cu_stream)(uintptr_t)weir__handle_of(&soft->m.streams, stream);
  if (observer)
    observer(&access);
}

/* What a copy takes to the host is used there. The lock is held. */
static void look_at_copy(const struct soft *soft, const struct soft_stream *stream, const model_work *work) {
  uint64_t address = 0;
  if (!work->as.copy.staged && is_on_device(soft, work->as.copy.from) && !is_on_device(soft, work->as.copy.to))
    address = weir__find_undefined(work->as.copy.from, work->as.copy.bytes);
  if (address)
    report_undefined(soft, stream, "copy to the host", address);
}

/* A kernel has used such memory: any that it got a pointer to. The lock is held. */
static void report_kernel(const struct soft *soft, const struct soft_stream *stream, const model_work *work) {
  const model_kernel *kernel = work->as.kernel.kernel;
  size_t at = 0;
  for (int i = 0; i < kernel->param_count; i++) {
    uint64_t value = 0;
    if (kernel->param_bytes[i] == sizeof value)
      memcpy(&value, work->as.kernel.params + at, sizeof value);
    if (value && is_on_device(soft, value))
      report_undefined(soft, stream, kernel->name, value);
    at += weir__round_up(kernel->param_bytes[i], 16);
  }
}

/* execute, with a look at what is read. The lock is held, and released meanwhile. */
static weir_cu_result execute_watched(struct soft *soft, const struct soft_stream *stream, struct soft_work *work) {
  bool is_watched = atomic_load_explicit(&weir__undefined_observer, memory_order_acquire) != NULL;
  bool is_kernel = work->w.kind == MODEL_WORK_KERNEL && work->w.as.kernel.kernel->function;
  if (is_watched && work->w.kind == MODEL_WORK_COPY)
    look_at_copy(soft, stream, &work->w);
  unsigned uses = is_watched && is_kernel ? weir__undefined_uses() : 0;
  weir__mutex_unlock(&soft->lock);
  weir_cu_result r = execute_trapped(soft, stream, work);
  weir__mutex_lock(&soft->lock);
  if (is_watched && is_kernel && weir__undefined_uses() > uses)
    report_kernel(soft, stream, &work->w);
  return r;
}

/* Lets the time of a slow copy or a spin pass, in real time. The lock is held, and released while this sleeps. Closing
 * the device or breaking the context interrupts it. */
static void wait_until(struct soft *soft, const model_device *device, uint64_t until_ns) {
  while (!soft->stopping && !device->error && weir__monotonic_ns() < until_ns)
    weir__cond_wait_until(&soft->stop, &soft->lock, until_ns);
}

/* ---- Running ---- */

static void *worker(void *argument);

static void push_ready(struct soft *soft, struct soft_stream *stream) {
  if (caller_runs_work(soft) || stream->queued || stream->running || !stream->first)
    return;
  struct soft_stream **at = &soft->ready;
  while (*at && (*at)->s.priority <= stream->s.priority)
    at = &(*at)->next_ready;
  stream->next_ready = *at;
  *at = stream;
  stream->queued = true;
  if (++soft->ready_count > soft->idle_workers && soft->workers < SOFT_MAX_WORKERS &&
      !weir__thread_start(&soft->worker_ids[soft->workers], worker, soft))
    soft->workers++;
  weir__cond_signal(&soft->work);
}

static void set_done(struct soft *soft, struct soft_signal *signal, uint64_t time_ns) {
  signal->done = true;
  signal->owner = NULL;
  signal->time_ns = time_ns;
  while (signal->waiters) {
    struct soft_stream *stream = signal->waiters;
    signal->waiters = stream->next_waiter;
    push_ready(soft, stream);
  }
}

static void free_if_finished(struct soft *soft, struct soft_stream *stream) {
  if (!stream->s.dropped || stream->first || stream->running || stream->waits || stream->queued)
    return;
  if ((*stream->link = stream->next))
    stream->next->link = stream->link;
  weir__model_free_stream(&soft->m, &stream->s);
}

/* Fills in what does not depend on time. False for an item that is no work. The lock is held. */
static bool describe(const struct soft *soft, const struct soft_stream *stream, const model_work *work,
                     weir__work *to) {
  static const char *const copies[2][2] = {{"memcpy HtoH", "memcpy HtoD"}, {"memcpy DtoH", "memcpy DtoD"}};
  *to = (weir__work){.device = work->device ? work->device->ordinal : stream->s.device->ordinal};
  if (!stream->s.is_legacy)
    to->stream = (weir_cu_stream)(uintptr_t)weir__handle_of(&soft->m.streams, stream);
  switch (work->kind) {
  case MODEL_WORK_COPY:
    to->kind = WEIR__WORK_COPY;
    to->name =
        copies[!work->as.copy.staged && is_on_device(soft, work->as.copy.from)][is_on_device(soft, work->as.copy.to)];
    to->bytes = work->as.copy.bytes;
    return true;
  case MODEL_WORK_FILL:
    to->kind = WEIR__WORK_FILL;
    to->name = "memset";
    to->bytes = work->as.fill.count * work->as.fill.width;
    return true;
  case MODEL_WORK_KERNEL:
    to->kind = WEIR__WORK_KERNEL;
    to->name = work->as.kernel.kernel->name;
    return true;
  case MODEL_WORK_HOST:
    to->kind = WEIR__WORK_HOST;
    to->name = "host function";
    return true;
  default:
    return false;
  }
}

/* Reports an item that has run to the observer. The lock is released meanwhile; the stream counts as running. */
static void report(struct soft *soft, const struct soft_stream *stream, const model_work *work, uint64_t start_ns) {
  weir__work_observer_fn observer = atomic_load_explicit(&weir__work_observer, memory_order_acquire);
  weir__work item;
  if (!observer || !describe(soft, stream, work, &item))
    return;
  if (soft->options.clock == WEIR_SOFT_STEPPED && !soft->profile_base_ns)
    soft->profile_base_ns = weir__monotonic_ns() - start_ns;
  item.start_ns = soft->profile_base_ns + start_ns;
  item.end_ns = soft->profile_base_ns + stream->time_ns;
  weir__mutex_unlock(&soft->lock);
  observer(&item);
  weir__mutex_lock(&soft->lock);
}

static void finish(struct soft *soft, struct soft_stream *stream, struct soft_work *work, uint64_t start_ns) {
  bool stepped = soft->options.clock == WEIR_SOFT_STEPPED;
  uint64_t cost = stream->s.device->error ? 0 : cost_ns(soft, &work->w);
  if (!stepped && cost)
    wait_until(soft, stream->s.device, start_ns + cost);
  stream->time_ns = stepped ? start_ns + cost : weir__monotonic_ns();
  if (stepped && stream->time_ns > soft->now_ns)
    soft->now_ns = stream->time_ns;
  if (soft->m.is_profiled && !stream->s.device->error)
    report(soft, stream, &work->w, start_ns);
  model_range *freed = work->w.kind == MODEL_WORK_FREE ? work->w.as.memory.range : NULL;
  if (freed && (!freed->pool || freed->turn != work->w.as.memory.turn))
    freed = NULL; /* owned by a graph, or reused since */
  if (weir__soft_work_is(work, SOFT_RECORD) && work->shared) {
    uint64_t done = atomic_load(&work->shared->page->done);
    while (done < work->shared_count &&
           !atomic_compare_exchange_weak(&work->shared->page->done, &done, work->shared_count))
      continue;
  }
  stream->running = NULL;
  stream->pending--;
  if (work->end)
    set_done(soft, work->end, stream->time_ns);
  weir__soft_work_free(soft, work);
  if (freed)
    weir__soft_release_range(soft, (struct soft_range *)freed);
  push_ready(soft, stream);
  weir__cond_broadcast(&soft->changed);
  free_if_finished(soft, stream);
}

/* Runs the first item of a stream that is not running. False if that item is a wait for an unset signal. */
static bool run_one(struct soft *soft, struct soft_stream *stream) {
  struct soft_work *work = stream->first;
  uint64_t start = stream->time_ns;
  if (weir__soft_work_is(work, SOFT_WAIT)) {
    if (!work->signal->done) {
      if (!caller_runs_work(soft)) {
        stream->next_waiter = work->signal->waiters;
        work->signal->waiters = stream;
      }
      return false;
    }
    if (work->signal->time_ns > start)
      start = work->signal->time_ns;
  }
  if (weir__soft_work_is(work, SOFT_WAIT_SHARED) && caller_runs_work(soft) && !soft->stopping &&
      weir__soft_shared_event_query(work->shared, work->shared_count) == WEIR_CU_NOT_READY)
    return false;
  if (soft->options.clock == WEIR_SOFT_THREADS)
    start = weir__monotonic_ns();
  else if (work->issued_ns > start)
    start = work->issued_ns;

  stream->first = work->next;
  if (!stream->first)
    stream->last = NULL;
  stream->running = work;
  model_device *device = stream->s.device;
  if (!device->error) {
    if (work->w.kind == MODEL_WORK_KERNEL && work->w.as.kernel.kernel->function == weir__soft_guard)
      weir__soft_guard_look(soft, stream, work);
    weir_cu_result r = execute_watched(soft, stream, work);
    if (r && !device->error) {
      device->error = r;
      weir__cond_broadcast(&soft->stop);
    }
  }
  finish(soft, stream, work, start);
  return true;
}

/* Memory that was freed keeps its pages for a while (memory.c). */
static void wait_for_work(struct soft *soft) {
  if (!soft->kept_until_ns)
    weir__cond_wait(&soft->work, &soft->lock);
  else if (weir__monotonic_ns() < soft->kept_until_ns)
    weir__cond_wait_until(&soft->work, &soft->lock, soft->kept_until_ns);
  else
    weir__soft_return_kept(soft);
}

static void *worker(void *argument) {
  struct soft *soft = argument;
  weir__mutex_lock(&soft->lock);
  while (!soft->stopping) {
    struct soft_stream *stream = soft->ready;
    if (!stream) {
      soft->idle_workers++;
      wait_for_work(soft);
      soft->idle_workers--;
      continue;
    }
    soft->ready = stream->next_ready;
    soft->ready_count--;
    stream->queued = false;
    run_one(soft, stream);
    if (soft->kept_until_ns)
      weir__soft_keep_longer(soft);
  }
  weir__mutex_unlock(&soft->lock);
  return NULL;
}

void weir__soft_engine_stop(struct soft *soft) {
  weir__mutex_lock(&soft->lock);
  soft->stopping = true;
  weir__cond_broadcast(&soft->work);
  weir__cond_broadcast(&soft->stop);
  weir__cond_broadcast(&soft->changed);
  unsigned workers = soft->workers;
  weir__mutex_unlock(&soft->lock);
  for (unsigned i = 0; i < workers; i++)
    weir__thread_join(soft->worker_ids[i]);
  /* The closing thread runs what is left. */
  for (; soft->ready; soft->ready = soft->ready->next_ready)
    soft->ready->queued = false;
  soft->ready_count = 0;
}

/* ---- Queues ---- */

static void new_stream(model *m, model_stream *made) {
  struct soft_stream *stream = (struct soft_stream *)made;
  stream->time_ns = weir__soft_clock_ns((struct soft *)m);
  struct soft_stream **at = &weir__soft_device_of(stream)->streams;
  while (*at)
    at = &(*at)->next;
  stream->link = at;
  *at = stream;
}

static void drop_stream(model *m, model_stream *stream) {
  free_if_finished((struct soft *)m, (struct soft_stream *)stream);
}

static bool has_work(const struct soft_stream *stream) { return stream->running || stream->first; }

static bool is_blocking(const struct soft_stream *stream) {
  return !stream->s.is_legacy && !(stream->s.flags & WEIR_CU_STREAM_NON_BLOCKING);
}

static bool is_busy(model *m, const model_stream *of) {
  const struct soft_stream *stream = (const struct soft_stream *)of;
  (void)m;
  if (has_work(stream))
    return true;
  if (!of->is_legacy)
    return false;
  for (const struct soft_stream *s = weir__soft_device_of(stream)->streams; s; s = s->next)
    if (is_blocking(s) && has_work(s))
      return true;
  return false;
}

/* A reference to the signal of the last item. *signal is NULL if the stream is empty. */
static weir_cu_result get_end_signal(struct soft_stream *stream, struct soft_signal **signal) {
  struct soft_work *work = stream->last ? stream->last : stream->running;
  *signal = NULL;
  if (!work)
    return WEIR_CU_SUCCESS;
  if (!work->end) {
    work->end = weir__soft_signal_new();
    if (!work->end)
      return WEIR_CU_OUT_OF_MEMORY;
    work->end->owner = stream;
  }
  *signal = weir__soft_signal_ref(work->end);
  return WEIR_CU_SUCCESS;
}

static void append(struct soft *soft, struct soft_stream *stream, struct soft_work *work) {
  work->next = NULL;
  work->seq = ++soft->next_seq;
  work->issued_ns = soft->now_ns;
  if (work->end)
    work->end->owner = stream;
  if (stream->last)
    stream->last->next = work;
  else
    stream->first = work;
  stream->last = work;
  stream->pending++;
  if (stream->first == work)
    push_ready(soft, stream);
}

weir_cu_result weir__soft_enqueue_wait(struct soft *soft, struct soft_stream *stream, struct soft_signal *signal) {
  if (!signal || signal->done)
    return WEIR_CU_SUCCESS;
  struct soft_work *work = weir__soft_work_new_sync(SOFT_WAIT);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->signal = weir__soft_signal_ref(signal);
  append(soft, stream, work);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result wait_for_stream(struct soft *soft, struct soft_stream *stream, struct soft_stream *other) {
  struct soft_signal *signal;
  weir_cu_result r = get_end_signal(other, &signal);
  if (!r)
    r = weir__soft_enqueue_wait(soft, stream, signal);
  weir__soft_signal_unref(signal);
  return r;
}

/* The legacy stream waits for all blocking streams of its device, and each of them waits for it. */
static weir_cu_result enqueue_implicit_waits(struct soft *soft, struct soft_stream *stream) {
  struct soft_stream *legacy = (struct soft_stream *)stream->s.device->legacy;
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (is_blocking(stream))
    return legacy ? wait_for_stream(soft, stream, legacy) : r;
  if (!stream->s.is_legacy)
    return r;
  for (struct soft_stream *s = weir__soft_device_of(stream)->streams; s && !r; s = s->next)
    if (is_blocking(s))
      r = wait_for_stream(soft, stream, s);
  return r;
}

weir_cu_result weir__soft_enqueue(struct soft *soft, struct soft_stream *stream, struct soft_work *work) {
  weir_cu_result r = enqueue_implicit_waits(soft, stream);
  if (atomic_load_explicit(&weir__access_observer, memory_order_acquire))
    weir__trap_install(); /* before the program can use what the guard has made */
  if (r)
    weir__soft_work_free(soft, work);
  else
    append(soft, stream, work);
  return r;
}

static weir_cu_result run(model *m, model_stream *stream, model_work *work) {
  struct soft_work *item = weir__soft_work_new(work);
  if (item)
    return weir__soft_enqueue((struct soft *)m, (struct soft_stream *)stream, item);
  weir__model_work_end(m, work);
  return WEIR_CU_OUT_OF_MEMORY;
}

/* Copies pageable memory at once: the program may overwrite it as soon as the call returns. */
static weir_cu_result stage(model_work *work) {
  work->as.copy.staged = malloc(work->as.copy.bytes);
  if (!work->as.copy.staged)
    return WEIR_CU_OUT_OF_MEMORY;
  memcpy(work->as.copy.staged, (const void *)work->as.copy.from, work->as.copy.bytes);
  return WEIR_CU_SUCCESS;
}

/* ---- Memory that work uses ---- */

static bool overlaps(uint64_t at, uint64_t bytes, uint64_t base, uint64_t length) {
  return at < base + length && base < at + bytes;
}

/* A parameter of the size of a pointer whose value is in the range is taken for one. What a host function accesses is
 * not known. */
static bool work_uses(const model_work *work, uint64_t base, uint64_t bytes) {
  if (work->kind == MODEL_WORK_COPY)
    return overlaps(work->as.copy.to, work->as.copy.bytes, base, bytes) ||
           (!work->as.copy.staged && overlaps(work->as.copy.from, work->as.copy.bytes, base, bytes));
  if (work->kind == MODEL_WORK_FILL)
    return overlaps(work->as.fill.to, work->as.fill.count * work->as.fill.width, base, bytes);
  const model_kernel *kernel = work->kind == MODEL_WORK_KERNEL ? work->as.kernel.kernel : NULL;
  size_t at = 0;
  if (kernel && kernel->function == weir__soft_guard)
    return false; /* it only checks */
  for (int i = 0; kernel && kernel->function && i < kernel->param_count; i++) {
    uint64_t value;
    if (kernel->param_bytes[i] == sizeof value) {
      memcpy(&value, work->as.kernel.params + at, sizeof value);
      if (value - base < bytes)
        return true;
    }
    at += weir__round_up(kernel->param_bytes[i], 16);
  }
  return false;
}

const struct soft_stream *weir__soft_user_of(const struct soft *soft, const struct soft_stream *but, uint64_t before,
                                             uint64_t base, uint64_t bytes) {
  for (int i = 0; i < soft->m.device_count; i++)
    for (const struct soft_stream *s = soft->devices[i].streams; s; s = s->next) {
      if (s == but)
        continue;
      if (s->running && s->running->seq < before && work_uses(&s->running->w, base, bytes))
        return s;
      for (const struct soft_work *work = s->first; work && work->seq < before; work = work->next)
        if (work_uses(&work->w, base, bytes))
          return s;
    }
  return NULL;
}

bool weir__soft_is_in_use(const struct soft *soft, uint64_t base, uint64_t bytes) {
  return weir__soft_user_of(soft, NULL, UINT64_MAX, base, bytes) != NULL;
}

/* ---- Graphs ---- */

static void end_exec(model_exec *exec) { weir__soft_signal_unref(((struct soft_exec *)exec)->launched); }

/* Copies the work of a graph into a list. False if out of host memory: the list then has the copies made so far. */
static bool copy_items(struct soft *soft, const model_exec *exec, struct soft_work **first) {
  struct soft_work **last = first;
  *first = NULL;
  for (size_t i = 0; i < exec->count; i++) {
    model_work copy;
    bool copied = weir__model_work_copy(&exec->works[i], &copy);
    *last = copied ? weir__soft_work_new(&copy) : NULL;
    if (!*last) {
      if (copied)
        weir__model_work_end(&soft->m, &copy);
      return false;
    }
    last = &(*last)->next;
  }
  return true;
}

/* Copies of all nodes go into the stream one after the other. A GPU may run independent nodes concurrently, but need
 * not. */
static weir_cu_result launch(model *m, model_exec *exec, model_stream *on) {
  struct soft *soft = (struct soft *)m;
  struct soft_stream *stream = (struct soft_stream *)on;
  struct soft_exec *x = (struct soft_exec *)exec;
  struct soft_work *list;
  weir_cu_result r = copy_items(soft, exec, &list) ? WEIR_CU_SUCCESS : WEIR_CU_OUT_OF_MEMORY;
  if (!r && x->launched && !x->launched->done && x->launched->owner != stream)
    r = weir__soft_enqueue_wait(soft, stream, x->launched);
  while (list) {
    struct soft_work *work = list;
    list = work->next;
    if (r || weir__model_is_of_event(&work->w)) {
      r = r ? r : weir__model_launch_event(m, &work->w, on);
      weir__soft_work_free(soft, work);
    } else {
      r = weir__soft_enqueue(soft, stream, work);
    }
  }
  weir__soft_signal_unref(x->launched);
  weir_cu_result marked = get_end_signal(stream, &x->launched);
  return r ? r : marked;
}

/* ---- Waiting ---- */

/* Waits until any item ends. If the caller runs work, runs the next item that `stream` needs: its own, or one of the
 * stream that it waits for. */
static void advance_one(struct soft *soft, struct soft_stream *stream) {
  while (caller_runs_work(soft) && !stream->running && stream->first) {
    if (run_one(soft, stream))
      return;
    struct soft_work *work = stream->first;
    if (weir__soft_work_is(work, SOFT_WAIT_SHARED)) {
      weir__soft_pause(soft);
      return;
    }
    stream = work->signal->owner;
  }
  weir__cond_wait(&soft->changed, &soft->lock);
}

/* Other threads use the model meanwhile, so the current thread is restored. */
static void advance(struct soft *soft, struct soft_stream *stream) {
  model_thread *thread = soft->m.thread;
  advance_one(soft, stream);
  soft->m.thread = thread;
}

static uint64_t first_seq(const struct soft_stream *stream) {
  return stream->running ? stream->running->seq : stream->first ? stream->first->seq : UINT64_MAX;
}

static weir_cu_result wait_stream(model *m, model_stream *of) {
  struct soft *soft = (struct soft *)m;
  struct soft_stream *stream = (struct soft_stream *)of;
  model_device *device = of->device;
  /* An idle blocking stream does not wait for the legacy stream. */
  weir_cu_result r = of->is_legacy ? enqueue_implicit_waits(soft, stream) : WEIR_CU_SUCCESS;
  if (r)
    return r;
  uint64_t last = soft->next_seq;
  stream->waits++;
  while (first_seq(stream) <= last)
    advance(soft, stream);
  stream->waits--;
  free_if_finished(soft, stream);
  weir__model_settle_pools(m, device);
  return device->error;
}

weir_cu_result weir__soft_wait_signal(struct soft *soft, struct soft_signal *signal) {
  if (!signal)
    return WEIR_CU_SUCCESS;
  weir__soft_signal_ref(signal);
  model_device *device = signal->owner ? signal->owner->s.device : NULL;
  while (!signal->done)
    advance(soft, signal->owner);
  weir__soft_signal_unref(signal);
  if (!device)
    return WEIR_CU_SUCCESS;
  weir__model_settle_pools(&soft->m, device);
  return device->error;
}

weir_cu_result weir__soft_wait_device(model *m, model_device *device) {
  struct soft *soft = (struct soft *)m;
  struct soft_stream **streams = &((struct soft_device *)device)->streams;
  uint64_t last = soft->next_seq;
  for (struct soft_stream *s = *streams; s;) {
    if (first_seq(s) > last) {
      s = s->next;
      continue;
    }
    advance(soft, s);
    s = *streams; /* the list may have changed */
  }
  weir__model_settle_pools(m, device);
  return device->error;
}

void weir__soft_add_engine_hooks(model_hooks *hooks) {
  hooks->new_stream = new_stream;
  hooks->drop_stream = drop_stream;
  hooks->is_busy = is_busy;
  hooks->wait_stream = wait_stream;
  hooks->wait_device = weir__soft_wait_device;
  hooks->run = run;
  hooks->stage = stage;
  hooks->launch = launch;
  hooks->end_exec = end_exec;
}

/* ---- Stepping ---- */

/* Finds streams of broken contexts too. The lock is held. If there is no such stream, NULL is returned and the last
 * error set. */
static struct soft_stream *find_stream(struct soft *soft, weir_cu_stream handle, const char *caller) {
  model_stream *stream = NULL;
  weir_cu_result r = !soft->m.ready                  ? WEIR_CU_NOT_INITIALIZED
                     : weir__soft_enter_thread(soft) ? weir__model_stream(&soft->m, handle, &stream)
                                                     : WEIR_CU_OUT_OF_MEMORY;
  if (!stream)
    weir__fail_result(WEIR_ERROR_INVALID_HANDLE, r, "%s: %p is not a stream of this device", caller, (void *)handle);
  return (struct soft_stream *)stream;
}

static struct soft *stepped_soft(weir_driver *driver, const char *caller, weir_status *status) {
  struct soft *soft = weir__soft_of(driver, caller);
  *status = soft ? WEIR_OK : WEIR_ERROR_INVALID_ARGUMENT;
  if (soft && soft->options.clock != WEIR_SOFT_STEPPED)
    *status = weir__fail(WEIR_ERROR_BAD_STATE,
                         "%s: the device runs in real time; open it with WEIR_SOFT_STEPPED to step it", caller);
  return *status ? NULL : soft;
}

weir_status weir_soft_step(weir_driver *driver, weir_cu_stream handle, uint64_t count, uint64_t *done) {
  weir_status status;
  struct soft *soft = stepped_soft(driver, __func__, &status);
  if (!soft)
    return status;
  weir__mutex_lock(&soft->lock);
  struct soft_stream *stream = find_stream(soft, handle, __func__);
  uint64_t n = 0;
  if (stream) {
    stream->waits++;
    while (n < count && stream->first && !stream->running && run_one(soft, stream))
      n++;
    stream->waits--;
    free_if_finished(soft, stream);
  }
  weir__soft_leave(soft);
  if (!stream)
    return WEIR_ERROR_INVALID_HANDLE;
  if (done)
    *done = n;
  return WEIR_OK;
}

/* Runs one item of the first stream that can run. False if there is none. */
static bool step_any(struct soft *soft) {
  for (int i = 0; i < soft->m.device_count; i++)
    for (struct soft_stream *s = soft->devices[i].streams; s; s = s->next)
      if (s->first && !s->running && run_one(soft, s))
        return true;
  return false;
}

weir_status weir_soft_step_all(weir_driver *driver, uint64_t *done) {
  weir_status status;
  struct soft *soft = stepped_soft(driver, __func__, &status);
  if (!soft)
    return status;
  uint64_t n = 0;
  weir__mutex_lock(&soft->lock);
  while (step_any(soft))
    n++;
  weir__soft_leave(soft);
  if (done)
    *done = n;
  return WEIR_OK;
}

weir_status weir_soft_pending(weir_driver *driver, weir_cu_stream handle, uint64_t *pieces) {
  struct soft *soft = weir__soft_of(driver, __func__);
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  WEIR__CHECK_ARGUMENT(pieces);
  weir__mutex_lock(&soft->lock);
  const struct soft_stream *stream = find_stream(soft, handle, __func__);
  if (stream)
    *pieces = stream->pending;
  weir__mutex_unlock(&soft->lock);
  return stream ? WEIR_OK : WEIR_ERROR_INVALID_HANDLE;
}

weir_status weir_soft_now(weir_driver *driver, uint64_t *nanoseconds) {
  struct soft *soft = weir__soft_of(driver, __func__);
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  WEIR__CHECK_ARGUMENT(nanoseconds);
  weir__mutex_lock(&soft->lock);
  *nanoseconds = weir__soft_clock_ns(soft);
  weir__mutex_unlock(&soft->lock);
  return WEIR_OK;
}
