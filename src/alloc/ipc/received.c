/*
 * Memory that was received from other processes (weir_ipc_receive). The allocator's ipc_lock is held, unless a comment
 * says otherwise.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/uses.h"
#include "alloc/ipc/ipc.h"
#include "alloc/ipc/sent.h"
#include "base/thread.h"
#include "driver/call.h"

/* The references of a process that memory was received from. */
typedef struct weir__sender weir__sender;
struct weir__sender {
  weir__sender *next;
  weir__process_identity process;
  int32_t file; /* of the references, in that process */
  size_t uses;
  weir__references *references;
};

/* A message that was received. */
typedef struct weir__received weir__received;
struct weir__received {
  weir__received *next;
  int device;
  uint64_t address;
  void *base; /* that was opened; NULL for memory of this process */
  weir__sender *sender;
  weir__reference_name reference;
  weir__process_identity self; /* that holds the reference; kept, because to find it needs a free descriptor */
  /* Releases that fail, or that a capture defers, are numbered from 1 on and wait for a collection. 0 until then. */
  uint64_t released;
  weir_cu_stream stream;
};

bool weir__received_owns(const weir_allocator *allocator, uint64_t address) {
  const weir__received *received = allocator->received;
  while (received && (received->address != address || !received->base))
    received = received->next;
  return received != NULL;
}

/* ---- Messages. No lock is held ---- */

weir_status weir__ipc_read_message(const char *caller, const void *bytes, size_t length, weir__ipc_message *message) {
  if (length < sizeof *message)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle is truncated: %zu bytes", caller, length);
  memcpy(message, bytes, sizeof *message);
  if (memcmp(message->magic, WEIR__IPC_MESSAGE_MAGIC, sizeof message->magic) != 0)
    return weir__fail(WEIR_ERROR_BAD_DATA,
                      "%s: not a handle of weir_ipc_send; weir_ipc_open opens those of "
                      "weir_ipc_share",
                      caller);
  if (message->name_length != length - sizeof *message || message->reference.slot >= WEIR__REFERENCES_MAX)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle is damaged", caller);
  return WEIR_OK;
}

/* ---- Senders ---- */

static void drop_sender(weir_allocator *allocator, weir__sender *sender) {
  if (--sender->uses)
    return;
  weir__sender **at = &allocator->senders;
  while (*at != sender)
    at = &(*at)->next;
  *at = sender->next;
  weir__references_close(sender->references);
  free(sender);
}

static weir_status find_sender(const char *caller, weir_allocator *allocator, const weir__reference_name *name,
                               weir__sender **found) {
  weir__sender *sender = allocator->senders;
  while (sender && (sender->process != name->sender || sender->file != name->file ||
                    !weir__references_are_current(sender->references)))
    sender = sender->next;
  if (!sender) {
    weir__references *references = weir__references_open(name);
    if (!references)
      return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot open the references of the sender, process %d: %s", caller,
                        weir__process_of(name->sender),
                        errno == ESRCH ? "it has ended, or has destroyed its allocator" : strerror(errno));
    sender = calloc(1, sizeof *sender);
    if (!sender) {
      weir__references_close(references);
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
    }
    *sender = (weir__sender){
        .next = allocator->senders, .process = name->sender, .file = name->file, .references = references};
    allocator->senders = sender;
  }
  sender->uses++;
  *found = sender;
  return WEIR_OK;
}

/* ---- Receive ---- */

/* Makes the stream wait for the sender's work. */
static weir_cu_result wait_for_sender(weir_driver *driver, const weir__ipc_message *message, weir_cu_stream stream) {
  weir_cu_event event;
  weir_cu_result r = driver->IpcOpenEventHandle(driver, &event, message->event);
  if (r)
    return r;
  r = driver->StreamWaitEvent(driver, stream, event, 0);
  driver->EventDestroy(driver, event);
  return r;
}

/* The memory of a message of this process, which the driver cannot open here. Its work is ordered by waiting for it:
 * the driver cannot open the event either. */
static weir_cu_result wait_for_self(weir_driver *driver) { return driver->CtxSynchronize(driver); }

/* During a capture, its stream cannot wait for the sender, and the device cannot be waited for. */
static weir_status check_captures(const char *caller, weir__heap *heap, weir_cu_stream stream, bool is_own) {
  weir__ipc_scope scope;
  weir_status status = weir__ipc_enter(caller, heap, &scope);
  if (status)
    return status;
  bool is_captured = weir__is_in_capture(heap, stream) || (is_own && atomic_load(&heap->captures));
  weir__ipc_leave(heap, &scope);
  return is_captured ? weir__fail(WEIR_ERROR_BAD_STATE, "%s: %s", caller,
                                  is_own ? "a message of this process cannot be received during a capture"
                                         : "memory cannot be received while its stream is being captured")
                     : WEIR_OK;
}

