/*
 * Copies what sleeps between the device and pinned host memory: large ranges by the copy engines, small ones by a
 * kernel, since each copy costs microseconds, however small. The kernel has few blocks of threads, so that work of the
 * program finds room beside it.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "alloc/pools/kept.h"
#include "base/system.h"
#include "driver/kernels.h"

enum {
  LARGE = 1024 * 1024,   /* from here on a range is copied by a copy engine */
  OF_KERNEL = 64 * 1024, /* bytes of a piece of the kernel */
  FEW = 32,              /* pieces are copied without it */
  MAX_BLOCKS = 64,       /* of threads */
  MAX_THREADS = 8        /* of the host, to pin memory */
};

/* ---- Parts: what a range has in one piece of host memory ---- */

typedef struct part {
  uint64_t address, bytes;
  uint64_t offset; /* in the piece */
} part;

/* The parts of a piece, whose first byte is number `begin` of all that is kept, in order. */
typedef struct parts {
  const weir__kept *kept;
  uint64_t begin, end;
  size_t range;
} parts;

static parts parts_of(const weir__kept *kept, uint64_t begin, uint64_t bytes) {
  size_t low = 0, high = kept->count; /* the last range that begins at `begin` or before */
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    *(kept->ranges[middle].at <= begin ? &low : &high) = middle;
  }
  return (parts){kept, begin, begin + bytes, low};
}

static bool next_part(parts *p, part *found) {
  for (; p->range < p->kept->count; p->range++) {
    const weir__kept_range *r = &p->kept->ranges[p->range];
    uint64_t from = r->at > p->begin ? r->at : p->begin, to = r->at + r->bytes < p->end ? r->at + r->bytes : p->end;
    if (r->at >= p->end)
      return false;
    if (from >= to)
      continue;
    *found = (part){r->address + (from - r->at), to - from, from - p->begin};
    p->range++;
    return true;
  }
  return false;
}

/* Pieces that the kernel would copy. */
static size_t small_pieces(const weir__kept *kept, uint64_t begin, uint64_t bytes) {
  parts p = parts_of(kept, begin, bytes);
  size_t count = 0;
  for (part found; next_part(&p, &found);)
    count += found.bytes < LARGE ? (size_t)((found.bytes + OF_KERNEL - 1) / OF_KERNEL) : 0;
  return count;
}

/* ---- The kernel ---- */

/* Without the kernel, which no table has to have, everything is copied by the copy engines. */
static bool load(weir__sleeper *sleeper, weir_driver *driver) {
  if (sleeper->has_kernel || sleeper->has_no_kernel)
    return sleeper->has_kernel;
  if (!driver->ModuleLoadData(driver, &sleeper->module, weir__copy_ptx)) {
    if (!driver->ModuleGetFunction(driver, &sleeper->function, sleeper->module, "weir_copy_pieces"))
      return sleeper->has_kernel = true;
    driver->ModuleUnload(driver, sleeper->module);
  }
  sleeper->has_no_kernel = true;
  weir__log(WEIR_LOG_INFO, "small blocks that sleep are copied one by one: the kernel could not be loaded");
  return false;
}

static bool make_room(weir__sleeper *sleeper, weir_driver *driver, size_t count) {
  if (count <= sleeper->pieces_room)
    return true;
  void *memory;
  weir_cu_deviceptr device;
  if (driver->MemHostAlloc(driver, &memory, count * sizeof(weir__copy_piece),
                           WEIR_CU_MEMHOSTALLOC_PORTABLE | WEIR_CU_MEMHOSTALLOC_DEVICEMAP))
    return false;
  if (driver->MemHostGetDevicePointer(driver, &device, memory, 0)) {
    driver->MemFreeHost(driver, memory);
    return false;
  }
  if (sleeper->pieces)
    driver->MemFreeHost(driver, sleeper->pieces);
  sleeper->pieces = memory;
  sleeper->pieces_device = device;
  sleeper->pieces_room = count;
  return true;
}

/* ---- One piece of host memory ---- */

