/*
 * Memory shared between processes.
 *
 * A handle is a version, a kind and the data of that kind, compatible with PyTorch's so that both can share with each
 * other:
 *   'c'  the driver's handle of an allocation
 *   'e'  pages of an expandable segment: the process, the page size, the number of pages, from version 3 on the type of
 *        the page handles, and a file descriptor number per page
 *   'v'  the same with pages of different sizes, which PyTorch does not have: the page size is that of the smallest
 *        unit, and each descriptor number is followed by the number of units of its page
 * The process that opens the handle duplicates the descriptors. They are open in the process that shares, one for each
 * page, while the page is mapped, or as long as memory in it is sent. A process may have more pages than its limit of
 * open files allows: the limit is raised as far as possible.
 */
#include "alloc/ipc/ipc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/pointer.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/uncached.h"
#include "base/environment.h"
#include "base/system.h"
#include "base/thread.h"
#include "driver/call.h"

enum { newest_version = 3, kind_driver = 'c', kind_pages = 'e', kind_varied = 'v', prefix = 2 };
enum { form_files = 1, form_fabric = 2 };

/* Precedes the descriptors of a handle of pages. The padding is 0, so that equal handles have equal bytes. A descriptor
 * that was closed may have the same number again for another page, which then has the newest export: handles of other
 * pages of a process never have equal bytes. */
typedef struct pages_header {
  int32_t process;
  uint32_t newest_export; /* of the pages */
  uint64_t page, count;
  int32_t form, end; /* from version 3 on: type of the page handles, and padding */
} pages_header;

static size_t header_bytes(int version) { return version < 3 ? offsetof(pages_header, form) : sizeof(pages_header); }

/* A handle that is open in this process. */
typedef struct weir__ipc weir__ipc;
struct weir__ipc {
  weir__reservation memory; /* first; its bytes are 0 for a handle of the driver */
  weir__ipc *next;
  int device;
  int opens; /* 0 if it was closed during a capture: a collection does the rest, unless it is opened again */
  /* That shares the pages; 0 for a handle of the driver. A later process with the same id may have handles with the
   * same bytes. */
  weir__process_identity process;
  size_t length;
  unsigned char name[];
};

bool weir__ipc_owns(weir_allocator *allocator, uint64_t address) {
  if (!weir__mutex_trylock(&allocator->ipc_lock))
    return false;
  bool is_owner = weir__received_owns(allocator, address);
  for (const weir__ipc *open = allocator->ipc; open && !is_owner; open = open->next)
    is_owner = open->memory.base == address || address - open->memory.base < open->memory.bytes;
  weir__mutex_unlock(&allocator->ipc_lock);
  return is_owner;
}

weir_status weir__ipc_enter(const char *caller, weir__heap *heap, weir__ipc_scope *scope) {
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, &scope->previous);
  weir__mutex_unlock(&heap->lock);
  if (r)
    return weir__driver_status(heap->allocator->driver, r, caller, "cuDevicePrimaryCtxRetain");
  if (weir__capture_relax(heap, &scope->mode))
    return WEIR_OK;
  weir__heap_leave(heap, scope->previous);
  return weir__fail(WEIR_ERROR_BAD_STATE, "%s: not possible during a capture", caller);
}

void weir__ipc_leave(weir__heap *heap, const weir__ipc_scope *scope) {
  weir__capture_restore(heap, scope->mode);
  weir__heap_leave(heap, scope->previous);
}

/* ---- Export ---- */

void weir__ipc_prepare(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  const char *wanted = weir__env_text(WEIR__ENV_SHARED_SEGMENTS);
  int can = 0;
  if (!driver->MemExportToShareableHandle ||
      driver->DeviceGetAttribute(driver, &can, WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED, heap->device))
    can = 0;
  heap->shares_pages_off = can && wanted && !strcmp(wanted, "0");
  heap->shares_pages = can && !heap->shares_pages_off;
}

/* Allocates a name and writes its first bytes. False without host memory. */
static bool begin_name(const weir__heap *heap, weir__ipc_name *name, char kind, uint64_t offset, size_t length) {
  *name = (weir__ipc_name){.offset = offset, .bytes = malloc(prefix + length)};
  if (!name->bytes)
    return false;
  name->bytes[0] = (unsigned char)heap->allocator->ipc_version;
  name->bytes[1] = (unsigned char)kind;
  name->length = prefix;
  return true;
}

