#include "base/system.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef __wasi__

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

/* Repeats a call that returns a descriptor as long as it fails for the limit of open files, and that can be raised. */
#define WITH_LIMIT_RAISED(descriptor, call)                                                                            \
  do                                                                                                                   \
    descriptor = (int)(call);                                                                                          \
  while (descriptor < 0 && weir__descriptors_raise_limit())

int weir__descriptor_copy(int descriptor) {
  int copy;
  WITH_LIMIT_RAISED(copy, fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  return copy;
}

int weir__process_open(int process) {
  int descriptor;
  WITH_LIMIT_RAISED(descriptor, syscall(SYS_pidfd_open, process, 0));
  return descriptor;
}

int weir__process_take_descriptor(int process_descriptor, int number) {
  int descriptor;
  WITH_LIMIT_RAISED(descriptor, syscall(SYS_pidfd_getfd, process_descriptor, number, 0));
  return descriptor;
}

bool weir__process_start_time(int process, uint64_t *ticks) {
  char path[32], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", process);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return false;
  ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  text[length > 0 ? length : 0] = 0;
  /* The second field is the name of the program in parentheses, which may contain anything. */
  const char *at = strrchr(text, ')');
  for (int field = 2; at && field < 22; field++)
    at = strchr(at + 1, ' ');
  unsigned long long started;
  if (!at || sscanf(at, "%llu", &started) != 1) {
    errno = EINVAL;
    return false;
  }
  *ticks = started;
  return true;
}

uint64_t weir__process_namespace(void) {
  struct stat about;
  return stat("/proc/self/ns/pid", &about) == 0 ? (uint64_t)about.st_ino : 0;
}

bool weir__opened_process_has_ended(int process_descriptor) {
  struct pollfd ended = {.fd = process_descriptor, .events = POLLIN};
  return poll(&ended, 1, 0) > 0;
}

bool weir__process_has_ended(int process) {
  int descriptor = weir__process_open(process);
  if (descriptor < 0)
    return errno == ESRCH;
  bool has_ended = weir__opened_process_has_ended(descriptor);
  close(descriptor);
  return has_ended;
}

int weir__process_open_file(int process, int number, const char *name) {
  char path[64], target[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", process, number);
  ssize_t length = readlink(path, target, sizeof target);
  if (length < 0)
    return -1;
  if ((size_t)length < strlen(name) || memcmp(target, name, strlen(name)) != 0) {
    errno = ENOENT;
    return -1;
  }
  int file;
  WITH_LIMIT_RAISED(file, open(path, O_RDWR | O_CLOEXEC));
  return file;
}

bool weir__descriptors_raise_limit(void) {
  int error = errno;
  struct rlimit limit;
  bool raised = false;
  if (error == EMFILE && !getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_cur > limit.rlim_max / 2 ? limit.rlim_max : 2 * limit.rlim_cur;
    raised = !setrlimit(RLIMIT_NOFILE, &limit);
  }
  errno = error;
  return raised;
}

size_t weir__descriptors_limit(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_NOFILE, &limit) ? 0 : (size_t)limit.rlim_cur;
}

void weir__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
  struct timespec limit = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

void weir__futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

/* A lock of an open file description: the child of a fork shares it, and closing another descriptor of the file does
 * not end it, as it would end a lock of the process. */
bool weir__file_lock(int descriptor) {
  struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  return fcntl(descriptor, F_OFD_SETLK, &all) == 0;
}

bool weir__file_is_locked(int descriptor) {
  struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET}; /* the descriptor may be read-only */
  return fcntl(descriptor, F_OFD_GETLK, &all) == 0 && all.l_type != F_UNLCK;
}

int weir__private_folder(const char *path, bool create) {
  struct stat about;
  if (create && mkdir(path, 0700) != 0 && errno != EEXIST)
    return errno;
  if (lstat(path, &about) != 0)
    return errno;
  return S_ISDIR(about.st_mode) && about.st_uid == geteuid() && (about.st_mode & 077) == 0 ? 0 : EPERM;
}

