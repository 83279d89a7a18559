/*
 * What is alive on a driver: allocators of device and host memory. A runtime does not close a driver that has clients,
 * and a fork invalidates the child's copies of them.
 */
#ifndef WEIR_DRIVER_CLIENT_H
#define WEIR_DRIVER_CLIENT_H

#include <stddef.h>

#include "base/base.h"
#include "weir/driver.h"

typedef struct weir__client weir__client;
struct weir__client {
  weir_driver *driver;
  const void *object; /* the address that the program knows */

  /* "device memory, back end native". Called while the list is locked: must not add or remove clients. */
  void (*describe)(const weir__client *client, char *text, size_t size);

  /* Called in the child of a fork, before fork returns there: every later call on the object has to fail with
   * weir__bad_fork. The locks inside the object are in the state in which the fork found them. */
  void (*invalidate)(weir__client *client);

  weir__client *next, *previous; /* guarded by the list's lock */
};

void weir__client_add(weir__client *client);

/* Not in a child that inherited the client. */
void weir__client_remove(weir__client *client);

/* The number of clients of a driver. The text lists the first few: "0x1230 (device memory, back end native), ...". */
size_t weir__clients_of(const weir_driver *driver, char *text, size_t size);

/* Fails with WEIR_ERROR_BAD_FORK on behalf of the public call `caller`. */
weir_status weir__bad_fork(const char *caller);

#endif
