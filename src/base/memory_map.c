#include "base/memory_map.h"

#ifndef __wasi__

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/system.h"

enum { PRIVATE_MEMORY = MAP_PRIVATE | MAP_ANONYMOUS, RESERVED = PRIVATE_MEMORY | MAP_NORESERVE };

static void *checked(void *mapped) { return mapped == MAP_FAILED ? NULL : mapped; }

/* Reserves more than enough and gives the ends back. */
void *weir__map_reserve(size_t bytes, size_t alignment) {
  size_t slack = alignment > weir__map_page_size() ? alignment : 0;
  char *space = slack > SIZE_MAX - bytes ? NULL : checked(mmap(NULL, bytes + slack, PROT_NONE, RESERVED, -1, 0));
  if (!space || !slack)
    return space;
  size_t before = -(uintptr_t)space & (alignment - 1);
  if (before)
    munmap(space, before);
  munmap(space + before + bytes, slack - before);
  return space + before;
}

bool weir__map_reserve_at(void *at, size_t bytes) {
  void *space = checked(mmap(at, bytes, PROT_NONE, RESERVED | MAP_FIXED_NOREPLACE, -1, 0));
  if (space && space != at) /* kernels before 4.17 take the address for a hint */
    munmap(space, bytes);
  return space == at;
}

bool weir__map_commit(void *at, size_t bytes) { return weir__map_protect(at, bytes, true, true); }

bool weir__map_discard(void *at, size_t bytes) { return madvise(at, bytes, MADV_DONTNEED) == 0; }

size_t weir__map_page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* Page faults are most of the cost of a large array. */
static void *on_large_pages(void *memory, size_t bytes) {
  if (memory)
    madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void *weir__map_memory(size_t bytes) {
  return on_large_pages(checked(mmap(NULL, bytes, PROT_READ | PROT_WRITE, PRIVATE_MEMORY, -1, 0)), bytes);
}

void *weir__map_grow(void *memory, size_t old_bytes, size_t bytes) {
  return on_large_pages(checked(mremap(memory, old_bytes, bytes, MREMAP_MAYMOVE)), bytes);
}

void *weir__map_aligned_memory(size_t bytes, size_t alignment) {
  void *memory = weir__map_reserve(bytes, alignment);
  if (!memory || weir__map_commit(memory, bytes))
    return on_large_pages(memory, bytes);
  munmap(memory, bytes);
  return NULL;
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

bool weir__map_populate(void *at, size_t bytes) {
  int result;
  do
    result = madvise(at, bytes, MADV_POPULATE_WRITE);
  while (result != 0 && errno == EINTR);
  return result == 0;
}

const void *weir__map_file(int descriptor, size_t bytes) {
  return checked(mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0));
}

/* A file larger than the process may write would end it with a signal. */
/* Writes zeros where a file has disk space and no data yet, many pages at a time. Otherwise the first write to each
 * page of a mapping gets it from the file system, which takes several times as long. So a failure costs time alone. */
static void write_zeros(int descriptor, uint64_t from, uint64_t bytes) {
  enum { PIECE = 64 << 10, PIECES = 64 };
  static char zeros[PIECE];
  struct iovec pieces[PIECES];
  while (bytes) {
    int count = 0;
    for (uint64_t at = 0; at < bytes && count < PIECES; at += PIECE)
      pieces[count++] = (struct iovec){zeros, bytes - at < PIECE ? (size_t)(bytes - at) : PIECE};
    ssize_t written = pwritev(descriptor, pieces, count, (off_t)from);
    if (written <= 0)
      return;
    from += (uint64_t)written;
    bytes -= (uint64_t)written;
  }
}

int weir__map_allocate_file(int descriptor, uint64_t from, uint64_t bytes) {
  struct rlimit most;
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && from + bytes > most.rlim_cur)
    return EFBIG;
  int error;
  do
    error = posix_fallocate(descriptor, (off_t)from, (off_t)bytes);
  while (error == EINTR);
  if (!error)
    write_zeros(descriptor, from, bytes);
  return error;
}

void *weir__map_shared_file(int descriptor, size_t bytes) {
  return checked(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0));
}

int weir__map_memory_file(const char *name, uint64_t bytes) {
  int descriptor;
  do
    descriptor = memfd_create(name, MFD_CLOEXEC);
  while (descriptor < 0 && weir__descriptors_raise_limit());
  if (descriptor < 0 || ftruncate(descriptor, (off_t)bytes) == 0)
    return descriptor;
  close(descriptor);
  return -1;
}

bool weir__map_shared_file_at(void *at, size_t bytes, int descriptor, uint64_t offset) {
  return checked(mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, descriptor, (off_t)offset)) != NULL;
}

bool weir__map_protect(void *at, size_t bytes, bool reads, bool writes) {
  return mprotect(at, bytes, writes ? PROT_READ | PROT_WRITE : reads ? PROT_READ : PROT_NONE) == 0;
}

bool weir__map_release(void *at, size_t bytes) {
  return checked(mmap(at, bytes, PROT_NONE, RESERVED | MAP_FIXED, -1, 0)) != NULL;
}

bool weir__map_replace(void *at, size_t bytes) {
  return checked(mmap(at, bytes, PROT_READ | PROT_WRITE, RESERVED | MAP_FIXED, -1, 0)) != NULL;
}

void weir__unmap(const void *at, size_t bytes) { munmap((void *)at, bytes); }

#else

#pragma GCC diagnostic ignored "-Wunused-parameter" /* most of these do nothing */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 64 << 10 }; /* of WebAssembly */

size_t weir__map_page_size(void) { return PAGE; }

void *weir__map_reserve(size_t bytes, size_t alignment) {
  size_t step = alignment < PAGE ? alignment : PAGE; /* addresses are offsets into one memory: more is not needed */
  return bytes > SIZE_MAX - step ? NULL : aligned_alloc(step, (bytes + step - 1) / step * step);
}

bool weir__map_commit(void *at, size_t bytes) {
  memset(at, 0, bytes);
  return true;
}

bool weir__map_discard(void *at, size_t bytes) { return false; }

void *weir__map_memory(size_t bytes) { return calloc(1, bytes); }

void *weir__map_aligned_memory(size_t bytes, size_t alignment) {
  void *memory = weir__map_reserve(bytes, alignment);
  if (memory)
    memset(memory, 0, bytes);
  return memory;
}

bool weir__map_populate(void *at, size_t bytes) { return true; }

void *weir__map_grow(void *memory, size_t old_bytes, size_t bytes) {
  char *grown = realloc(memory, bytes);
  if (grown && bytes > old_bytes)
    memset(grown + old_bytes, 0, bytes - old_bytes);
  return grown;
}

const void *weir__map_file(int descriptor, size_t bytes) {
  char *memory = malloc(bytes ? bytes : 1);
  for (size_t at = 0; memory && at < bytes;) {
    ssize_t got = pread(descriptor, memory + at, bytes - at, (off_t)at);
    if (got <= 0) {
      free(memory);
      return NULL;
    }
    at += (size_t)got;
  }
  return memory;
}

int weir__map_allocate_file(int descriptor, uint64_t from, uint64_t bytes) { return ENOSYS; }

int weir__map_memory_file(const char *name, uint64_t bytes) {
  errno = ENOSYS;
  return -1;
}

void *weir__map_shared_file(int descriptor, size_t bytes) {
  errno = ENOSYS;
  return NULL;
}

bool weir__map_replace(void *at, size_t bytes) { return weir__map_commit(at, bytes); }

void weir__unmap(const void *at, size_t bytes) { free((void *)at); }

#endif
