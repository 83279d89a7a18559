#include "weir/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/environment.h"
#include "base/text.h"
#include "base/thread.h"

static const char *const words[] = {
    [WEIR_LOG_ERROR] = "error",
    [WEIR_LOG_WARN] = "warning",
    [WEIR_LOG_INFO] = "info",
    [WEIR_LOG_DEBUG] = "debug",
};

enum { LEVEL_UNREAD = -1 };

/* LEVEL_UNREAD until it is set, or the first reader takes it from the environment. */
static atomic_int current_level = LEVEL_UNREAD;

/* Held while a sink runs: after weir_log_set_sink returns, the old sink and its context can be freed. Recursive, so
 * that a sink that forks does not wait for itself in before_fork. */
static weir__mutex sink_lock = WEIR__RECURSIVE_MUTEX_INIT;
static weir_log_fn current_sink; /* guarded by sink_lock; NULL stands for stderr */
static void *current_context;    /* guarded by sink_lock */

/* The child of a fork gets the lock as it was, without the thread that held it. */
static void before_fork(void) { weir__mutex_lock(&sink_lock); }
static void after_fork_in_parent(void) { weir__mutex_unlock(&sink_lock); }
static void after_fork_in_child(void) {
  /* The lock knows its owner by a thread id that the child does not have, so it is made anew. The unlock is for the
   * thread sanitizer, which would consider the lock held forever. */
  weir__mutex_unlock(&sink_lock);
  sink_lock = (weir__mutex)WEIR__RECURSIVE_MUTEX_INIT;
}
WEIR__AT_LOAD(WEIR__LOAD_LOG) void watch_forks(void) {
  weir__at_fork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void lock_sink(void) { weir__mutex_lock(&sink_lock); }

static void emit(weir_log_level level, const char *message) {
  lock_sink();
  if (current_sink)
    current_sink(current_context, level, message);
  else
    fprintf(stderr, "weir: %s: %s\n", words[level], message);
  weir__mutex_unlock(&sink_lock);
}

weir_log_level weir_log_get_level(void) {
  int level = atomic_load_explicit(&current_level, memory_order_relaxed);
  if (level != LEVEL_UNREAD)
    return (weir_log_level)level;

  int read = WEIR_LOG_WARN;
  bool is_valid = weir__env_choice(WEIR__ENV_LOG, &read);
  /* The first thread to set it wins, and only that one complains. */
  if (!atomic_compare_exchange_strong(&current_level, &level, read))
    return (weir_log_level)level;
  if (!is_valid)
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

void weir_log_set_sink(weir_log_fn sink, void *context) {
  lock_sink();
  current_sink = sink;
  current_context = context;
  weir__mutex_unlock(&sink_lock);
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
