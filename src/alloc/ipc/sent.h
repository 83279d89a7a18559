/*
 * Memory that was sent to other processes (weir_ipc_send), on the side of the sender.
 *
 * A block that was sent has references (references.h), one for each message. If it is freed while there are any, it is
 * in limbo: it waits, as a block does that other streams use, until a collection finds that all of its references have
 * ended. Collections run when no cached block serves a request, when the cache is emptied, and in weir_ipc_collect.
 *
 * Everything here is guarded by the heap's lock.
 */
#pragma once

#include <stdbool.h>

struct weir__heap;
struct weir__block;
struct weir_allocator;
struct weir__ipc_message;

/* Events of messages, beyond which the sender waits for its stream instead: NVIDIA's driver has a limited number. */
enum { WEIR__SENT_EVENTS_MAX = 1000 };

/* Whether a message is one that this allocator has sent, about the memory that it names. Only ipc_lock is held. */
bool weir__sent_is_known(struct weir_allocator *allocator, const struct weir__ipc_message *message);

/* The end of the heap. `entered`: the device's context is current. */
void weir__sent_clear(struct weir__heap *heap, bool entered);
