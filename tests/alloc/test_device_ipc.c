/*
 * Memory that is sent to another process, on each device, NVIDIA's included: the order of the work, the life of the
 * memory, processes that are killed, and more pages than a process may have files open.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/peer.h"
#include "support/runtime.h"

#define MIB (1024ull * 1024)
#define PAGE (20 * MIB)

static weir_allocator *allocator;
static weir_ipc_handle handle;

static const char *const confs[] = {"", "expandable_segments:True", "moving_pages:True"};

static void start(const char *conf) {
  weir_driver *driver = NULL;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf;
  assert_ok(weir_get_driver(&driver));
  assert_ok(weir_device_set_current(0));
  assert_ok(weir_allocator_create(driver, &options, &allocator));
}

static void stop(void) {
  assert_ok(weir_device_synchronize(0));
  weir_allocator_destroy(allocator);
  allocator = NULL;
}

static int64_t stat(const char *name) {
  int64_t value = -1;
  assert_ok(weir_allocator_stat(allocator, 0, name, &value));
  return value;
}

static void say(const void *bytes, size_t size) {
  assert_int_equal(send(peer_socket, bytes, size, MSG_NOSIGNAL), size);
}
static void hear(void *bytes, size_t size) { assert_int_equal(recv(peer_socket, bytes, size, MSG_WAITALL), size); }

static void say_number(uint64_t number) { say(&number, sizeof number); }
static uint64_t hear_number(void) {
  uint64_t number;
  hear(&number, sizeof number);
  return number;
}

/* Sends memory to the other process, over the socket. */
static void send_memory(void *memory, weir_stream stream) {
  weir_ipc_handle_init(&handle);
  assert_ok(weir_ipc_send(allocator, memory, raw_of(stream), NULL, &handle));
  say_number(handle.length);
  say(handle.bytes, handle.length);
}

static char *receive_memory(weir_stream stream, uint64_t *bytes) {
  void *memory = NULL;
  handle.length = (size_t)hear_number();
  hear(handle.bytes, handle.length);
  assert_ok(weir_ipc_receive(allocator, 0, handle.bytes, handle.length, raw_of(stream), &memory, bytes));
  return memory;
}

static unsigned char byte_at(const char *memory, weir_stream stream) {
  unsigned char byte = 0;
  assert_ok(weir_copy(&byte, memory, 1, stream));
  return byte;
}

/* ---- There ---- */

/* Says the first byte of each page, changes it, and keeps the memory until it is told to release it. */
static void child_reads(void) {
  weir_stream stream = new_stream(0);
  uint64_t bytes = 0;
  char *memory = receive_memory(stream, &bytes);
  for (uint64_t at = 0; at < bytes; at += PAGE) {
    say_number(byte_at(memory + at, stream));
    assert_ok(weir_fill_async(memory + at, 9, 1, stream));
  }
  hear_number();
  assert_ok(weir_ipc_release(allocator, memory, raw_of(stream)));
  say_number(1);
  hear_number();
}

static void child_sends(void) {
  weir_stream stream = default_stream(0);
  void *memory = NULL;
  assert_ok(weir_allocator_alloc(allocator, 0, 30 * MIB, raw_of(stream), &memory));
  assert_ok(weir_fill_async(memory, 4, 30 * MIB, stream));
  send_memory(memory, stream);
  assert_ok(weir_allocator_free(allocator, memory));
  hear_number();
}

/* ---- Here ---- */

/* Sends memory while work on it is pending, frees it at once, and lets the other process read it. */
static char *share_with_peer(uint64_t bytes, weir_stream stream) {
  void *memory = NULL;
  assert_ok(weir_allocator_alloc(allocator, 0, bytes, raw_of(stream), &memory));
  assert_ok(weir_stream_spin(stream, cycles_of(50)));
  for (uint64_t at = 0; at < bytes; at += PAGE)
    assert_ok(weir_fill_async((char *)memory + at, (int)(at / PAGE % 251), 1, stream));
  send_memory(memory, stream);
  assert_ok(weir_allocator_free(allocator, memory));
  assert_int_equal(stat("allocated_bytes.all.current"), 0);
  assert_int_equal(stat("ipc.limbo_blocks"), 1);
  for (uint64_t at = 0; at < bytes; at += PAGE)
    assert_int_equal(hear_number(), at / PAGE % 251);
  return memory;
}

