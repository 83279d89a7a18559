#include "progress.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FIRST_MS = 1000, NEXT_MS = 100, WIDTH = 30 };

struct weir_cli_progress {
  char what[128];
  pthread_t thread;
  pthread_mutex_t lock; /* guards the rest */
  pthread_cond_t changed;
  size_t done, count; /* count is 0 if not known */
  bool is_over;
  bool is_shown;
};

static void show(weir_cli_progress *p, double seconds) {
  if (!p->count)
    fprintf(stderr, "\r%s: %.0f s\033[K", p->what, seconds);
  else {
    int filled = (int)(WIDTH * p->done / p->count);
    fprintf(stderr, "\r%s [", p->what);
    for (int i = 0; i < WIDTH; i++)
      fputc(i < filled ? '#' : ' ', stderr);
    fprintf(stderr, "] %zu of %zu, %.0f s\033[K", p->done, p->count, seconds);
  }
  p->is_shown = true;
}

static void *run(void *argument) {
  weir_cli_progress *p = argument;
  struct timespec next;
  clock_gettime(CLOCK_MONOTONIC, &next);
  long elapsed = 0; /* ms */
  pthread_mutex_lock(&p->lock);
  while (!p->is_over) {
    long step = elapsed ? NEXT_MS : FIRST_MS;
    elapsed += step;
    next.tv_nsec += step % 1000 * 1000000;
    next.tv_sec += step / 1000 + next.tv_nsec / 1000000000;
    next.tv_nsec %= 1000000000;
    while (!p->is_over && pthread_cond_timedwait(&p->changed, &p->lock, &next) != ETIMEDOUT)
      continue;
    if (!p->is_over)
      show(p, (double)elapsed / 1000);
  }
  if (p->is_shown)
    fputs("\r\033[K", stderr);
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

weir_cli_progress *weir_cli_progress_begin(const char *what) {
  weir_cli_progress *p = isatty(STDERR_FILENO) ? calloc(1, sizeof *p) : NULL;
  if (!p)
    return NULL;
  snprintf(p->what, sizeof p->what, "%s", what);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  if (pthread_create(&p->thread, NULL, run, p)) {
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return NULL;
  }
  return p;
}

void weir_cli_progress_step(void *progress, size_t done, size_t count) {
  weir_cli_progress *p = progress;
  if (!p)
    return;
  pthread_mutex_lock(&p->lock);
  p->done = done;
  p->count = count;
  pthread_mutex_unlock(&p->lock);
}

void weir_cli_progress_end(weir_cli_progress *progress) {
  if (!progress)
    return;
  pthread_mutex_lock(&progress->lock);
  progress->is_over = true;
  pthread_cond_signal(&progress->changed);
  pthread_mutex_unlock(&progress->lock);
  pthread_join(progress->thread, NULL);
  pthread_cond_destroy(&progress->changed);
  pthread_mutex_destroy(&progress->lock);
  free(progress);
}
