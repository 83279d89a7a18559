/*
 * Modules and their kernels.
 */
#include "src/module.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/compile.h"

static weir_module *modules;                             /* all that exist */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and the kernels of each module */

void weir_compile_options_init(weir_compile_options *options) {
  if (options)
    *options = (weir_compile_options){.size = sizeof *options, .file_name = "kernel.cu"};
}

void weir_kernel_attributes_init(weir_kernel_attributes *attributes) {
  if (attributes)
    *attributes = (weir_kernel_attributes){.size = sizeof *attributes};
}

/* ---- Modules ---- */

static weir_module *new_module(const weir__on_device *on) {
  weir_module *module = calloc(1, sizeof *module);
  if (module)
    module->device = on->device;
  return module;
}

static void free_module(weir_module *module) {
  while (module->kernels) {
    weir_kernel *kernel = module->kernels;
    module->kernels = kernel->next;
    free(kernel->param_bytes);
    free(kernel);
  }
  for (int i = 0; i < module->name_count; i++) {
    free(module->names[i]);
    free(module->lowered[i]);
  }
  free(module->names);
  free(module->lowered);
  free(module->log);
  free(module);
}

static void add_module(weir_module *module) {
  pthread_mutex_lock(&lock);
  module->link = &modules;
  if ((module->next = modules))
    modules->link = &module->next;
  modules = module;
  pthread_mutex_unlock(&lock);
}

void weir__modules_end(void) {
  pthread_mutex_lock(&lock);
  for (weir_module *module = modules; module; module = module->next) {
    if (!module->is_expired)
      weir__compute_unload(module->device, module->handle);
    module->is_expired = true;
  }
  pthread_mutex_unlock(&lock);
}

void weir_module_destroy(weir_module *module) {
  if (!module)
    return;
  pthread_mutex_lock(&lock);
  if ((*module->link = module->next))
    module->next->link = module->link;
  pthread_mutex_unlock(&lock);
  if (!module->is_expired && !weir_is_in_bad_fork())
    weir__compute_unload(module->device, module->handle);
  free_module(module);
}

const char *weir_module_log(const weir_module *module) { return module && module->log ? module->log : ""; }
int weir_module_is_cached(const weir_module *module) { return module && module->is_cached; }
int weir_module_device(const weir_module *module) { return module ? module->device : -1; }

typedef enum image_kind { UNKNOWN, PTX, CUBIN, FATBIN } image_kind;

static image_kind kind_of(const unsigned char *image, size_t bytes) {
  static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'}, fat[] = {0x50, 0xed, 0x55, 0xba},
                             wrapped[] = {0xb1, 0x43, 0x62, 0x46};
  if (bytes >= 4 && !memcmp(image, elf, 4))
    return CUBIN;
  if (bytes >= 4 && (!memcmp(image, fat, 4) || !memcmp(image, wrapped, 4)))
    return FATBIN;
  return memmem(image, bytes, ".version", 8) ? PTX : UNKNOWN;
}

/* In a copy with a NUL behind it, which PTX needs. */
static weir_status load_image(const char *caller, const weir__on_device *on, const void *image, size_t bytes,
                              weir_cu_module *module) {
  char *copy = malloc(bytes + 1);
  if (!copy)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a copy of the image", caller);
  memcpy(copy, image, bytes);
  copy[bytes] = 0;
  weir_status status = weir__image_load(caller, on, copy, module);
  free(copy);
  return status;
}

weir_status weir_module_load(int device, const void *image, size_t bytes, weir_module **module) {
  WEIR__CHECK_ARGUMENT(image);
  WEIR__CHECK_ARGUMENT(module);
  image_kind kind = kind_of(image, bytes);
  if (kind == UNKNOWN)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the image is neither PTX, a cubin nor a fatbin", __func__);
  weir__on_device on;
  weir_status status = weir__compute_enter(__func__, device, &on);
  if (status)
    return status;
  weir_module *made = NULL;
  if (kind != PTX && weir__driver_can(on.driver, WEIR_DRIVER_HOST_KERNELS))
    status =
        weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                   "%s: the software device cannot run a %s; compile the kernel from source, or register a function "
                   "for its PTX with weir_soft_register_kernel",
                   __func__, kind == CUBIN ? "cubin" : "fatbin");
  else if (!(made = new_module(&on)))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the module", __func__);
  if (!status && made)
    status = load_image(__func__, &on, image, bytes, &made->handle);
  weir__compute_leave(&on);
  if (status || !made) {
    free(made);
    return status;
  }
  add_module(made);
  *module = made;
  return WEIR_OK;
}

static weir_status check_list(const char *caller, const char *name, const void *list, int count) {
  if (count < 0 || (count && !list))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: options has %d %s, but no list of them", caller, count, name);
  for (int i = 0; i < count; i++)
    if (!((const char *const *)list)[i])
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s[%d] is NULL", caller, name, i);
  return WEIR_OK;
}

static weir_status read_options(const char *caller, const weir_compile_options *from, weir_compile_options *to) {
  weir_compile_options_init(to);
  weir_status status = weir__read_options(caller, "options", to, sizeof *to, from);
  if (!status)
    status = check_list(caller, "options", to->options, to->option_count);
  if (!status)
    status = check_list(caller, "names", to->names, to->name_count);
  if (!status)
    status = check_list(caller, "header_names", to->header_names, to->header_count);
  if (!status)
    status = check_list(caller, "headers", to->headers, to->header_count);
  if (!status && (unsigned)to->target > WEIR_COMPILE_BINARY)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: target is %d; expected a weir_compile_target", caller,
                        (int)to->target);
  if (!to->file_name)
    to->file_name = "kernel.cu";
  return status;
}