static void add_to_name(weir__ipc_name *name, const void *bytes, size_t length) {
  memcpy(name->bytes + name->length, bytes, length);
  name->length += length;
}

/* Whether an export may have failed for the process's limit of open files, which has been raised now. */
static bool made_room_for_files(void) {
  int probe = weir__process_open(weir__process_id()); /* raises the limit if it fails for it */
  if (probe >= 0)
    close(probe);
  return probe >= 0 || errno != EMFILE;
}

/* Fails with the driver's result, unless the process has too many open files. */
static weir_status export_failed(const char *caller, const weir__heap *heap, weir_cu_result r, uint64_t pages,
                                 size_t limit) {
  if (made_room_for_files())
    return weir__driver_status(heap->allocator->driver, r, caller, "cuMemExportToShareableHandle");
  return weir__fail(WEIR_ERROR_SYSTEM,
                    "%s: a file descriptor is needed for each of %llu pages, but the process may have only %zu files "
                    "open. Raise the hard limit (ulimit -Hn), or use expandable_segments:False for memory that is "
                    "shared",
                    caller, (unsigned long long)pages, limit);
}

/* Exports the pages of a live block. The heap's lock is held. */
static weir_status name_pages(const char *caller, weir__heap *heap, const weir__segment *segment, uint64_t address,
                              uint64_t bytes, weir__ipc_name *name) {
  if (!weir__is_awake(segment->arena->pool->owner))
    return weir__not_awake(caller, segment->arena->pool->owner->tag);
  if (!heap->shares_pages)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: memory allocated with expandable_segments:True cannot be shared between processes on this "
                      "device%s. Consider using expandable_segments:False where memory is shared",
                      caller, heap->shares_pages_off ? ": TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC is 0" : "");
  /* Pages of a segment whose pages move may differ in size. */
  const weir__mapping *first = weir__mapping_at(&segment->memory, address);
  uint64_t end = address + bytes, count = 0;
  bool is_varied = false;
  for (uint64_t at = first->address; at < end; at = weir__mapping_end(weir__mapping_at(&segment->memory, at)), count++)
    is_varied |= weir__mapping_at(&segment->memory, at)->page->bytes != first->page->bytes;
  uint64_t page_bytes = is_varied ? segment->memory.slot : first->page->bytes;
  pages_header header = {
      .process = (int32_t)weir__process_id(), .page = page_bytes, .count = count, .form = form_files};
  size_t of_header = header_bytes(heap->allocator->ipc_version);
  if (!begin_name(heap, name, (char)(is_varied ? kind_varied : kind_pages), address - first->address,
                  of_header + (size_t)count * (is_varied ? 2 : 1) * sizeof(int32_t)))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  add_to_name(name, &header, of_header);
  for (uint64_t at = first->address, next; at < end; at = next) {
    weir__page *page = weir__mapping_at(&segment->memory, at)->page;
    int32_t file, units = (int32_t)(page->bytes / page_bytes);
    size_t limit;
    weir_cu_result r;
    next = at + page->bytes;
    do
      limit = weir__descriptors_limit();
    while ((r = weir__page_export(&heap->pages, page, &file)) && made_room_for_files() &&
           weir__descriptors_limit() > limit);
    if (r) {
      free(name->bytes);
      name->bytes = NULL;
      return export_failed(caller, heap, r, count, limit);
    }
    add_to_name(name, &file, sizeof file);
    if (is_varied)
      add_to_name(name, &units, sizeof units);
    if (header.newest_export < page->export_number)
      header.newest_export = page->export_number;
  }
  memcpy(name->bytes + prefix, &header, of_header);
  return WEIR_OK;
}

static weir_status name_by_driver(const char *caller, weir__heap *heap, uint64_t base, uint64_t address,
                                  weir__ipc_name *name) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_ipc_mem_handle memory;
  weir_cu_context previous;
  weir_cu_result r = weir__heap_enter(heap, &previous);
  if (r)
    return weir__driver_status(driver, r, caller, "cuCtxSetCurrent");
  r = driver->IpcGetMemHandle(driver, &memory, base);
  weir__heap_leave(heap, previous);
  if (r)
    return weir__driver_status(driver, r, caller, "cuIpcGetMemHandle");
  if (!begin_name(heap, name, kind_driver, address - base, sizeof memory))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  add_to_name(name, &memory, sizeof memory);
  return WEIR_OK;
}