TEST(life) {
  for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) {
    start(confs[i]);
    peer_start(SOCK_STREAM, "reads", confs[i]);
    weir_stream stream = new_stream(0);
    char *memory = share_with_peer(30 * MIB, stream);
    size_t freed = 9;
    assert_ok(weir_ipc_collect(allocator, &freed));
    assert_int_equal(freed, 0);
    void *other = NULL;
    assert_ok(weir_allocator_alloc(allocator, 0, 30 * MIB, raw_of(stream), &other));
    assert_ptr_not_equal(other, memory);
    assert_ok(weir_allocator_free(allocator, other));
    say_number(1);
    assert_int_equal(hear_number(), 1);
    assert_ok(weir_ipc_collect(allocator, &freed));
    assert_int_equal(freed, 1);
    assert_int_equal(byte_at(memory, stream), 9); /* not allocated, but still mapped */
    say_number(1);
    peer_end();
    stop();
  }
}

TEST(killed_receiver) {
  for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) {
    start(confs[i]);
    peer_start(SOCK_STREAM, "reads", confs[i]);
    weir_stream stream = new_stream(0);
    void *memory = share_with_peer(30 * MIB, stream), *again = NULL;
    peer_kill();
    close(peer_socket);
    size_t freed = 9;
    assert_ok(weir_ipc_collect(allocator, &freed));
    assert_int_equal(freed, 1);
    assert_int_equal(stat("ipc.lost_references"), 1);
    assert_ok(weir_allocator_alloc(allocator, 0, 30 * MIB, raw_of(stream), &again));
    assert_ptr_equal(again, memory);
    assert_ok(weir_fill_async(again, 5, 30 * MIB, stream));
    assert_int_equal(byte_at(again, stream), 5);
    assert_ok(weir_allocator_free(allocator, again));
    stop();
  }
}

TEST(killed_sender) {
  for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) {
    start(confs[i]);
    peer_start(SOCK_STREAM, "sends", confs[i]);
    weir_stream stream = new_stream(0);
    char *memory = receive_memory(stream, NULL);
    assert_int_equal(byte_at(memory, stream), 4);
    peer_kill();
    close(peer_socket);
    if (i > 0 ||
        is_soft()) /* handles of pages keep the memory; those of cuIpcGetMemHandle need the exporting process */
      assert_int_equal(byte_at(memory + 30 * MIB - 1, stream), 4);
    assert_ok(weir_ipc_release(allocator, memory, raw_of(stream)));
    stop();
  }
}

/* 42 GB: more pages than fit within the usual limit of 1024 open files. */
TEST(2100_pages) {
  struct rlimit before;
  weir_driver *driver = NULL;
  uint64_t available = 0, total;
  start("expandable_segments:True");
  assert_ok(weir_get_driver(&driver));
  assert_cu(driver->MemGetInfo(driver, &available, &total));
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (available < 2200 * PAGE || before.rlim_max < 4000) {
    stop();
    WAIVE_TEST("needs 44 GB of device memory and a hard limit of 4000 open files");
  }
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, before.rlim_max}), 0);
  peer_start(SOCK_STREAM, "reads", "expandable_segments:True");
  share_with_peer(2100 * PAGE, new_stream(0));
  say_number(1);
  assert_int_equal(hear_number(), 1);
  say_number(1);
  peer_end();
  stop();
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static int teardown(void **state) {
  peer_kill();
  return runtime_teardown(state);
}

static int run_child(const char *role, const char *conf) {
  if (runtime_setup(NULL))
    return 1;
  start(conf);
  if (!strcmp(role, "reads"))
    child_reads();
  else
    child_sends();
  stop();
  return runtime_teardown(NULL);
}

static int role(int argc, char **argv) {
  if (peer_is_child(argc, argv))
    return run_child(argv[2], argv[3]);
  return RUN_TESTS;
}

static void prepare(void) {
  runtime_need_device();
  if (is_stepped())
    waived("two processes do not step each other's time");
}

FIXTURE(.role = role, .prepare = prepare, .setup = runtime_setup, .teardown = teardown)
