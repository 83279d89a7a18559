#include "base/parallel.h"

#include <string.h>

#include "base/base.h"
#include "base/thread.h"

enum { MAX_THREADS = 256 };

typedef struct work {
  const weir__parallel *parallel;
  void (*job)(void *context, size_t index, void *result);
  void *context;
  char *results;
  size_t size;
  size_t count;
  weir__mutex lock; /* guards the rest */
  size_t next;
  size_t done;
} work;

static void *work_on(void *argument) {
  work *w = argument;
  weir__mutex_lock(&w->lock);
  while (w->next < w->count) {
    size_t index = w->next++;
    weir__mutex_unlock(&w->lock);
    w->job(w->context, index, w->results + index * w->size);
    weir__mutex_lock(&w->lock);
    w->done++;
    if (w->parallel->progress)
      w->parallel->progress(w->parallel->progress_context, w->done, w->count);
  }
  weir__mutex_unlock(&w->lock);
  return NULL;
}

void weir__parallel_run(const weir__parallel *parallel, size_t count,
                        void (*job)(void *context, size_t index, void *result), void *context, void *results,
                        size_t size) {
  work w = {.parallel = parallel, .job = job, .context = context, .results = results, .size = size, .count = count};
  unsigned wanted = parallel->threads ? parallel->threads : weir__processor_count(), started = 0;
  weir__thread_id threads[MAX_THREADS];
  memset(results, 0, count * size);
  weir__mutex_init(&w.lock);
  if (wanted > MAX_THREADS)
    wanted = MAX_THREADS;
  if (wanted > count)
    wanted = (unsigned)count;
  while (started + 1 < wanted && !weir__thread_start(&threads[started], work_on, &w))
    started++; /* fewer will do if it fails */
  work_on(&w);
  for (unsigned i = 0; i < started; i++)
    weir__thread_join(threads[i]);
  weir__mutex_destroy(&w.lock);
}
