/*
 * A web server for a few files, on the loopback interface or a unix socket. It answers GET and HEAD for their paths,
 * which contain a random word where other users of the machine must not read them, and on the loopback interface it
 * refuses requests for other host names, so that a web site cannot read them either (DNS rebinding).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "weir/status.h"

typedef struct weir_cli_served {
  const char *name; /* of the path after the word; "" for the page */
  const char *type;
  const void *bytes;
  size_t size;
  /* If it is set, makes the bytes for each request, to be freed, and the type; NULL without host memory. `accept` is
   * the header of that name, which has `length` bytes, or NULL. */
  char *(*make)(const char *accept, size_t length, size_t *size, const char **type);
} weir_cli_served;

typedef struct weir_cli_serving {
  const weir_cli_served *files;
  size_t count;
  int port;           /* 0 for any of a few that is free */
  const char *socket; /* the path of a unix socket that only this user can connect to; NULL for the port */
  bool is_open;       /* paths have no word */
} weir_cli_serving;

/* Serves until SIGINT or SIGTERM. `ready` is called with the address. */
weir_status weir_cli_serve(const weir_cli_serving *serving, void (*ready)(const char *address));
