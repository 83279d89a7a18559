/*
 * Memory shared between processes.
 *
 * One process creates a handle for the memory of an allocated pointer (weir_ipc_share), sends it to another process,
 * and keeps the memory allocated as long as the other uses it. The other opens the handle (weir_ipc_open) and gets the
 * same memory at an address of its own.
 *
 *     weir_ipc_share(allocator, pointer, &handle);               here: send handle.bytes, handle.length, handle.offset
 *     weir_ipc_open(allocator, device, bytes, length, &base);    there: the memory is at (char *)base + offset
 *     weir_ipc_close(allocator, base);
 *
 * The work of the two processes is not ordered: use events with handles (weir_event_ipc_handle), or wait.
 */
#ifndef WEIR_IPC_H
#define WEIR_IPC_H

#include <stddef.h>
#include <stdint.h>

#include "weir/alloc.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The handle of a fixed segment takes 66 bytes. That of a part of an expandable segment takes 26 bytes, or 34 in
 * version 3, and 4 bytes per page: there is room for 2000 pages, which are 40 GB. */
enum { WEIR_IPC_HANDLE_MAX = 8192 };

typedef struct weir_ipc_handle {
  size_t size;                              /* sizeof(weir_ipc_handle), set by the caller */
  uint64_t offset;                          /* of the pointer in the shared memory */
  size_t length;                            /* of the handle, in bytes */
  unsigned char bytes[WEIR_IPC_HANDLE_MAX]; /* in the format of PyTorch's storages */
} weir_ipc_handle;

void weir_ipc_handle_init(weir_ipc_handle *handle);

/* Creates a handle for the memory of an allocated pointer: the whole segment, or the pages of an expandable segment
 * that contain the allocation. WEIR_ERROR_NOT_SUPPORTED for memory that the driver cannot share. */
weir_status weir_ipc_share(weir_allocator *allocator, void *pointer, weir_ipc_handle *handle);

/* Opens a handle of another process, of either version. A handle that is open already gives the same base again;
 * each open needs one close. A handle of 64 bytes is taken as the driver's own. WEIR_ERROR_NOT_SUPPORTED for pages
 * that are shared by fabric handles. Peers of the device can access the pages like pages of the device itself. */
weir_status weir_ipc_open(weir_allocator *allocator, int device, const void *bytes, size_t length, void **base);

/* Closes what open returned. The last close unmaps the memory, after the device has done the work that uses it. */
weir_status weir_ipc_close(weir_allocator *allocator, void *base);

#ifdef __cplusplus
}
#endif
#endif
