/*
 * The allocators, of device and of host memory, that use a driver. The runtime does not close a driver that has
 * clients, and a fork invalidates the copies of them in the child.
 */
#pragma once

#include <stddef.h>

#include "base/base.h"
#include "weir/driver.h"

typedef struct weir__client weir__client;
struct weir__client {
  weir_driver *driver;
  const void *object; /* its public handle */

  /* Writes a description, such as "device memory, back end native". Called with the list locked: must not add or remove
   * clients. */
  void (*describe)(const weir__client *client, char *text, size_t size);

  /* Called in the child of a fork before fork returns there. Every later call on the object must fail with
   * weir__bad_fork. The locks inside the object are in the state that they had at the fork. */
  void (*invalidate)(weir__client *client);

  /* Whether an address lies in its memory. Called with the list locked, as describe. */
  bool (*owns)(const weir__client *client, uint64_t address);

  /* For the client of a driver that ends with the runtime, of which there is at most one; NULL for those that the
   * program destroys. is_idle: the program uses nothing of it. end: destroys it. Both, and its describe, are called
   * without the list's lock. */
  bool (*is_idle)(const weir__client *client);
  void (*end)(weir__client *client);

  weir__client *next, **link; /* guarded by the lock of the list */
};

void weir__client_add(weir__client *client);

/* Must not be called in a child that inherited the client. */
void weir__client_remove(weir__client *client);

/* The number of clients that keep the runtime from ending: those of its driver if it would close that driver, those
 * that end with the runtime in any case, but not idle ones. The text lists the first few: "0x1230 (device memory, back
 * end native)". */
size_t weir__clients_in_use(const weir_driver *driver, bool closes_driver, char *text, size_t size);

/* Whether a client other than that of the object `but` owns an address. */
bool weir__clients_own(const void *but, uint64_t address);

/* Ends the clients of a driver that end with the runtime. */
void weir__clients_end(const weir_driver *driver);

/* Fails with WEIR_ERROR_BAD_FORK in the name of the public call `caller`. */
weir_status weir__bad_fork(const char *caller);
