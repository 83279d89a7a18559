/*
 * The engine: which piece of work runs next, and running it.
 *
 * A stream can go on when it has work, none of it is being done, and the first piece is not a wait for something that is not
 * done. Such streams are in the ready list, or, stopped at a wait, in the list of the signal that they wait for; so each
 * end of a piece touches only those that it sets free. In real time worker threads take streams from the ready list; there
 * are as many workers as streams were ever ready at once. In stepped time nobody does, until a call has to wait: it then runs
 * the very work that it waits for, and what that waits for, and nothing else.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/soft/soft.h"

/* What a piece costs in stepped time beyond its bytes or cycles. */
static const uint64_t launch_ns = 1000;
static const uint64_t stepped_bytes_per_second = 100ull * 1000 * 1000 * 1000;

static bool is_driven(const struct soft *soft) { return soft->options.clock == WEIR_SOFT_STEPPED || soft->stopping; }

uint64_t weir__soft_now(const struct soft *soft) {
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

/* ---- Pieces of work ---- */

struct soft_work *weir__soft_work_new(enum soft_work_kind kind) {
  struct soft_work *work = calloc(1, sizeof *work);
  if (work)
    work->kind = kind;
  return work;
}

static size_t params_bytes(const struct soft_work *work) {
  size_t bytes = 0;
  for (int i = 0; i < work->as.kernel.param_count; i++)
    bytes += weir__round_up(work->as.kernel.param_bytes[i], 16);
  return bytes;
}

struct soft_work *weir__soft_work_copy(const struct soft_work *work) {
  struct soft_work *copy = malloc(sizeof *copy);
  if (!copy)
    return NULL;
  *copy = *work;
  copy->next = NULL;
  copy->end = NULL;
  weir__soft_signal_ref(copy->signal);
  if (copy->shared)
    copy->shared->refs++;
  size_t bytes = work->kind == SOFT_WORK_KERNEL ? params_bytes(work) : 0;
  if (bytes) {
    copy->as.kernel.params = malloc(bytes);
    if (!copy->as.kernel.params) {
      weir__soft_work_free(copy);
      return NULL;
    }
    memcpy(copy->as.kernel.params, work->as.kernel.params, bytes);
  }
  if (work->kind == SOFT_WORK_FREE || work->kind == SOFT_WORK_ALLOC)
    work->as.chunk.chunk->refs++;
  return copy;
}

void weir__soft_work_free(struct soft_work *work) {
  if (!work)
    return;
  weir__soft_signal_unref(work->end);
  weir__soft_signal_unref(work->signal);
  weir__soft_shared_event_unref(work->shared);
  if (work->kind == SOFT_WORK_COPY)
    free(work->as.copy.staged);
  if (work->kind == SOFT_WORK_KERNEL)
    free(work->as.kernel.params);
  if (work->kind == SOFT_WORK_FREE || work->kind == SOFT_WORK_ALLOC)
    weir__soft_chunk_unref(work->as.chunk.chunk);
  free(work);
}

/* Half a century is as good as for ever, and can be added to any time. */
static uint64_t to_ns(double ns) { return ns < 0x1p60 ? (uint64_t)ns : 1ull << 60; }

/* How long a piece takes on the device's clock; 0 where the host decides. */
static uint64_t cost_ns(const struct soft *soft, const struct soft_work *work) {
  bool stepped = soft->options.clock == WEIR_SOFT_STEPPED;
  uint64_t speed = soft->options.copy_bytes_per_second, bytes = 0, ns = 0;
  if (!speed && stepped)
    speed = stepped_bytes_per_second;
  switch (work->kind) {
  case SOFT_WORK_COPY:
    bytes = work->as.copy.bytes;
    break;
  case SOFT_WORK_FILL:
    bytes = work->as.fill.count * work->as.fill.width;
    break;
  case SOFT_WORK_SPIN:
    ns = to_ns((double)work->as.spin.cycles * 1e6 / soft->options.clock_khz);
    break;
  case SOFT_WORK_KERNEL:
  case SOFT_WORK_HOST:
    break;
  default:
    return 0;
  }
  if (bytes && speed)
    ns = to_ns((double)bytes * 1e9 / (double)speed);
  return stepped ? ns + launch_ns : ns;
}

static weir_cu_result launch(const struct soft_work *work) {
  void *params[64];
  size_t at = 0;
  for (int i = 0; i < work->as.kernel.param_count; i++) {
    params[i] = work->as.kernel.params + at;
    at += weir__round_up(work->as.kernel.param_bytes[i], 16);
  }
  weir_soft_launch l = {
      .shared_bytes = work->as.kernel.shared_bytes, .params = params, .device = work->device->ordinal};
  memcpy(l.grid, work->as.kernel.grid, sizeof l.grid);
  memcpy(l.block, work->as.kernel.block, sizeof l.block);
  return work->as.kernel.function(&l);
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

static void sleep_until(uint64_t ns) {
  struct timespec at = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
    continue;
}

/* Runs without the lock. The device's error, if it breaks. */
static weir_cu_result perform(struct soft *soft, struct soft_work *work) {
  switch (work->kind) {
  case SOFT_WORK_COPY: {
    const void *from = work->as.copy.staged ? work->as.copy.staged : (const void *)work->as.copy.from;
    memmove((void *)work->as.copy.to, from, work->as.copy.bytes);
    break;
  }
  case SOFT_WORK_FILL:
    fill(work->as.fill.to, work->as.fill.value, work->as.fill.width, work->as.fill.count);
    break;
  case SOFT_WORK_KERNEL:
    return launch(work);
  case SOFT_WORK_HOST:
    work->as.host.fn(work->as.host.data);
    break;
  case SOFT_WORK_WAIT_SHARED:
    while (!weir__soft_shared_event_done(work->shared, work->shared_count) && !soft->stopping)
      sleep_until(weir__monotonic_ns() + 50000);
    break;
  default:
    break;
  }
  return WEIR_CU_SUCCESS;
}

/* In real time: a slow copy or a spin takes its time. The lock is held, and away while it sleeps, so that the end of the
 * device, or its breaking, can interrupt it. */
static void pace(struct soft *soft, const struct soft_device *device, uint64_t until_ns) {
  struct timespec at = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
  while (!soft->stopping && !device->error && weir__monotonic_ns() < until_ns)
    pthread_cond_timedwait(&soft->stop, &soft->lock, &at);
}

/* ---- Running ---- */

static void *worker(void *argument);

static void push_ready(struct soft *soft, struct soft_stream *stream) {
  if (is_driven(soft) || stream->queued || stream->running || !stream->first)
    return;
  struct soft_stream **at = &soft->ready;
  while (*at && (*at)->priority <= stream->priority)
    at = &(*at)->next_ready;
  stream->next_ready = *at;
  *at = stream;
  stream->queued = true;
  if (++soft->ready_count > soft->idle_workers && soft->workers < SOFT_MAX_WORKERS &&
      !pthread_create(&soft->worker_ids[soft->workers], NULL, worker, soft))
    soft->workers++;
  pthread_cond_signal(&soft->work);
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

static void free_if_over(struct soft_stream *stream) {
  if (!stream->dropped || stream->first || stream->running || stream->waits || stream->queued)
    return;
  if ((*stream->link = stream->next))
    stream->next->link = stream->link;
  free(stream->tips);
  free(stream);
}

static void finish(struct soft *soft, struct soft_stream *stream, struct soft_work *work, uint64_t start_ns) {
  bool stepped = soft->options.clock == WEIR_SOFT_STEPPED;
  uint64_t cost = stream->device->error ? 0 : cost_ns(soft, work);
  if (!stepped && cost)
    pace(soft, stream->device, start_ns + cost);
  stream->time_ns = stepped ? start_ns + cost : weir__monotonic_ns();
  if (stepped && stream->time_ns > soft->now_ns)
    soft->now_ns = stream->time_ns;
  struct soft_chunk *freed = work->kind == SOFT_WORK_FREE ? work->as.chunk.chunk : NULL;
  if (freed && (!freed->pool || freed->turn != work->as.chunk.turn))
    freed = NULL; /* a graph's own, or handed out anew */
  if (work->kind == SOFT_WORK_RECORD && work->shared) {
    uint64_t done = atomic_load(&work->shared->page->done);
    while (done < work->shared_count &&
           !atomic_compare_exchange_weak(&work->shared->page->done, &done, work->shared_count))
      continue;
  }
  stream->running = NULL;
  stream->pending--;
  if (work->end)
    set_done(soft, work->end, stream->time_ns);
  weir__soft_work_free(work);
  if (freed)
    weir__soft_chunk_release(soft, freed);
  push_ready(soft, stream);
  pthread_cond_broadcast(&soft->changed);
  free_if_over(stream);
}

/* Does the first piece of a stream of which none is being done. false: it is a wait for what is not done yet. */
static bool run_one(struct soft *soft, struct soft_stream *stream) {
  struct soft_work *work = stream->first;
  uint64_t start = stream->time_ns;
  if (work->kind == SOFT_WORK_WAIT) {
    if (!work->signal->done) {
      if (!is_driven(soft)) {
        stream->next_waiter = work->signal->waiters;
        work->signal->waiters = stream;
      }
      return false;
    }
    if (work->signal->time_ns > start)
      start = work->signal->time_ns;
  }
  if (work->kind == SOFT_WORK_WAIT_SHARED && is_driven(soft) && !soft->stopping &&
      !weir__soft_shared_event_done(work->shared, work->shared_count))
    return false;
  if (soft->options.clock == WEIR_SOFT_THREADS)
    start = weir__monotonic_ns();
  else if (work->issued_ns > start)
    start = work->issued_ns;

  stream->first = work->next;
  if (!stream->first)
    stream->last = NULL;
  stream->running = work;
  struct soft_device *device = stream->device;
  if (!device->error) {
    pthread_mutex_unlock(&soft->lock);
    weir_cu_result r = perform(soft, work);
    pthread_mutex_lock(&soft->lock);
    if (r && !device->error) {
      device->error = r;
      pthread_cond_broadcast(&soft->stop);
    }
  }
  finish(soft, stream, work, start);
  return true;
}

static void *worker(void *argument) {
  struct soft *soft = argument;
  pthread_mutex_lock(&soft->lock);
  while (!soft->stopping) {
    struct soft_stream *stream = soft->ready;
    if (!stream) {
      soft->idle_workers++;
      pthread_cond_wait(&soft->work, &soft->lock);
      soft->idle_workers--;
      continue;
    }
    soft->ready = stream->next_ready;
    soft->ready_count--;
    stream->queued = false;
    run_one(soft, stream);
  }
  pthread_mutex_unlock(&soft->lock);
  return NULL;
}

void weir__soft_engine_stop(struct soft *soft) {
  pthread_mutex_lock(&soft->lock);
  soft->stopping = true;
  pthread_cond_broadcast(&soft->work);
  pthread_cond_broadcast(&soft->stop);
  pthread_cond_broadcast(&soft->changed);
  unsigned workers = soft->workers;
  pthread_mutex_unlock(&soft->lock);
  for (unsigned i = 0; i < workers; i++)
    pthread_join(soft->worker_ids[i], NULL);
  /* From here on the closing thread runs what is left. */
  for (; soft->ready; soft->ready = soft->ready->next_ready)
    soft->ready->queued = false;
  soft->ready_count = 0;
}

/* ---- Queues ---- */

struct soft_stream *weir__soft_stream_new(struct soft *soft, struct soft_device *device, unsigned flags, int priority) {
  struct soft_stream *stream = calloc(1, sizeof *stream);
  if (!stream)
    return NULL;
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority < SOFT_PRIORITY_GREATEST ? SOFT_PRIORITY_GREATEST : priority > 0 ? 0 : priority;
  stream->time_ns = weir__soft_now(soft);
  struct soft_stream **at = &device->streams;
  while (*at)
    at = &(*at)->next;
  stream->link = at;
  *at = stream;
  return stream;
}

void weir__soft_stream_drop(struct soft *soft, struct soft_stream *stream) {
  if (stream->capture && stream->capture->origin == stream)
    weir__soft_capture_end(soft, stream->capture, NULL);
  else if (stream->capture)
    weir__soft_invalidate(stream->capture);
  if (stream->handle)
    weir__soft_handle_free(soft, stream->handle);
  stream->handle = 0;
  stream->dropped = true;
  free_if_over(stream);
}

static bool has_work(const struct soft_stream *stream) { return stream->running || stream->first; }

static bool is_blocking(const struct soft_stream *stream) {
  return !stream->is_legacy && !(stream->flags & WEIR_CU_STREAM_NON_BLOCKING);
}

bool weir__soft_is_busy(const struct soft *soft, const struct soft_stream *stream) {
  (void)soft;
  if (has_work(stream))
    return true;
  if (!stream->is_legacy)
    return false;
  for (const struct soft_stream *s = stream->device->streams; s; s = s->next)
    if (is_blocking(s) && has_work(s))
      return true;
  return false;
}

weir_cu_result weir__soft_mark(struct soft_stream *stream, struct soft_signal **signal) {
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
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_WAIT);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->signal = weir__soft_signal_ref(signal);
  append(soft, stream, work);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result wait_for_stream(struct soft *soft, struct soft_stream *stream, struct soft_stream *other) {
  struct soft_signal *signal;
  weir_cu_result r = weir__soft_mark(other, &signal);
  if (!r)
    r = weir__soft_enqueue_wait(soft, stream, signal);
  weir__soft_signal_unref(signal);
  return r;
}

/* The legacy stream waits for all blocking ones of its device, and each of them for it. */
static weir_cu_result enqueue_implicit_waits(struct soft *soft, struct soft_stream *stream) {
  struct soft_device *device = stream->device;
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (is_blocking(stream))
    return device->legacy ? wait_for_stream(soft, stream, device->legacy) : r;
  if (!stream->is_legacy)
    return r;
  for (struct soft_stream *s = device->streams; s && !r; s = s->next)
    if (is_blocking(s))
      r = wait_for_stream(soft, stream, s);
  return r;
}

weir_cu_result weir__soft_enqueue(struct soft *soft, struct soft_stream *stream, struct soft_work *work) {
  weir_cu_result r = enqueue_implicit_waits(soft, stream);
  if (r)
    weir__soft_work_free(work);
  else
    append(soft, stream, work);
  return r;
}

/* ---- Waiting ---- */

/* Sleeps until anything was done, or, in driven time, does the next piece that `stream` needs: its own, or one of the stream
 * that it waits for. */
static void advance(struct soft *soft, struct soft_stream *stream) {
  while (is_driven(soft) && !stream->running && stream->first) {
    if (run_one(soft, stream))
      return;
    struct soft_work *work = stream->first;
    if (work->kind == SOFT_WORK_WAIT_SHARED) {
      pthread_mutex_unlock(&soft->lock);
      sleep_until(weir__monotonic_ns() + 50000);
      pthread_mutex_lock(&soft->lock);
      return;
    }
    stream = work->signal->owner;
  }
  pthread_cond_wait(&soft->changed, &soft->lock);
}

static uint64_t oldest(const struct soft_stream *stream) {
  return stream->running ? stream->running->seq : stream->first ? stream->first->seq : UINT64_MAX;
}

weir_cu_result weir__soft_wait_stream(struct soft *soft, struct soft_stream *stream) {
  struct soft_device *device = stream->device;
  /* A blocking stream without work of its own does not wait for the legacy one. */
  weir_cu_result r = stream->is_legacy ? enqueue_implicit_waits(soft, stream) : WEIR_CU_SUCCESS;
  if (r)
    return r;
  uint64_t last = soft->next_seq;
  stream->waits++;
  while (oldest(stream) <= last)
    advance(soft, stream);
  stream->waits--;
  free_if_over(stream);
  weir__soft_pools_settle(soft, device);
  return device->error;
}

weir_cu_result weir__soft_wait_signal(struct soft *soft, struct soft_signal *signal) {
  if (!signal)
    return WEIR_CU_SUCCESS;
  weir__soft_signal_ref(signal);
  struct soft_device *device = signal->owner ? signal->owner->device : NULL;
  while (!signal->done)
    advance(soft, signal->owner);
  weir__soft_signal_unref(signal);
  if (!device)
    return WEIR_CU_SUCCESS;
  weir__soft_pools_settle(soft, device);
  return device->error;
}

weir_cu_result weir__soft_wait_device(struct soft *soft, struct soft_device *device) {
  uint64_t last = soft->next_seq;
  for (struct soft_stream *s = device->streams; s;) {
    if (oldest(s) > last) {
      s = s->next;
      continue;
    }
    advance(soft, s);
    s = device->streams; /* streams may have come and gone */
  }
  weir__soft_pools_settle(soft, device);
  return device->error;
}

/* ---- Stepping ---- */

weir_status weir_soft_step(weir_driver *driver, weir_cu_stream handle, unsigned long count, unsigned long *done) {
  struct soft *soft = weir__soft_of(driver, "weir_soft_step");
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  if (soft->options.clock != WEIR_SOFT_STEPPED)
    return weir__fail(WEIR_ERROR_BAD_STATE, "weir_soft_step: the device runs in real time, not in steps");
  pthread_mutex_lock(&soft->lock);
  struct soft_stream *stream = NULL; /* a broken context can be stepped too */
  weir_cu_result r = soft->initialized ? weir__soft_stream_get(soft, handle, &stream) : WEIR_CU_NOT_INITIALIZED;
  unsigned long n = 0;
  if (stream) {
    stream->waits++;
    while (n < count && stream->first && !stream->running && run_one(soft, stream))
      n++;
    stream->waits--;
    free_if_over(stream);
  }
  weir__soft_leave(soft);
  if (!stream)
    return weir__fail_result(WEIR_ERROR_INVALID_HANDLE, r, "weir_soft_step: stream %p is not one of this device's",
                             (void *)handle);
  if (done)
    *done = n;
  return WEIR_OK;
}

/* Does one piece of the first stream that can go on. false: none can. */
static bool step_any(struct soft *soft) {
  for (int i = 0; i < soft->device_count; i++)
    for (struct soft_stream *s = soft->devices[i].streams; s; s = s->next)
      if (s->first && !s->running && run_one(soft, s))
        return true;
  return false;
}

weir_status weir_soft_step_all(weir_driver *driver, unsigned long *done) {
  struct soft *soft = weir__soft_of(driver, "weir_soft_step_all");
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  if (soft->options.clock != WEIR_SOFT_STEPPED)
    return weir__fail(WEIR_ERROR_BAD_STATE, "weir_soft_step_all: the device runs in real time, not in steps");
  unsigned long n = 0;
  pthread_mutex_lock(&soft->lock);
  while (step_any(soft))
    n++;
  weir__soft_leave(soft);
  if (done)
    *done = n;
  return WEIR_OK;
}

weir_status weir_soft_pending(weir_driver *driver, weir_cu_stream handle, unsigned long *pieces) {
  struct soft *soft = weir__soft_of(driver, "weir_soft_pending");
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  if (!pieces)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_soft_pending: pieces is NULL");
  pthread_mutex_lock(&soft->lock);
  struct soft_stream *stream = NULL;
  weir_cu_result r = soft->initialized ? weir__soft_stream_get(soft, handle, &stream) : WEIR_CU_NOT_INITIALIZED;
  if (stream)
    *pieces = stream->pending;
  pthread_mutex_unlock(&soft->lock);
  if (!stream)
    return weir__fail_result(WEIR_ERROR_INVALID_HANDLE, r, "weir_soft_pending: stream %p is not one of this device's",
                             (void *)handle);
  return WEIR_OK;
}

weir_status weir_soft_now(weir_driver *driver, uint64_t *nanoseconds) {
  struct soft *soft = weir__soft_of(driver, "weir_soft_now");
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  if (!nanoseconds)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_soft_now: nanoseconds is NULL");
  pthread_mutex_lock(&soft->lock);
  *nanoseconds = weir__soft_now(soft);
  pthread_mutex_unlock(&soft->lock);
  return WEIR_OK;
}
