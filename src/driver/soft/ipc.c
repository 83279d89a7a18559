/*
 * Memory and events of another process.
 *
 * A handle is the number of a process and of one of its open files. The other side opens that file through /proc, which the
 * kernel allows to a process of the same user, while the first process lives. What a process has exported of its memory is
 * locked in the file until it is freed: the lock tells a handle that is good from one that has outlived its memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "driver/soft/soft.h"

/* What the 64 bytes of a handle hold. */
struct ipc_ticket {
  char magic[8];
  int32_t pid, fd, device, kind; /* kind: 'm' or 'e' */
  uint64_t offset, bytes, mapped_bytes;
};
static const char magic[8] = "weirIPC";

_Static_assert(sizeof(struct ipc_ticket) <= 64, "a ticket fits a handle");

/* -1 when there is no such file, or it is not the kind of file that is meant. */
static int open_ticket(const struct ipc_ticket *ticket, const char *name) {
  char path[64], target[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket->pid, ticket->fd);
  ssize_t length = readlink(path, target, sizeof target);
  if (length < (ssize_t)strlen(name) || memcmp(target, name, strlen(name)))
    return -1;
  return open(path, O_RDWR | O_CLOEXEC);
}

static struct flock lock_of(int type, uint64_t offset, uint64_t bytes) {
  return (struct flock){.l_type = (short)type, .l_whence = SEEK_SET, .l_start = (off_t)offset, .l_len = (off_t)bytes};
}

static bool is_exported(int fd, uint64_t offset, uint64_t bytes) {
  struct flock lock = lock_of(F_WRLCK, offset, bytes);
  return !fcntl(fd, F_OFD_GETLK, &lock) && lock.l_type != F_UNLCK && lock.l_start <= (off_t)offset &&
         (!lock.l_len || lock.l_start + lock.l_len >= (off_t)(offset + bytes));
}

void weir__soft_unexport(struct soft_range *range) {
  struct flock lock = lock_of(F_UNLCK, range->extent.offset, range->mapped_bytes);
  fcntl(range->extent.fd, F_OFD_SETLK, &lock);
}

/* ---- Memory ---- */

weir_cu_result weir__soft_IpcGetMemHandle(struct soft *soft, weir_cu_ipc_mem_handle *handle,
                                          weir_cu_deviceptr pointer) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!handle || !range || range->kind != SOFT_RANGE_PLAIN || range->base != pointer)
    return WEIR_CU_INVALID_VALUE;
  struct flock lock = lock_of(F_WRLCK, range->extent.offset, range->mapped_bytes);
  if (fcntl(range->extent.fd, F_OFD_SETLK, &lock))
    return WEIR_CU_OPERATING_SYSTEM;
  range->exported = true;
  struct ipc_ticket ticket = {.pid = getpid(),
                              .fd = range->extent.fd,
                              .device = range->device->ordinal,
                              .kind = 'm',
                              .offset = range->extent.offset,
                              .bytes = range->bytes,
                              .mapped_bytes = range->mapped_bytes};
  memcpy(ticket.magic, magic, sizeof magic);
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &ticket, sizeof ticket);
  return WEIR_CU_SUCCESS;
}

/* `bad` is the answer to what is no handle of the kind. */
static weir_cu_result read_ticket(const void *handle, int kind, weir_cu_result bad, struct ipc_ticket *ticket) {
  memcpy(ticket, handle, sizeof *ticket);
  if (memcmp(ticket->magic, magic, sizeof magic) || ticket->kind != kind)
    return bad;
  return ticket->pid == getpid() ? WEIR_CU_INVALID_CONTEXT : WEIR_CU_SUCCESS;
}

/* Numbers that a device can have given out. */
static bool is_sane(const struct ipc_ticket *ticket) {
  return ticket->bytes && ticket->bytes <= ticket->mapped_bytes && ticket->mapped_bytes <= 1ull << 44 &&
         ticket->mapped_bytes % SOFT_PAGE == 0 && ticket->offset <= 1ull << 60 && ticket->offset % SOFT_PAGE == 0;
}

/* The same memory opened twice is one mapping, as in NVIDIA's driver. */
static struct soft_range *find_open(struct soft *soft, uint64_t inode, uint64_t offset) {
  uint64_t at = 0, bytes = 0;
  struct soft_range *range;
  while ((range = weir__rangemap_at_or_after(&soft->space, at, &at, &bytes))) {
    if (range->kind == SOFT_RANGE_IPC && range->ipc_inode == inode && range->extent.offset == offset)
      return range;
    at += bytes;
  }
  return NULL;
}

