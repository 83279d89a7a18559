/*
 * Memory and events shared between processes. The program runs itself as the other process, and both talk over a
 * socket.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/peer.h"
#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB, SHARED = WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING };

static volatile unsigned char *at(weir_cu_deviceptr pointer) { return (volatile unsigned char *)(uintptr_t)pointer; }

/* ---- The socket ---- */

struct message {
  weir_cu_ipc_mem_handle memory[3];
  weir_cu_ipc_event_handle event;
  int number;
};

/* With a file descriptor, unless `fd` is -1. */
static void say_with(const struct message *message, int fd) {
  struct iovec part = {(void *)(uintptr_t)message, sizeof *message};
  union {
    char space[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control = {{0}};
  struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
  if (fd >= 0) {
    header.msg_control = control.space;
    header.msg_controllen = sizeof control.space;
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  assert_int_equal(sendmsg(peer_socket, &header, MSG_NOSIGNAL), sizeof *message);
}

static struct message hear_with(int *fd) {
  struct message message;
  struct iovec part = {&message, sizeof message};
  union {
    char space[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } control = {{0}};
  struct msghdr header = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
  assert_int_equal(recvmsg(peer_socket, &header, MSG_CMSG_CLOEXEC), sizeof message);
  struct cmsghdr *c = CMSG_FIRSTHDR(&header);
  if (fd) {
    assert_non_null(c);
    memcpy(fd, CMSG_DATA(c), sizeof *fd);
  }
  return message;
}

static void say(const struct message *message) { say_with(message, -1); }
static struct message hear(void) { return hear_with(NULL); }
static void say_go(void) { say(&(struct message){.number = 0}); }
static void hear_go(void) { hear(); }

/* ---- The other process ---- */

static void start_other(const char *role, weir_soft_clock clock) {
  char clock_text[16];
  snprintf(clock_text, sizeof clock_text, "%d", (int)clock);
  peer_start(SOCK_SEQPACKET, role, clock_text);
}

static int teardown(void **state) {
  peer_kill();
  return soft_teardown(state);
}

#define FOR_BOTH_CLOCKS(clock)                                                                                         \
  for (weir_soft_clock clock = WEIR_SOFT_THREADS; clock <= WEIR_SOFT_STEPPED; clock = (weir_soft_clock)(clock + 1))

static bool stepped;

/* Work that waits for permission: any work in stepped time, else work behind a gate. */
static struct gate *hold(weir_cu_stream stream) { return stepped ? NULL : gate_close(stream); }

static void let(struct gate *gate) {
  if (stepped)
    soft_step_all();
  else
    gate_open(gate);
}

/* ---- Memory ---- */

static void child_memory(void) {
  struct message m = hear();
  weir_cu_deviceptr p, again, own = soft_alloc(100);
  size_t before, after, total;
  assert_cu(d->MemGetInfo(d, &before, &total));
  assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &p, m.memory[0], 0)); /* the flag is required */
  assert_cu(d->IpcOpenMemHandle(d, &p, m.memory[0], WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  assert_cu(d->IpcOpenMemHandle(d, &again, m.memory[0], WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  assert_int_equal(p, again);
  assert_int_equal(soft_census().ipc_mappings, 1);
  assert_cu(d->MemGetInfo(d, &after, &total));
  assert_int_equal(after, before); /* it counts in the first process */
  assert_int_equal(*at(p + 5 * MIB), 7);
  size_t bytes;
  weir_cu_deviceptr base;
  assert_cu(d->MemGetAddressRange(d, &base, &bytes, p + 100));
  assert_int_equal(base, p);
  assert_int_equal(bytes, 5 * MIB + 100);

  assert_cu(d->MemcpyAsync(d, own, p, 100, NULL));
  assert_cu(d->MemsetD8Async(d, p, 9, 1000, NULL));
  assert_cu_error(INVALID_VALUE,
                  d->MemsetD8Async(d, p, 9, 5 * MIB + 101, NULL)); /* its size is known in this process too */
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(*at(own + 99), 7);
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p));
  assert_cu_error(INVALID_VALUE, d->MemFreeAsync(d, p, NULL));
  assert_cu_error(INVALID_VALUE, d->IpcGetMemHandle(d, &m.memory[0], p));
  assert_cu_error(INVALID_VALUE, d->IpcCloseMemHandle(d, p + 4096));
  assert_cu(d->IpcCloseMemHandle(d, p));
  say_go();
  hear_go();
  assert_int_equal(*at(p + 99), 11); /* still open once */

  /* The last close waits for work that uses the memory. */
  assert_cu(d->MemsetD8Async(d, p, 12, 100, NULL));
  assert_cu(d->IpcCloseMemHandle(d, p));
  assert_cu_error(INVALID_VALUE, d->IpcCloseMemHandle(d, p));
  assert_int_equal(soft_census().ipc_mappings, 0);
  say_go();
  assert_cu(d->MemFree(d, own));
}

TEST(memory_both_ways) {
  FOR_BOTH_CLOCKS(clock) {
    struct message m = {.number = 0};
    start_other("memory", clock);
    soft_open(clock, 1, 64 * MIB);
    weir_cu_deviceptr before = soft_alloc(100), p = soft_alloc(5 * MIB + 100), pinned;
    assert_cu(d->MemsetD8Async(d, p, 7, 5 * MIB + 100, NULL));
    assert_cu(d->CtxSynchronize(d));
    assert_cu(d->IpcGetMemHandle(d, &m.memory[0], p));
    assert_cu_error(INVALID_VALUE, d->IpcGetMemHandle(d, &m.memory[1], p + 8));
    assert_cu(d->MemHostAlloc(d, (void **)&pinned, 100, 0));
    assert_cu_error(INVALID_VALUE, d->IpcGetMemHandle(d, &m.memory[1], pinned));
    assert_cu_error(INVALID_VALUE, d->IpcGetMemHandle(d, NULL, p));
    assert_cu_error(INVALID_CONTEXT,
                    d->IpcOpenMemHandle(d, &before, m.memory[0],
                                        WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)); /* a handle of this process */
    say(&m);
    hear_go();
    assert_int_equal(*at(p + 999), 9);
    assert_int_equal(*at(p + 1000), 7);
    memset((void *)(uintptr_t)p, 11, 100);
    say_go();
    hear_go();
    assert_int_equal(*at(p + 99), 12);
    peer_end();
    assert_cu(d->MemFree(d, p));
    assert_cu(d->MemFree(d, before));
    assert_cu(d->MemFreeHost(d, (void *)(uintptr_t)pinned));
    soft_close();
  }
}

static void child_stale(void) {
  struct message m = hear();
  weir_cu_deviceptr p;
  weir_cu_event e;
  const unsigned flag = WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
  /* 0 and 2 were freed; 1 lies between them. */
  assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &p, m.memory[0], flag));
  assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &p, m.memory[2], flag));
  assert_cu(d->IpcOpenMemHandle(d, &p, m.memory[1], flag));
  assert_int_equal(*at(p), 5);
  assert_cu(d->IpcCloseMemHandle(d, p));
  assert_cu(d->IpcOpenEventHandle(d, &e, m.event));
  assert_cu(d->EventDestroy(d, e));

  /* Handles of the other kind, and zeros. */
  weir_cu_ipc_event_handle as_event;
  weir_cu_ipc_mem_handle as_memory;
  memcpy(&as_event, &m.memory[1], sizeof as_event);
  memcpy(&as_memory, &m.event, sizeof as_memory);
  assert_cu_error(MAP_FAILED, d->IpcOpenEventHandle(d, &e, as_event));
  assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &p, as_memory, flag));
  for (int fill = 0; fill < 256; fill += 85) {
    memset(&as_event, fill, sizeof as_event);
    memset(&as_memory, fill, sizeof as_memory);
    assert_cu_error(MAP_FAILED, d->IpcOpenEventHandle(d, &e, as_event));
    assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &p, as_memory, flag));
  }
  /* A valid handle with one flipped bit: it may still be valid, but must not break anything. */
  for (unsigned bit = 0; bit < 8 * sizeof as_memory; bit++) {
    as_memory = m.memory[1];
    as_memory.reserved[bit / 8] ^= (char)(1 << bit % 8);
    weir_cu_result r = d->IpcOpenMemHandle(d, &p, as_memory, flag);
    if (r == WEIR_CU_SUCCESS)
      assert_cu(d->IpcCloseMemHandle(d, p));
    else if (r != WEIR_CU_OUT_OF_MEMORY &&
             r != WEIR_CU_INVALID_CONTEXT) /* very large, or with the id of this process */
      assert_cu_error(INVALID_VALUE, r);
    as_event = m.event;
    as_event.reserved[bit / 8] ^= (char)(1 << bit % 8);
    r = d->IpcOpenEventHandle(d, &e, as_event);
    if (r == WEIR_CU_SUCCESS)
      assert_cu(d->EventDestroy(d, e));
    else if (r != WEIR_CU_INVALID_CONTEXT)
      assert_cu_error(MAP_FAILED, r);
  }
  say_go();
  hear_go();
  assert_cu_error(MAP_FAILED, d->IpcOpenEventHandle(d, &e, m.event)); /* destroyed by now */
  assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &p, m.memory[1], flag));
}

