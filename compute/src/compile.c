#include "src/compile.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weir/soft.h"

/* ---- Code ---- */

void weir__binary_end(weir__binary *code) {
  for (int i = 0; i < code->name_count; i++) {
    free(code->names[i]);
    free(code->lowered[i]);
  }
  free(code->names);
  free(code->lowered);
  free(code->data);
  free(code->log);
  *code = (weir__binary){0};
}

bool weir__binary_names(weir__binary *code, int count) {
  if (!count)
    return true;
  code->names = calloc((size_t)count, sizeof *code->names);
  code->lowered = calloc((size_t)count, sizeof *code->lowered);
  if (!code->names || !code->lowered)
    return false;
  code->name_count = count;
  return true;
}

/* ---- Code in the cache ---- */

static void pack(const weir__binary *code, weir__bytes *to) {
  uint64_t count = (uint64_t)code->name_count;
  weir__bytes_add(to, &count, sizeof count);
  for (int i = 0; i < code->name_count; i++) {
    weir__bytes_add_text(to, code->names[i]);
    weir__bytes_add_text(to, code->lowered[i]);
  }
  weir__bytes_add_text(to, code->log);
  weir__bytes_add_sized(to, code->data, code->bytes);
}

typedef struct reader {
  const unsigned char *at;
  size_t left;
} reader;

static bool take_number(reader *from, uint64_t *number) {
  if (from->left < sizeof *number)
    return false;
  memcpy(number, from->at, sizeof *number);
  from->at += sizeof *number;
  from->left -= sizeof *number;
  return true;
}

/* With a NUL behind it, in memory of malloc; NULL if the data ends or the host has no memory. */
static char *take_sized(reader *from, size_t *count) {
  uint64_t length;
  if (!take_number(from, &length) || length > from->left)
    return NULL;
  char *copy = malloc(length + 1);
  if (!copy)
    return NULL;
  memcpy(copy, from->at, length);
  copy[length] = 0;
  from->at += length;
  from->left -= length;
  if (count)
    *count = length;
  return copy;
}

static bool unpack(const unsigned char *data, size_t bytes, weir__binary *code) {
  reader from = {data, bytes};
  uint64_t count;
  if (!take_number(&from, &count) || count > from.left || !weir__binary_names(code, (int)count))
    return false;
  for (uint64_t i = 0; i < count; i++)
    if (!(code->names[i] = take_sized(&from, NULL)) || !(code->lowered[i] = take_sized(&from, NULL)))
      return false;
  code->log = take_sized(&from, NULL);
  code->data = (unsigned char *)take_sized(&from, &code->bytes);
  return code->log && code->data && !from.left;
}

static bool read_cache(const weir__bytes *key, weir__binary *code) {
  unsigned char *data;
  size_t bytes;
  if (!weir__cache_read(key, &data, &bytes))
    return false;
  bool is_whole = unpack(data, bytes, code);
  free(data);
  if (!is_whole)
    weir__binary_end(code);
  return is_whole;
}

static void add_list(weir__bytes *key, const char *const *texts, int count) {
  uint64_t number = (uint64_t)count;
  weir__bytes_add(key, &number, sizeof number);
  for (int i = 0; i < count; i++)
    weir__bytes_add_text(key, texts[i]);
}

weir_status weir__compile(const char *caller, const weir__on_device *on, const char *source,
                          const weir_compile_options *options, weir__binary *code, bool *is_cached) {
  bool is_soft = weir__driver_can(on->driver, WEIR_DRIVER_HOST_KERNELS);
  weir__bytes key = {0};
  weir_status status = is_soft ? weir__soft_key(caller, &key) : weir__nvrtc_key(caller, on, source, options, &key);
  if (status)
    goto end_key;
  add_list(&key, options->options, options->option_count);
  add_list(&key, options->names, options->name_count);
  add_list(&key, options->header_names, options->header_count);
  add_list(&key, options->headers, options->header_count);
  weir__bytes_add_text(&key, options->file_name);
  weir__bytes_add_text(&key, source);

  *code = (weir__binary){0};
  *is_cached = !options->no_cache && read_cache(&key, code);
  if (!*is_cached) {
    status = is_soft ? weir__soft_compile(caller, source, options, code)
                     : weir__nvrtc_compile(caller, on, source, options, code);
    if (!status && !options->no_cache) {
      weir__bytes packed = {0};
      pack(code, &packed);
      if (!packed.failed)
        weir__cache_write(&key, packed.data, packed.count);
      weir__bytes_end(&packed);
    }
    if (status)
      weir__binary_end(code);
  }
end_key:
  weir__bytes_end(&key);
  return status;
}

/* ---- Loading ---- */

weir_status weir__image_load(const char *caller, const weir__on_device *on, const void *image, weir_cu_module *module) {
  weir_driver *driver = on->driver;
  char log[1024] = "";
  int names[] = {WEIR_CU_JIT_ERROR_LOG_BUFFER, WEIR_CU_JIT_ERROR_LOG_BUFFER_SIZE};
  void *values[] = {log, (void *)(uintptr_t)sizeof log};
  weir_cu_result result = driver->ModuleLoadDataEx(driver, module, image, 2, names, values);
  weir_status status = weir__driver_status(driver, result, caller, "cuModuleLoadDataEx(driver, module, image, ...)");
  bool is_rejected =
      result == WEIR_CU_INVALID_IMAGE || result == WEIR_CU_INVALID_PTX || result == WEIR_CU_UNSUPPORTED_PTX_VERSION;
  if (is_rejected)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the driver rejects the image: %s (%d)%s%s", caller,
                        weir_cu_result_name(result), result, *log ? ":\n" : "", log);
  return status;
}

static void close_library(void *library) { dlclose(library); }

weir_status weir__binary_load(const char *caller, const weir__on_device *on, const weir__binary *code,
                              weir_cu_module *module) {
  if (!weir__driver_can(on->driver, WEIR_DRIVER_HOST_KERNELS))
    return weir__image_load(caller, on, code->data, module);
  void *library = weir__soft_open(caller, code);
  if (!library)
    return WEIR_ERROR_SYSTEM;
  const weir_soft_image *found = dlsym(library, "weir_soft_kernels");
  weir_status status = WEIR_OK;
  if (found) {
    weir_soft_image image = *found;
    image.release = close_library;
    image.context = library;
    status = WEIR__CALL_FOR(caller, on->driver, ModuleLoadData(on->driver, module, &image));
  } else {
    status = weir__fail(WEIR_ERROR_BAD_DATA, "%s: the compiled object has no kernels", caller);
  }
  if (status)
    dlclose(library);
  return status;
}
