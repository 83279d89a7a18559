#include "weir/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"
#include "base/thread.h"
#include "weir/adapter.h"

#undef weir__fail /* macros for the static analyzer */
#undef weir__fail_as

/* The buffer is allocated when a thread first fails, because a library that is loaded into a running program has little
 * thread-local memory. */
static _Thread_local struct {
  const char *text; /* NULL if nothing has failed yet */
  char *buffer;     /* WEIR__TEXT_SIZE bytes for the text, and WEIR__FACTS_SIZE; NULL until it is needed */
  int driver_result;
  bool has_facts; /* behind the text in the buffer */
} last;

static void free_buffer(void *buffer) {
  free(buffer);
  last.text = NULL;
  last.buffer = NULL;
}

WEIR__AT_THREAD_END(buffer_key, free_buffer)

/* NULL if the host has no memory. */
static char *get_buffer(void) {
  if (last.buffer)
    return last.buffer;
  char *buffer = has_buffer_key ? malloc(WEIR__TEXT_SIZE + WEIR__FACTS_SIZE) : NULL;
  if (!buffer)
    return NULL;
  if (weir__thread_key_set(buffer_key, buffer)) {
    free(buffer);
    return NULL;
  }
  return last.buffer = buffer;
}

const char *weir_status_name(weir_status status) {
  switch ((int)status) {
#define X(number, name, text)                                                                                          \
  case number:                                                                                                         \
    return "WEIR_" #name;
    WEIR_STATUS_MAP(X)
#undef X
  }
  return "WEIR_ERROR_UNKNOWN";
}

const char *weir_status_string(weir_status status) {
  switch ((int)status) {
#define X(number, name, text)                                                                                          \
  case number:                                                                                                         \
    return text;
    WEIR_STATUS_MAP(X)
#undef X
  }
  return "no status has this number";
}

const char *weir_last_error(void) { return last.text ? last.text : ""; }

weir_status weir__fail_output(const char *caller, int error) {
  return weir__fail(error == ENOMEM ? WEIR_ERROR_HOST_OUT_OF_MEMORY : WEIR_ERROR_SYSTEM,
                    "%s%sthe output could not be written completely: %s", caller ? caller : "", caller ? ": " : "",
                    strerror(error));
}

void weir__keep_facts(const void *facts, size_t size) {
  if (!last.buffer || size > WEIR__FACTS_SIZE)
    return;
  memcpy(last.buffer + WEIR__TEXT_SIZE, facts, size);
  last.has_facts = true;
}

const void *weir__last_facts(void) { return last.buffer && last.has_facts ? last.buffer + WEIR__TEXT_SIZE : NULL; }

int weir_last_driver_result(void) { return last.driver_result; }

static void fail(weir_status status, int driver_result, const char *format, va_list args) {
  /* Formatted elsewhere first: the arguments may quote the last error. */
  char text[WEIR__TEXT_SIZE], *buffer = get_buffer();
  weir__format_text(text, sizeof text, format, args);
  weir__escape_message(text, sizeof text, strchr(format, '\n') != NULL); /* it may quote a file's names */
  last.text = buffer ? memcpy(buffer, text, strlen(text) + 1) : weir_status_string(status);
  last.driver_result = driver_result;
  last.has_facts = false;
  weir__log(WEIR_LOG_DEBUG, "%s: %s", weir_status_name(status), text);
}

weir_status weir__fail(weir_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(status, 0, format, args);
  va_end(args);
  return status;
}

weir_status weir__fail_result(weir_status status, int driver_result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(status, driver_result, format, args);
  va_end(args);
  return status;
}

/* Newlines are kept if the format has one. */
static weir_status fail_with_lines(weir_status status, const char *text) {
  const char *line = strchr(text, '\n');
  return weir__fail(status, "%.*s\n%s", (int)(line - text), text, line + 1);
}

weir_status weir_report_error(weir_status status, const char *text) {
  WEIR__CHECK_ARGUMENT(text);
  return strchr(text, '\n') ? fail_with_lines(status, text) : weir__fail(status, "%s", text);
}

weir_status weir_report_as(const char *caller, weir_status status) {
  WEIR__CHECK_ARGUMENT(caller);
  return weir__fail_as(caller, status);
}

weir_status weir__fail_as(const char *caller, weir_status status) {
  char text[WEIR__TEXT_SIZE], *buffer = status ? get_buffer() : NULL;
  const char *why = buffer && last.text == buffer ? strchr(buffer, ':') : NULL;
  if (why && (size_t)snprintf(text, sizeof text, "%s%s", caller, why) < sizeof text)
    memcpy(buffer, text, strlen(text) + 1);
  return status;
}
