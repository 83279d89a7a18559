/*
 * Storages that processes send to each other.
 *
 * Storages that were sent or received are listed by their address, so that a process that receives memory again gets
 * the storage that it has. The memory of a listed storage cannot be reused for another one before the storage is
 * released, so an address identifies it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "src/hash_map.h"
#include "src/storage.h"
#include "weir/compute/compute.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/ipc.h"
#include "weir/memory.h"
#include "weir/runtime.h"

/* If more messages with the same memory than these have arrived, all but one are released, which has to wait for the
 * streams. */
enum { MESSAGES_MAX = 16 };

struct weir__storage_received {
  weir_allocator *allocator;
  void *pointer;
  weir_stream stream; /* that received it */
  weir_cu_stream raw;
  int messages;       /* to be released */
  size_t count, room; /* of the other streams that use it */
  weir_stream *streams;
};

typedef struct listed {
  uint64_t address;
  weir_storage *storage;
} listed;

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and the contents of weir__storage_received */
static weir__hash_map known;

int weir_storage_is_received(const weir_storage *storage) { return storage->received != NULL; }

/* ---- The list ---- */

/* An older storage at the same address, which is about to be released, loses its entry. */
static bool list_storage(weir_storage *storage) {
  listed *entry = weir__hash_map_put(&known, sizeof *entry, (uintptr_t)storage->data);
  if (!entry)
    return false;
  entry->storage = storage;
  storage->is_listed = true;
  return true;
}

void weir__storage_unlist(weir_storage *storage) {
  if (weir_is_in_bad_fork()) /* the lock may stay held forever */
    return;
  pthread_mutex_lock(&lock);
  listed *entry = weir__hash_map_find(&known, sizeof *entry, (uintptr_t)storage->data);
  if (entry && entry->storage == storage)
    weir__hash_map_remove(&known, sizeof *entry, entry);
  if (!known.count)
    weir__hash_map_clear(&known);
  storage->is_listed = false;
  pthread_mutex_unlock(&lock);
}

/* The storage at an address with a new reference, unless its last one is gone. */
static weir_storage *find_storage(void *pointer, uint64_t bytes) {
  const listed *entry = weir__hash_map_find(&known, sizeof *entry, (uintptr_t)pointer);
  if (!entry || entry->storage->bytes != bytes)
    return NULL;
  int references = atomic_load(&entry->storage->references);
  while (references > 0 && !atomic_compare_exchange_weak(&entry->storage->references, &references, references + 1))
    ;
  return references > 0 ? entry->storage : NULL;
}

/* ---- Streams ---- */

/* The default stream cannot be captured, and the query would invalidate a capture of another stream. */
static weir_status is_captured(weir_stream stream, int *capturing) {
  *capturing = 0;
  return stream.id ? weir_stream_is_capturing(stream, capturing) : WEIR_OK;
}

/* Makes `stream` wait for the work of another one, unless *capturing says that either is captured. */
static weir_status join(weir_stream stream, weir_stream other, int *capturing) {
  weir_status status = is_captured(stream, capturing);
  if (!status && !*capturing)
    status = is_captured(other, capturing);
  if (status || *capturing || weir_stream_equal(stream, other))
    return status;
  return weir_stream_wait_stream(stream, other);
}

/* ---- Send ---- */

weir_status weir_storage_send(weir_storage *storage, weir_stream stream, const weir_ipc_send_options *options,
                              weir_ipc_handle *handle) {
  WEIR__CHECK_ARGUMENT(storage);
  WEIR__CHECK_ARGUMENT(handle);
  if (storage->received)
    return weir__fail(WEIR_ERROR_BAD_STATE,
                      "%s: Attempted to send CUDA tensor received from another process; this is not currently "
                      "supported. Consider cloning before sending.",
                      __func__);
  if (storage->place.kind != WEIR_PLACE_DEVICE || storage->is_borrowed || !storage->data)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: only device memory that the storage has allocated can be sent",
                      __func__);
  if (stream.device != storage->place.device)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the stream belongs to device %d; expected one of device %d",
                      __func__, stream.device, storage->place.device);
  weir_cu_stream raw;
  int capturing;
  weir_status status = join(stream, storage->stream, &capturing);
  if (!status && capturing)
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: memory cannot be sent while its stream is being captured", __func__);
  if (!status)
    status = weir_stream_raw(stream, &raw);
  if (!status)
    status = weir_ipc_send(storage->memory.allocator, storage->data, raw, options, handle);
  if (status)
    return weir__fail_as(__func__, status);
  pthread_mutex_lock(&lock);
  bool is_listed = storage->is_listed || list_storage(storage);
  pthread_mutex_unlock(&lock);
  if (is_listed)
    return WEIR_OK;
  weir_ipc_cancel(storage->memory.allocator, handle->bytes, handle->length);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the list of storages", __func__);
}

/* ---- Release ---- */

static weir_status release_messages(const weir__storage_received *received, int count) {
  weir_status status = WEIR_OK;
  for (int i = 0; i < count; i++) {
    weir_status released = weir_ipc_release(received->allocator, received->pointer, received->raw);
    status = status ? status : released;
  }
  return status;
}

