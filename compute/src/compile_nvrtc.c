/*
 * NVRTC, loaded at run time.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/compile.h"
#include "src/environment.h"
#include "src/libraries.h"

static weir__nvrtc loaded;
static bool is_loaded; /* this and `loaded` are guarded by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const weir__nvrtc *replaced; /* by a test */

void weir__nvrtc_replace(const weir__nvrtc *functions) { replaced = functions; }

enum need { REQUIRED, OPTIONAL };

static weir_status load(const char *caller) {
  static const struct {
    const char *name;
    size_t at;
    enum need need;
  } symbols[] = {
#define SYMBOL(name, need) {"nvrtc" #name, offsetof(weir__nvrtc, name), need}
      SYMBOL(Version, REQUIRED),
      SYMBOL(GetErrorString, REQUIRED),
      SYMBOL(CreateProgram, REQUIRED),
      SYMBOL(DestroyProgram, REQUIRED),
      SYMBOL(CompileProgram, REQUIRED),
      SYMBOL(GetPTXSize, REQUIRED),
      SYMBOL(GetPTX, REQUIRED),
      SYMBOL(GetCUBINSize, OPTIONAL),
      SYMBOL(GetCUBIN, OPTIONAL),
      SYMBOL(GetProgramLogSize, REQUIRED),
      SYMBOL(GetProgramLog, REQUIRED),
      SYMBOL(AddNameExpression, REQUIRED),
      SYMBOL(GetLoweredName, REQUIRED),
      SYMBOL(GetNumSupportedArchs, OPTIONAL),
      SYMBOL(GetSupportedArchs, OPTIONAL),
#undef SYMBOL
  };
  char reason[1500];
  void *library = weir__library_load("nvrtc", reason, sizeof reason);
  if (!library)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: source is compiled by NVRTC, and %s; install it (pip install nvidia-cuda-nvrtc)", caller,
                      reason);
  for (size_t i = 0; i < WEIR_COUNT_OF(symbols); i++) {
    void *address = dlsym(library, symbols[i].name);
    if (!address && symbols[i].need == REQUIRED)
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: NVRTC lacks %s", caller, symbols[i].name);
    memcpy((char *)&loaded + symbols[i].at, &address, sizeof address);
  }
  is_loaded = true;
  return WEIR_OK;
}

static weir_status get_nvrtc(const char *caller, const weir__nvrtc **nvrtc) {
  weir_status status = WEIR_OK;
  if (replaced) {
    *nvrtc = replaced;
    return WEIR_OK;
  }
  pthread_mutex_lock(&lock);
  if (!is_loaded)
    status = load(caller);
  pthread_mutex_unlock(&lock);
  *nvrtc = &loaded;
  return status;
}

static weir_status check(const char *caller, const weir__nvrtc *nvrtc, int result, const char *call) {
  enum { NVRTC_OUT_OF_MEMORY = 1 };
  if (!result)
    return WEIR_OK;
  return weir__fail(result == NVRTC_OUT_OF_MEMORY ? WEIR_ERROR_HOST_OUT_OF_MEMORY : WEIR_ERROR_DRIVER,
                    "%s: nvrtc%s failed: %s (%d)", caller, call, nvrtc->GetErrorString(result), result);
}

/* What the program is compiled for, and with which headers. */
typedef struct target {
  int major, minor; /* the version of NVRTC */
  int arch;         /* 90 */
  bool is_binary;
  char include[1100]; /* "-I" and the folder of CUDA's headers; "" if there is none */
} target;

/* The folder of cuda_fp16.h and others, which NVRTC does not contain: beside the library, in the package of the
 * runtime, or in the toolkit. */
static void find_headers(char include[1100]) {
  char path[1024] = "", file[1200];
  const char *how, *home = weir__compute_env(WEIR__ENV_CUDA_HOME), *other = weir__compute_env(WEIR__ENV_CUDA_PATH);
  if (weir_library_find("nvrtc", path, sizeof path, NULL, &how) || !strrchr(path, '/'))
    *path = 0;
  else
    *strrchr(path, '/') = 0;
  const struct {
    const char *root, *below;
  } places[] = {{path, "/../include"},
                {path, "/../../cuda_runtime/include"},
                {home, "/include"},
                {other, "/include"},
                {"/usr/local/cuda", "/include"}};
  for (size_t i = 0; i < WEIR_COUNT_OF(places); i++) {
    if (!places[i].root || !*places[i].root)
      continue;
    snprintf(file, sizeof file, "%.1000s%s/cuda_fp16.h", places[i].root, places[i].below);
    if (!access(file, R_OK)) {
      snprintf(include, 1100, "-I%.1000s%s", places[i].root, places[i].below);
      return;
    }
  }
}