weir_status weir__ipc_name_memory(const char *caller, weir__heap *heap, uint64_t address, const weir__block *block,
                                  uint64_t base, weir__ipc_name *name) {
  if (base)
    return name_by_driver(caller, heap, base, address, name);
  return name_pages(caller, heap, weir__segment_lookup(heap, block), address, weir__block_bytes(block), name);
}

weir_status weir__ipc_find(const char *caller, weir_allocator *allocator, uint64_t address, weir__heap **heap,
                           const weir__block **block, uint64_t *base) {
  if (weir__backend_is_async(allocator))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: cudaMallocAsync does not yet support sharing memory; use backend:native", caller);
  weir__arena *arena;
  const weir__segment *segment = NULL;
  *block = weir__block_lock(allocator, address, &arena);
  if (*block) { /* a live block keeps its segment */
    *heap = arena->pool->heap;
    weir__arena_unlock(arena);
    segment = weir__segment_lookup(*heap, *block);
  } else if (!(*heap = weir__uncached_find(allocator, address, NULL)))
    return weir__no_block(caller, address);
  void *start = NULL;
  uint64_t bytes;
  if (!(segment && weir__has_pages(segment)) && weir_allocator_base(allocator, (void *)address, &start, &bytes))
    return weir__no_block(caller, address);
  *base = (uint64_t)start;
  return WEIR_OK;
}

/* Calls `change` for each page of a block, if it has pages. */
static void for_each_page(weir__heap *heap, const weir__block *block, void (*change)(weir__page *page, int by),
                          int by) {
  const weir__segment *segment = weir__segment_lookup(heap, block);
  uint64_t end = block->address + weir__block_bytes(block);
  if (!segment || !weir__has_pages(segment))
    return;
  const weir__mapping *mapping = weir__mapping_at(&segment->memory, block->address);
  for (uint64_t at = mapping->address; at < end; at += mapping->page->bytes) {
    mapping = weir__mapping_at(&segment->memory, at);
    change(mapping->page, by);
  }
}

static void mark_shared(weir__page *page, int by) {
  (void)by;
  page->is_shared = true;
}

static void count_sent(weir__page *page, int by) {
  page->sent_blocks += (uint32_t)by;
  if (!page->sent_blocks && !page->is_shared)
    weir__page_withdraw(page);
}

void weir__ipc_sent_pages(weir__heap *heap, const weir__block *block, int by) {
  for_each_page(heap, block, count_sent, by);
}

weir_status weir__ipc_check_room(const char *caller, const weir_ipc_handle *handle, size_t bytes) {
  size_t fixed = offsetof(weir_ipc_handle, bytes), least = fixed + WEIR_IPC_HANDLE_MIN;
  if (!handle || handle->size < least)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: handle is NULL, or its size is not set", caller);
  if (handle->size - fixed < bytes)
    return weir__fail(
        WEIR_ERROR_NOT_SUPPORTED,
        "%s: the handle takes %zu bytes, and there is room for %zu. Use a larger weir_ipc_handle, and set "
        "its size",
        caller, bytes, handle->size - fixed);
  return WEIR_OK;
}

weir_status weir_ipc_share(weir_allocator *allocator, void *pointer, weir_ipc_handle *handle) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap;
  const weir__block *block;
  uint64_t base = 0;
  weir_status status = weir__ipc_check_room(__func__, handle, 0);
  if (!status)
    status = weir__ipc_find(__func__, allocator, (uint64_t)pointer, &heap, &block, &base);
  if (status)
    return status;
  weir__ipc_name name = {0};
  weir__mutex_lock(&heap->lock);
  status = weir__ipc_name_memory(__func__, heap, (uint64_t)pointer, block, base, &name);
  if (!status && block)
    for_each_page(heap, block, mark_shared, 1);
  weir__mutex_unlock(&heap->lock);
  if (!name.bytes)
    return status;
  status = weir__ipc_check_room(__func__, handle, name.length);
  if (!status) {
    handle->offset = name.offset;
    handle->length = name.length;
    memcpy(handle->bytes, name.bytes, name.length);
  }
  free(name.bytes);
  return status;
}

/* ---- Import. The allocator's ipc_lock is held ---- */

