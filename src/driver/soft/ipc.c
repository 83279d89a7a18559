/*
 * Memory and events of other processes.
 *
 * A handle holds a process id and the number of a file that the process has open. The importing process opens that file
 * through /proc, which the kernel allows for processes of the same user while the exporting process lives. Exported
 * memory is locked in the file until it is freed; a handle without its lock has outlived its memory.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_map.h"
#include "base/system.h"
#include "base/thread.h"
#include "driver/soft/soft.h"

/* The contents of a handle. It has no padding, so that equal handles have equal bytes. */
struct ipc_ticket {
  char magic[8];
  int32_t pid, fd, kind, gap; /* kind: 'm' for memory, 'e' for an event; gap: 0 */
  uint64_t offset, bytes, mapped_bytes;
};
#define TICKET_MAGIC "weirIPC"

_Static_assert(sizeof(struct ipc_ticket) == 8 + 4 * 4 + 3 * 8, "a ticket has no padding");
_Static_assert(sizeof(struct ipc_ticket) <= 64, "a ticket fits a handle");

static int open_ticket(const struct ipc_ticket *ticket, const char *name) {
  return weir__process_open_file(ticket->pid, ticket->fd, name);
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
  struct flock lock = lock_of(F_UNLCK, range->extent.offset, range->r.room);
  fcntl(range->extent.fd, F_OFD_SETLK, &lock);
}

/* ---- Memory ---- */

static weir_cu_result get_mem_handle(model *m, weir_cu_ipc_mem_handle *handle, weir_cu_deviceptr pointer) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  struct soft_range *range = (struct soft_range *)weir__model_range_at(m, pointer);
  if (!handle || !range || range->r.kind != MODEL_RANGE_PLAIN)
    return WEIR_CU_INVALID_VALUE;
  struct flock lock = lock_of(F_WRLCK, range->extent.offset, range->r.room);
  if (fcntl(range->extent.fd, F_OFD_SETLK, &lock))
    return WEIR_CU_OPERATING_SYSTEM;
  range->exported = true;
  struct ipc_ticket ticket = {.magic = TICKET_MAGIC,
                              .pid = weir__process_id(),
                              .fd = range->extent.fd,
                              .kind = 'm',
                              .offset = range->extent.offset,
                              .bytes = range->r.bytes,
                              .mapped_bytes = range->r.room};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &ticket, sizeof ticket);
  return WEIR_CU_SUCCESS;
}

/* `bad` is the result for a handle that is not of this kind. */
static weir_cu_result read_ticket(const void *handle, int kind, weir_cu_result bad, struct ipc_ticket *ticket) {
  memcpy(ticket, handle, sizeof *ticket);
  if (memcmp(ticket->magic, TICKET_MAGIC, sizeof ticket->magic) || ticket->kind != kind)
    return bad;
  return ticket->pid == weir__process_id() ? WEIR_CU_INVALID_CONTEXT : WEIR_CU_SUCCESS;
}

/* Whether a device can have issued these numbers. */
static bool is_plausible(const struct ipc_ticket *ticket) {
  return ticket->bytes && ticket->bytes <= ticket->mapped_bytes && ticket->mapped_bytes <= 1ull << 44 &&
         ticket->mapped_bytes % SOFT_PAGE == 0 && ticket->offset <= 1ull << 60 && ticket->offset % SOFT_PAGE == 0;
}

/* The same memory opened twice is one mapping, as in NVIDIA's driver. */
struct search {
  uint64_t inode, offset;
  struct soft_range *found;
};

static void compare(model *m, model_range *range, void *data) {
  struct search *search = data;
  struct soft_range *of = (struct soft_range *)range;
  (void)m;
  if (range->kind == MODEL_RANGE_IPC && of->ipc_inode == search->inode && of->extent.offset == search->offset)
    search->found = of;
}

