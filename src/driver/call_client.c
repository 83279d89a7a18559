/*
 * call.c in a library beside libweir. Not part of libweir.
 */
#include "driver/call.h"
#include "weir/adapter.h"

weir_status weir__driver_status(weir_driver *driver, weir_cu_result result, const char *caller, const char *call) {
  return result ? weir_report_result(driver, result, caller, call) : WEIR_OK;
}
