/*
 * Storages: memory with a reference count.
 */
#include "src/storage.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "weir/copy.h"

enum { HOST_ALIGNMENT = 64 };

/* ---- Pinned memory ---- */

/* The default allocator lives while memory of it is in use: one that stayed would keep the runtime from shutting down,
 * which a program without an allocator of its own does not expect. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static weir_host_allocator *chosen, *made;
static size_t made_uses;

/* Fails in a forked child, where the lock may stay held forever. */
static weir_status check_fork(void) {
  weir_driver *driver;
  return weir_is_in_bad_fork() ? weir_get_driver(&driver) : WEIR_OK; /* fails with the text about the fork */
}

weir_status weir_array_use_host_allocator(weir_host_allocator *host) {
  weir_status status = check_fork();
  if (status)
    return weir__fail_as(__func__, status);
  pthread_mutex_lock(&lock);
  chosen = host;
  pthread_mutex_unlock(&lock);
  return WEIR_OK;
}

static weir_status take_host_allocator(weir_host_allocator **host, bool *is_default) {
  weir_status status = check_fork();
  if (status)
    return status;
  pthread_mutex_lock(&lock);
  *is_default = !chosen;
  if (!chosen && !made) {
    weir_driver *driver;
    status = weir_get_driver(&driver);
    if (!status)
      status = weir_host_allocator_create(driver, NULL, &made);
  }
  if (!status) {
    *host = chosen ? chosen : made;
    made_uses += !chosen;
  }
  pthread_mutex_unlock(&lock);
  return status;
}

static void drop_default_allocator(void) {
  weir_host_allocator *ended = NULL;
  pthread_mutex_lock(&lock);
  if (--made_uses == 0) {
    ended = made;
    made = NULL;
  }
  pthread_mutex_unlock(&lock);
  weir_host_allocator_destroy(ended);
}

static weir_status alloc_pinned(weir_storage *storage) {
  weir_status status = take_host_allocator(&storage->host, &storage->host_is_default);
  if (status)
    return status;
  status = weir_host_alloc(storage->host, storage->bytes, &storage->data);
  if (status && storage->host_is_default)
    drop_default_allocator();
  return status;
}

/* ---- Storages ---- */

static weir_status take_memory(weir_storage *storage, weir_stream stream) {
  storage->data = NULL;
  if (!storage->bytes)
    return WEIR_OK;
  if (storage->place.kind == WEIR_PLACE_PINNED)
    return alloc_pinned(storage);
  if (storage->place.kind == WEIR_PLACE_DEVICE) {
    weir_status status = weir__compute_alloc(storage->bytes, stream, &storage->memory);
    storage->data = status ? NULL : storage->memory.pointer;
    return status;
  }
  storage->data = storage->bytes > INT64_MAX
                      ? NULL
                      : aligned_alloc(HOST_ALIGNMENT, (size_t)weir__round_up(storage->bytes, HOST_ALIGNMENT));
  return storage->data ? WEIR_OK
                       : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY,
                                    "%s: DefaultCPUAllocator: can't allocate memory: you tried to allocate %llu bytes.",
                                    __func__, (unsigned long long)storage->bytes);
}

static void give_memory(weir_storage *storage) {
  if (!storage->data)
    return;
  if (storage->place.kind == WEIR_PLACE_DEVICE)
    weir__compute_free(&storage->memory);
  else if (storage->place.kind == WEIR_PLACE_HOST)
    free(storage->data);
  else if (!weir_is_in_bad_fork()) {
    weir_host_free(storage->host, storage->data);
    if (storage->host_is_default)
      drop_default_allocator();
  }
  storage->data = NULL;
}

weir_status weir_storage_create(weir_place place, uint64_t bytes, weir_stream stream, weir_storage **storage) {
  WEIR__CHECK_ARGUMENT(storage);
  if (place.kind == WEIR_PLACE_DEVICE && place.device < 0)
    place.device = stream.device;
  if (place.kind == WEIR_PLACE_DEVICE && place.device != stream.device)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the stream belongs to device %d; expected one of device %d",
                      __func__, stream.device, place.device);
  if (place.kind < WEIR_PLACE_HOST || place.kind > WEIR_PLACE_DEVICE)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d is not a kind of place", __func__, (int)place.kind);
  weir_storage *created = calloc(1, sizeof *created);
  if (!created)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a storage", __func__);
  atomic_init(&created->references, 1);
  created->place = place;
  created->bytes = bytes;
  created->stream = stream;
  weir_status status = take_memory(created, stream);
  if (status) {
    free(created);
    return weir__fail_as(__func__, status);
  }
  *storage = created;
  return WEIR_OK;
}

