/*
 * A web server for one page and its data, on the loopback interface. It answers GET and HEAD for two paths that contain
 * a random word, so that other users of the machine cannot read them, and refuses requests for other host names, so
 * that a web site cannot read them either (DNS rebinding).
 */
#pragma once

#include <stddef.h>

#include "weir/status.h"

typedef struct weir_cli_served {
  const char *name; /* of the path after the word; "" for the page */
  const char *type;
  const void *bytes;
  size_t size;
} weir_cli_served;

/* Serves until SIGINT or SIGTERM. `port` is 0 for any of a few that is free. `ready` is called with the address. */
weir_status weir_cli_serve(const weir_cli_served *files, size_t count, int port, void (*ready)(const char *address));
