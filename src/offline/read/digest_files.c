#include "offline/read/digest_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/base.h"

static weir_status no_memory(const char *path) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", path);
}

static weir_status add(weir__digest_paths *paths, const char *folder, const char *name) {
  char *path;
  if (!WEIR__RESERVE(paths->items, paths->room, paths->count + 1) ||
      asprintf(&path, "%s%s%s", folder, *folder ? "/" : "", name) < 0)
    return no_memory(name);
  paths->items[paths->count++] = path;
  return WEIR_OK;
}

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), of_end = strlen(end);
  return length > of_end && strcmp(text + length - of_end, end) == 0;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

weir_status weir__digest_paths_add(weir__digest_paths *paths, const char *path) {
  struct stat about;
  if (strcmp(path, "-") == 0 || stat(path, &about) != 0 || !S_ISDIR(about.st_mode))
    return add(paths, "", path); /* a file that cannot be opened is reported when it is */
  DIR *folder = opendir(path);
  size_t first = paths->count;
  weir_status status = WEIR_OK;
  if (!folder)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: %s", path, strerror(errno));
  for (struct dirent *e; !status && (e = readdir(folder));)
    if (ends_with(e->d_name, ".json") || ends_with(e->d_name, ".json.zst"))
      status = add(paths, path, e->d_name);
  closedir(folder);
  if (!status && paths->count == first)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: no file in this folder ends in .json or .json.zst", path);
  if (!status)
    qsort(paths->items + first, paths->count - first, sizeof *paths->items, by_text);
  return status;
}

void weir__digest_paths_clear(weir__digest_paths *paths) {
  for (size_t i = 0; i < paths->count; i++)
    free(paths->items[i]);
  free(paths->items);
  *paths = (weir__digest_paths){0};
}
