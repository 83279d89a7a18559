/*
 * Kernels, which are C functions.
 */
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "driver/soft/soft.h"

/* The limit of a GPU. */
enum { max_param_bytes = 32764 };

static weir_status check_params(const char *caller, int count, const size_t *bytes) {
  if (count < 0 || count > MODEL_MAX_PARAMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: param_count is %d; allowed are 0 to %d", caller, count,
                      MODEL_MAX_PARAMS);
  size_t left = max_param_bytes;
  for (int i = 0; i < count; left -= bytes[i++])
    if (bytes[i] > left)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the parameters are larger than %d bytes", caller,
                        max_param_bytes);
  return WEIR_OK;
}

weir_status weir_soft_register_kernel(weir_driver *driver, const char *name, weir_soft_kernel_fn function,
                                      int param_count, const size_t *param_bytes) {
  struct soft *soft = weir__soft_of(driver, __func__);
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  WEIR__CHECK_ARGUMENT(name);
  if (strcmp(name, "weir_spin")) /* the spin kernel is built in */
    WEIR__CHECK_ARGUMENT(function);
  if (param_count > 0)
    WEIR__CHECK_ARGUMENT(param_bytes);
  if (!*name)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: name is empty", __func__);
  weir_status status = check_params(__func__, param_count, param_bytes);
  if (status)
    return status;
  /* One block holds the kernel, the sizes and the name. */
  size_t bytes = (size_t)param_count * sizeof *param_bytes, length = strlen(name) + 1;
  model_kernel *kernel = malloc(sizeof *kernel + bytes + length);
  if (!kernel)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the kernel", __func__);
  size_t *sizes = (size_t *)(kernel + 1);
  if (bytes)
    memcpy(sizes, param_bytes, bytes);
  *kernel = (model_kernel){.name = memcpy((char *)sizes + bytes, name, length),
                           .function = function,
                           .param_count = param_count,
                           .param_bytes = sizes};

  weir__mutex_lock(&soft->lock);
  bool known = weir__model_kernel(&soft->m, name);
  if (!known) {
    kernel->next = soft->m.kernels;
    soft->m.kernels = kernel;
  }
  weir__mutex_unlock(&soft->lock);
  if (!known)
    return WEIR_OK; /* cppcheck-suppress memleak ; the list owns it */
  free(kernel);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: a kernel named %s exists already", __func__, name);
}
