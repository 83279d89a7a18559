/*
 * Memory shared between processes.
 *
 * A handle is a version, a kind and the data of that kind, compatible with PyTorch's so that both can share with each
 * other:
 *   'c'  the driver's handle of an allocation
 *   'e'  pages of an expandable segment: the process, the page size, the number of pages, from version 3 on the type of
 *        the page handles, and a file descriptor number per page
 * A file descriptor stays open while its page is mapped. The process that opens the handle duplicates the descriptors.
 */
#include "alloc/ipc.h"

#include "weir/ipc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/arena.h"
#include "alloc/backend.h"
#include "alloc/pointer.h"
#include "alloc/segment.h"
#include "alloc/uncached.h"
#include "base/system.h"
#include "base/thread.h"
#include "driver/call.h"

enum { newest_version = 3, kind_driver = 'c', kind_pages = 'e', prefix = 2 };
enum { form_files = 1, form_fabric = 2 };

/* Precedes the descriptors of a handle of pages. The padding is 0, so that equal handles have equal bytes. */
typedef struct pages_header {
  int32_t process;
  int32_t gap;
  uint64_t page, count;
  int32_t form, end; /* from version 3 on: type of the page handles, and padding */
} pages_header;

static size_t header_bytes(int version) { return version < 3 ? offsetof(pages_header, form) : sizeof(pages_header); }

/* A handle that is open in this process. */
typedef struct weir__ipc weir__ipc;
struct weir__ipc {
  weir__ipc *next;
  int device;
  int opens;
  uint64_t base, bytes; /* bytes is 0 for a handle of the driver */
  size_t length;
  unsigned char name[];
};

void weir__ipc_forget_page(weir__page *page) {
  if (page->file)
    close(page->file - 1);
  page->file = 0;
}

/* ---- Export ---- */

void weir__ipc_prepare(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  const char *wanted = getenv("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC");
  int can = 0;
  if (!driver->MemExportToShareableHandle ||
      driver->DeviceGetAttribute(driver, &can, WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED, heap->device))
    can = 0;
  heap->shares_pages_off = can && wanted && !strcmp(wanted, "0");
  heap->shares_pages = can && !heap->shares_pages_off;
}

static void begin_name(const weir__heap *heap, weir_ipc_handle *handle, char kind, uint64_t offset) {
  handle->bytes[0] = (unsigned char)heap->allocator->ipc_version;
  handle->bytes[1] = (unsigned char)kind;
  handle->length = prefix;
  handle->offset = offset;
}

static void add_to_name(weir_ipc_handle *handle, const void *bytes, size_t length) {
  memcpy(handle->bytes + handle->length, bytes, length);
  handle->length += length;
}

/* The file descriptor of a page, exported on first use. The heap's lock is held. */
static weir_cu_result file_of(weir__heap *heap, weir__page *page, int *file) {
  weir_driver *driver = heap->allocator->driver;
  int made;
  if (!page->file) {
    weir_cu_result r = driver->MemExportToShareableHandle(driver, &made, page->handle, WEIR_CU_HANDLE_POSIX_FD, 0);
    if (r)
      return r;
    page->file = made + 1;
  }
  *file = page->file - 1;
  return WEIR_CU_SUCCESS;
}

