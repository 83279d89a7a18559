/*
 * Memory that was received from other processes (weir_ipc_receive). The allocator's ipc_lock is held, unless a comment
 * says otherwise.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/events.h"
#include "alloc/ipc.h"
#include "alloc/sent.h"
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
  bool is_released; /* but its stream was being captured, so it has to wait for a collection */
  weir_cu_stream stream;
};

static weir__process_identity this_process(void) { return weir__process_identity_of(weir__process_id()); }

/* ---- Messages. No lock is held ---- */

weir_status weir__ipc_read_message(const char *who, const void *bytes, size_t length, weir__ipc_message *message) {
  if (length < sizeof *message)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle is truncated: %zu bytes", who, length);
  memcpy(message, bytes, sizeof *message);
  if (memcmp(message->magic, WEIR__IPC_MESSAGE_MAGIC, sizeof message->magic) != 0)
    return weir__fail(WEIR_ERROR_BAD_DATA,
                      "%s: not a handle of weir_ipc_send; weir_ipc_open opens those of "
                      "weir_ipc_share",
                      who);
  if (message->name_length != length - sizeof *message || message->reference.slot >= WEIR__REFERENCES_MOST)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle is damaged", who);
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

static weir_status find_sender(const char *who, weir_allocator *allocator, const weir__reference_name *name,
                               weir__sender **found) {
  weir__sender *sender = allocator->senders;
  while (sender && (sender->process != name->sender || sender->file != name->file))
    sender = sender->next;
  if (!sender) {
    weir__references *references = weir__references_open(name);
    if (!references)
      return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot open the references of the sender, process %d: %s", who,
                        weir__process_of(name->sender),
                        errno == ESRCH ? "it has ended, or has destroyed its allocator" : strerror(errno));
    sender = calloc(1, sizeof *sender);
    if (!sender) {
      weir__references_close(references);
      return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", who);
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

static weir_status open_memory(const char *who, weir__heap *heap, const weir__ipc_message *message, const void *name,
                               weir_cu_stream stream, weir__received *made) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_context previous;
  weir_status status;
  bool is_own = message->reference.sender == this_process(), is_valid = true;
  made->address = message->address;
  if (is_own) { /* another allocator of this process is not asked */
    if (message->reference.file == heap->allocator->references_file && !weir__sent_is_known(heap->allocator, message))
      return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle does not name the memory that was sent", who);
  } else {
    status = weir__ipc_open_handle(who, heap, name, (size_t)message->name_length, &made->base);
    if (status)
      return status;
    made->address = (uint64_t)made->base + message->offset;
  }
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, &previous);
  weir__mutex_unlock(&heap->lock);
  if (!r) {
    is_valid = is_own || weir__ipc_contains(heap, made->base, message->offset, message->bytes);
    if (message->has_event && is_valid)
      r = is_own ? wait_for_self(driver) : wait_for_sender(driver, message, stream);
    weir__heap_leave(heap, previous);
  }
  if (!r && is_valid)
    return WEIR_OK;
  if (made->base)
    weir__ipc_close_handle(who, heap->allocator, made->base);
  if (!is_valid)
    return weir__fail(WEIR_ERROR_BAD_DATA, "%s: the handle names memory beyond the end of what was sent", who);
  return weir__driver_status(driver, r, who, "cuStreamWaitEvent");
}

static weir_status receive(const char *who, weir__heap *heap, const weir__ipc_message *message, const void *name,
                           weir_cu_stream stream, weir__received **received) {
  weir_allocator *allocator = heap->allocator;
  weir__process_identity self = this_process();
  if (!self)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot read /proc/self/stat, by which the sender recognizes this process",
                      who);
  weir__received *made = calloc(1, sizeof *made);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", who);
  *made = (weir__received){.device = heap->device, .reference = message->reference, .stream = stream};
  weir_status status = find_sender(who, allocator, &message->reference, &made->sender);
  if (status)
    goto free_made;
  if (!weir__reference_hold(made->sender->references, &message->reference, self)) {
    status = weir__fail(WEIR_ERROR_BAD_STATE,
                        "%s: the message from process %d has been received before, was canceled, or has expired", who,
                        weir__process_of(message->reference.sender));
    goto drop_sender;
  }
  status = open_memory(who, heap, message, name, stream, made);
  if (status)
    goto return_reference;
  made->next = allocator->received;
  allocator->received = made;
  *received = made;
  return WEIR_OK;

return_reference:
  weir__reference_return(made->sender->references, &message->reference, self);
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

/* Waits for the work of a stream, which may use the memory. *captured is set if it cannot, because of a capture. No lock
 * is held, since this may take long. */
static weir_status wait_for_work(const char *who, weir__heap *heap, weir_cu_stream stream, bool *captured) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_context previous;
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, &previous);
  *captured = !r && (atomic_load(&heap->captures) || weir__is_in_capture(heap, stream));
  weir__mutex_unlock(&heap->lock);
  if (r)
    return weir__driver_status(driver, r, who, "cuCtxSetCurrent");
  if (!*captured)
    r = driver->StreamSynchronize(driver, stream);
  weir__heap_leave(heap, previous);
  return weir__driver_status(driver, r, who, "cuStreamSynchronize");
}

