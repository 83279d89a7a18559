/*
 * Memory shared between processes.
 *
 * One process names the memory that holds a live pointer (weir_ipc_share), sends the name to another by whatever means it has,
 * and keeps the pointer as long as the other uses it. The other opens the name (weir_ipc_open) and finds the same memory at an
 * address of its own.
 *
 *     weir_ipc_share(allocator, pointer, &handle);                        here; send handle.bytes, handle.length, handle.offset
 *     weir_ipc_open(allocator, device, bytes, length, &base);             there: the memory is at (char *)base + offset
 *     weir_ipc_close(allocator, base);
 *
 * Nothing orders the work of the two: that is for events with handles (weir_event_ipc_handle), or for waiting.
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

/* The name of a segment that the driver gave in one go takes 66 bytes. That of a part of an expandable segment takes 26,
 * or 34 in version 3, and 4 for each page: here is room for 2000 pages, which are 40 GB. */
enum { WEIR_IPC_HANDLE_MAX = 8192 };

typedef struct weir_ipc_handle {
  size_t size;                              /* sizeof(weir_ipc_handle), set by the caller */
  uint64_t offset;                          /* of the pointer in what is shared */
  size_t length;                            /* of the name, in bytes */
  unsigned char bytes[WEIR_IPC_HANDLE_MAX]; /* the name: the form is that of PyTorch's storages */
} weir_ipc_handle;

void weir_ipc_handle_init(weir_ipc_handle *handle);

/* Names the memory that holds a live pointer: the whole segment, or of an expandable one the pages that the pointer's memory
 * lies in. WEIR_ERROR_NOT_SUPPORTED for memory that the driver cannot share. */
weir_status weir_ipc_share(weir_allocator *allocator, void *pointer, weir_ipc_handle *handle);

/* Opens a name of another process, of any version. A name that is open already is counted, and gives the same base; each open
 * wants one close. 64 bytes alone are taken as a handle of the driver's own. WEIR_ERROR_NOT_SUPPORTED for pages that are shared
 * by fabric handles. The device's peers may touch pages as those of its own. */
weir_status weir_ipc_open(weir_allocator *allocator, int device, const void *bytes, size_t length, void **base);

/* Takes what open gave. With the last one the memory goes from this process, after the work of the device that uses it. */
weir_status weir_ipc_close(weir_allocator *allocator, void *base);

#ifdef __cplusplus
}
#endif
#endif