weir_status weir_storage_borrow(void *pointer, uint64_t bytes, weir_place place, weir_storage_free_fn deleter,
                                void *context, weir_storage **storage) {
  WEIR__CHECK_ARGUMENT(storage);
  if (!pointer && bytes)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: pointer is NULL", __func__);
  weir_storage *created = calloc(1, sizeof *created);
  if (!created)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a storage", __func__);
  atomic_init(&created->references, 1);
  created->is_borrowed = true;
  created->place = place;
  created->bytes = bytes;
  created->data = pointer;
  created->deleter = deleter;
  created->context = context;
  *storage = created;
  return WEIR_OK;
}

void weir__storage_set_deleter(weir_storage *storage, weir_storage_free_fn deleter, void *context) {
  storage->deleter = deleter;
  storage->context = context;
}

void weir_storage_retain(weir_storage *storage) {
  if (storage)
    atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
}

void weir_storage_release(weir_storage *storage) {
  if (!storage || atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel) > 1)
    return;
  if (storage->finalizer)
    storage->finalizer(storage->finalizer_context);
  if (storage->is_listed)
    weir__storage_unlist(storage);
  if (!storage->is_borrowed)
    give_memory(storage);
  else if (storage->deleter)
    storage->deleter(storage->context);
  free(storage);
}

weir_status weir_storage_set_finalizer(weir_storage *storage, weir_storage_free_fn finalizer, void *context) {
  WEIR__CHECK_ARGUMENT(storage);
  storage->finalizer = finalizer;
  storage->finalizer_context = context;
  return WEIR_OK;
}

void *weir_storage_data(const weir_storage *storage) { return storage->data; }
uint64_t weir_storage_bytes(const weir_storage *storage) { return storage->bytes; }
weir_place weir_storage_place(const weir_storage *storage) { return storage->place; }
int weir_storage_is_borrowed(const weir_storage *storage) { return storage->is_borrowed; }
int weir_storage_references(const weir_storage *storage) { return atomic_load(&storage->references); }

weir_status weir_storage_record_stream(weir_storage *storage, weir_stream stream) {
  WEIR__CHECK_ARGUMENT(storage);
  weir_status status = WEIR_OK;
  weir_cu_stream raw;
  if (storage->received)
    return weir__fail_as(__func__, weir__received_record_stream(storage->received, stream));
  if (storage->is_borrowed || !storage->data)
    return WEIR_OK;
  if (storage->place.kind == WEIR_PLACE_DEVICE)
    status = weir__compute_record_stream(&storage->memory, stream);
  else if (storage->place.kind == WEIR_PLACE_PINNED && !(status = weir_stream_raw(stream, &raw)))
    status = weir_host_record_stream(storage->host, storage->data, stream.device, raw);
  return weir__fail_as(__func__, status);
}

weir_status weir_storage_set_owned(weir_storage *storage, int is_owned) {
  WEIR__CHECK_ARGUMENT(storage);
  weir_allocator *allocator;
  if (storage->place.kind != WEIR_PLACE_DEVICE || storage->received)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: expected memory that this process has on a device", __func__);
  weir_status status = weir__compute_allocator(&allocator);
  if (status || storage->is_borrowed == !is_owned)
    return weir__fail_as(__func__, status);
  if (storage->is_listed)
    weir__storage_unlist(storage);
  storage->is_borrowed = !is_owned;
  storage->memory = is_owned ? (weir__device_memory){storage->data, allocator} : (weir__device_memory){0};
  weir_storage_free_fn deleter = storage->deleter;
  storage->deleter = NULL;
  if (deleter)
    deleter(storage->context);
  return WEIR_OK;
}

weir_status weir_storage_resize(weir_storage *storage, uint64_t bytes, weir_stream stream) {
  WEIR__CHECK_ARGUMENT(storage);
  if (storage->is_borrowed)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: Trying to resize storage that is not resizable", __func__);
  if (bytes == storage->bytes)
    return WEIR_OK;
  if (storage->is_listed) /* by the address that it loses */
    weir__storage_unlist(storage);
  weir_storage resized = {.place = storage->place, .bytes = bytes};
  weir_status status = take_memory(&resized, stream);
  uint64_t common = bytes < storage->bytes ? bytes : storage->bytes;
  if (!status && common) {
    if (storage->place.kind == WEIR_PLACE_DEVICE)
      status = weir_copy_async(resized.data, storage->data, common, stream);
    else
      memcpy(resized.data, storage->data, common);
    /* The old memory returns to the stream of its allocation. */
    if (!status && storage->place.kind == WEIR_PLACE_DEVICE)
      status = weir__compute_record_stream(&storage->memory, stream);
    if (status)
      give_memory(&resized);
  }
  if (status)
    return weir__fail_as(__func__, status);
  give_memory(storage);
  storage->bytes = bytes;
  storage->stream = stream;
  storage->data = resized.data;
  storage->memory = resized.memory;
  storage->host = resized.host;
  storage->host_is_default = resized.host_is_default;
  return WEIR_OK;
}