/* Exports the pages of a live block. The heap's lock is held. */
static weir_status share_pages(const char *who, weir__heap *heap, weir__segment *segment, uint64_t address,
                               uint64_t bytes, weir_ipc_handle *handle) {
  if (!heap->shares_pages)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: memory allocated with expandable_segments:True cannot be shared between processes on this "
                      "device%s. Consider using expandable_segments:False where memory is shared",
                      who, heap->shares_pages_off ? ": TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC is 0" : "");
  /* Pages of a segment whose pages move may differ in size; a handle has room for one size. */
  const weir__mapping *first = weir__mapping_at(segment, address);
  uint64_t page = first->page->bytes, count = 0;
  for (uint64_t at = first->address; at < address + bytes; at += page, count++)
    if (weir__mapping_at(segment, at)->page->bytes != page)
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                        "%s: the memory has pages of different sizes. Use a pool without moving_pages, or "
                        "moving_pages:False, where memory is shared",
                        who);
  pages_header header = {.process = (int32_t)weir__process_id(), .page = page, .count = count, .form = form_files};
  size_t of_header = header_bytes(heap->allocator->ipc_version);
  if (prefix + of_header + count * sizeof(int32_t) > WEIR_IPC_HANDLE_MAX)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: %llu pages do not fit in a handle", who,
                      (unsigned long long)count);
  begin_name(heap, handle, kind_pages, address - first->address);
  add_to_name(handle, &header, of_header);
  for (uint64_t at = first->address; at < address + bytes; at += page) {
    int32_t file;
    weir_cu_result r = file_of(heap, weir__mapping_at(segment, at)->page, &file);
    if (r)
      return weir__driver_status(heap->allocator->driver, r, who, "cuMemExportToShareableHandle");
    add_to_name(handle, &file, sizeof file);
  }
  return WEIR_OK;
}

static weir_status share_driver(const char *who, weir__heap *heap, uint64_t base, uint64_t address,
                                weir_ipc_handle *handle) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_ipc_mem_handle memory;
  weir_cu_context previous;
  weir_cu_result r = weir__heap_enter(heap, &previous);
  if (r)
    return weir__driver_status(driver, r, who, "cuCtxSetCurrent");
  r = driver->IpcGetMemHandle(driver, &memory, base);
  weir__heap_leave(heap, previous);
  if (r)
    return weir__driver_status(driver, r, who, "cuIpcGetMemHandle");
  begin_name(heap, handle, kind_driver, address - base);
  add_to_name(handle, &memory, sizeof memory);
  return WEIR_OK;
}

void weir_ipc_handle_init(weir_ipc_handle *handle) {
  if (handle)
    *handle = (weir_ipc_handle){.size = sizeof *handle};
}

weir_status weir_ipc_share(weir_allocator *allocator, void *pointer, weir_ipc_handle *handle) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!handle || handle->size < sizeof *handle)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: handle is NULL, or its size is not set", __func__);
  if (weir__backend_is_async(allocator))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: cudaMallocAsync does not yet support sharing memory; use backend:native", __func__);
  void *base;
  uint64_t bytes;
  weir__heap *heap;
  weir__segment *segment = NULL;
  weir__arena *arena;
  weir__block *block = weir__block_lock(allocator, (uint64_t)pointer, &arena);
  if (block) { /* a live block keeps its segment */
    heap = arena->pool->heap;
    bytes = weir__block_bytes(block);
    weir__arena_unlock(arena);
    segment = weir__segment_lookup(heap, block);
  } else if (!(heap = weir__uncached_find(allocator, (uint64_t)pointer, NULL)))
    return weir__no_block(__func__, (uint64_t)pointer);
  bool is_pages = segment && segment->page;
  if (!is_pages && weir_allocator_base(allocator, pointer, &base, &bytes))
    return weir__no_block(__func__, (uint64_t)pointer);
  weir_ipc_handle made = {.size = handle->size};
  weir__mutex_lock(&heap->lock);
  weir_status status = is_pages ? share_pages(__func__, heap, segment, (uint64_t)pointer, bytes, &made)
                                : share_driver(__func__, heap, (uint64_t)base, (uint64_t)pointer, &made);
  weir__mutex_unlock(&heap->lock);
  if (!status)
    *handle = made;
  return status;
}

/* ---- Import. The allocator's ipc_lock is held ---- */

static weir_status cannot_fetch(const char *who, int32_t process, int error) {
  return weir__fail(WEIR_ERROR_SYSTEM,
                    "%s: cannot get the file descriptors of process %d: %s%s. Run both processes as the same user, or "
                    "use expandable_segments:False for shared memory",
                    who, (int)process, strerror(error), error == ENOSYS ? "; this needs Linux 5.6" : "");
}

