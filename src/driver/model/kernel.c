/*
 * Modules and kernels. PTX is not run: a module is searched for the names of its entries, and an entry is the kernel
 * that is known under its name. "weir_spin" is known from the start, and the software device adds "weir_guard". The
 * kernels of a weir_soft_image are functions.
 */
#include "driver/model/model.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shared memory: what a block has without asking, what it can ask for, what a multiprocessor has, and what each block
 * takes of that besides its own. */
enum { default_shared = 48 << 10, max_shared = 227 << 10, all_shared = 228 << 10, block_shared = 1 << 10 };
enum { max_blocks = 32, max_resident = 2048 };

static const size_t spin_params[] = {sizeof(uint64_t)};
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

void weir__model_image_unref(model_image *image) {
  if (!image || --image->refs)
    return;
  if (image->release)
    image->release(image->context);
  free(image->kernels);
  free(image);
}

/* The kernels of an image, with one reference; NULL if the host has no memory. */
static model_image *read_image(const weir_soft_image *from) {
  size_t count = (size_t)(from->end - from->begin);
  model_image *image = calloc(1, sizeof *image);
  model_kernel *kernels = calloc(count ? count : 1, sizeof *kernels);
  if (!image || !kernels) {
    free(image);
    free(kernels);
    return NULL;
  }
  for (size_t i = 0; i < count; i++) {
    const weir_soft_entry *entry = from->begin[i];
    kernels[i] = (model_kernel){.name = entry->name,
                                .function = entry->function,
                                .param_count = entry->param_count,
                                .param_bytes = entry->param_bytes,
                                .shared_bytes = entry->shared_bytes,
                                .image = image};
  }
  *image = (model_image){1, count, kernels, from->release, from->context};
  return image;
}

static bool is_image(const void *data) { return !strncmp(data, WEIR_SOFT_IMAGE_MAGIC, sizeof WEIR_SOFT_IMAGE_MAGIC); }

/* An image of another version, or with a kernel that no launch could pass parameters to. */
static bool is_bad_image(const weir_soft_image *image) {
  if (image->size < sizeof *image || image->begin > image->end)
    return true;
  for (const weir_soft_entry *const *at = image->begin; at < image->end; at++)
    if (!(*at)->name || !(*at)->function || (*at)->param_count < 0 || (*at)->param_count > MODEL_MAX_PARAMS)
      return true;
  return false;
}

