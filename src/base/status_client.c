/*
 * The functions of status.c and log.c in a library beside libweir: errors and messages go to libweir. Not part of
 * libweir.
 */
#include <stdio.h>

#include "base/base.h"
#include "weir/adapter.h"

#undef weir__fail /* macros for the static analyzer */
#undef weir__fail_as

enum { TEXT_SIZE = 2048 };

weir_status weir__fail(weir_status status, const char *format, ...) {
  char text[TEXT_SIZE];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return weir_report_error(status, text);
}

weir_status weir__fail_as(const char *caller, weir_status status) { return weir_report_as(caller, status); }

void weir__log(weir_log_level level, const char *format, ...) {
  if (level > weir_log_get_level())
    return;
  char text[TEXT_SIZE];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  weir_log_message(level, text);
}
