/*
 * Memory of and for other processes.
 */
#ifndef WEIR_ALLOC_IPC_H
#define WEIR_ALLOC_IPC_H

#include "alloc/heap.h"

/* Decides whether pages of a device are created so that other processes can open them. */
void weir__ipc_prepare(weir__heap *heap);

/* Closes the file of a page that is unmapped. */
void weir__ipc_forget_page(weir__page *page);

/* Lets another device access the pages of other processes that are open for this one. ipc_lock is held. */
weir_cu_result weir__ipc_share_open(const weir__heap *heap, int device);
void weir__ipc_clear(weir_allocator *allocator);

#endif
