/*
 * Modules and kernels. PTX is not run: a module is looked through for the names of its entries, and an entry runs as the C
 * function that was registered under its name. The spin kernel is known from the start.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "driver/soft/soft.h"

/* As many as engine.c has room for, and as many bytes as a GPU takes. */
enum { max_params = 64, max_param_bytes = 32764 };

static bool is_small(int count, const size_t *bytes) {
  size_t left = max_param_bytes;
  for (int i = 0; i < count; i++) {
    if (bytes[i] > left)
      return false;
    left -= bytes[i];
  }
  return true;
}

static struct soft_kernel *kernel_find(const struct soft *soft, const char *name) {
  for (struct soft_kernel *k = soft->kernels; k; k = k->next)
    if (!strcmp(k->name, name))
      return k;
  return NULL;
}

weir_status weir_soft_register_kernel(weir_driver *driver, const char *name, weir_soft_kernel function, int param_count,
                                      const size_t *param_bytes) {
  struct soft *soft = weir__soft_of(driver, "weir_soft_register_kernel");
  if (!soft)
    return WEIR_ERROR_INVALID_ARGUMENT;
  if (!name || !*name || param_count < 0 || param_count > max_params || (param_count && !param_bytes) ||
      !is_small(param_count, param_bytes) || (!function && strcmp(name, "weir_spin")))
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "weir_soft_register_kernel: a name, a function and 0 to %d parameters of %d bytes in all are needed",
        max_params, max_param_bytes);
  struct soft_kernel *kernel = calloc(1, sizeof *kernel);
  if (kernel) {
    kernel->name = strdup(name);
    kernel->param_bytes = malloc(((size_t)param_count + 1) * sizeof *kernel->param_bytes);
  }
  if (!kernel || !kernel->name || !kernel->param_bytes)
    goto no_memory;
  if (param_count)
    memcpy(kernel->param_bytes, param_bytes, (size_t)param_count * sizeof *param_bytes);
  kernel->function = function;
  kernel->param_count = param_count;

  pthread_mutex_lock(&soft->lock);
  bool known = kernel_find(soft, name) != NULL;
  if (!known) {
    kernel->next = soft->kernels;
    soft->kernels = kernel;
  }
  pthread_mutex_unlock(&soft->lock);
  if (!known)
    return WEIR_OK;
  free(kernel->name);
  free(kernel->param_bytes);
  free(kernel);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "weir_soft_register_kernel: there is a kernel of the name %s", name);

no_memory:
  if (kernel) {
    free(kernel->name);
    free(kernel->param_bytes);
    free(kernel);
  }
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "weir_soft_register_kernel: no host memory");
}

/* ---- Modules ---- */

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

static bool has_entry(const char *text, const char *name) {
  size_t length = strlen(name);
  for (const char *at = text; (at = strstr(at, ".entry"));) {
    at += strlen(".entry");
    while (isspace((unsigned char)*at))
      at++;
    if (!strncmp(at, name, length) && !is_name(at[length]))
      return true;
  }
  return false;
}

weir_cu_result weir__soft_ModuleLoadData(struct soft *soft, weir_cu_module *module, const void *image) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  if (!module || !image)
    return WEIR_CU_INVALID_VALUE;
  if (!strstr(image, ".version"))
    return WEIR_CU_INVALID_IMAGE;
  struct soft_module *m = calloc(1, sizeof *m);
  if (!m)
    return WEIR_CU_OUT_OF_MEMORY;
  m->text = strdup(image);
  m->handle = m->text ? weir__soft_handle_new(soft, SOFT_MODULE, m) : 0;
  if (!m->handle) {
    free(m->text);
    free(m);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  m->device = device;
  *module = (weir_cu_module)m->handle;
  return WEIR_CU_SUCCESS;
}

void weir__soft_module_free(struct soft *soft, struct soft_module *module) {
  while (module->functions) {
    struct soft_function *function = module->functions;
    module->functions = function->next;
    weir__soft_handle_free(soft, function->handle);
    free(function);
  }
  weir__soft_handle_free(soft, module->handle);
  free(module->text);
  free(module);
}