static weir_status open_memory(const char *caller, weir__heap *heap, const weir__ipc_message *message, const void *name,
                               weir_cu_stream stream, bool is_own, weir__received *made) {
  weir_driver *driver = heap->allocator->driver;
  weir__ipc_scope scope;
  weir_cu_result r = WEIR_CU_SUCCESS;
  weir_status status;
  bool is_valid = true;
  made->address = message->address;
  if (is_own) {
    const weir_allocator *allocator = heap->allocator;
    if (!allocator->references || message->reference.file != allocator->references_file)
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                        "%s: the message was sent by another allocator of this process, which has to receive it",
                        caller);
    if (!weir__sent_is_known(heap->allocator, message))
      return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle does not name the memory that was sent", caller);
  } else {
    status = weir__ipc_open_handle(caller, heap, name, (size_t)message->name_length, &made->base);
    if (status)
      return status;
    made->address = (uint64_t)made->base + message->offset;
  }
  status = weir__ipc_enter(caller, heap, &scope);
  if (!status) {
    is_valid = is_own || weir__ipc_contains(heap, made->base, message->offset, message->bytes);
    if (message->has_event && is_valid)
      r = is_own ? wait_for_self(driver) : wait_for_sender(driver, message, stream);
    weir__ipc_leave(heap, &scope);
  }
  if (!status && !r && is_valid)
    return WEIR_OK;
  if (made->base)
    weir__ipc_close_handle(caller, heap->allocator, made->base, NULL);
  if (!is_valid)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle names memory beyond the end of what was sent", caller);
  return status ? status : weir__driver_status(driver, r, caller, "cuStreamWaitEvent");
}

static weir_status receive(const char *caller, weir__heap *heap, const weir__ipc_message *message, const void *name,
                           weir_cu_stream stream, weir__received **received) {
  weir_allocator *allocator = heap->allocator;
  weir__process_identity self = weir__process_identity_of(weir__process_id());
  if (!self)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot read /proc/self/stat, by which the sender recognizes this process",
                      caller);
  weir__process_identity receiver;
  bool is_own = message->reference.sender == self;
  weir_status status = check_captures(caller, heap, stream, is_own);
  if (status)
    return status;
  weir__received *made = calloc(1, sizeof *made);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  *made = (weir__received){.device = heap->device, .reference = message->reference, .self = self, .stream = stream};
  status = find_sender(caller, allocator, &message->reference, &made->sender);
  if (status)
    goto free_made;
  if (!weir__reference_hold(made->sender->references, &message->reference, self, &receiver)) {
    status = weir__fail(WEIR_ERROR_BAD_STATE,
                        "%s: the message from process %d has been received before, was canceled, or has expired",
                        caller, weir__process_of(message->reference.sender));
    goto drop_sender;
  }
  status = open_memory(caller, heap, message, name, stream, is_own, made);
  if (status)
    goto return_reference;
  made->next = allocator->received;
  allocator->received = made;
  *received = made;
  return WEIR_OK;

return_reference:
  weir__reference_return(made->sender->references, &message->reference, self, receiver);
drop_sender:
  drop_sender(allocator, made->sender);
free_made:
  free(made);
  return status;
}

weir_status weir_ipc_receive(weir_allocator *allocator, int device, const void *bytes, size_t length,
                             weir_cu_stream stream, void **pointer, uint64_t *size) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(bytes);
  WEIR__CHECK_ARGUMENT(pointer);
  weir__ipc_message message;
  weir__received *received = NULL;
  weir_status status = weir__ipc_read_message(__func__, bytes, length, &message);
  if (!status)
    status = weir__driver_check_stream(__func__, allocator->driver, stream);
  if (status)
    return status;
  weir__mutex_lock(&allocator->ipc_lock);
  status = receive(__func__, heap, &message, (const char *)bytes + sizeof message, stream, &received);
  if (!status) {
    *pointer = (void *)received->address;
    if (size)
      *size = message.bytes;
  }
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

/* ---- Release ---- */

/* Waits for the work of a stream, which may use the memory, or of all streams if `stream` is NULL. *captured is set if
 * it cannot, because of a capture. No lock is held, since this may take long. */