/* A device newer than the compiler gets PTX of the newest architecture that the compiler knows. */
static weir_status choose_target(const char *caller, const weir__on_device *on, const weir__nvrtc *nvrtc,
                                 const char *source, const weir_compile_options *options, target *t) {
  int major, minor, count = 0;
  *t = (target){0};
  if (strstr(source, "#include") && !replaced)
    find_headers(t->include);
  weir_status status = weir_device_capability(on->device, &major, &minor);
  if (status)
    return weir__fail_as(caller, status);
  status = check(caller, nvrtc, nvrtc->Version(&t->major, &t->minor), "Version");
  if (status)
    return status;
  t->arch = 10 * major + minor;
  bool is_known = true;
  if (nvrtc->GetNumSupportedArchs && nvrtc->GetSupportedArchs) {
    status = check(caller, nvrtc, nvrtc->GetNumSupportedArchs(&count), "GetNumSupportedArchs");
    if (status)
      return status;
    int *archs = calloc(count > 0 ? (size_t)count : 1, sizeof *archs), newest = 0;
    if (!archs)
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the architectures", caller);
    status = check(caller, nvrtc, nvrtc->GetSupportedArchs(archs), "GetSupportedArchs");
    is_known = false;
    for (int i = 0; !status && i < count; i++) {
      is_known |= archs[i] == t->arch;
      newest = archs[i] > newest && archs[i] <= t->arch ? archs[i] : newest;
    }
    free(archs);
    if (status)
      return status;
    if (!is_known && !newest)
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: NVRTC %d.%d cannot compile for compute capability %d.%d", caller,
                        t->major, t->minor, major, minor);
    if (!is_known)
      t->arch = newest;
  }
  bool can_make_binary = is_known && nvrtc->GetCUBIN && nvrtc->GetCUBINSize;
  if (options->target == WEIR_COMPILE_BINARY && !can_make_binary)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: NVRTC %d.%d makes no binary for compute capability %d.%d", caller,
                      t->major, t->minor, major, minor);
  t->is_binary = can_make_binary && options->target != WEIR_COMPILE_PTX;
  return WEIR_OK;
}

weir_status weir__nvrtc_key(const char *caller, const weir__on_device *on, const char *source,
                            const weir_compile_options *options, weir__bytes *key) {
  const weir__nvrtc *nvrtc;
  target t;
  weir_status status = get_nvrtc(caller, &nvrtc);
  if (!status)
    status = choose_target(caller, on, nvrtc, source, options, &t);
  if (status)
    return status;
  char text[96];
  snprintf(text, sizeof text, "nvrtc %d.%d %s_%d", t.major, t.minor, t.is_binary ? "sm" : "compute", t.arch);
  weir__bytes_add_text(key, text);
  weir__bytes_add_text(key, t.include);
  return WEIR_OK;
}

static char *read_log(const weir__nvrtc *nvrtc, void *program) {
  size_t bytes = 0;
  if (nvrtc->GetProgramLogSize(program, &bytes) || bytes <= 1)
    return NULL;
  char *log = calloc(1, bytes + 1);
  if (log && nvrtc->GetProgramLog(program, log)) {
    free(log);
    return NULL;
  }
  return log;
}

static weir_status read_code(const char *caller, const weir__nvrtc *nvrtc, const target *t, void *program,
                             weir__binary *code) {
  size_t bytes = 0;
  weir_status status = t->is_binary ? check(caller, nvrtc, nvrtc->GetCUBINSize(program, &bytes), "GetCUBINSize")
                                    : check(caller, nvrtc, nvrtc->GetPTXSize(program, &bytes), "GetPTXSize");
  if (status)
    return status;
  code->data = calloc(1, bytes + 1);
  code->bytes = bytes;
  if (!code->data)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for %zu bytes of code", caller, bytes);
  return t->is_binary ? check(caller, nvrtc, nvrtc->GetCUBIN(program, (char *)code->data), "GetCUBIN")
                      : check(caller, nvrtc, nvrtc->GetPTX(program, (char *)code->data), "GetPTX");
}