static weir_cu_result open_mem_handle(model *m, weir_cu_deviceptr *pointer, weir_cu_ipc_mem_handle handle,
                                      unsigned flags) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  struct ipc_ticket ticket;
  if (!pointer || flags != WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
    return WEIR_CU_INVALID_VALUE;
  if ((r = read_ticket(&handle, 'm', WEIR_CU_INVALID_VALUE, &ticket)))
    return r;
  int fd = is_plausible(&ticket) ? open_ticket(&ticket, "/memfd:weir-soft-memory-") : -1;
  struct stat st;
  if (fd < 0 || fstat(fd, &st) || ticket.offset + ticket.mapped_bytes > (uint64_t)st.st_size ||
      !is_exported(fd, ticket.offset, ticket.mapped_bytes)) {
    if (fd >= 0)
      close(fd);
    return WEIR_CU_INVALID_VALUE;
  }
  struct search search = {(uint64_t)st.st_ino, ticket.offset, NULL};
  weir__model_each_range(m, compare, &search);
  if (search.found) {
    close(fd);
    search.found->opens++;
    *pointer = search.found->r.base;
    return WEIR_CU_SUCCESS;
  }
  struct soft_extent extent = {.fd = fd, .own_file = true, .offset = ticket.offset, .bytes = ticket.mapped_bytes};
  uint64_t base;
  model_range *range;
  r = weir__soft_map_extent(&extent, ticket.mapped_bytes, &base);
  const model_request request = {MODEL_RANGE_IPC, device, ticket.bytes, 0, 0};
  if (!r && weir__model_add_range(m, &request, base, ticket.mapped_bytes, &range)) {
    weir__unmap((void *)base, ticket.mapped_bytes);
    r = WEIR_CU_OUT_OF_MEMORY;
  }
  if (r) {
    close(fd);
    return r;
  }
  struct soft_range *of = (struct soft_range *)range;
  of->extent = extent;
  of->opens = 1;
  of->ipc_inode = (uint64_t)st.st_ino;
  *pointer = base;
  return WEIR_CU_SUCCESS;
}

/* The last close waits for the device, as MemFree does. */
static weir_cu_result close_mem_handle(model *m, weir_cu_deviceptr pointer) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  struct soft_range *range = (struct soft_range *)weir__model_range_at(m, pointer);
  if (!range || range->r.kind != MODEL_RANGE_IPC)
    return WEIR_CU_INVALID_VALUE;
  if (range->opens == 1 && !weir__model_wait_for_range(m, &range->r))
    return WEIR_CU_INVALID_VALUE;
  if (--range->opens == 0)
    weir__model_free_range(m, &range->r);
  return WEIR_CU_SUCCESS;
}

/* ---- Handles of virtual memory ---- */

static weir_cu_result export_memory(model *m, void *shareable, weir_cu_mem_handle handle, int type,
                                    unsigned long long flags) {
  const struct soft_memory *memory = (struct soft_memory *)weir__model_memory(m, handle);
  if (!shareable || !memory || flags || type != WEIR_CU_HANDLE_POSIX_FD || memory->handle_types != type)
    return WEIR_CU_INVALID_VALUE;
  int fd = weir__descriptor_copy(memory->extent.fd);
  if (fd < 0)
    return WEIR_CU_OPERATING_SYSTEM;
  *(int *)shareable = fd;
  return WEIR_CU_SUCCESS;
}

static model_device *device_of_physical(const model *m, int physical) {
  for (int i = 0; i < m->device_count; i++)
    if (m->devices[i]->physical == physical)
      return m->devices[i];
  return NULL;
}

/* The name of the file says whether it is a handle of a software device, and of which device. */
static bool read_handle_name(int fd, int *physical) {
  char link[64], name[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, name, sizeof name - 1);
  if (length < 0)
    return false;
  name[length] = 0;
  return sscanf(name, "/memfd:weir-soft-handle-%d", physical) == 1;
}

static struct soft_memory *memory_by_inode(const model *m, uint64_t inode) {
  FOR_EACH_HANDLE(struct soft_memory, memory, &m->memories)
    if (memory->inode == inode && !memory->same)
      return memory;
  return NULL;
}

/* Memory that this process has already gets a second handle, which refers to the first. Memory of another process does
 * not count as used: it counts there. */
