#include "base/system.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#ifndef __wasi__

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>

int weir__descriptor_copy(int descriptor) { return fcntl(descriptor, F_DUPFD_CLOEXEC, 0); }

int weir__process_open(int process) { return (int)syscall(SYS_pidfd_open, process, 0); }

int weir__process_take_descriptor(int process_descriptor, int number) {
  return (int)syscall(SYS_pidfd_getfd, process_descriptor, number, 0);
}

bool weir__process_has_ended(int process_descriptor) {
  struct pollfd ends = {.fd = process_descriptor, .events = POLLIN};
  return poll(&ends, 1, 0) > 0;
}

void weir__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
  struct timespec limit = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
}

void weir__futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

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

int weir__descriptor_copy(int descriptor) {
  (void)descriptor;
  errno = ENOSYS;
  return -1;
}

int weir__process_open(int process) { return weir__descriptor_copy(process); }

int weir__process_take_descriptor(int process_descriptor, int number) {
  (void)number;
  return weir__descriptor_copy(process_descriptor);
}

bool weir__process_has_ended(int process_descriptor) {
  (void)process_descriptor;
  return false;
}

void weir__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
  (void)word;
  (void)value;
  (void)ns;
}

void weir__futex_wake(_Atomic uint32_t *word) { (void)word; }

bool weir__random_bytes(void *bytes, size_t size) { return getentropy(bytes, size) == 0; }

const char *weir__secure_getenv(const char *name) { return getenv(name); }

void weir__host_name(char *name, size_t size) {
  (void)size;
  name[0] = 0;
}

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