static weir_status cannot_fetch(const char *caller, int32_t process, int error) {
  return weir__fail(WEIR_ERROR_SYSTEM,
                    "%s: cannot get the file descriptors of process %d: %s%s. Run both processes as the same user, or "
                    "use expandable_segments:False for shared memory",
                    caller, (int)process, strerror(error), error == ENOSYS ? "; this needs Linux 5.6" : "");
}

/* Imports one page. */
static weir_status import_page(const char *caller, weir_driver *driver, int process_file, int32_t process,
                               int32_t number, weir_cu_mem_handle *memory) {
  int file = weir__process_take_descriptor(process_file, number);
  if (file < 0)
    return cannot_fetch(caller, process, errno);
  weir_cu_result r =
      driver->MemImportFromShareableHandle(driver, memory, (void *)(intptr_t)file, WEIR_CU_HANDLE_POSIX_FD);
  close(file);
  return weir__driver_status(driver, r, caller, "cuMemImportFromShareableHandle");
}

/* Imports the pages of a handle, and maps them side by side in the open memory. */
static weir_status map_pages(const char *caller, weir__heap *heap, weir__ipc *open, const pages_header *header,
                             const unsigned char *pages, bool is_varied, int process_file) {
  weir_driver *driver = heap->allocator->driver;
  weir__pages *received = &heap->received;
  size_t of_page = (is_varied ? 2 : 1) * sizeof(int32_t), count = (size_t)header->count, imported = 0;
  weir__page_change *changes = calloc(count, sizeof *changes);
  weir_status status = WEIR_OK;
  uint64_t address = open->memory.base;
  if (!changes)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  for (; imported < count && !status; imported += !status) {
    weir__page_change *c = &changes[imported];
    int32_t number_and_units[2] = {0, 1};
    memcpy(number_and_units, pages + imported * of_page, of_page);
    *c = (weir__page_change){.action = WEIR__PAGE_IMPORT,
                             .reservation = &open->memory,
                             .address = address,
                             .bytes = (uint64_t)number_and_units[1] * header->page};
    address += c->bytes;
    status = import_page(caller, driver, process_file, header->process, number_and_units[0], &c->handle);
  }
  received->failure = WEIR_CU_SUCCESS;
  received->failed_call = NULL;
  if (!status && !weir__pages_change(received, changes, count))
    status = received->failed_call
                 ? weir__driver_status(driver, weir__pages_failure(received), caller, received->failed_call)
                 : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  while (imported--)
    driver->MemRelease(driver, changes[imported].handle); /* the mapping holds a reference */
  free(changes);
  return status;
}

/* The size of all pages, which fits in 48 bits. False if the handle is damaged. */
static bool sum_pages(const pages_header *header, const unsigned char *pages, bool is_varied, uint64_t *bytes) {
  const uint64_t most = 1ull << 48;
  uint64_t units = is_varied ? 0 : header->count;
  for (uint64_t i = 0; is_varied && i < header->count; i++) {
    int32_t number_and_units[2];
    memcpy(number_and_units, pages + i * sizeof number_and_units, sizeof number_and_units);
    if (number_and_units[1] <= 0)
      return false;
    units += (uint64_t)number_and_units[1];
  }
  if (header->page > most / units)
    return false;
  *bytes = header->page * units;
  return true;
}

static weir_status open_pages(const char *caller, weir__heap *heap, weir__ipc *open) {
  weir_driver *driver = heap->allocator->driver;
  pages_header header = {.form = form_files};
  uint64_t bytes;
  size_t length = open->length - prefix, of_header = header_bytes(open->name[0]);
  if (length < of_header)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle is truncated", caller);
  memcpy(&header, open->name + prefix, of_header);
  bool is_varied = open->name[1] == kind_varied;
  size_t of_page = (is_varied ? 2 : 1) * sizeof(int32_t);
  if (header.form == form_fabric)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: the pages are shared by fabric handles, and only files can be opened here. Use "
                      "expandable_segments:False where the memory is shared",
                      caller);
  if (!header.page || !header.count || header.form != form_files || header.count != (length - of_header) / of_page ||
      (length - of_header) % of_page || !sum_pages(&header, open->name + prefix + of_header, is_varied, &bytes))
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle is damaged", caller);
  if (!driver->MemImportFromShareableHandle)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: this driver cannot import pages of expandable segments", caller);
  int process_file = weir__process_open(header.process);
  if (process_file < 0)
    return cannot_fetch(caller, header.process, errno);
  weir_status status = WEIR_OK;
  open->process = weir__process_identity_of(header.process);
  if (!open->process) {
    status = cannot_fetch(caller, header.process, errno);
    goto close_process;
  }
  weir_cu_result r = weir__reservation_open(&heap->received, &open->memory, bytes, header.page);
  if (r) {
    status = weir__driver_status(driver, r, caller, "cuMemAddressReserve");
    goto close_process;
  }
  open->memory.pins = WEIR__PIN_RECEIVED;
  status = map_pages(caller, heap, open, &header, open->name + prefix + of_header, is_varied, process_file);
  if (status)
    weir__reservation_end(&heap->received, &open->memory);
