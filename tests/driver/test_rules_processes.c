/*
 * Memory and events shared between processes. The second process is this program, run again with arguments; a plain
 * fork does not work, as drivers do not survive it.
 */
#include <errno.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/rules.h"

static const size_t g = 2 * MIB;

/* ---- Two processes and a channel ---- */

static int line; /* the local end */

static void line_open(int fd) {
  struct timeval limit = {.tv_sec = 60}; /* the other process may have failed */
  line = fd;
  assert_int_equal(setsockopt(line, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
}

static void say(const void *bytes, size_t size) { assert_int_equal(send(line, bytes, size, MSG_NOSIGNAL), size); }

static void hear(void *bytes, size_t size) { assert_int_equal(recv(line, bytes, size, MSG_WAITALL), size); }

/* Waits for the other process. */
static void say_go(void) { say("g", 1); }

static void hear_go(void) {
  char go = 0;
  hear(&go, 1);
  assert_int_equal(go, 'g');
}

union fd_message {
  struct cmsghdr header;
  char room[CMSG_SPACE(sizeof(int))];
};

static void say_fd(int fd) {
  union fd_message message = {{0}};
  struct iovec data = {.iov_base = "f", .iov_len = 1};
  struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &message, .msg_controllen = sizeof message};
  struct cmsghdr *header = CMSG_FIRSTHDR(&m);
  *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  assert_int_equal(sendmsg(line, &m, MSG_NOSIGNAL), 1);
}

static int hear_fd(void) {
  union fd_message message = {{0}};
  char byte = 0;
  struct iovec data = {.iov_base = &byte, .iov_len = 1};
  struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &message, .msg_controllen = sizeof message};
  assert_int_equal(recvmsg(line, &m, MSG_CMSG_CLOEXEC), 1);
  struct cmsghdr *header = CMSG_FIRSTHDR(&m);
  assert_non_null(header);
  assert_int_equal(header->cmsg_type, SCM_RIGHTS);
  int fd = -1;
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

/* Starts this program in a role. */
static pid_t child_start(const char *part) {
  int ends[2];
  char fd[16];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  int passed = dup(ends[1]); /* without the flag */
  assert_int_not_equal(passed, -1);
  snprintf(fd, sizeof fd, "%d", passed);
  fflush(stdout);
  pid_t child = fork();
  assert_int_not_equal(child, -1);
  if (child == 0) {
    execl("/proc/self/exe", "test_rules_processes", part, fd, (char *)NULL);
    _exit(126);
  }
  close(ends[1]);
  close(passed);
  line_open(ends[0]);
  return child;
}

/* Whether the child completed its role. False if it could not, and said why. */
static bool child_wait(pid_t child) {
  int status;
  close(line);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77)
    return false;
  assert_int_equal(WEXITSTATUS(status), 0);
  return true;
}

static const weir_cu_mem_access all_access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};

static void fill(weir_cu_deviceptr at, size_t bytes, unsigned char value) {
  assert_cu(d->MemsetD8Async(d, at, value, bytes, NULL));
  assert_cu(d->StreamSynchronize(d, NULL));
}

/* ---- Handles of physical memory ---- */

static void child_import(void) {
  weir_cu_mem_handle handle;
  weir_cu_deviceptr space;
  int fd = hear_fd();
  assert_cu(d->MemImportFromShareableHandle(d, &handle, (void *)(intptr_t)fd, WEIR_CU_HANDLE_POSIX_FD));
  close(fd);
  assert_cu(d->MemAddressReserve(d, &space, 2 * g, 0, 0, 0));
  assert_cu(d->MemMap(d, space, 2 * g, 0, handle, 0));
  assert_cu(d->MemSetAccess(d, space, 2 * g, &all_access, 1));
  assert_device_filled(space, g, 0x11);
  assert_device_filled(space + g, g, 0x22);
  fill(space, g, 0x33);
  say_go(); /* the exporter reads it, writes, and frees it */
  hear_go();
  assert_device_filled(space, 2 * g, 0x44);
  assert_cu(d->MemUnmap(d, space, 2 * g));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, space, 2 * g));
}

