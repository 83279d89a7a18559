/*
 * Kernels as C functions.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/soft/soft.h"

/* As many bytes of parameters as a GPU takes. */
enum { max_param_bytes = 32764 };

static bool is_small(int count, const size_t *bytes) {
  size_t left = max_param_bytes;
  for (int i = 0; i < count; i++) {
    if (bytes[i] > left)
      return false;
    left -= bytes[i];
  }
  return true;
}

weir_status weir_soft_register_kernel(weir_driver *driver, const char *name, weir_soft_kernel function, int param_count,
                                      const size_t *param_bytes) {
  struct soft *soft = weir__soft_of(driver, __func__);
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  bool spins = name && !strcmp(name, "weir_spin"); /* is known, and needs no function */
  if (!name || !*name || (!function && !spins) || param_count < 0 || param_count > MODEL_MAX_PARAMS ||
      (param_count && !param_bytes) || !is_small(param_count, param_bytes))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: a name, a function and 0 to %d parameters of %d bytes in all are needed", __func__,
                      MODEL_MAX_PARAMS, max_param_bytes);
  /* The sizes and the name lie behind the kernel. */
  size_t bytes = (size_t)param_count * sizeof *param_bytes, length = strlen(name) + 1;
  model_kernel *kernel = malloc(sizeof *kernel + bytes + length);
  if (!kernel)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory for the kernel", __func__);
  size_t *sizes = (size_t *)(kernel + 1);
  if (bytes)
    memcpy(sizes, param_bytes, bytes);
  *kernel = (model_kernel){memcpy((char *)sizes + bytes, name, length), function, param_count, sizes, NULL};

  pthread_mutex_lock(&soft->lock);
  bool known = weir__model_kernel(&soft->m, name);
  if (!known) {
    kernel->next = soft->m.kernels;
    soft->m.kernels = kernel;
  }
  pthread_mutex_unlock(&soft->lock);
  if (!known)
    return WEIR_OK; /* cppcheck-suppress memleak ; the list has it */
  free(kernel);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there is a kernel of the name %s", __func__, name);
}
