#include "src/kernel_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base.h"
#include "src/environment.h"
#include "weir/adapter.h"

/* ---- Bytes ---- */

void weir__bytes_add(weir__bytes *bytes, const void *data, size_t count) {
  if (bytes->failed || !count)
    return;
  bytes->failed = !WEIR__RESERVE(bytes->data, bytes->room, bytes->count + count);
  if (bytes->failed)
    return;
  memcpy(bytes->data + bytes->count, data, count);
  bytes->count += count;
}

void weir__bytes_add_sized(weir__bytes *bytes, const void *data, size_t count) {
  uint64_t length = count;
  weir__bytes_add(bytes, &length, sizeof length);
  weir__bytes_add(bytes, data, count);
}

void weir__bytes_add_text(weir__bytes *bytes, const char *text) {
  weir__bytes_add_sized(bytes, text ? text : "", text ? strlen(text) : 0);
}

void weir__bytes_end(weir__bytes *bytes) {
  free(bytes->data);
  *bytes = (weir__bytes){0};
}

uint64_t weir__hash_bytes(uint64_t seed, const void *data, size_t count) {
  const unsigned char *at = data;
  uint64_t hash = seed ^ 0xcbf29ce484222325u; /* FNV-1a, with a final mix */
  for (size_t i = 0; i < count; i++)
    hash = (hash ^ at[i]) * 0x100000001b3u;
  hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93u;
  return hash ^ hash >> 32;
}

/* ---- The folder ---- */

static const char suffix[] = ".kernel";

bool weir__cache_folder(char *path, size_t size) {
  const char *own = weir__compute_env(WEIR__ENV_CACHE_DIR), *cache = weir__compute_env(WEIR__ENV_CACHE_HOME),
             *home = weir__compute_env(WEIR__ENV_HOME);
  int length;
  if (own)
    length = snprintf(path, size, "%s", own);
  else if (cache && *cache == '/')
    length = snprintf(path, size, "%s/weir", cache);
  else if (home && *home == '/')
    length = snprintf(path, size, "%s/.cache/weir", home);
  else
    return false;
  return length > 0 && (size_t)length < size;
}

/* Creates a folder and those above it, readable by the user alone. */
static bool make_folders(char *path) {
  for (char *at = path + 1; *at; at++)
    if (*at == '/') {
      *at = 0;
      bool made = !mkdir(path, 0700) || errno == EEXIST;
      *at = '/';
      if (!made)
        return false;
    }
  return !mkdir(path, 0700) || errno == EEXIST;
}

static bool file_of(const weir__bytes *key, char *path, size_t size, size_t *folder_length) {
  if (!weir__cache_folder(path, size))
    return false;
  *folder_length = strlen(path);
  uint64_t hash = weir__hash_bytes(0, key->data, key->count);
  return (size_t)snprintf(path + *folder_length, size - *folder_length, "/%016" PRIx64 "%s", hash, suffix) <
         size - *folder_length;
}

/* ---- Files: the header, the key, the contents ---- */

typedef struct header {
  char magic[24];
  uint64_t checksum; /* of all that follows it in the file */
  uint64_t key_bytes, data_bytes;
} header;
static const char magic[24] = "weir kernel cache 1\n";

static bool read_all(int fd, void *data, size_t count) {
  for (size_t done = 0; done < count;) {
    ssize_t got = read(fd, (char *)data + done, count - done);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return false;
    done += (size_t)got;
  }
  return true;
}

static bool write_all(int fd, const void *data, size_t count) {
  for (size_t done = 0; done < count;) {
    ssize_t put = write(fd, (const char *)data + done, count - done);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0)
      return false;
    done += (size_t)put;
  }
  return true;
}

static uint64_t checksum_of(const header *head, const unsigned char *rest, size_t count) {
  uint64_t sizes = weir__hash_bytes(1, &head->key_bytes, 2 * sizeof head->key_bytes);
  return weir__hash_bytes(sizes, rest, count);
}

/* What follows the header, if the file is whole. The code in it will run, so it must belong to the user. */
static unsigned char *read_file(int fd, header *head) {
  struct stat info;
  if (fstat(fd, &info) || !S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 022) ||
      (uint64_t)info.st_size < sizeof *head || !read_all(fd, head, sizeof *head))
    return NULL;
  uint64_t rest = (uint64_t)info.st_size - sizeof *head;
  if (memcmp(head->magic, magic, sizeof magic) != 0 || head->key_bytes > rest ||
      head->data_bytes != rest - head->key_bytes)
    return NULL;
  unsigned char *data = malloc(rest ? rest : 1);
  if (data && read_all(fd, data, rest) && checksum_of(head, data, rest) == head->checksum)
    return data;
  free(data);
  return NULL;
}