static weir_cu_result import_memory(model *m, weir_cu_mem_handle *handle, void *shareable, int type) {
  int fd = (int)(intptr_t)shareable, physical;
  struct stat st;
  if (!handle || type != WEIR_CU_HANDLE_POSIX_FD || !read_handle_name(fd, &physical) || fstat(fd, &st))
    return WEIR_CU_INVALID_VALUE;
  model_device *device = device_of_physical(m, physical);
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  struct soft_memory *same = memory_by_inode(m, (uint64_t)st.st_ino), *memory = weir__handles_make(&m->memories);
  if (!memory)
    return WEIR_CU_OUT_OF_MEMORY;
  memory->extent =
      same ? same->extent
           : (struct soft_extent){.fd = weir__descriptor_copy(fd), .own_file = true, .bytes = (uint64_t)st.st_size};
  if (memory->extent.fd < 0) {
    weir__handles_drop(&m->memories, memory);
    return WEIR_CU_OPERATING_SYSTEM;
  }
  memory->m.device = device;
  memory->m.bytes = (uint64_t)st.st_size;
  memory->m.imported = true;
  memory->inode = (uint64_t)st.st_ino;
  memory->handle_types = type;
  memory->same = same;
  if (same)
    same->m.mappings++;
  *handle = weir__handle_of(&m->memories, memory);
  return WEIR_CU_SUCCESS;
}

/* ---- Events ---- */

static struct soft_shared_event *shared_event_map(int fd) {
  struct soft_shared_event *shared = fd < 0 ? NULL : calloc(1, sizeof *shared);
  void *page = shared ? weir__map_shared_file(fd, SOFT_PAGE) : NULL;
  if (!page) {
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
  return shared_event_map(weir__map_memory_file("weir-soft-event", SOFT_PAGE));
}

void weir__soft_shared_event_unref(struct soft_shared_event *shared) {
  if (!shared || --shared->refs)
    return;
  weir__unmap(shared->page, SOFT_PAGE);
  close(shared->fd);
  free(shared);
}

weir_cu_result weir__soft_shared_event_query(const struct soft_shared_event *shared, uint64_t count) {
  if (atomic_load(&shared->page->done) >= count)
    return WEIR_CU_SUCCESS;
  if (!weir__process_has_ended(atomic_load(&shared->page->recorder)))
    return WEIR_CU_NOT_READY;
  /* It may have reached the record just before it exited. */
  return atomic_load(&shared->page->done) >= count ? WEIR_CU_SUCCESS : WEIR_CU_EXTERNAL_DEVICE;
}

static weir_cu_result get_event_handle(model *m, weir_cu_ipc_event_handle *handle, weir_cu_event event) {
  const struct soft_event *e = (struct soft_event *)weir__model_event(m, event);
  if (!e || !e->shared || e->imported)
    return WEIR_CU_INVALID_HANDLE;
  if (e->e.device->error)
    return e->e.device->error;
  if (!handle)
    return WEIR_CU_INVALID_VALUE;
  struct ipc_ticket ticket = {.magic = TICKET_MAGIC, .pid = weir__process_id(), .fd = e->shared->fd, .kind = 'e'};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &ticket, sizeof ticket);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result open_event_handle(model *m, weir_cu_event *event, weir_cu_ipc_event_handle handle) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  struct ipc_ticket ticket;
  if (!event)
    return WEIR_CU_INVALID_VALUE;
  if ((r = read_ticket(&handle, 'e', WEIR_CU_MAP_FAILED, &ticket)))
    return r;
  struct soft_shared_event *shared = shared_event_map(open_ticket(&ticket, "/memfd:weir-soft-event"));
  if (!shared)
    return WEIR_CU_MAP_FAILED;
  struct soft_event *e = weir__handles_make(&m->events);
  if (!e) {
    weir__soft_shared_event_unref(shared);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  e->shared = shared;
  e->imported = true;
  e->e.device = device;
  e->e.flags = WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING;
  *event = (weir_cu_event)(uintptr_t)weir__handle_of(&m->events, e);
  return WEIR_CU_SUCCESS;
}

void weir__soft_add_ipc_hooks(model_hooks *hooks) {
  hooks->shares = true;
  hooks->MemExportToShareableHandle = export_memory;
  hooks->MemImportFromShareableHandle = import_memory;
  hooks->IpcGetMemHandle = get_mem_handle;
  hooks->IpcOpenMemHandle = open_mem_handle;
  hooks->IpcCloseMemHandle = close_mem_handle;
  hooks->IpcGetEventHandle = get_event_handle;
  hooks->IpcOpenEventHandle = open_event_handle;
}
