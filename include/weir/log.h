/*
 * Log messages.
 */
#ifndef WEIR_LOG_H
#define WEIR_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weir_log_level {
  WEIR_LOG_ERROR,
  WEIR_LOG_WARN,
  WEIR_LOG_INFO,
  WEIR_LOG_DEBUG /* every driver call that fails, and every error that is returned */
} weir_log_level;

typedef void (*weir_log_fn)(void *context, weir_log_level level, const char *message);

/* Sets the function that gets all messages. The default, or NULL, writes "weir: warning: ..." to stderr. The sink
 * may be called from any thread, and must not call Weir. */
void weir_log_set_sink(weir_log_fn sink, void *context);

/* Messages above this level are dropped. The default is that of WEIR_LOG=error|warn|info|debug, or warn. */
void weir_log_set_level(weir_log_level level);
weir_log_level weir_log_get_level(void);

/* Logs a message of an adapter like one of Weir. */
void weir_log_message(weir_log_level level, const char *message);

#ifdef __cplusplus
}
#endif
#endif