TEST(shared_handle) {
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED,
                           .handle_types = WEIR_CU_HANDLE_POSIX_FD,
                           .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mem_handle handle;
  weir_cu_deviceptr space;
  int fd = -1, can = 0;
  assert_cu(d->DeviceGetAttribute(d, &can, WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED, 0));
  if (!can)
    WAIVE_TEST("the device cannot share memory so");
  assert_cu(d->MemAddressReserve(d, &space, 2 * g, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, 2 * g, &prop, 0));
  assert_cu(d->MemMap(d, space, 2 * g, 0, handle, 0));
  assert_cu(d->MemSetAccess(d, space, 2 * g, &all_access, 1));
  fill(space, g, 0x11);
  fill(space + g, g, 0x22);
  assert_cu(d->MemExportToShareableHandle(d, &fd, handle, WEIR_CU_HANDLE_POSIX_FD, 0));
  pid_t child = child_start("import");
  say_fd(fd);
  close(fd);
  hear_go();
  assert_device_filled(space, g, 0x33);
  assert_device_filled(space + g, g, 0x22);
  fill(space, 2 * g, 0x44);
  assert_cu(d->MemUnmap(d, space, 2 * g));
  assert_cu(d->MemRelease(d, handle));
  say_go();
  assert_true(child_wait(child));
  assert_cu(d->MemAddressFree(d, space, 2 * g));
}

/* ---- Plain memory ---- */

