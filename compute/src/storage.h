/*
 * What the files of storages share.
 */
#pragma once

#include <stdatomic.h>

#include "src/array.h"
#include "src/memory.h"

typedef struct weir__storage_received weir__storage_received;

struct weir_storage {
  atomic_int references;
  bool is_borrowed;
  bool is_listed; /* among those that another process knows (storage_ipc.c) */
  weir_place place;
  uint64_t bytes;
  void *data;
  weir_stream stream;         /* for which memory of a device was allocated */
  weir__device_memory memory; /* of a device */
  weir_host_allocator *host;  /* of pinned memory */
  bool host_is_default;       /* and its uses are counted */
  weir_storage_free_fn deleter;
  void *context;
  weir_storage_free_fn finalizer;
  void *finalizer_context;
  weir__storage_received *received; /* NULL unless another process sent the memory */
};

/* ---- Storages that processes send to each other (storage_ipc.c) ---- */

/* Removes a storage from the list by address, because its last reference is gone or its address changes. */
void weir__storage_unlist(weir_storage *storage);

/* The release of received memory waits for the work that a stream has then. */
weir_status weir__received_record_stream(weir__storage_received *received, weir_stream stream);