typedef struct job {
  weir__heap *heap;
  weir__sleeper *sleeper;
  const weir__kept *kept;
  const weir__carry *carry; /* NULL if the pieces are only pinned */
  const uint64_t *begins;   /* of pieces: the number of the first byte */
  const size_t *firsts;     /* ... and of the first piece of the kernel */
  bool has_kernel;
  atomic_size_t next; /* piece that no thread has taken on */
  atomic_bool is_busy;
  weir__mutex lock; /* guards the following */
  weir_cu_result failure;
  const char *failed_call;
  uint64_t done;
} job;

static weir_cu_result launch(const job *j, size_t first, size_t count, weir_cu_stream stream) {
  weir_driver *driver = j->heap->allocator->driver;
  uint64_t pieces = j->sleeper->pieces_device + first * sizeof(weir__copy_piece), number = count;
  void *params[] = {&pieces, &number};
  unsigned blocks = count < MAX_BLOCKS ? (unsigned)count : MAX_BLOCKS;
  return driver->LaunchKernel(driver, j->sleeper->function, blocks, 1, 1, WEIR__COPY_THREADS, 1, 1, 0, stream, params,
                              NULL);
}

static weir_cu_result copy(const job *j, size_t k, weir_cu_stream stream, const char **failed_call) {
  weir_driver *driver = j->heap->allocator->driver;
  const weir__kept_piece *piece = &j->kept->pieces[k];
  bool to_host = j->carry->to_host;
  size_t first = j->firsts[k], count = 0;
  parts p = parts_of(j->kept, j->begins[k], piece->bytes);
  *failed_call = "cuMemcpyAsync";
  for (part found; next_part(&p, &found);) {
    weir_cu_deviceptr host = (weir_cu_deviceptr)(uintptr_t)(piece->memory + found.offset);
    if (!j->has_kernel || found.bytes >= LARGE) {
      weir_cu_result r = driver->MemcpyAsync(driver, to_host ? host : found.address, to_host ? found.address : host,
                                             found.bytes, stream);
      if (r)
        return r;
      continue;
    }
    host = piece->device + found.offset;
    for (uint64_t at = 0; at < found.bytes; at += OF_KERNEL)
      j->sleeper->pieces[first + count++] =
          (weir__copy_piece){.to = (to_host ? host : found.address) + at,
                             .from = (to_host ? found.address : host) + at,
                             .bytes = found.bytes - at < OF_KERNEL ? found.bytes - at : OF_KERNEL};
  }
  *failed_call = "cuLaunchKernel";
  return count ? launch(j, first, count, stream) : WEIR_CU_SUCCESS;
}

/* ---- Threads ---- */

static bool has_failed(job *j, weir_cu_result r, const char *call) {
  weir__mutex_lock(&j->lock);
  if (r && !j->failure) {
    j->failure = r;
    j->failed_call = call;
  }
  bool failed = j->failure != WEIR_CU_SUCCESS;
  weir__mutex_unlock(&j->lock);
  return failed;
}

/* Waits for the copies of a stream. If neither it nor the device can be waited for, they may still be under way. */
static bool has_copied(job *j, weir_cu_stream stream) {
  weir_driver *driver = j->heap->allocator->driver;
  weir_cu_result r = driver->StreamSynchronize(driver, stream);
  if (r && driver->CtxSynchronize(driver))
    atomic_store(&j->is_busy, true);
  return !has_failed(j, r, "cuStreamSynchronize");
}

/* Waits for a piece, because the program wants to know how far this is. */
static bool tell(job *j, size_t k, weir_cu_stream stream) {
  if (!j->carry->progress)
    return true;
  if (!has_copied(j, stream))
    return false;
  weir__mutex_lock(&j->lock);
  uint64_t bytes = j->kept->pieces[k].bytes, left = j->kept->bytes - j->begins[k]; /* the last piece may be larger */
  j->done += bytes < left ? bytes : left;
  j->carry->progress(j->carry->progress_context, j->done, j->kept->bytes);
  weir__mutex_unlock(&j->lock);
  return true;
}

/* Takes on pieces that no thread has. Their copies are waited for together. */
static void work_on(job *j, weir_cu_stream stream) {
  weir_driver *driver = j->heap->allocator->driver;
  const char *call = NULL;
  bool goes_on = true;
  size_t k;
  while (goes_on && (k = atomic_fetch_add(&j->next, 1)) < j->kept->piece_count) {
    weir_cu_result r = weir__kept_pin(j->sleeper, driver, &j->kept->pieces[k], &call);
    bool copies = j->carry && j->begins[k] < j->kept->bytes;
    if (!r && copies)
      r = copy(j, k, stream, &call);
    goes_on = !has_failed(j, r, call) && (!copies || tell(j, k, stream));
  }
  if (j->carry)
    has_copied(j, stream);
}