weir_cu_result weir__soft_IpcOpenMemHandle(struct soft *soft, weir_cu_deviceptr *pointer, weir_cu_ipc_mem_handle handle,
                                           unsigned flags) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  struct ipc_ticket ticket;
  if (!pointer || flags != WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return WEIR_CU_INVALID_VALUE;
  if ((r = read_ticket(&handle, 'm', WEIR_CU_INVALID_VALUE, &ticket)))
    return r;
  int fd = is_sane(&ticket) ? open_ticket(&ticket, "/memfd:weir-soft-memory-") : -1;
  struct stat st;
  if (fd < 0 || fstat(fd, &st) || !is_exported(fd, ticket.offset, ticket.mapped_bytes)) {
    if (fd >= 0)
      close(fd);
    return WEIR_CU_INVALID_VALUE;
  }
  struct soft_range *range = find_open(soft, (uint64_t)st.st_ino, ticket.offset);
  if (range) {
    close(fd);
    range->opens++;
    *pointer = range->base;
    return WEIR_CU_SUCCESS;
  }
  struct soft_extent extent = {
      .fd = fd, .own_file = true, .offset = ticket.offset, .bytes = ticket.mapped_bytes, .device = device};
  uint64_t base;
  r = weir__soft_map_extent(&extent, ticket.mapped_bytes, &base);
  if (r)
    goto close_file;
  range = weir__soft_range_new(soft, SOFT_RANGE_IPC, base, ticket.bytes, ticket.mapped_bytes, device);
  if (!range) {
    r = WEIR_CU_OUT_OF_MEMORY;
    goto unmap;
  }
  range->extent = extent;
  range->opens = 1;
  range->ipc_inode = (uint64_t)st.st_ino;
  *pointer = base;
  return WEIR_CU_SUCCESS;

unmap:
  munmap((void *)base, ticket.mapped_bytes);
close_file:
  close(fd);
  return r;
}

/* The last close waits for the work of the device, as MemFree does. */
weir_cu_result weir__soft_IpcCloseMemHandle(struct soft *soft, weir_cu_deviceptr pointer) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || range->kind != SOFT_RANGE_IPC || range->base != pointer)
    return WEIR_CU_INVALID_VALUE;
  if (range->opens == 1 && !weir__soft_wait_for_range(soft, range))
    return WEIR_CU_INVALID_VALUE;
  if (--range->opens == 0)
    weir__soft_range_free(soft, range);
  return WEIR_CU_SUCCESS;
}

/* ---- Events ---- */

static struct soft_shared_event *shared_event_map(int fd) {
  struct soft_shared_event *shared = fd < 0 ? NULL : calloc(1, sizeof *shared);
  void *page = shared ? mmap(NULL, SOFT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (page == MAP_FAILED) {
    if (fd >= 0)
      close(fd);
    free(shared);
    return NULL;
  }
  shared->refs = 1;
  shared->fd = fd;
  shared->page = page;
  return shared;
}

struct soft_shared_event *weir__soft_shared_event_new(void) {
  int fd = memfd_create("weir-soft-event", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, SOFT_PAGE)) {
    close(fd);
    return NULL;
  }
  return shared_event_map(fd);
}

void weir__soft_shared_event_unref(struct soft_shared_event *shared) {
  if (!shared || --shared->refs)
    return;
  munmap(shared->page, SOFT_PAGE);
  close(shared->fd);
  free(shared);
}

/* Also of one that died and whose parent has not asked: the parent may be who waits here. */
static bool is_gone(pid_t pid) {
  struct pollfd ends = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
  if (ends.fd < 0)
    return errno == ESRCH;
  bool gone = poll(&ends, 1, 0) > 0;
  close(ends.fd);
  return gone;
}

bool weir__soft_shared_event_done(const struct soft_shared_event *shared, uint64_t count) {
  return atomic_load(&shared->page->done) >= count || is_gone(atomic_load(&shared->page->recorder));
}

weir_cu_result weir__soft_IpcGetEventHandle(struct soft *soft, weir_cu_ipc_event_handle *handle, weir_cu_event event) {
  struct soft_event *e = weir__soft_handle_get(soft, SOFT_EVENT, (uintptr_t)event);
  if (!e || !e->shared || e->imported)
    return WEIR_CU_INVALID_HANDLE;
  if (e->device->error)
    return e->device->error;
  if (!handle)
    return WEIR_CU_INVALID_VALUE;
  struct ipc_ticket ticket = {.pid = getpid(), .fd = e->shared->fd, .device = e->device->ordinal, .kind = 'e'};
  memcpy(ticket.magic, magic, sizeof magic);
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &ticket, sizeof ticket);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_IpcOpenEventHandle(struct soft *soft, weir_cu_event *event, weir_cu_ipc_event_handle handle) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  struct ipc_ticket ticket;
  if (!event)
    return WEIR_CU_INVALID_VALUE;
  if ((r = read_ticket(&handle, 'e', WEIR_CU_MAP_FAILED, &ticket)))
    return r;
  struct soft_event *e = calloc(1, sizeof *e);
  if (!e)
    return WEIR_CU_OUT_OF_MEMORY;
  e->shared = shared_event_map(open_ticket(&ticket, "/memfd:weir-soft-event"));
  e->handle = e->shared ? weir__soft_handle_new(soft, SOFT_EVENT, e) : 0;
  if (!e->handle) {
    r = e->shared ? WEIR_CU_OUT_OF_MEMORY : WEIR_CU_MAP_FAILED;
    weir__soft_shared_event_unref(e->shared);
    free(e);
    return r;
  }
  e->device = device;
  e->flags = WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING;
  e->imported = true;
  *event = (weir_cu_event)e->handle;
  return WEIR_CU_SUCCESS;
}