weir_status weir_module_compile(int device, const char *source, const weir_compile_options *options,
                                weir_module **module) {
  WEIR__CHECK_ARGUMENT(source);
  WEIR__CHECK_ARGUMENT(module);
  weir_compile_options all;
  weir_status status = read_options(__func__, options, &all);
  weir__on_device on;
  if (!status)
    status = weir__compute_enter(__func__, device, &on);
  if (status)
    return status;
  weir__binary code = {0};
  weir_module *made = new_module(&on);
  if (!made)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the module", __func__);
  if (!status && made)
    status = weir__compile(__func__, &on, source, &all, &code, &made->is_cached);
  if (!status && made)
    status = weir__binary_load(__func__, &on, &code, &made->handle);
  weir__compute_leave(&on);
  if (status || !made) {
    weir__binary_end(&code);
    free(made);
    return status;
  }
  made->names = code.names;
  made->lowered = code.lowered;
  made->name_count = code.name_count;
  made->log = code.log;
  free(code.data);
  add_module(made);
  *module = made;
  return WEIR_OK;
}

/* ---- Kernels ---- */

weir_status weir__module_check(const char *caller, const weir_module *module) {
  if (!module->is_expired)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_HANDLE,
                    "%s: the module belongs to a runtime that was shut down; it can only be destroyed", caller);
}

static const char *symbol_of(const weir_module *module, const char *name) {
  for (int i = 0; i < module->name_count; i++)
    if (!strcmp(module->names[i], name))
      return module->lowered[i];
  return name;
}

/* Asks the driver for the sizes of the parameters; the number stays -1 where it does not know them. */
static weir_status read_params(const char *caller, weir_driver *driver, weir_kernel *kernel) {
  kernel->param_count = -1;
  if (!driver->FuncGetParamInfo)
    return WEIR_OK;
  size_t offset, sizes[WEIR__MAX_PARAMS];
  int count = 0;
  weir_cu_result result = WEIR_CU_SUCCESS;
  while (count < WEIR__MAX_PARAMS &&
         !(result = driver->FuncGetParamInfo(driver, kernel->function, (size_t)count, &offset, &sizes[count])))
    count++;
  if (result && result != WEIR_CU_INVALID_VALUE)
    return weir__driver_status(driver, result, caller, "cuFuncGetParamInfo(driver, function, index, offset, bytes)");
  if (!result)
    return WEIR_OK; /* more than a launch passes with checks */
  kernel->param_bytes = malloc((count ? (size_t)count : 1) * sizeof *sizes);
  if (!kernel->param_bytes)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the parameters", caller);
  memcpy(kernel->param_bytes, sizes, (size_t)count * sizeof *sizes);
  kernel->param_count = count;
  return WEIR_OK;
}

static weir_status find_function(const char *caller, const weir__on_device *on, const weir_module *module,
                                 const char *name, weir_cu_function *function) {
  weir_driver *driver = on->driver;
  weir_cu_result result = driver->ModuleGetFunction(driver, function, module->handle, symbol_of(module, name));
  if (result == WEIR_CU_NOT_FOUND)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: the module has no kernel named %s; a template, or a kernel without extern \"C\", has to be "
                      "named when the module is compiled",
                      caller, name);
  if (result == WEIR_CU_NOT_SUPPORTED && weir__driver_can(driver, WEIR_DRIVER_HOST_KERNELS))
    return weir__fail(
        WEIR_ERROR_NOT_SUPPORTED,
        "%s: the software device cannot run PTX, and no function is registered for %s; compile the kernel "
        "from source, or call weir_soft_register_kernel",
        caller, name);
  return weir__driver_status(driver, result, caller, "cuModuleGetFunction(driver, function, module, name)");
}

weir_status weir_module_kernel(weir_module *module, const char *name, weir_kernel **kernel) {
  WEIR__CHECK_ARGUMENT(module);
  WEIR__CHECK_ARGUMENT(name);
  WEIR__CHECK_ARGUMENT(kernel);
  weir__on_device on;
  weir_status status = weir__module_check(__func__, module);
  if (!status)
    status = weir__compute_enter(__func__, module->device, &on);
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  weir_kernel *found = module->kernels;
  while (found && strcmp(found->name, name) != 0)
    found = found->next;
  if (!found) {
    size_t length = strlen(name) + 1;
    found = calloc(1, sizeof *found + length);
    if (!found)
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the kernel", __func__);
    if (!status && found)
      status = find_function(__func__, &on, module, name, &found->function);
    if (!status && found)
      status = read_params(__func__, on.driver, found);
    if (!status && found) {
      memcpy(found->name, name, length);
      found->module = module;
      found->next = module->kernels;
      module->kernels = found;
    } else {
      free(found);
    }
  }
  pthread_mutex_unlock(&lock);
  weir__compute_leave(&on);
  if (!status)
    *kernel = found;
  return status;
}

const char *weir_kernel_name(const weir_kernel *kernel) { return kernel ? kernel->name : ""; }