weir_cu_result weir__soft_ModuleUnload(struct soft *soft, weir_cu_module module) {
  struct soft_module *m = weir__soft_handle_get(soft, SOFT_MODULE, (uintptr_t)module);
  if (!m)
    return WEIR_CU_INVALID_HANDLE;
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  weir__soft_wait_device(soft, m->device);
  m = weir__soft_handle_get(soft, SOFT_MODULE, (uintptr_t)module); /* the lock was away */
  if (!m)
    return WEIR_CU_INVALID_HANDLE;
  r = m->device->error;
  weir__soft_module_free(soft, m);
  return r;
}

/* NOT_SUPPORTED: the entry is there, but nobody registered what it does. */
weir_cu_result weir__soft_ModuleGetFunction(struct soft *soft, weir_cu_function *function, weir_cu_module module,
                                            const char *name) {
  struct soft_module *m = weir__soft_handle_get(soft, SOFT_MODULE, (uintptr_t)module);
  if (!m)
    return WEIR_CU_INVALID_HANDLE;
  if (m->device->error)
    return m->device->error;
  if (!function || !name)
    return WEIR_CU_INVALID_VALUE;
  if (!*name || !has_entry(m->text, name))
    return WEIR_CU_NOT_FOUND;
  struct soft_kernel *kernel = kernel_find(soft, name);
  if (!kernel)
    return WEIR_CU_NOT_SUPPORTED;
  struct soft_function *f = m->functions;
  while (f && f->kernel != kernel)
    f = f->next;
  if (!f) {
    f = calloc(1, sizeof *f);
    if (!f)
      return WEIR_CU_OUT_OF_MEMORY;
    f->handle = weir__soft_handle_new(soft, SOFT_FUNCTION, f);
    if (!f->handle) {
      free(f);
      return WEIR_CU_OUT_OF_MEMORY;
    }
    f->module = m;
    f->kernel = kernel;
    f->next = m->functions;
    m->functions = f;
  }
  *function = (weir_cu_function)f->handle;
  return WEIR_CU_SUCCESS;
}

/* ---- Launches ---- */

static struct soft_work *kernel_work(const struct soft_kernel *kernel, void **params) {
  struct soft_work *work = weir__soft_work_new(kernel->function ? SOFT_WORK_KERNEL : SOFT_WORK_SPIN);
  if (!work)
    return NULL;
  if (!kernel->function) {
    memcpy(&work->as.spin.cycles, params[0], sizeof work->as.spin.cycles);
    return work;
  }
  size_t bytes = 0;
  for (int i = 0; i < kernel->param_count; i++)
    bytes += weir__round_up(kernel->param_bytes[i], 16);
  work->as.kernel.function = kernel->function;
  work->as.kernel.param_count = kernel->param_count;
  work->as.kernel.param_bytes = kernel->param_bytes;
  if (!bytes)
    return work;
  work->as.kernel.params = malloc(bytes);
  if (!work->as.kernel.params) {
    weir__soft_work_free(work);
    return NULL;
  }
  size_t at = 0;
  for (int i = 0; i < kernel->param_count; i++) {
    memcpy(work->as.kernel.params + at, params[i], kernel->param_bytes[i]);
    at += weir__round_up(kernel->param_bytes[i], 16);
  }
  return work;
}

weir_cu_result weir__soft_LaunchKernel(struct soft *soft, weir_cu_function function, unsigned grid_x, unsigned grid_y,
                                       unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                       unsigned shared_bytes, weir_cu_stream stream, void **params, void **extra) {
  struct soft_function *f = weir__soft_handle_get(soft, SOFT_FUNCTION, (uintptr_t)function);
  if (!f)
    return WEIR_CU_INVALID_HANDLE;
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (s->device != f->module->device)
    return WEIR_CU_INVALID_HANDLE;
  uint64_t threads = (uint64_t)block_x * block_y * block_z;
  if (!grid_x || !grid_y || !grid_z || !threads || threads > 1024 || block_z > 64 || extra ||
      (f->kernel->param_count && !params))
    return WEIR_CU_INVALID_VALUE;
  struct soft_work *work = kernel_work(f->kernel, params);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  if (work->kind == SOFT_WORK_KERNEL) {
    unsigned grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    memcpy(work->as.kernel.grid, grid, sizeof grid);
    memcpy(work->as.kernel.block, block, sizeof block);
    work->as.kernel.shared_bytes = shared_bytes;
  }
  return weir__soft_submit(soft, s, work);
}