/* Imports and maps one page. */
static weir_status map_page(const char *who, weir_driver *driver, int process_file, int32_t process, int32_t number,
                            uint64_t address, uint64_t page) {
  int file = weir__process_take_descriptor(process_file, number);
  if (file < 0)
    return cannot_fetch(who, process, errno);
  weir_cu_mem_handle memory;
  weir_cu_result r =
      driver->MemImportFromShareableHandle(driver, &memory, (void *)(intptr_t)file, WEIR_CU_HANDLE_POSIX_FD);
  close(file);
  if (r)
    return weir__driver_status(driver, r, who, "cuMemImportFromShareableHandle");
  r = driver->MemMap(driver, address, page, 0, memory, 0);
  driver->MemRelease(driver, memory); /* the mapping holds a reference */
  return r ? weir__driver_status(driver, r, who, "cuMemMap") : WEIR_OK;
}

static weir_status open_pages(const char *who, weir__heap *heap, weir__ipc *open) {
  weir_driver *driver = heap->allocator->driver;
  pages_header header = {.form = form_files};
  weir_cu_deviceptr base;
  size_t length = open->length - prefix, of_header = header_bytes(open->name[0]);
  if (length < of_header)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle is truncated", who);
  memcpy(&header, open->name + prefix, of_header);
  if (header.form == form_fabric)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: the pages are shared by fabric handles, and only files can be opened here. Use "
                      "expandable_segments:False where the memory is shared",
                      who);
  if (!header.page || !header.count || header.form != form_files ||
      header.count != (length - of_header) / sizeof(int32_t) || (length - of_header) % sizeof(int32_t) ||
      header.page > UINT64_MAX / header.count)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle is damaged", who);
  if (!driver->MemImportFromShareableHandle)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: this driver cannot import pages of expandable segments", who);
  open->bytes = header.page * header.count;
  int process_file = weir__process_open(header.process);
  if (process_file < 0)
    return cannot_fetch(who, header.process, errno);
  weir_status status = WEIR_OK;
  weir_cu_mem_access access[64];
  size_t accesses = weir__list_access(heap, access);
  uint64_t mapped = 0;
  weir_cu_result r = driver->MemAddressReserve(driver, &base, open->bytes, 0, 0, 0);
  if (r) {
    status = weir__driver_status(driver, r, who, "cuMemAddressReserve");
    goto close_process;
  }
  for (; mapped < header.count && !status; mapped += !status) {
    int32_t number;
    memcpy(&number, open->name + prefix + of_header + mapped * sizeof number, sizeof number);
    status = map_page(who, driver, process_file, header.process, number, base + mapped * header.page, header.page);
  }
  if (!status && (r = driver->MemSetAccess(driver, base, open->bytes, access, accesses)))
    status = weir__driver_status(driver, r, who, "cuMemSetAccess");
  if (!status) {
    open->base = base;
    goto close_process;
  }
  if (mapped)
    driver->MemUnmap(driver, base, mapped * header.page);
  driver->MemAddressFree(driver, base, open->bytes);
close_process:
  close(process_file);
  return status;
}

static weir_status open_driver(const char *who, weir__heap *heap, weir__ipc *open, size_t skip) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_ipc_mem_handle handle;
  weir_cu_deviceptr base;
  if (open->length - skip != sizeof handle)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: expected a driver handle of %zu bytes, got %zu", who, sizeof handle,
                      open->length - skip);
  memcpy(&handle, open->name + skip, sizeof handle);
  weir_cu_result r = driver->IpcOpenMemHandle(driver, &base, handle, WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (!r)
    open->base = base;
  return r ? weir__driver_status(driver, r, who, "cuIpcOpenMemHandle") : WEIR_OK;
}

static weir_status open_name(const char *who, weir__heap *heap, weir__ipc *open) {
  if (open->length == sizeof(weir_cu_ipc_mem_handle))
    return open_driver(who, heap, open, 0);
  if (open->length < prefix)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: invalid handle of %zu bytes", who, open->length);
  if (open->name[0] > newest_version)
    return weir__fail(
        WEIR_ERROR_BAD_DATA,
        "%s: received sharable handle from a future version (%d) that this version (%d) does not know how "
        "to handle",
        who, open->name[0], newest_version);
  switch (open->name[1]) {
  case kind_driver:
    return open_driver(who, heap, open, prefix);
  case kind_pages:
    return open_pages(who, heap, open);
  default:
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: unknown kind of handle: %d", who, open->name[1]);
  }
}

