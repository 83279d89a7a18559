/*
 * How programs find the driver's functions, and how the preload library replaces them.
 *
 * There are three ways. A program that is linked to libcuda.so.1 finds the names that this library exports, since it
 * was loaded first. A program that calls dlsym gets this library's functions instead of the driver's; NVIDIA's runtime
 * does so, even if it is linked statically. And cuGetProcAddress, which the runtime and frameworks call for the other
 * functions, is replaced too. A function is replaced only if it belongs to the driver: another library with the same
 * names is not affected.
 */
#include "real.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { ANY, LEGACY, PER_THREAD };

/* The flag of cuGetProcAddress that selects the variant for per-thread default streams. */
enum { PER_THREAD_DEFAULT_STREAM = 2 };

/* From this version on, a name may mean a function with another signature. */
enum { UNKNOWN_VERSION = 14000 };

static const struct {
  const char *symbol, *name;
  int since, stream;
} entries[PRELOAD_COUNT] = {
#define ENTRY(symbol, name, since, stream, params) {#symbol, #name, since, stream},
#include "entries.h"
};

static void *ours(preload_entry entry) {
  static void (*const functions[])(void) = {
#define ENTRY(symbol, name, since, stream, params) (void (*)(void)) symbol,
#include "entries.h"
  };
  void *address;
  memcpy(&address, &functions[entry], sizeof address);
  return address;
}

_Thread_local bool preload_finds_real;

/* ---- The driver ---- */

/* Found by the first thread that needs it. Two threads at once find the same. */
static _Atomic(void *) real[PRELOAD_COUNT];
static atomic_bool is_loaded;

typedef void *(*dlsym_fn)(void *, const char *);

/* libc's own dlsym. It is found by its version through dlvsym, since dlsym itself would find ours. */
__attribute__((no_sanitize("address", "undefined", "thread"))) static dlsym_fn libc_dlsym(void) {
  static _Atomic(dlsym_fn) found;
  dlsym_fn fn = atomic_load_explicit(&found, memory_order_relaxed);
  if (fn)
    return fn;
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
  void *address = NULL;
  for (size_t i = 0; i < sizeof versions / sizeof *versions && !address; i++)
    address = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  if (!address)
    abort(); /* no program can run without it */
  memcpy(&fn, &address, sizeof fn);
  atomic_store_explicit(&found, fn, memory_order_relaxed);
  return fn;
}

/* The driver is available if the program has loaded it; this library never loads it. */
static bool load(void) {
  if (atomic_load_explicit(&is_loaded, memory_order_acquire))
    return true;
  const char *name = secure_getenv("WEIR_CUDA_LIBRARY");
  void *library = dlopen(name && *name ? name : "libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (!library)
    return false;
  for (int i = 0; i < PRELOAD_COUNT; i++)
    atomic_store_explicit(&real[i], libc_dlsym()(library, entries[i].symbol), memory_order_relaxed);
  atomic_store_explicit(&is_loaded, true, memory_order_release);
  return true;
}

void *preload_real(preload_entry entry) {
  return load() ? atomic_load_explicit(&real[entry], memory_order_relaxed) : NULL;
}

weir_cu_result preload_absent(void) { return load() ? WEIR_CU_NOT_SUPPORTED : WEIR_CU_NOT_INITIALIZED; }

/* ---- dlsym ---- */

/* Returns the function that replaces what dlsym would find, or NULL if none does. */
static void *replacement(void *handle, const char *name) {
  if (preload_finds_real || handle == RTLD_NEXT)
    return NULL;
  for (int i = 0; i < PRELOAD_COUNT; i++)
    if (strcmp(entries[i].symbol, name) == 0) {
      void *address = libc_dlsym()(handle, name);
      return address && load() && address == atomic_load_explicit(&real[i], memory_order_relaxed)
                 ? ours((preload_entry)i)
                 : NULL;
    }
  return NULL;
}

/* libc's dlsym depends on its caller (RTLD_NEXT and RTLD_DEFAULT mean the view of the calling library), so this must
 * end in a jump instead of a call in every build. It also runs before a sanitizer is initialized. */
#if defined(__clang__)
#define JUMP __attribute__((musttail))
__attribute__((visibility("default"), no_sanitize("address", "undefined", "thread")))
#else
#define JUMP
__attribute__((visibility("default"), no_sanitize("address", "undefined", "thread"), optimize("O2")))
#endif
void *
dlsym(void *restrict handle, const char *restrict name) {
  if (name[0] == 'c' && name[1] == 'u') {
    void *found = replacement(handle, name);
    if (found)
      return found;
  }
  dlsym_fn fn = libc_dlsym();
  JUMP return fn(handle, name);
}

/* ---- cuGetProcAddress ---- */

/* Returns the replacement of a function that the driver found. Of several versions of a name, the newest that the
 * caller knows is used. */
static void *instead_of(void *found, const char *name, int version, uint64_t flags) {
  int best = -1;
  int other = flags & PER_THREAD_DEFAULT_STREAM ? LEGACY : PER_THREAD;
  for (int i = 0; i < PRELOAD_COUNT; i++) {
    bool is_named = strcmp(entries[i].name, name) == 0;
    bool is_meant =
        is_named ? entries[i].stream != other && entries[i].since <= version : strcmp(entries[i].symbol, name) == 0;
    if (is_meant && (best < 0 || entries[best].since < entries[i].since))
      best = i;
  }
  if (best < 0)
    return found;
  return version < UNKNOWN_VERSION || found == preload_real((preload_entry)best) ? ours((preload_entry)best) : found;
}

weir_cu_result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  weir_cu_result result = REAL(cuGetProcAddress_v2, name, function, version, flags, status);
  if (!result && name && function && *function)
    *function = instead_of(*function, name, version, flags);
  return result;
}

weir_cu_result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  weir_cu_result result = REAL(cuGetProcAddress, name, function, version, flags);
  if (!result && name && function && *function)
    *function = instead_of(*function, name, version, flags);
  return result;
}