unsigned weir__user_id(void) { return (unsigned)geteuid(); }

/* Reads the number after `name`, or the first one with an empty name; false if there is none ("max" is none). */
static bool read_number(const char *path, const char *name, uint64_t *number) {
  char line[256];
  unsigned long long value;
  bool found = false;
  FILE *file = fopen(path, "re");
  while (file && !found && fgets(line, sizeof line, file))
    found = strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), "%llu", &value) == 1;
  if (file)
    fclose(file);
  if (found)
    *number = value;
  return found;
}

uint64_t weir__memory_available(void) {
  static const struct {
    const char *limit, *usage; /* of the control groups of the container, in both of their versions */
  } groups[] = {{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
                {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  uint64_t available = UINT64_MAX, limit, usage;
  if (read_number("/proc/meminfo", "MemAvailable:", &available))
    available *= 1024;
  for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
    if (read_number(groups[i].limit, "", &limit) && read_number(groups[i].usage, "", &usage)) {
      uint64_t left = limit > usage ? limit - usage : 0;
      available = left < available ? left : available;
    }
  return available;
}

bool weir__random_bytes(void *bytes, size_t size) { return getrandom(bytes, size, GRND_NONBLOCK) == (ssize_t)size; }

const char *weir__secure_getenv(const char *name) { return secure_getenv(name); }

void weir__host_name(char *name, size_t size) {
  if (gethostname(name, size) != 0)
    name[0] = 0;
  name[size - 1] = 0;
}

void weir__sort(void *items, size_t count, size_t size, int (*compare)(const void *a, const void *b, void *context),
                void *context) {
  qsort_r(items, count, size, compare, context);
}

#else

#pragma GCC diagnostic ignored "-Wunused-parameter" /* most of these do nothing */

int weir__descriptor_copy(int descriptor) {
  errno = ENOSYS;
  return -1;
}

int weir__process_open(int process) { return weir__descriptor_copy(process); }

int weir__process_take_descriptor(int process_descriptor, int number) {
  return weir__descriptor_copy(process_descriptor);
}

bool weir__opened_process_has_ended(int process_descriptor) { return false; }
void weir__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {}
void weir__futex_wake(_Atomic uint32_t *word) {}
bool weir__process_start_time(int process, uint64_t *ticks) { return weir__descriptor_copy(process) >= 0; }
uint64_t weir__process_namespace(void) { return 0; }
bool weir__process_has_ended(int process) { return false; }
bool weir__file_lock(int descriptor) { return false; }
bool weir__file_is_locked(int descriptor) { return false; }
int weir__private_folder(const char *path, bool create) { return ENOSYS; }
unsigned weir__user_id(void) { return 0; }
int weir__process_open_file(int process, int number, const char *name) { return weir__descriptor_copy(process); }
bool weir__descriptors_raise_limit(void) { return false; }
size_t weir__descriptors_limit(void) { return 0; }
uint64_t weir__memory_available(void) { return UINT64_MAX; }
bool weir__random_bytes(void *bytes, size_t size) { return getentropy(bytes, size) == 0; }
const char *weir__secure_getenv(const char *name) { return getenv(name); }
void weir__host_name(char *name, size_t size) { name[0] = 0; }

/* The comparison of qsort has no context; there is one thread. */
static int (*current_compare)(const void *a, const void *b, void *context);
static void *current_context;

static int compare_with_context(const void *a, const void *b) { return current_compare(a, b, current_context); }

void weir__sort(void *items, size_t count, size_t size, int (*compare)(const void *a, const void *b, void *context),
                void *context) {
  current_compare = compare;
  current_context = context;
  qsort(items, count, size, compare_with_context);
}

#endif

weir__file_id weir__file_identity(int descriptor) {
  struct stat about;
  bool is_open = descriptor >= 0 && fstat(descriptor, &about) == 0;
  return is_open ? (weir__file_id){(uint64_t)about.st_dev, (uint64_t)about.st_ino} : (weir__file_id){0, 0};
}
