/*
 * Modules and kernels. No code is looked at: a module has whatever kernel it is asked for, and a launch is a piece of
 * work.
 */
#include "driver/ledger/ledger.h"

#include <stdlib.h>
#include <string.h>

static void drop_module(ledger *l, ledger_module *module) {
  while (module->functions != NULL) {
    ledger_function *function = module->functions;
    module->functions = function->next;
    free(function->name);
    weir__handles_drop(&l->functions, function);
  }
  weir__handles_drop(&l->modules, module);
}

void weir__ledger_drop_context_modules(ledger *l, ledger_device *device) {
  uint32_t index = 0;
  ledger_module *module;
  while ((module = weir__handles_next(&l->modules, &index)) != NULL)
    if (module->device == device)
      drop_module(l, module);
}

static weir_cu_result ModuleLoadData(weir_driver *self, weir_cu_module *module, const void *image) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (module == NULL || image == NULL)
    return WEIR_CU_INVALID_VALUE;
  ledger_module *m = weir__handles_make(&l->modules);
  if (m == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  m->device = device;
  *module = (weir_cu_module)(uintptr_t)weir__handle_of(&l->modules, m);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result ModuleUnload(weir_driver *self, weir_cu_module module) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  weir_cu_result result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  ledger_module *m = weir__handles_get(&l->modules, (uintptr_t)module);
  if (m == NULL)
    return WEIR_CU_INVALID_HANDLE;
  drop_module(l, m);
  return WEIR_CU_SUCCESS;
}

static ledger_function *make_function(ledger *l, ledger_module *module, const char *name) {
  char *copy = strdup(name);
  if (copy == NULL)
    return NULL;
  ledger_function *function = weir__handles_make(&l->functions);
  if (function == NULL) {
    free(copy);
    return NULL;
  }
  function->module = module;
  function->name = copy;
  function->next = module->functions;
  module->functions = function;
  return function;
}

static weir_cu_result ModuleGetFunction(weir_driver *self, weir_cu_function *function, weir_cu_module module,
                                        const char *name) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_module *m = weir__handles_get(&l->modules, (uintptr_t)module);
  if (m == NULL)
    return WEIR_CU_INVALID_HANDLE;
  if (function == NULL || name == NULL)
    return WEIR_CU_INVALID_VALUE;
  ledger_function *f = m->functions;
  while (f != NULL && strcmp(f->name, name) != 0)
    f = f->next;
  if (f == NULL)
    f = make_function(l, m, name);
  if (f == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  *function = (weir_cu_function)(uintptr_t)weir__handle_of(&l->functions, f);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result LaunchKernel(weir_driver *self, weir_cu_function function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                   unsigned shared_bytes, weir_cu_stream stream, void **params, void **extra) {
  (void)shared_bytes, (void)params;
  ledger *l = weir__ledger_of(self);
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  const ledger_function *f = weir__handles_get(&l->functions, (uintptr_t)function);
  if (f == NULL || f->module->device != s->device)
    return WEIR_CU_INVALID_HANDLE;
  uint64_t threads = (uint64_t)block_x * block_y; /* fits, and with block_z too once it is known to be small */
  bool fits = threads <= LEDGER_MAX_THREADS && threads * block_z <= LEDGER_MAX_THREADS;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || block_z == 0 || !fits || extra != NULL)
    return WEIR_CU_INVALID_VALUE;
  return weir__ledger_enqueue(l, s, LEDGER_NODE_KERNEL, NULL, NULL);
}

void weir__ledger_add_kernels(weir_driver *table) {
  table->ModuleLoadData = ModuleLoadData;
  table->ModuleUnload = ModuleUnload;
  table->ModuleGetFunction = ModuleGetFunction;
  table->LaunchKernel = LaunchKernel;
}
