/*
 * Modules and kernels. PTX is not run: a module is searched for the names of its entries, and an entry is the kernel
 * that is known under its name. "weir_spin" is known from the start.
 */
#include "driver/model/model.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static size_t spin_params[] = {sizeof(uint64_t)};
static const model_kernel spin = {.name = "weir_spin", .param_count = 1, .param_bytes = spin_params};

const model_kernel *weir__model_kernel(const model *m, const char *name) {
  if (!strcmp(name, spin.name))
    return &spin;
  const model_kernel *kernel = m->kernels;
  while (kernel && strcmp(kernel->name, name))
    kernel = kernel->next;
  return kernel;
}

size_t weir__model_params_bytes(const model_kernel *kernel) {
  size_t bytes = 0;
  for (int i = 0; i < kernel->param_count; i++)
    bytes += weir__round_up(kernel->param_bytes[i], 16);
  return bytes;
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

static model_module *find_module(const model *m, weir_cu_module handle) {
  return weir__handles_get(&m->modules, (uintptr_t)handle);
}

weir_cu_result weir__model_ModuleLoadData(model *m, weir_cu_module *module, const void *image) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  if (!module || !image)
    return WEIR_CU_INVALID_VALUE;
  if (!strstr(image, ".version"))
    return WEIR_CU_INVALID_IMAGE;
  model_module *made = weir__handles_make(&m->modules);
  if (!made)
    return WEIR_CU_OUT_OF_MEMORY;
  made->device = device;
  made->text = strdup(image);
  if (!made->text) {
    weir__handles_drop(&m->modules, made);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *module = (weir_cu_module)(uintptr_t)weir__handle_of(&m->modules, made);
  return WEIR_CU_SUCCESS;
}

void weir__model_drop_module(model *m, model_module *module) {
  while (module->functions) {
    model_function *function = module->functions;
    module->functions = function->next;
    weir__handles_drop(&m->functions, function);
  }
  free(module->text);
  weir__handles_drop(&m->modules, module);
}

weir_cu_result weir__model_ModuleUnload(model *m, weir_cu_module module) {
  model_module *found = find_module(m, module);
  if (!found)
    return WEIR_CU_INVALID_HANDLE;
  weir_cu_result r = weir__model_unsafe(m);
  if (r)
    return r;
  m->hooks->wait_device(m, found->device);
  found = find_module(m, module); /* other threads ran meanwhile */
  if (!found)
    return WEIR_CU_INVALID_HANDLE;
  r = found->device->error;
  weir__model_drop_module(m, found);
  return r;
}

/* NOT_SUPPORTED: the entry is there, but it is not known what it does. */
weir_cu_result weir__model_ModuleGetFunction(model *m, weir_cu_function *function, weir_cu_module module,
                                             const char *name) {
  model_module *found = find_module(m, module);
  if (!found)
    return WEIR_CU_INVALID_HANDLE;
  if (found->device->error)
    return found->device->error;
  if (!function || !name)
    return WEIR_CU_INVALID_VALUE;
  if (!*name || !has_entry(found->text, name))
    return WEIR_CU_NOT_FOUND;
  const model_kernel *kernel = weir__model_kernel(m, name);
  if (!kernel)
    return WEIR_CU_NOT_SUPPORTED;
  model_function *f = found->functions;
  while (f && f->kernel != kernel)
    f = f->next;
  if (!f) {
    f = weir__handles_make(&m->functions);
    if (!f)
      return WEIR_CU_OUT_OF_MEMORY;
    f->module = found;
    f->kernel = kernel;
    f->next = found->functions;
    found->functions = f;
  }
  *function = (weir_cu_function)(uintptr_t)weir__handle_of(&m->functions, f);
  return WEIR_CU_SUCCESS;
}

/* ---- Launches ---- */

/* Copies the parameters; false if the host has no memory. */
static bool take_params(model_work *work, void **params) {
  const model_kernel *kernel = work->as.kernel.kernel;
  size_t at = 0, bytes = weir__model_params_bytes(kernel);
  if (!bytes)
    return true;
  unsigned char *copy = work->as.kernel.params = malloc(bytes);
  for (int i = 0; copy && i < kernel->param_count; i++) {
    memcpy(copy + at, params[i], kernel->param_bytes[i]);
    at += weir__round_up(kernel->param_bytes[i], 16);
  }
  return copy;
}

weir_cu_result weir__model_LaunchKernel(model *m, weir_cu_function function, unsigned grid_x, unsigned grid_y,
                                        unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                        unsigned shared_bytes, weir_cu_stream stream, void **params, void **extra) {
  const model_function *f = weir__handles_get(&m->functions, (uintptr_t)function);
  if (!f)
    return WEIR_CU_INVALID_HANDLE;
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  if (s->device != f->module->device)
    return WEIR_CU_INVALID_HANDLE;
  uint64_t threads = (uint64_t)block_x * block_y; /* fits, and times block_z too once it is known to be small */
  bool fits = threads <= MODEL_MAX_THREADS && block_z <= 64 && threads * block_z <= MODEL_MAX_THREADS;
  if (!grid_x || !grid_y || !grid_z || !threads || !block_z || !fits || extra || (f->kernel->param_count && !params))
    return WEIR_CU_INVALID_VALUE;
  model_work work = {.kind = MODEL_WORK_KERNEL,
                     .as.kernel = {.kernel = f->kernel,
                                   .grid = {grid_x, grid_y, grid_z},
                                   .block = {block_x, block_y, block_z},
                                   .shared_bytes = shared_bytes}};
  return take_params(&work, params) ? weir__model_submit(m, s, &work) : WEIR_CU_OUT_OF_MEMORY;
}