static weir_status wait_for_work(const char *caller, weir__heap *heap, const weir_cu_stream *stream, bool *captured) {
  weir_driver *driver = heap->allocator->driver;
  weir__ipc_scope scope;
  weir_status status = weir__ipc_enter(caller, heap, &scope);
  if (status)
    return status;
  *captured = atomic_load(&heap->captures) || (stream && weir__is_in_capture(heap, *stream));
  if (!*captured)
    status = weir__driver_status(driver,
                                 stream ? driver->StreamSynchronize(driver, *stream) : driver->CtxSynchronize(driver),
                                 caller, stream ? "cuStreamSynchronize" : "cuCtxSynchronize");
  weir__ipc_leave(heap, &scope);
  return status;
}

/* The link to a message at an address that was not released, if possible one that was received on a stream. If no
 * message is found, it points to a NULL pointer. */
static weir__received **find_received(weir_allocator *allocator, uint64_t address, weir_cu_stream stream) {
  weir__received **at = &allocator->received, **found = NULL;
  for (; *at && (!found || (*found)->stream != stream); at = &(*at)->next)
    if ((*at)->address == address && !(*at)->released && (!found || (*at)->stream == stream))
      found = at;
  return found ? found : at;
}

/* Ends the reference of the message at *at, whose work is done. Not before its memory is unmapped, since the sender may
 * free it then: *captured is set if a capture, which may have begun since the wait, forbids that. */
static weir_status end_received(const char *caller, weir_allocator *allocator, weir__received **at, bool *captured) {
  weir__received *received = *at;
  weir_status status = received->base ? weir__ipc_close_handle(caller, allocator, received->base, captured) : WEIR_OK;
  if (status || *captured)
    return status;
  weir__reference_end(received->sender->references, &received->reference, received->self);
  *at = received->next;
  drop_sender(allocator, received->sender);
  free(received);
  return WEIR_OK;
}

/* Messages of one address differ only in the stream that waits for the sender's event, which may be destroyed once the
 * reference has ended: one of the stream that is waited for is preferred. Apart from that it does not matter which one
 * is released, nor that the lock is released meanwhile. */
weir_status weir_ipc_release(weir_allocator *allocator, void *pointer, weir_cu_stream stream) {
  static _Atomic uint64_t releases;
  WEIR__CHECK_ALLOCATOR(allocator);
  bool captured = false;
  weir_status status = weir__driver_check_stream(__func__, allocator->driver, stream);
  if (status)
    return status;
  weir__mutex_lock(&allocator->ipc_lock);
  const weir__received *received = *find_received(allocator, (uint64_t)pointer, stream);
  weir__heap *heap = received ? &allocator->heaps[received->device] : NULL;
  weir__mutex_unlock(&allocator->ipc_lock);
  if (heap)
    status = wait_for_work(__func__, heap, &stream, &captured);
  weir__mutex_lock(&allocator->ipc_lock);
  weir__received **at = find_received(allocator, (uint64_t)pointer, stream), *found = *at;
  if (!found)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: no memory at %p was received", __func__, pointer);
  else if (status || captured || (status = end_received(__func__, allocator, at, &captured)) || captured)
    found->released = atomic_fetch_add(&releases, 1) + 1;
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

/* Waits for all streams of a device, because the stream of a release may have been destroyed. Messages that are
 * released meanwhile are left to the next collection. No lock is held. */
static weir_status collect_device(const char *caller, weir__heap *heap) {
  weir_allocator *allocator = heap->allocator;
  uint64_t newest = 0;
  bool captured = false;
  weir__mutex_lock(&allocator->ipc_lock);
  for (const weir__received *received = allocator->received; received; received = received->next)
    if (received->device == heap->device && received->released > newest)
      newest = received->released;
  weir__mutex_unlock(&allocator->ipc_lock);
  weir_status status = newest ? wait_for_work(caller, heap, NULL, &captured) : WEIR_OK;
  if (status || !newest || captured)
    return status;
  weir__mutex_lock(&allocator->ipc_lock);
  for (weir__received **at = &allocator->received, *received; (received = *at) != NULL;) {
    bool ends = received->device == heap->device && received->released && received->released <= newest && !captured;
    weir_status ended = ends ? end_received(caller, allocator, at, &captured) : WEIR_OK;
    if (!ends || ended || captured)
      at = &received->next;
    status = status ? status : ended;
  }
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

weir_status weir__received_collect(const char *caller, weir_allocator *allocator) {
  weir_status status = WEIR_OK;
  for (int i = 0; i < allocator->heap_count; i++) {
    weir_status collected = collect_device(caller, &allocator->heaps[i]);
    status = status ? status : collected;
  }
  return status;
}

void weir__received_clear(weir_allocator *allocator) {
  while (allocator->received) {
    weir__received *received = allocator->received;
    allocator->received = received->next;
    weir__reference_end(received->sender->references, &received->reference, received->self);
    drop_sender(allocator, received->sender);
    free(received);
  }
}
