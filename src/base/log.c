#include "weir/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"

static const struct {
  const char *name; /* in WEIR_LOG */
  const char *word; /* in messages */
} levels[] = {
    [WEIR_LOG_ERROR] = {"error", "error"},
    [WEIR_LOG_WARN] = {"warn", "warning"},
    [WEIR_LOG_INFO] = {"info", "info"},
    [WEIR_LOG_DEBUG] = {"debug", "debug"},
};

enum { LEVEL_UNREAD = -1 };

/* LEVEL_UNREAD until someone sets it or the first reader takes it from the environment. */
static atomic_int current_level = LEVEL_UNREAD;

/* Held while a sink runs: after weir_log_set_sink returns, the old sink and its context can be freed. Recursive, so that a
 * sink that forks does not wait for itself in before_fork. */
static pthread_mutex_t sink_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static weir_log_sink current_sink; /* guarded by sink_lock; NULL: stderr */
static void *current_context;      /* guarded by sink_lock */

/* A child of fork gets the lock as it was, and the thread that held it does not exist there. */
static void before_fork(void) { pthread_mutex_lock(&sink_lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&sink_lock); }
static void after_fork_in_child(void) {
  /* The unlock alone does not do: the lock knows its owner by a thread id, which the child has not got. It is there for
   * thread sanitizer, which would think it held for ever. */
  pthread_mutex_unlock(&sink_lock);
  sink_lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}
static void watch_fork(void) { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

void weir__log_watch_forks(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_fork);
}

static void lock_sink(void) {
  weir__log_watch_forks();
  pthread_mutex_lock(&sink_lock);
}

static void emit(weir_log_level level, const char *message) {
  lock_sink();
  if (current_sink != NULL)
    current_sink(current_context, level, message);
  else
    fprintf(stderr, "weir: %s: %s\n", levels[level].word, message);
  pthread_mutex_unlock(&sink_lock);
}

static int level_from_environment(bool *wrong) {
  const char *text = getenv("WEIR_LOG");
  *wrong = false;
  if (text == NULL || *text == '\0')
    return WEIR_LOG_WARN;
  for (int level = 0; level < (int)WEIR_COUNT_OF(levels); level++) {
    if (strcmp(text, levels[level].name) == 0)
      return level;
  }
  *wrong = true;
  return WEIR_LOG_WARN;
}

weir_log_level weir_log_get_level(void) {
  int level = atomic_load_explicit(&current_level, memory_order_relaxed);
  if (level != LEVEL_UNREAD)
    return (weir_log_level)level;

  bool wrong;
  int read = level_from_environment(&wrong);
  /* Whoever sets it first wins, and one thread only complains. */
  if (!atomic_compare_exchange_strong(&current_level, &level, read))
    return (weir_log_level)level;
  if (wrong)
    emit(WEIR_LOG_WARN, "WEIR_LOG is none of error, warn, info and debug; taking warn");
  return (weir_log_level)read;
}

void weir_log_set_level(weir_log_level level) {
  int number = (int)level;
  if (number < WEIR_LOG_ERROR)
    number = WEIR_LOG_ERROR;
  if (number > WEIR_LOG_DEBUG)
    number = WEIR_LOG_DEBUG;
  atomic_store(&current_level, number);
}

void weir_log_set_sink(weir_log_sink sink, void *context) {
  lock_sink();
  current_sink = sink;
  current_context = context;
  pthread_mutex_unlock(&sink_lock);
}

void weir__log(weir_log_level level, const char *format, ...) {
  if (level > weir_log_get_level())
    return;
  char message[WEIR__TEXT_SIZE];
  va_list args;
  va_start(args, format);
  weir__format_text(message, sizeof message, format, args);
  va_end(args);
  weir__escape_message(message, sizeof message, strchr(format, '\n') != NULL);
  emit(level, message);
}

void weir_log_message(weir_log_level level, const char *message) {
  if ((unsigned)level <= WEIR_LOG_DEBUG && message)
    weir__log(level, "%s", message);
}