close_process:
  close(process_file);
  return status;
}

static weir_status open_driver(const char *caller, weir__heap *heap, weir__ipc *open, size_t skip) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_ipc_mem_handle handle;
  weir_cu_deviceptr base;
  if (open->length - skip != sizeof handle)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: expected a driver handle of %zu bytes, got %zu", caller, sizeof handle,
                      open->length - skip);
  memcpy(&handle, open->name + skip, sizeof handle);
  weir_cu_result r = driver->IpcOpenMemHandle(driver, &base, handle, WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (!r)
    open->memory.base = base;
  return r ? weir__driver_status(driver, r, caller, "cuIpcOpenMemHandle") : WEIR_OK;
}

static weir_status open_name(const char *caller, weir__heap *heap, weir__ipc *open) {
  if (open->length == sizeof(weir_cu_ipc_mem_handle))
    return open_driver(caller, heap, open, 0);
  if (open->length < prefix)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: invalid handle of %zu bytes", caller, open->length);
  if (open->name[0] > newest_version)
    return weir__fail(
        WEIR_ERROR_BAD_DATA,
        "%s: received sharable handle from a future version (%d) that this version (%d) does not know how "
        "to handle",
        caller, open->name[0], newest_version);
  switch (open->name[1]) {
  case kind_driver:
    return open_driver(caller, heap, open, prefix);
  case kind_pages:
  case kind_varied:
    return open_pages(caller, heap, open);
  default:
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: unknown kind of handle: %d", caller, open->name[1]);
  }
}

bool weir__ipc_contains(const weir__heap *heap, const void *base, uint64_t offset, uint64_t bytes) {
  weir_driver *driver = heap->allocator->driver;
  const weir__ipc *open = heap->allocator->ipc;
  while (open && (open->device != heap->device || (const void *)open->memory.base != base))
    open = open->next;
  if (!open)
    return false;
  uint64_t all = open->memory.bytes;
  weir_cu_deviceptr start = open->memory.base;
  uint64_t range;
  if (!all) { /* memory that the driver has opened */
    if (driver->MemGetAddressRange(driver, &start, &range, open->memory.base))
      return false;
    all = range - (open->memory.base - start);
  }
  return offset <= all && bytes <= all - offset;
}

/* Whether its close failed half-way: only the addresses are left. */
static bool is_unmapped(const weir__ipc *open) { return open->memory.bytes && !open->memory.owned; }

/* Whether the process has ended that shares the pages, and another one has its id. */
static bool is_of_another(const weir__ipc *open) {
  weir__process_identity now = open->process ? weir__process_identity_of(weir__process_of(open->process)) : 0;
  return now && now != open->process;
}

weir_status weir__ipc_open_handle(const char *caller, weir__heap *heap, const void *bytes, size_t length, void **base) {
  weir_allocator *allocator = heap->allocator;
  weir__ipc_scope scope;
  weir__ipc *open = allocator->ipc;
  while (open && (open->device != heap->device || is_unmapped(open) || open->length != length ||
                  memcmp(open->name, bytes, length) != 0 || is_of_another(open)))
    open = open->next;
  if (!open) {
    open = calloc(1, sizeof *open + length);
    if (!open)
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
    open->device = heap->device;
    open->length = length;
    memcpy(open->name, bytes, length);
    weir_status status = weir__ipc_enter(caller, heap, &scope);
    if (!status) {
      status = open_name(caller, heap, open);
      weir__ipc_leave(heap, &scope);
    }
    if (status) {
      free(open);
      return status;
    }
    open->next = allocator->ipc;
    allocator->ipc = open;
  }
  open->opens++;
  *base = (void *)open->memory.base;
  return WEIR_OK;
}

