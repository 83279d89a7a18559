#include "progress.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/thread.h"

enum { FIRST_MS = 1000, NEXT_MS = 100, WIDTH = 30 };

struct weir_cli_progress {
  char what[128];
  weir__thread_id thread;
  weir__mutex lock; /* guards the rest */
  weir__cond changed;
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
  uint64_t next_ns = weir__monotonic_ns();
  long elapsed = 0; /* ms */
  weir__mutex_lock(&p->lock);
  while (!p->is_over) {
    long step = elapsed ? NEXT_MS : FIRST_MS;
    elapsed += step;
    next_ns += (uint64_t)step * 1000000;
    while (!p->is_over && weir__cond_wait_until(&p->changed, &p->lock, next_ns))
      continue;
    if (!p->is_over)
      show(p, (double)elapsed / 1000);
  }
  if (p->is_shown)
    fputs("\r\033[K", stderr);
  weir__mutex_unlock(&p->lock);
  return NULL;
}

weir_cli_progress *weir_cli_progress_begin(const char *what) {
  weir_cli_progress *p = isatty(STDERR_FILENO) ? calloc(1, sizeof *p) : NULL;
  if (!p)
    return NULL;
  snprintf(p->what, sizeof p->what, "%s", what);
  weir__mutex_init(&p->lock);
  weir__cond_init(&p->changed);
  if (weir__thread_start(&p->thread, run, p)) {
    weir__cond_destroy(&p->changed);
    weir__mutex_destroy(&p->lock);
    free(p);
    return NULL;
  }
  return p;
}

void weir_cli_progress_step(void *progress, size_t done, size_t count) {
  weir_cli_progress *p = progress;
  if (!p)
    return;
  weir__mutex_lock(&p->lock);
  p->done = done;
  p->count = count;
  weir__mutex_unlock(&p->lock);
}

void weir_cli_progress_end(weir_cli_progress *progress) {
  if (!progress)
    return;
  weir__mutex_lock(&progress->lock);
  progress->is_over = true;
  weir__cond_signal(&progress->changed);
  weir__mutex_unlock(&progress->lock);
  weir__thread_join(progress->thread);
  weir__cond_destroy(&progress->changed);
  weir__mutex_destroy(&progress->lock);
  free(progress);
}
