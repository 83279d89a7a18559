/*
 * A test of two processes: the program runs itself as the other one, and both talk over a socket.
 *
 *     peer_start(SOCK_STREAM, "role", "argument");
 *     send(peer_socket, ...);
 *     peer_end();
 *
 * The other process begins in main, which calls peer_is_child.
 */
#pragma once

#include "support/check.h"

extern int peer_socket; /* to the other process; a call that waits for it fails after a minute */

void peer_start(int socket_type, const char *role, const char *argument);

/* Fails unless the process exits with 0. */
void peer_end(void);

/* For a teardown: ends a process that a failing test has left. */
void peer_kill(void);

/* Whether this is the other process: then argv[2] is the role and argv[3] the argument. */
bool peer_is_child(int argc, char **argv);