TEST(invalid_handles) {
  struct message m = {.number = 0};
  start_other("stale", WEIR_SOFT_STEPPED);
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_deviceptr p[3];
  weir_cu_event e, plain = soft_event(), opened;
  for (int i = 0; i < 3; i++)
    p[i] = soft_alloc(100);
  for (int i = 0; i < 3; i++)
    assert_cu(d->IpcGetMemHandle(d, &m.memory[i], p[i]));
  *at(p[1]) = 5;
  assert_cu(d->MemFree(d, p[0]));
  assert_cu(d->MemFree(d, p[2]));
  assert_cu(d->EventCreate(d, &e, SHARED));
  assert_cu(d->IpcGetEventHandle(d, &m.event, e));
  assert_cu_error(INVALID_VALUE, d->IpcGetEventHandle(d, NULL, e));
  assert_cu_error(INVALID_HANDLE, d->IpcGetEventHandle(d, &m.event, plain));
  assert_cu_error(INVALID_CONTEXT, d->IpcOpenEventHandle(d, &opened, m.event)); /* a handle of this process */
  say(&m);
  hear_go();
  assert_cu(d->MemFree(d, p[1]));
  assert_cu(d->EventDestroy(d, e));
  say_go();
  peer_end();
  soft_close();
}

/* ---- Events ---- */