static weir_status read_names(const char *caller, const weir__nvrtc *nvrtc, void *program,
                              const weir_compile_options *options, weir__binary *code) {
  bool has_memory = weir__binary_names(code, options->name_count);
  for (int i = 0; has_memory && i < options->name_count; i++) {
    const char *lowered;
    weir_status status =
        check(caller, nvrtc, nvrtc->GetLoweredName(program, options->names[i], &lowered), "GetLoweredName");
    if (status)
      return status;
    has_memory = (code->names[i] = strdup(options->names[i])) && (code->lowered[i] = strdup(lowered));
  }
  return has_memory ? WEIR_OK
                    : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the names", caller);
}

static bool has_option(const weir_compile_options *options, const char *begin, const char *other) {
  for (int i = 0; i < options->option_count; i++)
    if (!strncmp(options->options[i], begin, strlen(begin)) || !strncmp(options->options[i], other, strlen(other)))
      return true;
  return false;
}

/* NVRTC keeps precompiled headers since CUDA 12.8, which pays for a source that includes any. Its own cache, which
 * newer versions have, is on by default. */
static int list_options(const target *t, const char *source, const weir_compile_options *options, const char **list,
                        char arch[64]) {
  /* Without remarks that a header file was written, or that one of another source does not fit. */
  static const char *const pch[] = {"--pch", "--pch-messages=false", "--diag-suppress=630"};
  int count = 0;
  snprintf(arch, 64, "--gpu-architecture=%s_%d", t->is_binary ? "sm" : "compute", t->arch);
  list[count++] = arch;
  if (!has_option(options, "-std", "--std"))
    list[count++] = "--std=c++17";
  bool has_pch = t->major > 12 || (t->major == 12 && t->minor >= 8);
  if (has_pch && strstr(source, "#include") && !options->header_count && !has_option(options, "-pch", "--pch"))
    for (size_t i = 0; i < WEIR_COUNT_OF(pch); i++)
      list[count++] = pch[i];
  for (int i = 0; i < options->option_count; i++)
    list[count++] = options->options[i];
  if (*t->include)
    list[count++] = t->include; /* last: the program's own folders come first */
  return count;
}

weir_status weir__nvrtc_compile(const char *caller, const weir__on_device *on, const char *source,
                                const weir_compile_options *options, weir__binary *code) {
  enum { NVRTC_COMPILATION = 6 };
  const weir__nvrtc *nvrtc;
  target t;
  void *program = NULL;
  weir_status status = get_nvrtc(caller, &nvrtc);
  if (!status)
    status = choose_target(caller, on, nvrtc, source, options, &t);
  if (status)
    return status;
  const char **list = calloc((size_t)options->option_count + 8, sizeof *list);
  if (!list)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the options", caller);
  status = check(caller, nvrtc,
                 nvrtc->CreateProgram(&program, source, options->file_name, options->header_count, options->headers,
                                      options->header_names),
                 "CreateProgram");
  if (status)
    goto free_list;
  for (int i = 0; !status && i < options->name_count; i++)
    status = check(caller, nvrtc, nvrtc->AddNameExpression(program, options->names[i]), "AddNameExpression");
  if (status)
    goto destroy;

  char arch[64];
  int count = list_options(&t, source, options, list, arch);
  int result = nvrtc->CompileProgram(program, count, list);
  code->log = read_log(nvrtc, program);
  if (result == NVRTC_COMPILATION)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the source does not compile:\n%s", caller,
                        code->log ? code->log : "NVRTC gives no reason");
  else
    status = check(caller, nvrtc, result, "CompileProgram");
  if (!status)
    status = read_code(caller, nvrtc, &t, program, code);
  if (!status)
    status = read_names(caller, nvrtc, program, options, code);
destroy:
  nvrtc->DestroyProgram(&program);
free_list:
  free(list);
  return status;
}
