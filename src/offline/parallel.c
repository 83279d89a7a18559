#include "offline/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { MOST_THREADS = 256 };

typedef struct work {
  const weir__parallel *parallel;
  void (*job)(void *context, size_t index, void *result);
  void *context;
  char *results;
  size_t size;
  size_t count;
  size_t step;          /* the distance between jobs of this process */
  pthread_mutex_t lock; /* guards the rest */
  size_t next;
  size_t done;
} work;

static void *work_on(void *argument) {
  work *w = argument;
  pthread_mutex_lock(&w->lock);
  while (w->next < w->count) {
    size_t index = w->next;
    w->next += w->step;
    pthread_mutex_unlock(&w->lock);
    w->job(w->context, index, w->results + index * w->size);
    pthread_mutex_lock(&w->lock);
    w->done += w->step;
    if (w->parallel->progress)
      w->parallel->progress(w->parallel->progress_context, w->done < w->count ? w->done : w->count, w->count);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static unsigned cores(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set))
    return 1;
  return (unsigned)CPU_COUNT(&set);
}

weir_status weir__parallel_run(const weir__parallel *parallel, size_t count,
                               void (*job)(void *context, size_t index, void *result), void *context, void *results,
                               size_t size) {
  bool is_alone = parallel->ranks <= 1;
  work w = {.parallel = parallel,
            .job = job,
            .context = context,
            .results = results,
            .size = size,
            .count = count,
            .step = is_alone ? 1 : (size_t)parallel->ranks,
            .next = is_alone ? 0 : (size_t)parallel->rank};
  unsigned wanted = parallel->threads ? parallel->threads : cores(), started = 0;
  pthread_t threads[MOST_THREADS];
  memset(results, 0, count * size);
  pthread_mutex_init(&w.lock, NULL);
  if (wanted > MOST_THREADS)
    wanted = MOST_THREADS;
  if (wanted > count)
    wanted = (unsigned)count;
  while (started + 1 < wanted && !pthread_create(&threads[started], NULL, work_on, &w))
    started++; /* fewer will do if it fails */
  work_on(&w);
  for (unsigned i = 0; i < started; i++)
    pthread_join(threads[i], NULL);
  pthread_mutex_destroy(&w.lock);
  return is_alone ? WEIR_OK : parallel->share(parallel->share_context, results, count * size);
}