static void child_open_memory(void) {
  weir_cu_ipc_mem_handle handle;
  weir_cu_deviceptr p = 0, again = 0;
  hear(&handle, sizeof handle);
  assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &p, handle, 0));
  weir_cu_result result = d->IpcOpenMemHandle(d, &p, handle, WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (is_cuda() && (result == WEIR_CU_NOT_SUPPORTED || result == WEIR_CU_MAP_FAILED))
    waived("memory cannot be shared between processes here: %s", weir_cu_result_name(result));
  assert_cu(result);
  assert_cu(d->IpcOpenMemHandle(d, &again, handle, WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  assert_int_equal(again, p); /* opened twice, mapped once */
  assert_device_filled(p, 4 * MIB, 0x55);
  fill(p + 100, 1000, 0x66);
  assert_cu(d->IpcCloseMemHandle(d, p));
  assert_device_filled(p, 100, 0x55);
  assert_cu(d->IpcCloseMemHandle(d, p));
  assert_cu_error(INVALID_VALUE, d->IpcCloseMemHandle(d, p));
}

TEST(shared_memory) {
  weir_cu_deviceptr p = mem_new(4 * MIB), q;
  weir_cu_ipc_mem_handle handle, zeros = {{0}};
  if (!is_cuda()) /* NVIDIA's driver 580 succeeds at times */
    assert_cu_error(INVALID_VALUE, d->IpcGetMemHandle(d, &handle, p + 1024));
  assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, &q, zeros, WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  assert_cu_error(INVALID_VALUE, d->IpcCloseMemHandle(d, p));
  weir_cu_result result = d->IpcGetMemHandle(d, &handle, p);
  if (is_cuda() && result == WEIR_CU_NOT_SUPPORTED) {
    assert_cu(d->MemFree(d, p));
    WAIVE_TEST("the device cannot share memory so");
  }
  assert_cu(result);
  assert_cu_error(
      INVALID_CONTEXT,
      d->IpcOpenMemHandle(d, &q, handle, WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)); /* not in the exporting process */
  fill(p, 4 * MIB, 0x55);
  pid_t child = child_start("open-memory");
  say(&handle, sizeof handle);
  bool could = child_wait(child);
  if (could) {
    assert_device_filled(p, 100, 0x55);
    assert_device_filled(p + 100, 1000, 0x66);
    assert_device_filled(p + 1100, 4 * MIB - 1100, 0x55);
  }
  assert_cu(d->MemFree(d, p));
  if (!could)
    WAIVE_TEST("the other process could not open it");
}

/* ---- Events ---- */

static void child_open_event(void) {
  weir_cu_ipc_event_handle handle;
  weir_cu_event event;
  weir_cu_stream stream = stream_new();
  hear(&handle, sizeof handle);
  weir_cu_result result = d->IpcOpenEventHandle(d, &event, handle);
  if (is_cuda() && (result == WEIR_CU_NOT_SUPPORTED || result == WEIR_CU_MAP_FAILED))
    waived("events cannot be shared between processes here: %s", weir_cu_result_name(result));
  assert_cu(result);

  /* The other process has recorded it behind a gate. */
  assert_cu_error(NOT_READY, d->EventQuery(d, event));
  assert_cu(d->StreamWaitEvent(d, stream, event, 0));
  assert_cu_error(NOT_READY, d->StreamQuery(d, stream));
  say_go();
  assert_cu(d->EventSynchronize(d, event));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->EventQuery(d, event));
  say_go();

  /* It records it again, which is visible too. */
  hear_go();
  assert_cu_error(NOT_READY, d->EventQuery(d, event));
  say_go();
  assert_cu(d->EventSynchronize(d, event));

  /* Now record it here. */
  struct gate *gate = gate_close(stream);
  assert_cu(d->EventRecord(d, event, stream));
  say_go();
  hear_go();
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, stream));
  say_go();
  hear_go();
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(shared_event) {
  int can = 0;
  assert_cu(d->DeviceGetAttribute(d, &can, WEIR_CU_ATTR_IPC_EVENT_SUPPORTED, 0));
  if (!can)
    WAIVE_TEST("the device cannot share events");
  weir_cu_event plain = event_new(WEIR_CU_EVENT_DISABLE_TIMING), opened;
  weir_cu_event event = event_new(WEIR_CU_EVENT_DISABLE_TIMING | WEIR_CU_EVENT_INTERPROCESS);
  weir_cu_stream stream = stream_new(), waiting = stream_new();
  weir_cu_ipc_event_handle handle;
  assert_cu_error(INVALID_HANDLE, d->IpcGetEventHandle(d, &handle, plain));
  assert_cu(d->IpcGetEventHandle(d, &handle, event));
  assert_cu_error(INVALID_CONTEXT, d->IpcOpenEventHandle(d, &opened, handle)); /* not in the exporting process */

  struct gate *gate = gate_close(stream);
  assert_cu(d->EventRecord(d, event, stream));
  pid_t child = child_start("open-event");
  say(&handle, sizeof handle);
  char go = 0;
  if (recv(line, &go, 1, MSG_WAITALL) != 1) {
    gate_open(gate);
    bool could = child_wait(child);
    assert_cu(d->StreamSynchronize(d, stream));
    assert_cu(d->EventDestroy(d, plain));
    assert_cu(d->EventDestroy(d, event));
    assert_cu(d->StreamDestroy(d, stream));
    assert_cu(d->StreamDestroy(d, waiting));
    assert_false(could);
    WAIVE_TEST("the other process could not open it");
  }
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, stream));
  hear_go();

  gate = gate_close(stream);
  assert_cu(d->EventRecord(d, event, stream));
  say_go();
  hear_go();
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, stream));

  hear_go(); /* the other process has recorded it behind its own gate */
  assert_cu_error(NOT_READY, d->EventQuery(d, event));
  assert_cu(d->StreamWaitEvent(d, waiting, event, 0));
  assert_cu_error(NOT_READY, d->StreamQuery(d, waiting));
  say_go();
  hear_go();
  assert_cu(d->EventSynchronize(d, event));
  assert_cu(d->StreamSynchronize(d, waiting));
  say_go();
  assert_true(child_wait(child));
  assert_cu(d->EventDestroy(d, plain));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamDestroy(d, waiting));
}

static int play(const char *part, int fd) {
  static const struct {
    const char *name;
    void (*play)(void);
  } parts[] = {{"import", child_import}, {"open-memory", child_open_memory}, {"open-event", child_open_event}};
  line_open(fd);
  device_setup(NULL);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!strcmp(parts[i].name, part)) {
      parts[i].play();
      return device_teardown(NULL);
    }
  return 126;
}

static int role(int argc, char **argv) {
  if (argc == 3)
    return play(argv[1], atoi(argv[2]));
  return RUN_TESTS;
}

FIXTURE(RULES, .role = role)