weir_status weir_ipc_open(weir_allocator *allocator, int device, const void *bytes, size_t length, void **base) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(bytes);
  WEIR__CHECK_ARGUMENT(base);
  weir__mutex_lock(&allocator->ipc_lock);
  weir_status status = weir__ipc_open_handle(__func__, heap, bytes, length, base);
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

/* ---- Close ---- */

/* Pages may be unmapped only when no stream uses them; for its own handles the driver waits itself. Can be repeated
 * after a failure. */
static weir_cu_result close_memory(weir__heap *heap, weir__ipc *open) {
  weir_driver *driver = heap->allocator->driver;
  if (!open->memory.bytes)
    return driver->IpcCloseMemHandle(driver, open->memory.base);
  weir__page_change all = {WEIR__PAGE_RELEASE, &open->memory, open->memory.base, open->memory.bytes, .page = NULL};
  weir__pages *received = &heap->received;
  received->failure = WEIR_CU_SUCCESS;
  if (!is_unmapped(open) && (!weir__pages_ok(received, driver->CtxSynchronize(driver), "cuCtxSynchronize") ||
                             !weir__pages_change(received, &all, 1)))
    return weir__pages_failure(received);
  return weir__reservation_close(received, &open->memory);
}

/* Closes the handle at *at, and removes it unless that fails. */
static weir_status close_at(const char *caller, weir_allocator *allocator, weir__ipc **at) {
  weir__ipc *open = *at;
  weir__heap *heap = &allocator->heaps[open->device];
  weir__ipc_scope scope;
  weir_status status = weir__ipc_enter(caller, heap, &scope);
  if (status)
    return status;
  status = weir__driver_status(allocator->driver, close_memory(heap, open), caller,
                               open->memory.bytes ? "cuMemUnmap" : "cuIpcCloseMemHandle");
  weir__ipc_leave(heap, &scope);
  if (!status) {
    *at = open->next;
    free(open);
  }
  return status;
}

/* Whether a capture forbids to wait for the device, as a close does. */
static bool is_captured(const weir_allocator *allocator, const weir__ipc *open) {
  return atomic_load(&allocator->heaps[open->device].captures) != 0;
}

weir_status weir__ipc_close_handle(const char *caller, weir_allocator *allocator, void *base, bool *captured) {
  weir__ipc **at = &allocator->ipc;
  while (*at && ((*at)->memory.base != (uint64_t)base || !(*at)->opens))
    at = &(*at)->next;
  weir__ipc *open = *at;
  if (!open)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: no handle is open at %p", caller, base);
  bool is_last = open->opens == 1, must_wait = is_last && is_captured(allocator, open);
  if (is_last && !must_wait)
    return close_at(caller, allocator, at);
  if (must_wait && captured)
    *captured = true;
  else
    open->opens--;
  return WEIR_OK;
}

weir_status weir__ipc_collect_closed(const char *caller, weir_allocator *allocator) {
  weir_status status = WEIR_OK;
  for (weir__ipc **at = &allocator->ipc, *open; (open = *at) != NULL;) {
    bool is_used = open->opens || is_captured(allocator, open);
    weir_status closed = is_used ? WEIR_OK : close_at(caller, allocator, at);
    if (is_used || closed)
      at = &open->next;
    status = status ? status : closed;
  }
  return status;
}

weir_status weir_ipc_close(weir_allocator *allocator, void *base) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__mutex_lock(&allocator->ipc_lock);
  weir_status status = weir__ipc_close_handle(__func__, allocator, base, NULL);
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

void weir__ipc_clear(weir_allocator *allocator) {
  weir__ipc_scope scope;
  while (allocator->ipc) {
    weir__ipc *open = allocator->ipc;
    weir__heap *heap = &allocator->heaps[open->device];
    allocator->ipc = open->next;
    if (!weir__ipc_enter("weir_allocator_destroy", heap, &scope)) {
      close_memory(heap, open);
      weir__ipc_leave(heap, &scope);
    }
    free(open);
  }
  for (int i = 0; i < allocator->heap_count; i++)
    weir__pages_end(&allocator->heaps[i].received);
}
