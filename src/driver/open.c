/*
 * The choice of a driver.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/environment.h"
#include "driver/cuda.h"
#include "weir/soft.h"

static weir_status open_soft(weir_driver **driver) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.context_bytes = WEIR_SOFT_CONTEXT_AUTO;
  weir_status status = weir_soft_options_from_env(&options);
  return status ? status : weir_driver_open_soft(&options, driver);
}

static weir_status open_auto(weir_driver **driver) {
  char reason[WEIR__CUDA_REASON];
  weir_driver *cuda;
  if (!weir__cuda_open(reason, &cuda)) {
    if (weir__cuda_has_device(cuda, reason)) {
      *driver = cuda;
      return WEIR_OK;
    }
    weir_driver_close(cuda);
  }
  weir__cuda_log_fallback("weir_driver_open", reason);
  return open_soft(driver);
}

weir_status weir_driver_open(const char *choice, weir_driver **driver) {
  WEIR__CHECK_ARGUMENT(driver);
  const char *source = "choice";
  if (!choice) {
    source = "WEIR_DRIVER";
    choice = weir__env_value(WEIR__ENV_DRIVER);
    if (!choice)
      choice = "auto";
  }
  if (strcmp(choice, "auto") == 0)
    return open_auto(driver);
  if (strcmp(choice, "cuda") == 0)
    return weir_driver_open_cuda(driver);
  if (strcmp(choice, "soft") == 0)
    return open_soft(driver);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is \"%s\"; allowed are \"auto\", \"cuda\" and \"soft\"",
                    __func__, source, choice);
}
