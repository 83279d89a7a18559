/*
 * Memory shared between processes.
 *
 * Counted: one process sends memory to another, and both free it when they need it no longer. It is reused only after
 * both have. The work of the two is ordered by events.
 *
 *     weir_ipc_send(allocator, pointer, stream, NULL, &handle);            here: send handle.bytes, handle.length
 *     weir_allocator_free(allocator, pointer);                             here: at any time
 *     weir_ipc_receive(allocator, device, bytes, length, stream, &pointer, &size);    there
 *     weir_ipc_release(allocator, pointer, stream);                        there: or end, in whatever way
 *
 * Not counted: one process creates a handle for the memory of an allocated pointer, which others may open any number of
 * times, and keeps the memory allocated as long as they use it. The format is PyTorch's.
 *
 *     weir_ipc_share(allocator, pointer, &handle);               here: send handle.bytes, handle.length, handle.offset
 *     weir_ipc_open(allocator, device, bytes, length, &base);    there: the memory is at (char *)base + offset
 *     weir_ipc_close(allocator, base);
 *
 * The work of the two processes is then not ordered: use events with handles (weir_event_ipc_handle), or wait.
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
 * version 3, and 4 bytes per page, or 8 if its pages differ in size. A handle of weir_ipc_send takes 136 bytes more.
 * There is room for 16,000 pages, which are 320 GB. */
enum { WEIR_IPC_HANDLE_MAX = 65536, WEIR_IPC_HANDLE_MIN = 256 };

typedef struct weir_ipc_handle {
  size_t size;     /* sizeof(weir_ipc_handle), set by the caller. Less or more if `bytes` has less or more room, but
                    * room for WEIR_IPC_HANDLE_MIN bytes at least */
  uint64_t offset; /* of the pointer in the shared memory */
  size_t length;   /* of the handle, in bytes */
  unsigned char bytes[WEIR_IPC_HANDLE_MAX]; /* of weir_ipc_share, in the format of PyTorch's storages */
} weir_ipc_handle;

/* Sets `size` and makes the rest zero, for weir_ipc_send and weir_ipc_share. */
static inline void weir_ipc_handle_init(weir_ipc_handle *handle) { WEIR__INIT(handle); }

/* ---- Counted ---- */

typedef struct weir_ipc_send_options {
  size_t size;  /* sizeof(weir_ipc_send_options) */
  int receiver; /* the process that is to receive it; if it ends, the message ends with it. 0 if it is not known */

  /* A message that has not been received this many seconds after its memory was freed expires at the next collection,
   * and can no longer be received. 0 is WEIR_IPC_TIMEOUT, whose default is 600; a negative number means never. */
  double timeout;
} weir_ipc_send_options;

/* Sets `size` and the defaults. */
static inline void weir_ipc_send_options_init(weir_ipc_send_options *options) { WEIR__INIT(options); }

/* Creates a handle that one process can receive, once. The receiver's stream waits for the work that `stream` has now.
 * Until the receiver releases the memory or ends, it is not reused: if it is freed, it is in limbo, where statistics
 * count it as active and not as allocated (weir_allocator_stats). NULL options are the defaults.
 *
 * WEIR_ERROR_NOT_SUPPORTED for memory that the driver cannot share and for memory that was allocated with caching off,
 * WEIR_ERROR_BAD_STATE while the stream is being captured. */
weir_status weir_ipc_send(weir_allocator *allocator, void *pointer, weir_cu_stream stream,
                          const weir_ipc_send_options *options, weir_ipc_handle *handle);

/* Receives the memory of a handle of weir_ipc_send, for use on a stream of a device. `size`, unless NULL, receives the
 * size of its block. WEIR_ERROR_BAD_STATE if the handle was received before or has expired, and while the stream is
 * being captured; WEIR_ERROR_SYSTEM if the sender has ended. A process can receive from itself with the allocator that
 * has sent the memory, and gets its own pointer, but not during a capture. */
weir_status weir_ipc_receive(weir_allocator *allocator, int device, const void *bytes, size_t length,
                             weir_cu_stream stream, void **pointer, uint64_t *size);

/* Releases memory that was received, after the work that the stream has now, for which it waits. During a capture it
 * does not wait; weir_ipc_collect releases the memory later. It also does so if the driver fails here: the memory is
 * released in any case. Memory that was received several times is released as often. */
weir_status weir_ipc_release(weir_allocator *allocator, void *pointer, weir_cu_stream stream);

/* Says which process is to receive a handle of weir_ipc_send, if that was not known then: when it ends, the message
 * ends with it. If it has ended already, the message is taken back. WEIR_ERROR_BAD_STATE if the message has been
 * received. */
weir_status weir_ipc_set_receiver(weir_allocator *allocator, const void *bytes, size_t length, int receiver);

/* Takes a handle of weir_ipc_send back that could not be delivered. WEIR_ERROR_BAD_STATE if it has been received. */
weir_status weir_ipc_cancel(weir_allocator *allocator, const void *bytes, size_t length);

/* Frees memory in limbo that no other process needs any more, because it was released or because the process has ended.
 * The allocator does the same before it obtains more memory from the driver, and in weir_allocator_empty_cache.
 * `freed`, unless NULL, receives the number of blocks that left limbo. */
weir_status weir_ipc_collect(weir_allocator *allocator, size_t *freed);

/* ---- Not counted ---- */

/* Creates a handle for the memory of an allocated pointer: the whole segment, or the pages of an expandable segment
 * that contain the allocation. The pages then have file descriptors, one each, and no longer move. Where the process's
 * limit of open files is too low for them, it is raised up to the hard limit. WEIR_ERROR_NOT_SUPPORTED for memory that
 * the driver cannot share. */
weir_status weir_ipc_share(weir_allocator *allocator, void *pointer, weir_ipc_handle *handle);

/* Opens a handle of another process, of either version. A handle that is open already gives the same base again;
 * each open needs one close. A handle of 64 bytes is taken as the driver's own. WEIR_ERROR_NOT_SUPPORTED for pages
 * that are shared by fabric handles. Peers of the device can access the pages like pages of the device itself. */
weir_status weir_ipc_open(weir_allocator *allocator, int device, const void *bytes, size_t length, void **base);

/* Closes what open returned. The last close unmaps the memory, after the device has done the work that uses it. During
 * a capture it does not wait; weir_ipc_collect unmaps the memory later. */
weir_status weir_ipc_close(weir_allocator *allocator, void *base);

#ifdef __cplusplus
}
#endif
#endif