/* A thread of its own needs the context, and a stream, so that its copies are not behind those of others. */
static void *help(void *argument) {
  job *j = argument;
  weir_driver *driver = j->heap->allocator->driver;
  weir_cu_stream stream = NULL;
  int mode = WEIR_CU_CAPTURE_RELAXED;
  if (driver->CtxSetCurrent(driver, j->heap->cu_context) || driver->ThreadExchangeStreamCaptureMode(driver, &mode))
    return NULL;
  if (!j->carry)
    work_on(j, NULL);
  else if (!driver->StreamCreateWithPriority(driver, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0)) {
    work_on(j, stream);
    driver->StreamDestroy(driver, stream);
  }
  return NULL;
}

/* Threads that cannot be started, or that fail to begin, leave their part to the calling one. */
static void run(job *j, weir_cu_stream stream) {
  weir__thread_id ids[MAX_THREADS];
  size_t unpinned = 0, started = 0;
  for (size_t k = 0; k < j->kept->piece_count; k++)
    unpinned += !j->kept->pieces[k].is_pinned;
  for (size_t wanted = unpinned < MAX_THREADS ? unpinned : MAX_THREADS; started + 1 < wanted; started++)
    if (weir__thread_start(&ids[started], help, j))
      break;
  work_on(j, stream);
  while (started)
    weir__thread_join(ids[--started]);
}

/* ---- All pieces ---- */

static weir_cu_result run_job(job *j, weir_cu_stream stream) {
  weir__mutex_init(&j->lock);
  atomic_init(&j->next, 0);
  run(j, stream);
  weir__mutex_destroy(&j->lock);
  if (j->failure)
    j->sleeper->failed_call = j->failed_call;
  if (atomic_load(&j->is_busy))
    atomic_store(&j->sleeper->is_busy, true);
  return j->failure;
}

weir_cu_result weir__kept_pin_all(weir__heap *heap, weir__sleeper *sleeper, const weir__kept *kept) {
  job j = {.heap = heap, .sleeper = sleeper, .kept = kept};
  return run_job(&j, NULL);
}

weir_cu_result weir__kept_carry(weir__heap *heap, weir__sleeper *sleeper, const weir__kept *kept,
                                const weir__carry *carry) {
  weir_driver *driver = heap->allocator->driver;
  if (!kept->count)
    return WEIR_CU_SUCCESS;
  if (!sleeper->stream) {
    sleeper->failed_call = "cuStreamCreateWithPriority";
    weir_cu_result r = driver->StreamCreateWithPriority(driver, &sleeper->stream, WEIR_CU_STREAM_NON_BLOCKING, 0);
    if (r)
      return r;
  }
  uint64_t *begins = calloc(kept->piece_count, sizeof *begins);
  size_t *firsts = calloc(kept->piece_count, sizeof *firsts), small = 0;
  uint64_t begin = 0;
  weir_cu_result r = WEIR_CU_OUT_OF_MEMORY;
  sleeper->failed_call = "calloc";
  if (!begins || !firsts)
    goto done;
  for (size_t k = 0; k < kept->piece_count; k++) {
    begins[k] = begin;
    firsts[k] = small;
    small += small_pieces(kept, begin, kept->pieces[k].bytes);
    begin += kept->pieces[k].bytes;
  }
  job j = {.heap = heap, .sleeper = sleeper, .kept = kept, .carry = carry, .begins = begins, .firsts = firsts};
  j.has_kernel = small >= FEW && load(sleeper, driver) && make_room(sleeper, driver, small);
  r = run_job(&j, sleeper->stream);

done:
  free(begins);
  free(firsts);
  return r;
}

void weir__carry_end(weir__sleeper *sleeper, weir_driver *driver) {
  if (sleeper->stream)
    driver->StreamDestroy(driver, sleeper->stream);
  if (sleeper->pieces)
    driver->MemFreeHost(driver, sleeper->pieces);
  if (sleeper->has_kernel)
    driver->ModuleUnload(driver, sleeper->module);
}
