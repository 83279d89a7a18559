/*
 * Memory is sent, received and released by several threads of two processes at once, while others allocate and collect.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "alloc/ipc_fixture.h"
#include "support/length.h"

enum { THREADS = 4, BLOCK = 4096 };

static int rounds(void) { return usual_or_long(200, 20000); }

/* One message at a time over the socket; the other process says nothing but 1 at the end. */
static pthread_mutex_t talking = PTHREAD_MUTEX_INITIALIZER;
static atomic_int errors, left;

/* ---- There: receives until an empty handle comes ---- */

static void *receive_all(void *unused) {
  (void)unused;
  for (;;) {
    weir_ipc_handle handle;
    pthread_mutex_lock(&talking);
    bool ok = recv(peer_socket, &handle.length, sizeof handle.length, MSG_WAITALL) == sizeof handle.length &&
              handle.length && recv(peer_socket, handle.bytes, handle.length, MSG_WAITALL) == (ssize_t)handle.length;
    pthread_mutex_unlock(&talking);
    if (!ok)
      return NULL;
    void *a = NULL;
    if (weir_ipc_receive(allocator, 0, handle.bytes, handle.length, NULL, &a, NULL))
      atomic_fetch_add(&errors, 1);
    else {
      const unsigned char *bytes = a;
      for (int i = 1; i < BLOCK; i++)
        if (bytes[i] != bytes[0]) {
          atomic_fetch_add(&errors, 1);
          break;
        }
      if (weir_ipc_release(allocator, a, NULL))
        atomic_fetch_add(&errors, 1);
    }
  }
}

static void run_threads(void *(*body)(void *)) {
  pthread_t threads[THREADS];
  for (size_t i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, body, (void *)i), 0);
  for (size_t i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
}

/* ---- Here: sends a block and frees it at once ---- */

static void *send_all(void *argument) {
  for (int i = 0; i < rounds(); i++) {
    void *a = NULL, *b = NULL;
    weir_ipc_handle handle = {.size = sizeof handle};
    if (weir_allocator_alloc(allocator, 0, BLOCK, NULL, &a))
      break;
    memset(a, (int)((size_t)argument * 50 + (size_t)i % 50), BLOCK);
    weir_status sent = weir_ipc_send(allocator, a, NULL, NULL, &handle);
    if (sent || weir_allocator_free(allocator, a) || weir_allocator_alloc(allocator, 0, BLOCK, NULL, &b)) {
      atomic_fetch_add(&errors, 1);
      break;
    }
    memset(b, 255, BLOCK); /* not the memory that was sent */
    pthread_mutex_lock(&talking);
    bool ok = send(peer_socket, &handle.length, sizeof handle.length, MSG_NOSIGNAL) == sizeof handle.length &&
              send(peer_socket, handle.bytes, handle.length, MSG_NOSIGNAL) == (ssize_t)handle.length;
    pthread_mutex_unlock(&talking);
    if (!ok || weir_allocator_free(allocator, b) || (i % 10 == 0 && weir_ipc_collect(allocator, NULL)))
      atomic_fetch_add(&errors, 1);
  }
  atomic_fetch_sub(&left, 1);
  return NULL;
}

static void exchange(const char *conf) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, conf);
  peer_start(SOCK_STREAM, "receives", conf);
  atomic_store(&left, THREADS);
  run_threads(send_all);
  size_t none = 0;
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(send(peer_socket, &none, sizeof none, MSG_NOSIGNAL), sizeof none);
  peer_end();
  assert_int_equal(atomic_load(&errors), 0);
  collect();
  assert_int_equal(stats_of(0).ipc_references, 0);
  assert_int_equal(stats_of(0).ipc_limbo_blocks, 0);
  assert_int_equal(stats_of(0).ipc_lost_references, 0);
  assert_int_equal(active(), 0);
  empty_cache();
  alloc_close();
}

TEST(fixed) { exchange(""); }
TEST(expandable) { exchange("expandable_segments:True"); }

static int role(int argc, char **argv) {
  if (!peer_is_child(argc, argv))
    return RUN_TESTS;
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, argv[3]);
  run_threads(receive_all);
  weir_allocator_destroy(allocator);
  allocator = NULL;
  alloc_close();
  return atomic_load(&errors) != 0;
}

FIXTURE(.role = role, .teardown = ipc_teardown)
