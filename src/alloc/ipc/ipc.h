/*
 * Memory of and for other processes.
 */
#pragma once

#include "alloc/cache/heap.h"
#include "alloc/ipc/references.h"
#include "weir/ipc.h"

/* Decides whether pages of a device are created so that other processes can open them. */
void weir__ipc_prepare(weir__heap *heap);

/* Unmaps all memory of other processes, also during a capture. The allocator is being destroyed. */
void weir__ipc_clear(weir_allocator *allocator);

/* Whether an address lies in memory of another process that is open here, or was received. False, too, if another
 * thread is opening or closing memory now. No lock is held. */
bool weir__ipc_owns(weir_allocator *allocator, uint64_t address);

/* The part of it for received memory. ipc_lock is held. */
bool weir__received_owns(const weir_allocator *allocator, uint64_t address);

/* ---- Calls of the driver ---- */

typedef struct weir__ipc_scope {
  weir_cu_context previous;
  int mode;
} weir__ipc_scope;

/* Makes the device's context current, and allows this thread the calls that captures of other streams forbid. The
 * heap's lock is not held. */
weir_status weir__ipc_enter(const char *caller, weir__heap *heap, weir__ipc_scope *scope);
void weir__ipc_leave(weir__heap *heap, const weir__ipc_scope *scope);

/* ---- Handles ---- */

/* A handle of memory, as weir_ipc_share creates it; the caller frees the bytes. */
typedef struct weir__ipc_name {
  uint64_t offset;
  size_t length;
  unsigned char *bytes;
} weir__ipc_name;

/* Finds a live pointer: its heap, its block, and the base of its memory in the driver. The block is NULL if the memory
 * was allocated with caching off, the base is 0 if it consists of pages. No lock is held. */
weir_status weir__ipc_find(const char *caller, weir_allocator *allocator, uint64_t address, weir__heap **heap,
                           const weir__block **block, uint64_t *base);

/* Names the memory that the call above found. The heap's lock is held. */
weir_status weir__ipc_name_memory(const char *caller, weir__heap *heap, uint64_t address, const weir__block *block,
                                  uint64_t base, weir__ipc_name *name);

/* Fails unless a handle has room for so many bytes. */
weir_status weir__ipc_check_room(const char *caller, const weir_ipc_handle *handle, size_t bytes);

/* Counts the pages of a block that is sent, and withdraws them when it is not any more. The heap's lock is held. */
void weir__ipc_sent_pages(weir__heap *heap, const weir__block *block, int by);

/* weir_ipc_open. ipc_lock is held. */
weir_status weir__ipc_open_handle(const char *caller, weir__heap *heap, const void *bytes, size_t length, void **base);

/* Whether a part lies within memory that is open at `base`. ipc_lock is held, and the device's context is current. */
bool weir__ipc_contains(const weir__heap *heap, const void *base, uint64_t offset, uint64_t bytes);

/* weir_ipc_close. ipc_lock is held. If a capture forbids to unmap the memory, it stays mapped until a collection; with
 * `captured`, which is set then, it stays open too, and the caller has to try again. */
weir_status weir__ipc_close_handle(const char *caller, weir_allocator *allocator, void *base, bool *captured);

/* Closes handles whose close had to wait for a capture. ipc_lock is held. */
weir_status weir__ipc_collect_closed(const char *caller, weir_allocator *allocator);

/* ---- Messages: memory that is sent with a reference ---- */

/* Begins the handle of weir_ipc_send; the handle of the memory follows. All padding is 0. */
typedef struct weir__ipc_message weir__ipc_message;
struct weir__ipc_message {
  char magic[8];
  weir__reference_name reference;
  uint64_t address; /* in the sender */
  uint64_t bytes;
  uint64_t offset;      /* in the shared memory */
  uint64_t name_length; /* of the handle that follows */
  uint64_t has_event;
  weir_cu_ipc_event_handle event;
};

#define WEIR__IPC_MESSAGE_MAGIC "weirMSG"

weir_status weir__ipc_read_message(const char *caller, const void *bytes, size_t length, weir__ipc_message *message);

/* Ends references whose release had to wait for a capture. */
weir_status weir__received_collect(const char *caller, weir_allocator *allocator);

/* Ends the references of everything that was received, after weir__ipc_clear has unmapped it. The allocator is being
 * destroyed. */
void weir__received_clear(weir_allocator *allocator);