/* The link to a message at an address, released or not. If no message is found, it points to a NULL pointer. */
static weir__received **find_received(weir_allocator *allocator, uint64_t address, bool is_released) {
  weir__received **at = &allocator->received;
  while (*at && ((*at)->address != address || (*at)->is_released != is_released))
    at = &(*at)->next;
  return at;
}

/* Ends the reference of the message at *at, whose work is done. */
static weir_status end_received(const char *who, weir_allocator *allocator, weir__received **at) {
  weir__received *received = *at;
  weir_status status = received->base ? weir__ipc_close_handle(who, allocator, received->base) : WEIR_OK;
  if (status)
    return status;
  weir__reference_end(received->sender->references, &received->reference, this_process());
  *at = received->next;
  drop_sender(allocator, received->sender);
  free(received);
  return WEIR_OK;
}

/* Releases one message at an address. Those of one address are equal, so it does not matter which one it is, nor that
 * the lock is released meanwhile. *captured is set if it has to wait for a collection. No lock is held. */
static weir_status release(const char *who, weir_allocator *allocator, uint64_t address, weir_cu_stream stream,
                           bool is_released, bool *captured) {
  weir__mutex_lock(&allocator->ipc_lock);
  const weir__received *received = *find_received(allocator, address, is_released);
  weir__heap *heap = received ? &allocator->heaps[received->device] : NULL;
  weir__mutex_unlock(&allocator->ipc_lock);
  weir_status status = heap ? wait_for_work(who, heap, stream, captured) : WEIR_OK;
  if (status)
    return status;
  weir__mutex_lock(&allocator->ipc_lock);
  weir__received **at = find_received(allocator, address, is_released);
  if (!*at) {
    if (!is_released) /* otherwise another thread has collected it */
      status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: no memory at %p was received", who, (void *)address);
  } else if (!*captured)
    status = end_received(who, allocator, at);
  else {
    (*at)->is_released = true;
    (*at)->stream = stream;
  }
  weir__mutex_unlock(&allocator->ipc_lock);
  return status;
}

weir_status weir_ipc_release(weir_allocator *allocator, void *pointer, weir_cu_stream stream) {
  WEIR__CHECK_ALLOCATOR(allocator);
  bool captured = false;
  weir_status status = weir__driver_check_stream(__func__, allocator->driver, stream);
  return status ? status : release(__func__, allocator, (uint64_t)pointer, stream, false, &captured);
}

weir_status weir__received_collect(const char *who, weir_allocator *allocator) {
  for (;;) {
    weir__mutex_lock(&allocator->ipc_lock);
    const weir__received *received = allocator->received;
    while (received && !received->is_released)
      received = received->next;
    uint64_t address = received ? received->address : 0;
    weir_cu_stream stream = received ? received->stream : NULL;
    weir__mutex_unlock(&allocator->ipc_lock);
    bool captured = false;
    weir_status status = received ? release(who, allocator, address, stream, true, &captured) : WEIR_OK;
    if (status || !received || captured)
      return status;
  }
}

void weir__received_clear(weir_allocator *allocator) {
  weir_driver *driver = allocator->driver;
  weir_cu_context previous;
  while (allocator->received) {
    weir__received *received = allocator->received;
    weir__heap *heap = &allocator->heaps[received->device];
    allocator->received = received->next;
    if (!weir__heap_enter(heap, &previous)) {
      driver->CtxSynchronize(driver);
      weir__heap_leave(heap, previous);
    }
    if (received->base)
      weir__ipc_close_handle("weir_allocator_destroy", allocator, received->base);
    weir__reference_end(received->sender->references, &received->reference, this_process());
    drop_sender(allocator, received->sender);
    free(received);
  }
}
