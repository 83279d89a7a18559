/*
 * Pinned memory that graphs use at every launch. A graph owns a user object of the driver for each block that was used
 * in its capture. The object's last reference is released when the graph and its executables have been destroyed and
 * their launches are done; only then can the memory be reused.
 *
 * The destructor runs on any thread, possibly inside of a driver call that this allocator makes, and possibly after the
 * allocator's end. So it takes no lock and makes no call: it adds itself to a list, which the next poll reads, and
 * releases its reference to the allocator's struct.
 */
#include <stdlib.h>

#include "alloc/host/host.h"
#include "driver/call.h"

weir__host_graph *weir__host_take_ended(weir_host_allocator *host) {
  weir__host_graph *list = atomic_exchange(&host->ended, NULL);
  for (const weir__host_graph *graph = list; graph; graph = graph->next)
    atomic_fetch_sub(&host->pending, 1);
  return list;
}

void weir__host_unref(weir_host_allocator *host) {
  if (atomic_fetch_sub(&host->references, 1) != 1)
    return;
  for (weir__host_graph *graph = weir__host_take_ended(host), *next; graph; graph = next) {
    next = graph->next;
    free(graph);
  }
  free(host);
}

/* The destructor. `pending` makes the next allocation poll. */
static void graph_ended(void *data) {
  weir__host_graph *graph = data;
  weir_host_allocator *host = graph->host;
  atomic_fetch_add(&host->pending, 1);
  graph->next = atomic_load(&host->ended);
  while (!atomic_compare_exchange_weak(&host->ended, &graph->next, graph))
    continue;
  weir__host_unref(host);
}

/* Gives the graph an object for the block. False if that fails. */
static bool retain(weir_host_allocator *host, weir__host_block *block, weir_cu_graph graph) {
  weir_driver *driver = host->driver;
  weir_cu_user_object object;
  weir__host_graph *made = malloc(sizeof *made);
  if (!made)
    return false;
  *made = (weir__host_graph){.host = host, .block = block};
  atomic_fetch_add(&host->references, 1);
  if (driver->UserObjectCreate(driver, &object, made, graph_ended, 1, WEIR_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)) {
    atomic_fetch_sub(&host->references, 1);
    free(made);
    return false;
  }
  if (!driver->GraphRetainUserObject(driver, graph, object, 1, WEIR_CU_GRAPH_USER_OBJECT_MOVE))
    return true; /* cppcheck-suppress memleak ; the object owns it */
  made->block = NULL;
  driver->UserObjectRelease(driver, object, 1);
  return false; /* cppcheck-suppress memleak ; the destructor has added it to the list */
}

void weir__host_tie(weir_host_allocator *host, weir__host_block *block, int device, weir_cu_graph graph) {
  const weir_driver *driver = host->driver;
  bool can = WEIR__DRIVER_HAS(driver, UserObjectCreate) && WEIR__DRIVER_HAS(driver, UserObjectRelease) &&
             WEIR__DRIVER_HAS(driver, GraphRetainUserObject);
  weir__host_visit visit;
  bool is_tied = false;
  if (can && !weir__host_enter(host, device, &visit)) {
    is_tied = retain(host, block, graph);
    weir__host_leave(host, &visit);
  }
  if (is_tied)
    return;
  weir__biased_acquire(&host->lock);
  block->captured = true;
  block->graphs--;
  weir__biased_release(&host->lock);
}