bool weir__cache_read(const weir__bytes *key, unsigned char **data, size_t *count) {
  char path[4096];
  size_t folder;
  if (key->failed || !file_of(key, path, sizeof path, &folder))
    return false;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0)
    return false;
  header head;
  unsigned char *all = read_file(fd, &head);
  bool is_ours = all && head.key_bytes == key->count && !memcmp(all, key->data, key->count);
  if (is_ours)
    futimens(fd, NULL); /* it was used now */
  close(fd);
  if (!all) {
    weir__log(WEIR_LOG_INFO, "%s is damaged or not ours; it is replaced", path);
    unlink(path);
  }
  if (!is_ours) {
    free(all);
    return false;
  }
  memmove(all, all + head.key_bytes, head.data_bytes);
  *data = all;
  *count = head.data_bytes;
  return true;
}

/* ---- The limit ---- */

typedef struct old_file {
  char name[64];
  struct timespec used;
  uint64_t bytes;
} old_file;

static int by_use(const void *a, const void *b) {
  const struct timespec *x = &((const old_file *)a)->used, *y = &((const old_file *)b)->used;
  if (x->tv_sec != y->tv_sec)
    return x->tv_sec < y->tv_sec ? -1 : 1;
  return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

static uint64_t size_limit(void) {
  uint64_t bytes = 1ull << 30;
  if (!weir__compute_env_bytes(WEIR__ENV_CACHE_SIZE, &bytes))
    weir__compute_env_ignore(WEIR__ENV_CACHE_SIZE, "the limit is 1 GiB");
  return bytes;
}

/* Removes files until three quarters of the limit are left, so that this is rare. */
static void trim(const char *folder) {
  DIR *listing = opendir(folder);
  if (!listing)
    return;
  old_file *files = NULL;
  size_t count = 0, room = 0;
  uint64_t total = 0, limit = size_limit();
  for (struct dirent *entry; (entry = readdir(listing));) {
    struct stat info;
    size_t length = strlen(entry->d_name);
    bool is_ours = length > sizeof suffix && length < sizeof files->name &&
                   (!strcmp(entry->d_name + length - strlen(suffix), suffix) || strstr(entry->d_name, ".part-"));
    if (!is_ours || fstatat(dirfd(listing), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) ||
        !WEIR__RESERVE(files, room, count + 1))
      continue;
    files[count].used = info.st_mtim;
    files[count].bytes = (uint64_t)info.st_size;
    memcpy(files[count++].name, entry->d_name, length + 1);
    total += (uint64_t)info.st_size;
  }
  if (total > limit && count) {
    qsort(files, count, sizeof *files, by_use);
    for (size_t i = 0; i < count && total > limit / 4 * 3; i++)
      if (!unlinkat(dirfd(listing), files[i].name, 0))
        total -= files[i].bytes;
  }
  free(files);
  closedir(listing);
}

void weir__cache_write(const weir__bytes *key, const void *data, size_t count) {
  static atomic_uint number;
  char path[4096], part[4200];
  size_t folder;
  if (key->failed || !file_of(key, path, sizeof path, &folder))
    return;
  snprintf(part, sizeof part, "%s.part-%d-%u", path, (int)getpid(), atomic_fetch_add(&number, 1));
  path[folder] = 0;
  bool done = make_folders(path);
  int fd = done ? open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
  if (fd >= 0) {
    weir__bytes all = {0};
    header head = {.key_bytes = key->count, .data_bytes = count};
    memcpy(head.magic, magic, sizeof magic);
    weir__bytes_add(&all, key->data, key->count);
    weir__bytes_add(&all, data, count);
    head.checksum = checksum_of(&head, all.data, all.count);
    done = !all.failed && write_all(fd, &head, sizeof head) && write_all(fd, all.data, all.count);
    done = !close(fd) && done;
    weir__bytes_end(&all);
    path[folder] = '/';
    done = done && !rename(part, path);
    if (!done)
      unlink(part);
    path[folder] = 0;
    trim(path);
  }
  if (fd < 0 || !done)
    weir__log(WEIR_LOG_INFO, "compiled code cannot be kept in %s: %s", path, strerror(errno));
}
