#include "src/builtin.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "builtin_files.h" /* generated: the paths of all kernels, of their PTX, and of the headers */
#include "src/compile.h"
#include "weir/soft.h"

typedef struct text {
  const unsigned char *begin, *end;
} text;

/* The bytes of a file of the source tree, as a text. */
#define EMBED(name, path)                                                                                              \
  __asm__(".pushsection .rodata,\"a\"\n" #name ":\n.incbin \"" path "\"\n" #name "_end:\n.byte 0\n.popsection\n");     \
  extern const unsigned char name[] __attribute__((visibility("hidden")));                                             \
  extern const unsigned char name##_end[] __attribute__((visibility("hidden")));
#define X(name, path) EMBED(weir__header_##name, path)
BUILTIN_HEADERS(X)
#undef X
#define X(name, source, ptx)                                                                                           \
  EMBED(weir__source_##name, source)                                                                                   \
  EMBED(weir__ptx_##name, ptx)                                                                                         \
  extern const weir_soft_image weir__builtin_image_##name;
BUILTIN_FILES(X)
#undef X

static const struct builtin_header {
  const char *name;
  text text;
} builtin_headers[] = {
#define X(name, path) {#name ".h", {weir__header_##name, weir__header_##name##_end}},
    BUILTIN_HEADERS(X)
#undef X
};

typedef struct builtin_file {
  const char *name;
  text source, ptx;
  const weir_soft_image *image;
} builtin_file;
static const builtin_file builtin_files[] = {
#define X(name, source, ptx)                                                                                           \
  {#name,                                                                                                              \
   {weir__source_##name, weir__source_##name##_end},                                                                   \
   {weir__ptx_##name, weir__ptx_##name##_end},                                                                         \
   &weir__builtin_image_##name},
    BUILTIN_FILES(X)
#undef X
};

enum { file_count = WEIR_COUNT_OF(builtin_files), header_count = WEIR_COUNT_OF(builtin_headers) };

/* The module of each file on each device; NULL until it is used there. */
static weir_cu_module modules[file_count][WEIR_MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards modules */

/* A copy with a NUL behind it; NULL if the host has no memory. */
static char *copy_text(text of) { return strndup((const char *)of.begin, (size_t)(of.end - of.begin)); }

static uint64_t hash_text(uint64_t hash, text of) {
  return weir__hash_bytes(hash, of.begin, (size_t)(of.end - of.begin));
}

/* Whether a file has PTX that was made from its present source: compute/make-ptx writes a hash of the source to the
 * first line. */
static bool has_current_ptx(const builtin_file *file) {
  uint64_t hash = 0;
  for (size_t i = 0; i < header_count; i++)
    hash = hash_text(hash, builtin_headers[i].text);
  hash = hash_text(hash, file->source);
  char line[64];
  size_t length = (size_t)snprintf(line, sizeof line, "// source %016" PRIx64 "\n", hash);
  return (size_t)(file->ptx.end - file->ptx.begin) > length && !memcmp(file->ptx.begin, line, length);
}

/* The driver of an older CUDA refuses PTX of a newer one: *is_too_new. */
static weir_status load_ptx(const char *caller, const builtin_file *file, const weir__on_device *on, bool *is_too_new,
                            weir_cu_module *module) {
  weir_driver *driver = on->driver;
  char *ptx = copy_text(file->ptx);
  if (!ptx)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the PTX of %s.cu", caller, file->name);
  weir_cu_result result = driver->ModuleLoadData(driver, module, ptx);
  free(ptx);
  *is_too_new = result == WEIR_CU_UNSUPPORTED_PTX_VERSION;
  return weir__driver_status(driver, result, caller, "cuModuleLoadData(driver, module, ptx)");
}

static weir_status compile(const char *caller, const builtin_file *file, const weir__on_device *on,
                           weir_cu_module *module) {
  char *source = copy_text(file->source), *headers[header_count], name[64];
  const char *header_names[header_count];
  bool has_all = source != NULL;
  for (size_t i = 0; i < header_count; i++) {
    header_names[i] = builtin_headers[i].name;
    headers[i] = copy_text(builtin_headers[i].text);
    has_all = has_all && headers[i];
  }
  weir_status status = WEIR_OK;
  if (!has_all)
    status =
        weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the source of %s.cu", caller, file->name);
  snprintf(name, sizeof name, "%s.cu", file->name);
  weir_compile_options options;
  weir_compile_options_init(&options);
  options.header_names = header_names;
  options.headers = (const char *const *)headers;
  options.header_count = header_count;
  options.file_name = name;
  weir__binary code = {0};
  bool is_cached;
  if (!status)
    status = weir__compile(caller, on, source, &options, &code, &is_cached);
  if (!status)
    status = weir__binary_load(caller, on, &code, module);
  weir__binary_end(&code);
  free(source);
  for (size_t i = 0; i < header_count; i++)
    free(headers[i]);
  return status;
}

static weir_status load(const char *caller, const builtin_file *file, const weir__on_device *on,
                        weir_cu_module *module) {
  weir_driver *driver = on->driver;
  if (weir__driver_can(driver, WEIR_DRIVER_HOST_KERNELS))
    return WEIR__CALL_FOR(caller, driver, ModuleLoadData(driver, module, file->image));
  bool is_too_new = false;
  weir_status status = WEIR_OK;
  if (has_current_ptx(file)) {
    status = load_ptx(caller, file, on, &is_too_new, module);
    if (!is_too_new)
      return status;
  }
  return compile(caller, file, on, module);
}

static weir_status find_file(const char *caller, const weir__builtin *builtin, size_t *at) {
  *at = 0;
  while (*at < file_count && strcmp(builtin_files[*at].name, builtin->file) != 0)
    (*at)++;
  if (*at == file_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there are no built-in kernels named %s", caller, builtin->file);
  return WEIR_OK;
}

weir_status weir__builtin_function(const char *caller, weir__builtin *builtin, const weir__on_device *on,
                                   weir_cu_function *function) {
  unsigned long epoch = weir__compute_epoch;
  if (builtin->on[on->device].epoch == epoch) {
    *function = builtin->on[on->device].function;
    return WEIR_OK;
  }
  size_t at;
  weir_status status = find_file(caller, builtin, &at);
  if (status)
    return status;

  weir_driver *driver = on->driver;
  weir_cu_function found;
  pthread_mutex_lock(&lock);
  weir_cu_module *module = &modules[at][on->device];
  if (!*module)
    status = load(caller, &builtin_files[at], on, module);
  if (!status)
    status = WEIR__CALL_FOR(caller, driver, ModuleGetFunction(driver, &found, *module, builtin->name));
  pthread_mutex_unlock(&lock);
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
  weir_cu_function function = NULL;
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

weir_status weir__builtin_run(const char *caller, weir__builtin *builtin, weir_launch_dims dims, void **params) {
  weir_soft_kernel_fn kernel = builtin->host;
  if (!kernel) {
    size_t at;
    weir_status status = find_file(caller, builtin, &at);
    if (status)
      return status;
    const weir_soft_image *image = builtin_files[at].image;
    for (const weir_soft_entry *const *entry = image->begin; entry < image->end && !kernel; entry++)
      if (!strcmp((*entry)->name, builtin->name))
        kernel = (*entry)->function;
    if (!kernel)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s.cu has no kernel %s", caller, builtin->file,
                        builtin->name);
    builtin->host = kernel;
  }
  weir_soft_launch launch = {.shared_bytes = dims.shared_bytes, .params = params};
  for (int i = 0; i < 3; i++) {
    launch.grid[i] = dims.grid[i] ? dims.grid[i] : 1;
    launch.block[i] = dims.block[i] ? dims.block[i] : 1;
  }
  weir_cu_result result = kernel(&launch);
  if (result == WEIR_CU_OUT_OF_MEMORY)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the kernel %s", caller, builtin->name);
  return result ? weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the kernel %s failed on the host", caller, builtin->name)
                : WEIR_OK;
}

void weir__builtins_end(void) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < file_count; i++)
    for (int device = 0; device < WEIR_MAX_DEVICES; device++) {
      if (modules[i][device])
        weir__compute_unload(device, modules[i][device]);
      modules[i][device] = NULL;
    }
  pthread_mutex_unlock(&lock);
}
