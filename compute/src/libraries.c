#include "src/libraries.h"

#include <ctype.h>
#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/compute.h"
#include "src/environment.h"

/* Versions, newest first, as the loader knows them. */
static const char *const nvrtc_names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so", NULL};
static const char *const cublas_names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so",
                                           NULL};
static const char *const nccl_names[] = {"libnccl.so.2", "libnccl.so", NULL};

static struct library {
  const char *name;
  weir__variable variable; /* that names the file */
  const char *const *file_names;
  void *handle; /* NULL if it was not found, or not looked for */
  bool is_known;
  char *path, *reason;
  const char *how;
} libraries[] = {
    {.name = "nvrtc", .variable = WEIR__ENV_NVRTC_LIBRARY, .file_names = nvrtc_names},
    {.name = "cublas", .variable = WEIR__ENV_CUBLAS_LIBRARY, .file_names = cublas_names},
    {.name = "nccl", .variable = WEIR__ENV_NCCL_LIBRARY, .file_names = nccl_names},
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards libraries and folders */

/* Folders of the program's packages, in the order in which they were added. */
static char **folders;
static size_t folder_count, folder_room;

static const char *base_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* Whether a file is a version of a library: "libnvrtc.so.12" of "libnvrtc.so". */
static bool is_version_of(const char *file, const char *library) {
  size_t length = strlen(library);
  return !strncmp(base_of(file), library, length) && (base_of(file)[length] == '.' || !base_of(file)[length]);
}

typedef struct search {
  const char *plain; /* the name without a version */
  char path[1024];
} search;

static int see_image(struct dl_phdr_info *image, size_t size, void *context) {
  (void)size;
  search *s = context;
  if (image->dlpi_name && is_version_of(image->dlpi_name, s->plain))
    snprintf(s->path, sizeof s->path, "%s", image->dlpi_name);
  return *s->path != 0; /* ends the search */
}

/* A library that the loader found by its name is shown with the path that it was loaded from. */
static bool try_open(struct library *library, const char *path, const char *how) {
  library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library->handle)
    return false;
  search s = {.plain = path};
  if (!strchr(path, '/'))
    dl_iterate_phdr(see_image, &s);
  library->path = strdup(*s.path ? s.path : path);
  library->how = how;
  return true;
}

/* The newest version in the folders that match a pattern. */
static bool try_pattern(struct library *library, const char *folder, const char *below, const char *how) {
  bool found = false;
  for (size_t i = 0; library->file_names[i] && !found; i++) {
    char pattern[1200];
    glob_t matches;
    if ((size_t)snprintf(pattern, sizeof pattern, "%s%s/%s", folder, below, library->file_names[i]) >= sizeof pattern ||
        glob(pattern, 0, NULL, &matches))
      continue;
    for (size_t k = 0; k < matches.gl_pathc && !found; k++)
      found = try_open(library, matches.gl_pathv[k], how);
    globfree(&matches);
  }
  return found;
}

static void look_for(struct library *library) {
  const char *named = weir__compute_env(library->variable);
  char reason[1400];
  library->is_known = true;
  if (named) {
    if (try_open(library, named, "named by the environment"))
      return;
    const char *why = dlerror();
    snprintf(reason, sizeof reason, "%s, which %s names, cannot be loaded: %.700s", named,
             weir__compute_env_name(library->variable), why ? why : "no reason given");
    library->reason = strdup(reason);
    return;
  }
  size_t last = 0;
  while (library->file_names[last + 1])
    last++;
  search s = {.plain = library->file_names[last]};
  dl_iterate_phdr(see_image, &s);
  if (*s.path && try_open(library, s.path, "already loaded"))
    return;
  for (size_t i = 0; library->file_names[i]; i++)
    if (try_open(library, library->file_names[i], "found by the loader"))
      return;
  for (size_t i = 0; i < folder_count; i++)
    if (try_pattern(library, folders[i], "", "in a folder of the program") ||
        try_pattern(library, folders[i], "/nvidia/*/lib", "in a Python package"))
      return;
  static const weir__variable roots[] = {WEIR__ENV_CUDA_HOME, WEIR__ENV_CUDA_PATH};
  for (size_t i = 0; i < WEIR_COUNT_OF(roots); i++) {
    const char *root = weir__compute_env(roots[i]);
    if (root && (try_pattern(library, root, "/lib64", "in the CUDA toolkit") ||
                 try_pattern(library, root, "/lib", "in the CUDA toolkit")))
      return;
  }
  if (try_pattern(library, "/usr/local/cuda", "/lib64", "in the CUDA toolkit") ||
      try_pattern(library, "/usr/local/cuda", "/lib", "in the CUDA toolkit"))
    return;
  snprintf(
      reason, sizeof reason,
      "%s was not found: not loaded, not on the loader's path, in none of %zu folders of packages, and not in a CUDA "
      "toolkit; name it with %s",
      library->file_names[last], folder_count, weir__compute_env_name(library->variable));
  library->reason = strdup(reason);
}

static struct library *find(const char *name) {
  for (size_t i = 0; i < WEIR_COUNT_OF(libraries); i++)
    if (!strcmp(libraries[i].name, name))
      return &libraries[i];
  return NULL;
}

static void forget(struct library *library) {
  free(library->path);
  free(library->reason);
  library->handle = NULL;
  library->path = library->reason = NULL;
  library->how = NULL;
  library->is_known = false;
}

void *weir__library_load(const char *name, char *reason, size_t size) {
  pthread_mutex_lock(&lock);
  struct library *library = find(name);
  if (!library->is_known)
    look_for(library);
  void *handle = library->handle;
  if (!handle && size)
    snprintf(reason, size, "%s", library->reason ? library->reason : "out of host memory");
  pthread_mutex_unlock(&lock);
  return handle;
}

void weir__libraries_forget(void) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < WEIR_COUNT_OF(libraries); i++)
    forget(&libraries[i]);
  for (size_t i = 0; i < folder_count; i++)
    free(folders[i]);
  free(folders);
  folders = NULL;
  folder_count = folder_room = 0;
  pthread_mutex_unlock(&lock);
}

weir_status weir_library_add_folder(const char *folder) {
  WEIR__CHECK_ARGUMENT(folder);
  bool added = true;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < folder_count; i++)
    if (!strcmp(folders[i], folder))
      goto unlock;
  char *copy = strdup(folder);
  added = copy && WEIR__RESERVE(folders, folder_room, folder_count + 1);
  if (added)
    folders[folder_count++] = copy;
  else
    free(copy);
  for (size_t i = 0; added && i < WEIR_COUNT_OF(libraries); i++)
    if (libraries[i].is_known && !libraries[i].handle)
      forget(&libraries[i]); /* it may be in the new folder */
unlock:
  pthread_mutex_unlock(&lock);
  return added ? WEIR_OK : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the folder", __func__);
}

weir_status weir_library_find(const char *name, char *path, size_t size, size_t *length, const char **how) {
  WEIR__CHECK_ARGUMENT(name);
  if (size && !path)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the text is NULL", __func__);
  WEIR__CHECK_ARGUMENT(how);
  if (!find(name))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: name is \"%s\"; expected nvrtc, cublas or nccl", __func__,
                      name);
  char reason[1400];
  if (!weir__library_load(name, reason, sizeof reason))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: %s", __func__, reason);
  pthread_mutex_lock(&lock);
  const struct library *library = find(name);
  weir__return_text(library->path ? library->path : "", path, size, length);
  *how = library->how;
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}