static void child_waits(void) {
  struct message m = hear();
  weir_cu_deviceptr p, own = soft_alloc(100);
  weir_cu_event e, copied = soft_event();
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  assert_cu(d->IpcOpenMemHandle(d, &p, m.memory[0], WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  assert_cu(d->IpcOpenEventHandle(d, &e, m.event));
  assert_cu_error(INVALID_HANDLE, d->IpcGetEventHandle(d, &m.event, e)); /* imported, so it cannot be exported */

  /* On a stream. */
  assert_cu_error(NOT_READY, d->EventQuery(d, e));
  assert_cu(d->StreamWaitEvent(d, s, e, 0));
  assert_cu(d->MemcpyAsync(d, own, p, 100, s));
  assert_cu(d->EventRecord(d, copied, s));
  assert_int_equal(soft_pending(s), 3);
  if (stepped) {
    assert_int_equal(soft_step(s, 10), 0);
    assert_int_equal(soft_step_all(), 0);
    assert_int_equal(*at(own), 0);
  }
  assert_cu_error(NOT_READY, d->StreamQuery(d, s));
  say_go();
  assert_cu(d->EventSynchronize(d, copied)); /* runs when the other process permits it */
  assert_int_equal(*at(own + 99), 5);
  assert_cu(d->EventQuery(d, e));

  /* On the host, and later records count. */
  say_go();
  hear_go();
  assert_cu_error(NOT_READY, d->EventQuery(d, e));
  say_go();
  assert_cu(d->EventSynchronize(d, e));
  assert_int_equal(*at(p + 99), 6);
  assert_cu(d->StreamWaitEvent(d, s, e, 0)); /* complete, so nothing to wait for */
  assert_int_equal(soft_pending(s), 0);
  assert_cu(d->EventDestroy(d, e));
  assert_cu(d->IpcCloseMemHandle(d, p));
  assert_cu(d->MemFree(d, own));
  say_go();
}

TEST(waiting_for_the_other_process) {
  FOR_BOTH_CLOCKS(clock) {
    struct message m = {.number = 0};
    stepped = clock == WEIR_SOFT_STEPPED;
    start_other("waits", clock);
    soft_open(clock, 1, 64 * MIB);
    weir_cu_deviceptr p = soft_alloc(100);
    weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
    weir_cu_event e;
    assert_cu(d->EventCreate(d, &e, SHARED));
    assert_cu(d->IpcGetMemHandle(d, &m.memory[0], p));
    assert_cu(d->IpcGetEventHandle(d, &m.event, e));
    struct gate *gate = hold(s);
    assert_cu(d->MemsetD8Async(d, p, 5, 100, s));
    assert_cu(d->EventRecord(d, e, s));
    say(&m);
    hear_go();
    let(gate);
    hear_go();

    gate = hold(s);
    assert_cu(d->MemsetD8Async(d, p, 6, 100, s));
    assert_cu(d->EventRecord(d, e, s));
    assert_cu_error(NOT_READY, d->EventQuery(d, e));
    say_go();
    hear_go();
    let(gate);
    hear_go();
    peer_end();
    assert_cu(d->EventQuery(d, e));
    assert_cu(d->EventDestroy(d, e));
    assert_cu(d->MemFree(d, p));
    soft_close();
  }
}

/* The importing process records the event; the exporting process waits. */
static void child_records(void) {
  struct message m = hear();
  weir_cu_deviceptr p;
  weir_cu_event e;
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  assert_cu(d->IpcOpenMemHandle(d, &p, m.memory[0], WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  assert_cu(d->IpcOpenEventHandle(d, &e, m.event));
  assert_cu(d->EventQuery(d, e)); /* it was never recorded */
  struct gate *gate = hold(s);
  assert_cu(d->MemsetD8Async(d, p, 5, 100, s));
  assert_cu(d->EventRecord(d, e, s));
  assert_cu_error(NOT_READY, d->EventQuery(d, e));
  say_go();
  hear_go();
  let(gate);
  assert_cu(d->EventSynchronize(d, e));
  say_go();
  hear_go();
  /* The latest record counts, whichever process made it. */
  assert_cu_error(NOT_READY, d->EventQuery(d, e));
  assert_cu(d->EventRecord(d, e, s));
  assert_cu(d->StreamSynchronize(d, s));
  assert_cu(d->EventQuery(d, e));
  say_go();
  hear_go();
}

TEST(the_other_process_records) {
  FOR_BOTH_CLOCKS(clock) {
    struct message m = {.number = 0};
    stepped = clock == WEIR_SOFT_STEPPED;
    start_other("records", clock);
    soft_open(clock, 1, 64 * MIB);
    weir_cu_deviceptr p = soft_alloc(100), q = soft_alloc(100);
    weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
    weir_cu_event e;
    assert_cu(d->EventCreate(d, &e, SHARED));
    assert_cu(d->IpcGetMemHandle(d, &m.memory[0], p));
    assert_cu(d->IpcGetEventHandle(d, &m.event, e));
    say(&m);
    hear_go();
    assert_cu_error(NOT_READY, d->EventQuery(d, e));
    assert_cu(d->StreamWaitEvent(d, s, e, 0));
    assert_cu(d->MemcpyAsync(d, q, p, 100, s));
    assert_cu_error(NOT_READY, d->StreamQuery(d, s));
    say_go();
    assert_cu(d->EventSynchronize(d, e));
    assert_int_equal(*at(p + 99), 5);
    assert_cu(d->StreamSynchronize(d, s));
    assert_int_equal(*at(q + 99), 5);
    hear_go();

    struct gate *gate = hold(s);
    assert_cu(d->MemsetD8Async(d, p, 8, 100, s));
    assert_cu(d->EventRecord(d, e, s));
    say_go();
    hear_go();
    assert_cu(d->EventQuery(d, e)); /* its record is later, and complete */
    let(gate);
    assert_cu(d->StreamSynchronize(d, s));
    say_go();
    peer_end();
    assert_cu(d->EventDestroy(d, e));
    assert_cu(d->MemFree(d, p));
    assert_cu(d->MemFree(d, q));
    soft_close();
  }
}

/* ---- After the other process exits ---- */

static void child_leaves(void) {
  struct message m = {.number = 0};
  weir_cu_deviceptr p = soft_alloc(5 * MIB);
  weir_cu_event e;
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  *at(p) = 5;
  assert_cu(d->EventCreate(d, &e, SHARED));
  assert_cu(d->IpcGetMemHandle(d, &m.memory[0], p));
  assert_cu(d->IpcGetEventHandle(d, &m.event, e));
  hold(s);
  assert_cu(d->MemsetD8Async(d, p, 6, 100, s));
  assert_cu(d->EventRecord(d, e, s));
  say(&m);
  if (hear().number)
    _exit(0);           /* without further notice, and with the work incomplete */
  weir_driver_close(d); /* completes the work and frees the memory */
  exit(0);
}

TEST(the_other_process_leaves) {
  for (int round = 0; round < 3; round++)
    FOR_BOTH_CLOCKS(clock) {
      bool abruptly = round > 0, waits_first = round == 1;
      stepped = clock == WEIR_SOFT_STEPPED;
      start_other("leaves", WEIR_SOFT_STEPPED);
      soft_open(clock, 1, 64 * MIB);
      struct message m = hear();
      weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
      weir_cu_deviceptr p, q, own = soft_alloc(100);
      weir_cu_event e, f;
      assert_cu(d->IpcOpenMemHandle(d, &p, m.memory[0], WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      assert_cu(d->IpcOpenEventHandle(d, &e, m.event));
      assert_cu_error(NOT_READY, d->EventQuery(d, e));
      assert_cu(d->StreamWaitEvent(d, s, e, 0));
      assert_cu(d->MemcpyAsync(d, own, p, 100, s));
      m.number = abruptly;
      say(&m);
      /* No wait for a process that has exited hangs, even if its parent has not reaped it. Without the work that it was
       * to do, the memory has other contents than the stream waited for. */
      if (abruptly) {
        assert_cu_error(EXTERNAL_DEVICE, waits_first ? d->EventSynchronize(d, e) : d->StreamSynchronize(d, s));
        assert_cu_error(EXTERNAL_DEVICE, d->EventQuery(d, e));
        assert_cu_error(EXTERNAL_DEVICE, d->StreamSynchronize(d, s));
        assert_cu_error(EXTERNAL_DEVICE, d->MemcpyAsync(d, own, p, 100, s));
        peer_end();
        assert_int_not_equal(*at(own), 6);
        soft_close();
        continue;
      }
      assert_cu(d->EventSynchronize(d, e));
      assert_cu(d->EventQuery(d, e));
      assert_cu(d->StreamSynchronize(d, s));
      peer_end();
      /* Open memory is still accessible. It was freed before, so its contents are lost. */
      *at(p + 5 * MIB - 1) = 7;
      assert_cu(d->MemcpyAsync(d, own, p, 100, s));
      assert_cu(d->StreamSynchronize(d, s));
      assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &q, m.memory[0], WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
      assert_cu_error(MAP_FAILED, d->IpcOpenEventHandle(d, &f, m.event));
      assert_cu(d->IpcCloseMemHandle(d, p));
      assert_cu(d->EventDestroy(d, e));
      assert_cu(d->MemFree(d, own));
      soft_close();
    }
}

/* ---- Files ---- */

static weir_cu_deviceptr map_handle(weir_cu_mem_handle handle, size_t bytes) {
  weir_cu_deviceptr va;
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};
  assert_cu(d->MemAddressReserve(d, &va, bytes, 0, 0, 0));
  assert_cu(d->MemMap(d, va, bytes, 0, handle, 0));
  assert_cu(d->MemSetAccess(d, va, bytes, &access, 1));
  return va;
}

static void unmap(weir_cu_deviceptr va, size_t bytes) {
  assert_cu(d->MemUnmap(d, va, bytes));
  assert_cu(d->MemAddressFree(d, va, bytes));
}

static void *as_pointer(int fd) { return (void *)(intptr_t)fd; }

static void child_files(void) {
  int fd, of_device_1;
  hear_with(&fd);
  hear_with(&of_device_1);
  weir_cu_mem_handle handle, second;
  size_t before, after, total;
  assert_cu(d->MemGetInfo(d, &before, &total));
  assert_cu(d->MemImportFromShareableHandle(d, &handle, as_pointer(fd), WEIR_CU_HANDLE_POSIX_FD));
  assert_cu_error(INVALID_DEVICE, /* this process has one device */
                  d->MemImportFromShareableHandle(d, &second, as_pointer(of_device_1), WEIR_CU_HANDLE_POSIX_FD));
  close(of_device_1);
  weir_cu_deviceptr va = map_handle(handle, 2 * G);
  assert_int_equal(*at(va + G), 3);
  assert_cu(d->MemsetD8Async(d, va + G, 4, 100, NULL));
  assert_cu(d->CtxSynchronize(d));
  /* The same file is the same memory. */
  assert_cu(d->MemImportFromShareableHandle(d, &second, as_pointer(fd), WEIR_CU_HANDLE_POSIX_FD));
  close(fd);
  weir_cu_deviceptr va2 = map_handle(second, 2 * G);
  assert_int_equal(*at(va2 + G), 4);
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemRelease(d, second));
  assert_cu(d->MemGetInfo(d, &after, &total));
  assert_int_equal(after, before); /* it counts in the other process */
  unmap(va2, 2 * G);
  say_go();
  hear_go(); /* the other process has released it */
  assert_int_equal(*at(va + G), 9);
  *at(va) = 1;
  unmap(va, 2 * G);
  say_go();
}

TEST(files_over_a_socket) {
  FOR_BOTH_CLOCKS(clock) {
    start_other("files", clock);
    soft_open(clock, 2, 64 * MIB);
    weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED,
                             .handle_types = WEIR_CU_HANDLE_POSIX_FD,
                             .location = {WEIR_CU_LOCATION_DEVICE, 0}};
    weir_cu_mem_handle handle, of_device_1, second;
    int fd, fd_1;
    size_t left, total;
    assert_cu(d->MemCreate(d, &handle, 2 * G, &prop, 0));
    assert_cu(d->MemExportToShareableHandle(d, &fd, handle, WEIR_CU_HANDLE_POSIX_FD, 0));
    prop.location.id = 1;
    assert_cu(d->MemCreate(d, &of_device_1, G, &prop, 0));
    assert_cu(d->MemExportToShareableHandle(d, &fd_1, of_device_1, WEIR_CU_HANDLE_POSIX_FD, 0));
    weir_cu_deviceptr va = map_handle(handle, 2 * G);
    *at(va + G) = 3;

    /* Importing memory of this process gives the same memory, which counts once. */
    assert_cu(d->MemImportFromShareableHandle(d, &second, as_pointer(fd), WEIR_CU_HANDLE_POSIX_FD));
    assert_int_not_equal(second, handle);
    assert_cu(d->MemGetInfo(d, &left, &total));
    assert_int_equal(left, total - 2 * G);
    assert_int_equal(soft_census().handles, 3);

    say_with(&(struct message){.number = 0}, fd);
    say_with(&(struct message){.number = 0}, fd_1);
    close(fd);
    close(fd_1);
    hear_go();
    assert_int_equal(*at(va + G), 4);
    *at(va + G) = 9;
    unmap(va, 2 * G);
    assert_cu(d->MemRelease(d, handle));
    assert_cu(d->MemRelease(d, second));
    assert_cu(d->MemRelease(d, of_device_1));
    assert_cu(d->MemGetInfo(d, &left, &total));
    assert_int_equal(left, total);
    say_go();
    hear_go();
    peer_end();
    soft_close();
  }
}

TEST(invalid_files) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mem_handle private, shareable, none = 77;
  assert_cu(d->MemCreate(d, &private, G, &prop, 0));
  prop.handle_types = WEIR_CU_HANDLE_POSIX_FD;
  assert_cu(d->MemCreate(d, &shareable, G, &prop, 0));
  int fd = 77, pipe_fds[2], file = memfd_create("something", MFD_CLOEXEC);
  assert_cu_error(INVALID_VALUE, d->MemExportToShareableHandle(d, &fd, private, WEIR_CU_HANDLE_POSIX_FD, 0));
  assert_cu_error(INVALID_VALUE, d->MemExportToShareableHandle(d, &fd, shareable, WEIR_CU_HANDLE_FABRIC, 0));
  assert_cu_error(INVALID_VALUE, d->MemExportToShareableHandle(d, &fd, shareable, WEIR_CU_HANDLE_POSIX_FD, 1));
  assert_cu_error(INVALID_VALUE, d->MemExportToShareableHandle(d, NULL, shareable, WEIR_CU_HANDLE_POSIX_FD, 0));
  assert_int_equal(fd, 77);
  assert_int_equal(pipe(pipe_fds), 0);
  const int fds[] = {-1, 0, 9999, pipe_fds[0], file};
  for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
    assert_cu_error(INVALID_VALUE,
                    d->MemImportFromShareableHandle(d, &none, as_pointer(fds[i]), WEIR_CU_HANDLE_POSIX_FD));
  assert_cu(d->MemExportToShareableHandle(d, &fd, shareable, WEIR_CU_HANDLE_POSIX_FD, 0));
  assert_cu_error(INVALID_VALUE, d->MemImportFromShareableHandle(d, &none, as_pointer(fd), WEIR_CU_HANDLE_FABRIC));
  assert_cu_error(INVALID_VALUE, d->MemImportFromShareableHandle(d, NULL, as_pointer(fd), WEIR_CU_HANDLE_POSIX_FD));
  assert_int_equal(none, 77);
  /* A file keeps the memory, which no longer counts as used. */
  assert_cu(d->MemRelease(d, shareable));
  assert_int_equal(soft_census().device_bytes, G);
  assert_cu(d->MemImportFromShareableHandle(d, &shareable, as_pointer(fd), WEIR_CU_HANDLE_POSIX_FD));
  assert_cu(d->MemRelease(d, shareable));
  assert_cu(d->MemRelease(d, private));
  close(fd);
  close(file);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
  soft_close();
}

static int run_child(const char *role, weir_soft_clock clock) {
  static const struct {
    const char *role;
    void (*body)(void);
  } roles[] = {{"memory", child_memory},   {"stale", child_stale},   {"waits", child_waits},
               {"records", child_records}, {"leaves", child_leaves}, {"files", child_files}};
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
    if (!strcmp(roles[i].role, role)) {
      stepped = clock == WEIR_SOFT_STEPPED;
      soft_open(clock, 1, 64 * MIB);
      roles[i].body();
      soft_close();
      return 0;
    }
  return 1;
}

static int role(int argc, char **argv) {
  if (peer_is_child(argc, argv))
    return run_child(argv[2], (weir_soft_clock)atoi(argv[3]));
  return RUN_TESTS;
}

FIXTURE(.role = role, .teardown = teardown)
