/*
 * The devices that are served, each with an allocator of its own, and the driver below them.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weir/weir.h"

/* The driver takes both for the legacy stream; for Weir they are two streams. */
#define NO_STREAM ((weir_cu_stream)NULL)
#define LEGACY WEIR_CU_STREAM_LEGACY
#define PER_THREAD WEIR_CU_STREAM_PER_THREAD

enum { PRELOAD_MAX_DEVICES = 64 };

/* A device that is served. Each has an allocator of its own, because a reset ends that of one device. */
typedef struct preload_served {
  _Atomic(weir_cu_context) primary;    /* NULL while it is not served; cleared under preload_use_lock */
  _Atomic(weir_allocator *) allocator; /* the same; set before primary */
  uint64_t limit;                      /* bytes that the program may use; written before primary */

  /* Streams that began a capture, or are about to; the allocator was notified of each. */
  const void **origins; /* this and the next are guarded by origins_lock */
  size_t origin_room;
  pthread_mutex_t origins_lock;
  atomic_int captures; /* the number of them; changes under origins_lock */
  atomic_int waiting;  /* frees that wait for the device, or are checking whether they may */
} preload_served;

extern preload_served preload_devices[PRELOAD_MAX_DEVICES];
extern atomic_int preload_device_count; /* an upper bound for the devices that were ever served */

/* Held for reading while an allocator is used, and for writing to remove it. Of its holders, only an allocation that is
 * short of memory may wait for a device. */
extern pthread_rwlock_t preload_use_lock;

extern weir_driver *preload_driver;    /* the real one; does not change once preload_has_driver is true */
extern atomic_bool preload_has_driver; /* the driver may be used; false in a forked child, where it does not work */

/* Opens the driver at the first call. */
bool preload_is_open(void);

/* These functions find a device that is served. Unless they return NULL, its allocator stays until preload_leave(). */

/* The device of a context. The driver is open. */
preload_served *preload_served_context(weir_cu_context context);
preload_served *preload_served_current(void);
preload_served *preload_served_stream(weir_cu_stream stream);

/* The device whose memory this is, allocated or cached, or NULL if it is not Weir's. Cached memory counts: a pointer
 * that the program frees twice must not reach the driver, which may know it as the beginning of a segment. */
preload_served *preload_owner_of(weir_cu_deviceptr pointer);

static inline void preload_leave(void) { pthread_rwlock_unlock(&preload_use_lock); }

static inline int preload_ordinal(const preload_served *at) { return (int)(at - preload_devices); }

/* ---- Streams ---- */

/* The stream that NULL means in a variant of a call. */
static inline weir_cu_stream preload_named(weir_cu_stream stream, weir_cu_stream default_stream) {
  return stream ? stream : default_stream;
}

bool preload_context_of(weir_cu_stream stream, weir_cu_context *context);
bool preload_is_captured(weir_cu_stream stream);

/* Allows the thread what captures of other threads forbid, until preload_restore. */
weir_cu_result preload_relax(int *mode);
void preload_restore(int mode);

/* ---- Beside ---- */

/* Logs a message. */
void preload_say(weir_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline uint64_t preload_least(uint64_t a, uint64_t b) { return a < b ? a : b; }
