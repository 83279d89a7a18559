#include "compute/builtin.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "builtin_files.h" /* generated: `builtin_files`, and the texts that it points to */
#include "weir/soft.h"

enum { file_count = sizeof builtin_files / sizeof builtin_files[0] };

/* The module of each file on each device; NULL until it is used there. */
static weir_cu_module modules[file_count][WEIR_MAX_DEVICES];
static weir__mutex lock = WEIR__MUTEX_INIT; /* guards modules */

static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    hash = (hash ^ bytes[i]) * 0x100000001b3u; /* FNV-1a */
  return hash;
}

/* The PTX of a file, or NULL if it has none or was made from another source: scripts/make-ptx writes a hash of the source
 * to its first line. */
static const char *current_ptx(const builtin_file *file) {
  if (!file->ptx)
    return NULL;
  uint64_t hash = hash_bytes(0xcbf29ce484222325u, device_h, sizeof device_h);
  hash = hash_bytes(hash, file->source, file->source_bytes);
  char line[64];
  int length = snprintf(line, sizeof line, "// source %016" PRIx64 "\n", hash);
  return strncmp(file->ptx, line, (size_t)length) ? NULL : file->ptx;
}

static weir_status load(const char *caller, const builtin_file *file, const weir__on_device *on,
                        weir_cu_module *module) {
  weir_driver *driver = on->driver;
  const void *image =
      weir__driver_can(driver, WEIR_DRIVER_HOST_KERNELS) ? (const void *)file->image : (const void *)current_ptx(file);
  if (!image)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the library was built without PTX of %s.cu", caller, file->name);
  return WEIR__CALL_FOR(caller, driver, ModuleLoadData(driver, module, image));
}

weir_status weir__builtin_function(const char *caller, weir__builtin *builtin, const weir__on_device *on,
                                   weir_cu_function *function) {
  unsigned long epoch = weir__compute_epoch;
  if (builtin->on[on->device].epoch == epoch) {
    *function = builtin->on[on->device].function;
    return WEIR_OK;
  }
  size_t at = 0;
  while (at < file_count && strcmp(builtin_files[at].name, builtin->file) != 0)
    at++;
  if (at == file_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there are no built-in kernels named %s", caller, builtin->file);

  weir_driver *driver = on->driver;
  weir_cu_function found;
  weir_status status = WEIR_OK;
  weir__mutex_lock(&lock);
  weir_cu_module *module = &modules[at][on->device];
  if (!*module)
    status = load(caller, &builtin_files[at], on, module);
  if (!status)
    status = WEIR__CALL_FOR(caller, driver, ModuleGetFunction(driver, &found, *module, builtin->name));
  weir__mutex_unlock(&lock);
  if (status)
    return status;
  builtin->on[on->device].function = found;
  builtin->on[on->device].epoch = epoch;
  *function = found;
  return WEIR_OK;
}

weir_status weir__builtin_launch(const char *caller, weir__builtin *builtin, int device, weir_cu_stream stream,
                                 weir_launch_dims dims, void **params) {
  weir__on_device on;
  weir_cu_function function;
  weir_status status = weir__compute_enter(caller, device, &on);
  if (status)
    return status;
  status = weir__builtin_function(caller, builtin, &on, &function);
  if (!status) {
    weir_driver *driver = on.driver;
    const unsigned *grid = dims.grid, *block = dims.block;
    status = WEIR__CALL_FOR(caller, driver,
                            LaunchKernel(driver, function, grid[0], grid[1] ? grid[1] : 1, grid[2] ? grid[2] : 1,
                                         block[0], block[1] ? block[1] : 1, block[2] ? block[2] : 1, dims.shared_bytes,
                                         stream, params, NULL));
  }
  weir__compute_leave(&on);
  return status;
}

void weir__builtins_end(void) {
  weir__mutex_lock(&lock);
  for (size_t i = 0; i < file_count; i++)
    for (int device = 0; device < WEIR_MAX_DEVICES; device++) {
      if (modules[i][device])
        weir__compute_unload(device, modules[i][device]);
      modules[i][device] = NULL;
    }
  weir__mutex_unlock(&lock);
}
