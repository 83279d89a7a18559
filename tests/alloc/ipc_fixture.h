/*
 * Two processes that send memory to each other, and talk about it over a socket.
 */
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/alloc.h"
#include "support/peer.h"
#include "weir/ipc.h"

static inline void say_bytes(const void *bytes, size_t size) {
  assert_int_equal(send(peer_socket, bytes, size, MSG_NOSIGNAL), size);
}
static inline void hear_bytes(void *bytes, size_t size) {
  assert_int_equal(recv(peer_socket, bytes, size, MSG_WAITALL), size);
}

static inline void say(uint64_t number) { say_bytes(&number, sizeof number); }
static inline uint64_t hear_any(void) {
  uint64_t number;
  hear_bytes(&number, sizeof number);
  return number;
}
static inline void hear(uint64_t number) { assert_int_equal(hear_any(), number); }

static inline void say_handle(const weir_ipc_handle *handle) {
  say(handle->length);
  say_bytes(handle->bytes, handle->length);
}

static inline weir_ipc_handle *hear_handle(void) {
  static weir_ipc_handle handle;
  handle.length = (size_t)hear_any();
  assert_true(handle.length <= sizeof handle.bytes);
  hear_bytes(handle.bytes, handle.length);
  return &handle;
}

/* ---- The calls, checked ---- */

static inline weir_ipc_handle *send_with(void *pointer, weir_cu_stream stream, const weir_ipc_send_options *options) {
  static weir_ipc_handle handle;
  handle.size = sizeof handle;
  assert_ok(weir_ipc_send(allocator, pointer, stream, options, &handle));
  return &handle;
}

static inline weir_ipc_handle *send_memory(void *pointer) { return send_with(pointer, NULL, NULL); }

/* A macro, because the assertions compare the name of the call with the last error. */
#define try_receive(handle, pointer)                                                                                   \
  weir_ipc_receive(allocator, 0, (handle)->bytes, (handle)->length, NULL, pointer, NULL)
#define assert_receive_fails(status, text, handle, pointer)                                                            \
  assert_error_says(status, text,                                                                                      \
                    weir_ipc_receive(allocator, 0, (handle)->bytes, (handle)->length, NULL, pointer, NULL))

static inline char *receive(const weir_ipc_handle *handle) {
  void *pointer = NULL;
  assert_ok(try_receive(handle, &pointer));
  return pointer;
}

static inline void release(void *pointer) { assert_ok(weir_ipc_release(allocator, pointer, NULL)); }

static inline size_t collect(void) {
  size_t freed = 99;
  assert_ok(weir_ipc_collect(allocator, &freed));
  return freed;
}

static inline int open_files(void) {
  int count = 0;
  for (int i = 0; i < 20000; i++)
    count += fcntl(i, F_GETFD) != -1;
  return count;
}

static inline int ipc_teardown(void **state) {
  peer_kill();
  return alloc_teardown(state);
}

/* ---- Two processes ---- */

static inline void with_peer(const char *role, const char *conf) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, conf);
  peer_start(SOCK_STREAM, role, conf);
}

static inline void close_all(void) {
  empty_cache();
  assert_int_equal(stats_of(0).ipc_references, 0);
  assert_int_equal(stats_of(0).ipc_limbo_blocks, 0);
  assert_int_equal(stats_of(0).ipc_limbo_bytes, 0);
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* Sends when told, and never ends by itself. Its work is complete then, so that it may be killed. */
static inline void child_sends(void) {
  char *a = get(30 * MIB, NULL);
  a[0] = 'a';
  say((uint64_t)getpid());
  weir_ipc_handle *handle = send_memory(a);
  assert_cu(d->CtxSynchronize(d));
  say_handle(handle);
  put(a);
  hear('q');
}

typedef struct child_role {
  const char *name; /* NULL ends a list */
  void (*play)(void);
} child_role;

/* The main program of a child. */
static inline int play_role(const char *name, const char *conf, const child_role *roles) {
  for (; roles->name; roles++)
    if (!strcmp(roles->name, name)) {
      alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, conf);
      roles->play();
      weir_allocator_destroy(allocator);
      allocator = NULL;
      alloc_close();
      return 0;
    }
  return 1;
}