/* Makes the stream that received the memory wait for the others that use it, and for the current one, since most work
 * runs there. If a stream is captured, weir_ipc_release leaves the memory to a later collection. */
static weir_status join_all(const weir__storage_received *received) {
  weir_stream current;
  int capturing;
  weir_status status = weir_stream_get_current(received->stream.device, &current);
  if (!status)
    status = join(received->stream, current, &capturing);
  for (size_t i = 0; i < received->count && !status; i++)
    status = join(received->stream, received->streams[i], &capturing);
  /* without events, or if a stream was destroyed */
  return status ? weir_device_synchronize(received->stream.device) : WEIR_OK;
}

static void end_received(void *context) {
  weir__storage_received *received = context;
  if (!weir_is_in_bad_fork()) {
    weir_status status = join_all(received), released = release_messages(received, received->messages);
    if (status || released)
      weir__log(WEIR_LOG_WARN, "memory of another process cannot be released now: %s", weir_last_error());
  }
  free(received->streams);
  free(received);
}

weir_status weir__received_record_stream(weir__storage_received *received, weir_stream stream) {
  weir_status status = WEIR_OK;
  bool is_known = weir_stream_equal(stream, received->stream);
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < received->count && !is_known; i++)
    is_known = weir_stream_equal(stream, received->streams[i]);
  if (!is_known && received->count == received->room) {
    size_t room = 2 * received->room + 4;
    weir_stream *grown = realloc(received->streams, room * sizeof *grown);
    if (grown) {
      received->streams = grown;
      received->room = room;
    } else
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a stream", __func__);
  }
  if (!is_known && !status)
    received->streams[received->count++] = stream;
  pthread_mutex_unlock(&lock);
  return status;
}

/* ---- Receive ---- */

/* A message with memory that this process has already. Its reference is kept, because the sender destroys the message's
 * event with it, and the stream may not have waited for the event yet. */
static weir_status add_message(weir_storage *storage, weir_allocator *allocator, void *pointer, weir_stream stream,
                               weir_cu_stream raw) {
  weir__storage_received *received = storage->received;
  if (!received) /* memory of this process */
    return weir_ipc_release(allocator, pointer, raw);
  weir_status status = weir__received_record_stream(received, stream);
  pthread_mutex_lock(&lock);
  int ended = 0;
  received->messages++;
  if (received->messages > MESSAGES_MAX) {
    weir_status joined = join_all(received); /* each message may have another stream */
    status = status ? status : joined;
    ended = received->messages - 1;
    received->messages = 1;
  }
  pthread_mutex_unlock(&lock);
  weir_status released = release_messages(received, ended);
  return status ? status : released;
}

static weir_status borrow(weir_allocator *allocator, void *pointer, uint64_t bytes, weir_stream stream,
                          weir_cu_stream raw, weir_storage **storage) {
  weir_storage *made = NULL;
  weir__storage_received *received = calloc(1, sizeof *received);
  if (!received)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a storage", __func__);
  weir_status status =
      weir_storage_borrow(pointer, bytes, weir_place_device(stream.device), end_received, received, &made);
  if (status) {
    free(received);
    return status;
  }
  *received =
      (weir__storage_received){.allocator = allocator, .pointer = pointer, .stream = stream, .raw = raw, .messages = 1};
  made->received = received;
  made->stream = stream;
  if (!list_storage(made)) {
    received->messages = 0; /* which the caller releases */
    weir_storage_release(made);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the list of storages", __func__);
  }
  *storage = made;
  return WEIR_OK;
}

weir_status weir_storage_receive(const void *bytes, size_t length, uint64_t size, weir_stream stream,
                                 weir_storage **storage) {
  WEIR__CHECK_ARGUMENT(bytes);
  WEIR__CHECK_ARGUMENT(storage);
  weir_allocator *allocator;
  weir_cu_stream raw;
  void *pointer;
  uint64_t most;
  weir_status status = weir__compute_allocator(&allocator);
  if (!status)
    status = weir_stream_raw(stream, &raw);
  if (!status)
    status = weir_ipc_receive(allocator, stream.device, bytes, length, raw, &pointer, &most);
  if (status)
    return weir__fail_as(__func__, status);
  if (!size || size > most) {
    weir_ipc_release(allocator, pointer, raw);
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: a storage of %llu bytes was expected; the memory has %llu",
                      __func__, (unsigned long long)size, (unsigned long long)most);
  }
  pthread_mutex_lock(&lock);
  weir_storage *found = find_storage(pointer, size);
  if (!found)
    status = borrow(allocator, pointer, size, stream, raw, storage);
  pthread_mutex_unlock(&lock);
  if (found) {
    status = add_message(found, allocator, pointer, stream, raw);
    if (status)
      weir_storage_release(found);
    else
      *storage = found;
  } else if (status)
    weir_ipc_release(allocator, pointer, raw);
  return weir__fail_as(__func__, status);
}