weir_cu_result weir__model_ModuleLoadData(model *m, weir_cu_module *module, const void *image) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  if (!module || !image)
    return WEIR_CU_INVALID_VALUE;
  bool is_soft = is_image(image);
  if (is_soft ? is_bad_image(image) : !strstr(image, ".version"))
    return WEIR_CU_INVALID_IMAGE;
  model_module *made = weir__handles_make(&m->modules);
  if (!made)
    return WEIR_CU_OUT_OF_MEMORY;
  made->device = device;
  if (is_soft)
    made->image = read_image(image);
  else
    made->text = strdup(image);
  if (!made->text && !made->image) {
    weir__handles_drop(&m->modules, made);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *module = (weir_cu_module)(uintptr_t)weir__handle_of(&m->modules, made);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_ModuleLoadDataEx(model *m, weir_cu_module *module, const void *image, unsigned count,
                                            int *options, void **values) {
  if (count && (!options || !values))
    return WEIR_CU_INVALID_VALUE;
  weir_cu_result r = weir__model_ModuleLoadData(m, module, image);
  char *log = NULL;
  size_t room = 0;
  for (unsigned i = 0; i < count; i++) {
    if (options[i] == WEIR_CU_JIT_ERROR_LOG_BUFFER)
      log = values[i];
    if (options[i] == WEIR_CU_JIT_ERROR_LOG_BUFFER_SIZE)
      room = (uint32_t)(uintptr_t)values[i];
  }
  if (log && room)
    snprintf(log, room, "%s", r == WEIR_CU_INVALID_IMAGE ? "neither PTX nor an image of the software device" : "");
  return r;
}

void weir__model_drop_module(model *m, model_module *module) {
  while (module->functions) {
    model_function *function = module->functions;
    module->functions = function->next;
    weir__handles_drop(&m->functions, function);
  }
  free(module->text);
  weir__model_image_unref(module->image);
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
  const model_kernel *kernel = NULL;
  if (found->image) {
    for (size_t i = 0; i < found->image->count && !kernel; i++)
      if (!strcmp(found->image->kernels[i].name, name))
        kernel = &found->image->kernels[i];
    if (!kernel)
      return WEIR_CU_NOT_FOUND;
  } else {
    if (!*name || !has_entry(found->text, name))
      return WEIR_CU_NOT_FOUND;
    kernel = weir__model_kernel(m, name);
    if (!kernel)
      return WEIR_CU_NOT_SUPPORTED;
  }
  model_function *f = found->functions;
  while (f && f->kernel != kernel)
    f = f->next;
  if (!f) {
    f = weir__handles_make(&m->functions);
    if (!f)
      return WEIR_CU_OUT_OF_MEMORY;
    f->module = found;
    f->kernel = kernel;
    f->max_dynamic_bytes = kernel->shared_bytes < default_shared ? default_shared - kernel->shared_bytes : 0;
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
  if (!grid_x || !grid_y || !grid_z || !threads || !block_z || !fits || extra || (f->kernel->param_count && !params) ||
      shared_bytes > f->max_dynamic_bytes)
    return WEIR_CU_INVALID_VALUE;
  model_work work = {.kind = MODEL_WORK_KERNEL,
                     .as.kernel = {.kernel = f->kernel,
                                   .grid = {grid_x, grid_y, grid_z},
                                   .block = {block_x, block_y, block_z},
                                   .shared_bytes = shared_bytes}};
  if (!take_params(&work, params))
    return WEIR_CU_OUT_OF_MEMORY;
  if (f->kernel->image)
    f->kernel->image->refs++;
  return weir__model_submit(m, s, &work);
}

/* ---- Attributes ---- */

static model_function *find_function(const model *m, weir_cu_function function) {
  return weir__handles_get(&m->functions, (uintptr_t)function);
}

weir_cu_result weir__model_FuncGetAttribute(model *m, int *value, int attribute, weir_cu_function function) {
  const model_function *f = find_function(m, function);
  if (!value)
    return WEIR_CU_INVALID_VALUE;
  if (!f)
    return WEIR_CU_INVALID_HANDLE;
  int version = 10 * m->hooks->capability_major + m->hooks->capability_minor;
  switch (attribute) {
  case WEIR_CU_FUNC_ATTR_MAX_THREADS_PER_BLOCK:
    *value = MODEL_MAX_THREADS;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_FUNC_ATTR_SHARED_SIZE:
    *value = (int)f->kernel->shared_bytes;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE:
    *value = (int)f->max_dynamic_bytes;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_FUNC_ATTR_PTX_VERSION:
  case WEIR_CU_FUNC_ATTR_BINARY_VERSION:
    *value = version;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_FUNC_ATTR_CONST_SIZE:
  case WEIR_CU_FUNC_ATTR_LOCAL_SIZE:
  case WEIR_CU_FUNC_ATTR_NUM_REGS:
    *value = 0;
    return WEIR_CU_SUCCESS;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
}

weir_cu_result weir__model_FuncSetAttribute(model *m, weir_cu_function function, int attribute, int value) {
  model_function *f = find_function(m, function);
  if (!f)
    return WEIR_CU_INVALID_HANDLE;
  if (attribute != WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE || value < 0 ||
      (unsigned)value + f->kernel->shared_bytes > max_shared)
    return WEIR_CU_INVALID_VALUE;
  f->max_dynamic_bytes = (unsigned)value;
  return WEIR_CU_SUCCESS;
}

/* Only the size of a parameter is known: it is aligned to the largest power of two that divides it, up to 16. */
weir_cu_result weir__model_FuncGetParamInfo(model *m, weir_cu_function function, size_t index, size_t *offset,
                                            size_t *bytes) {
  const model_function *f = find_function(m, function);
  if (!offset)
    return WEIR_CU_INVALID_VALUE;
  if (!f)
    return WEIR_CU_INVALID_HANDLE;
  if (index >= (size_t)f->kernel->param_count)
    return WEIR_CU_INVALID_VALUE;
  size_t at = 0, end = 0;
  for (size_t i = 0; i <= index; i++) {
    size_t size = f->kernel->param_bytes[i], alignment = size & -size;
    at = (size_t)weir__round_up(end, alignment > 16 || !alignment ? 16 : alignment);
    end = at + size;
  }
  *offset = at;
  if (bytes)
    *bytes = f->kernel->param_bytes[index];
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_OccupancyMaxActiveBlocksPerMultiprocessor(model *m, int *blocks, weir_cu_function function,
                                                                     int block_threads, size_t dynamic_bytes) {
  const model_function *f = find_function(m, function);
  if (!blocks || block_threads <= 0)
    return WEIR_CU_INVALID_VALUE;
  if (!f)
    return WEIR_CU_INVALID_HANDLE;
  *blocks = 0;
  if (block_threads > MODEL_MAX_THREADS || dynamic_bytes > f->max_dynamic_bytes)
    return WEIR_CU_SUCCESS; /* no such block can run */
  int by_threads = max_resident / (int)weir__round_up((uint64_t)block_threads, 32);
  int by_shared = (int)(all_shared / (f->kernel->shared_bytes + dynamic_bytes + block_shared));
  int most = by_threads < by_shared ? by_threads : by_shared;
  *blocks = most < max_blocks ? most : max_blocks;
  return WEIR_CU_SUCCESS;
}
