#include "src/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* After a call has failed with EMFILE: doubles the process's limit of open files, up to the hard limit. False, with
 * errno as before, if that is not possible. */
static bool raise_limit(void) {
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

int weir__shared_file(const char *name, size_t bytes) {
  int file;
  do
    file = memfd_create(name, MFD_CLOEXEC);
  while (file < 0 && raise_limit());
  if (file < 0 || ftruncate(file, (off_t)bytes) == 0)
    return file;
  close(file);
  return -1;
}

void *weir__shared_map(int file, size_t bytes) {
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? NULL : at;
}

void weir__shared_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
  struct timespec limit = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

void weir__shared_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

int weir__peer_open(int process) {
  int descriptor;
  do
    descriptor = (int)syscall(SYS_pidfd_open, process, 0);
  while (descriptor < 0 && raise_limit());
  return descriptor;
}

bool weir__peer_has_ended(int descriptor) {
  struct pollfd ended = {.fd = descriptor, .events = POLLIN};
  return poll(&ended, 1, 0) > 0;
}

bool weir__peer_start_time(int process, uint64_t *ticks) {
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
  if (!at || sscanf(at, "%llu", &started) != 1)
    return false;
  *ticks = started;
  return true;
}
