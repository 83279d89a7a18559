#include "weir/status.h"

#include <stdarg.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"

static _Thread_local struct {
  char text[WEIR__TEXT_SIZE];
  int driver_result;
} last;

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

const char *weir_last_error(void) { return last.text; }

int weir_last_driver_result(void) { return last.driver_result; }

static void fail(weir_status status, int driver_result, const char *format, va_list args) {
  /* Not straight into last.text: the arguments may quote it. */
  char text[WEIR__TEXT_SIZE];
  weir__format_text(text, sizeof text, format, args);
  memcpy(last.text, text, strlen(text) + 1);
  last.driver_result = driver_result;
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