/* Makes the device's context current. On failure returns false and sets the last error. */
static bool enter(const char *who, weir__heap *heap, weir_cu_context *previous) {
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, previous);
  weir__mutex_unlock(&heap->lock);
  if (r)
    weir__driver_status(heap->allocator->driver, r, who, "cuDevicePrimaryCtxRetain");
  return !r;
}

weir_status weir_ipc_open(weir_allocator *allocator, int device, const void *bytes, size_t length, void **base) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(bytes);
  WEIR__CHECK_ARGUMENT(base);
  weir_status status = WEIR_OK;
  weir_cu_context previous;
  weir__mutex_lock(&allocator->ipc_lock);
  weir__ipc *open = allocator->ipc;
  while (open && (open->device != device || open->length != length || memcmp(open->name, bytes, length) != 0))
    open = open->next;
  if (!open) {
    open = calloc(1, sizeof *open + length);
    if (!open) {
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
      goto unlock;
    }
    open->device = device;
    open->length = length;
    memcpy(open->name, bytes, length);
    if (!enter(__func__, heap, &previous)) {
      status = weir__status_of_result(weir_last_driver_result());
      goto free_open;
    }
    status = open_name(__func__, heap, open);
    weir__heap_leave(heap, previous);
    if (status)
      goto free_open;
    open->next = allocator->ipc;
    allocator->ipc = open;
  }
  open->opens++;
  *base = (void *)open->base;
  goto unlock;

free_open:
  free(open);
unlock:
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

/* ---- Peers ---- */

weir_cu_result weir__ipc_share_open(const weir__heap *heap, int device) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_mem_access access = {.location = {WEIR_CU_LOCATION_DEVICE, device}, .flags = WEIR_CU_ACCESS_READWRITE};
  weir_cu_result r = WEIR_CU_SUCCESS;
  for (const weir__ipc *open = heap->allocator->ipc; open && !r; open = open->next)
    if (open->device == heap->device && open->bytes)
      r = driver->MemSetAccess(driver, open->base, open->bytes, &access, 1);
  return r;
}

/* ---- Close ---- */

/* Pages may be unmapped only when no stream uses them; for its own handles the driver waits itself. */
static weir_cu_result close_memory(weir__heap *heap, const weir__ipc *open) {
  weir_driver *driver = heap->allocator->driver;
  if (!open->bytes)
    return driver->IpcCloseMemHandle(driver, open->base);
  weir_cu_result r = driver->CtxSynchronize(driver);
  if (!r)
    r = driver->MemUnmap(driver, open->base, open->bytes);
  if (!r)
    r = driver->MemAddressFree(driver, open->base, open->bytes);
  return r;
}

weir_status weir_ipc_close(weir_allocator *allocator, void *base) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir_status status = WEIR_OK;
  weir_cu_context previous;
  weir__mutex_lock(&allocator->ipc_lock);
  weir__ipc **at = &allocator->ipc;
  while (*at && (*at)->base != (uint64_t)base)
    at = &(*at)->next;
  weir__ipc *open = *at;
  if (!open)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: no handle is open at %p", __func__, base);
  else if (open->opens > 1)
    open->opens--;
  else {
    weir__heap *heap = &allocator->heaps[open->device];
    if (enter(__func__, heap, &previous)) {
      status = weir__driver_status(allocator->driver, close_memory(heap, open), __func__,
                                   open->bytes ? "cuMemUnmap" : "cuIpcCloseMemHandle");
      weir__heap_leave(heap, previous);
    } else
      status = weir__status_of_result(weir_last_driver_result());
    if (!status) {
      *at = open->next;
      free(open);
    }
  }
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

void weir__ipc_clear(weir_allocator *allocator) {
  weir_cu_context previous;
  while (allocator->ipc) {
    weir__ipc *open = allocator->ipc;
    weir__heap *heap = &allocator->heaps[open->device];
    allocator->ipc = open->next;
    if (enter("weir_allocator_destroy", heap, &previous)) {
      close_memory(heap, open);
      weir__heap_leave(heap, previous);
    }
    free(open);
  }
}
