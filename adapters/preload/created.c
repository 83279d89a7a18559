#include "created.h"

#include <pthread.h>
#include <search.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MAX_DEVICES = 64 };

/* One cuMemCreate. */
typedef struct memory {
  uint64_t bytes;
  int device;
  unsigned long uses; /* handles that were not released, and mappings */
} memory;

typedef struct named {
  weir_cu_mem_handle handle;
  unsigned long count; /* how often it was given out and not released */
  memory *memory;
} named;

typedef struct mapping {
  weir_cu_deviceptr address;
  uint64_t bytes;
  memory *memory;
} mapping;

/* All that follows is guarded by the lock. Host memory may run out: then memory is not counted. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *names, *mappings; /* search trees */
static uint64_t held[MAX_DEVICES];
static preload_created_fn reporter;

static int by_handle(const void *a, const void *b) {
  const named *x = a, *y = b;
  return (x->handle > y->handle) - (x->handle < y->handle);
}

/* Ranges that overlap are equal: mappings do not, so a range finds those in it, one after the other. */
static int by_range(const void *a, const void *b) {
  const mapping *x = a, *y = b;
  return (x->address >= y->address + y->bytes) - (y->address >= x->address + x->bytes);
}

static void *found(void *node) { return node ? *(void **)node : NULL; }

static named *find_name(weir_cu_mem_handle handle) {
  return found(tfind(&(named){.handle = handle}, &names, by_handle));
}

static mapping *find_mapping(weir_cu_deviceptr address, uint64_t bytes) {
  return found(tfind(&(mapping){.address = address, .bytes = bytes}, &mappings, by_range));
}

/* Puts an item of malloc, or NULL, into a tree, or frees it. */
static bool insert(void *item, void **tree, int (*compare)(const void *, const void *)) {
  if (item && found(tsearch(item, tree, compare)) == item)
    return true;
  free(item);
  return false;
}

static void change(int device, uint64_t bytes) {
  held[device] += bytes;
  if (reporter)
    reporter(device, held[device]);
}

static void drop(memory *m) {
  if (--m->uses)
    return;
  change(m->device, 0 - m->bytes);
  free(m);
}

static void release(named *known) {
  drop(known->memory);
  if (!--known->count) {
    tdelete(known, &names, by_handle);
    free(known);
  }
}

void preload_created_report(preload_created_fn report) {
  pthread_mutex_lock(&lock);
  reporter = report;
  pthread_mutex_unlock(&lock);
}

/* A handle that is known was released in a way that was not seen. */
void preload_created_add(weir_cu_mem_handle handle, int device, uint64_t bytes) {
  memory *m = malloc(sizeof *m);
  named *made = malloc(sizeof *made), *stale;
  if (!m || !made || device < 0 || device >= MAX_DEVICES) {
    free(m);
    free(made);
    return;
  }
  *m = (memory){.bytes = bytes, .device = device, .uses = 1};
  *made = (named){handle, 1, m};
  pthread_mutex_lock(&lock);
  while ((stale = find_name(handle)))
    release(stale);
  if (insert(made, &names, by_handle))
    change(device, bytes);
  else
    free(m);
  pthread_mutex_unlock(&lock);
}

void preload_created_release(weir_cu_mem_handle handle) {
  pthread_mutex_lock(&lock);
  named *known = find_name(handle);
  if (known)
    release(known);
  pthread_mutex_unlock(&lock);
}

void preload_created_map(weir_cu_deviceptr address, uint64_t bytes, weir_cu_mem_handle handle) {
  pthread_mutex_lock(&lock);
  const named *known = find_name(handle);
  mapping *made = known && bytes ? malloc(sizeof *made) : NULL;
  if (made)
    *made = (mapping){address, bytes, known->memory};
  if (insert(made, &mappings, by_range))
    known->memory->uses++;
  pthread_mutex_unlock(&lock);
}

void preload_created_unmap(weir_cu_deviceptr address, uint64_t bytes) {
  mapping *m;
  pthread_mutex_lock(&lock);
  while (bytes && (m = find_mapping(address, bytes))) {
    tdelete(m, &mappings, by_range);
    drop(m->memory);
    free(m);
  }
  pthread_mutex_unlock(&lock);
}

/* The driver may give out the same handle again, or another one. */
void preload_created_retain(weir_cu_mem_handle handle, weir_cu_deviceptr address) {
  pthread_mutex_lock(&lock);
  const mapping *m = find_mapping(address, 1);
  named *known = m ? find_name(handle) : NULL;
  if (known && known->memory == m->memory) {
    known->count++;
    m->memory->uses++;
  } else if (m && !known) {
    known = malloc(sizeof *known);
    if (known)
      *known = (named){handle, 1, m->memory};
    m->memory->uses += insert(known, &names, by_handle);
  }
  pthread_mutex_unlock(&lock);
}

void preload_created_repeat(int device) {
  pthread_mutex_lock(&lock);
  if (held[device])
    change(device, 0);
  pthread_mutex_unlock(&lock);
}

void preload_created_after_fork(void) { pthread_mutex_init(&lock, NULL); }
