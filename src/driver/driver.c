/*
 * What all tables share: names, texts and the end.
 */
#include "weir/driver.h"
#include "base/base.h"
#include "driver/work.h"

_Atomic(weir__work_observer_fn) weir__work_observer;

const char *weir_driver_call_name(weir_driver_call call) {
  static const char *const names[] = {
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) "cu" #name,
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) "cu" #name,
#include "weir/driver_entries.h"
  };
  return (size_t)call < WEIR_COUNT_OF(names) ? names[call] : NULL;
}

const char *weir_cu_result_name(weir_cu_result result) {
  if (!result)
    return "CUDA_SUCCESS";
  switch (result) {
#define X(code, name, text)                                                                                            \
  case code:                                                                                                           \
    return "CUDA_ERROR_" #name;
    WEIR_CU_RESULT_MAP(X)
#undef X
  }
  return "CUDA_ERROR_<unrecognized>";
}

const char *weir_cu_result_string(weir_cu_result result) {
  switch (result) {
#define X(code, name, text)                                                                                            \
  case code:                                                                                                           \
    return text;
    WEIR_CU_RESULT_MAP(X)
#undef X
  }
  return "unrecognized error code";
}

void weir_driver_close(weir_driver *driver) {
  if (driver && driver->destroy)
    driver->destroy(driver);
}
