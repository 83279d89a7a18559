/*
 * Memory shared by two processes.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/plug_fixture.h"
#include "support/peer.h"
#include "weir/ipc.h"

typedef struct message {
  weir_ipc_handle handles[2];
  unsigned long long number;
} message;

static void say(const message *m) { assert_int_equal(send(peer_socket, m, sizeof *m, MSG_NOSIGNAL), sizeof *m); }
static void say_number(unsigned long long number) { say(&(message){.number = number}); }
static message hear(void) {
  static message m;
  assert_int_equal(recv(peer_socket, &m, sizeof m, MSG_WAITALL), sizeof m);
  return m;
}
static void hear_number(unsigned long long number) { assert_int_equal(hear().number, number); }

static int teardown(void **state) {
  peer_kill();
  return alloc_teardown(state);
}

static weir_ipc_handle share(void *pointer) {
  weir_ipc_handle handle = {.size = sizeof handle};
  assert_ok(weir_ipc_share(allocator, pointer, &handle));
  return handle;
}

static char *open_at(const weir_ipc_handle *handle) {
  void *base = NULL;
  assert_ok(weir_ipc_open(allocator, 0, handle->bytes, handle->length, &base));
  return (char *)base + handle->offset;
}

/* ---- There ---- */

static void child_reads(void) {
  message m = hear();
  char *a = open_at(&m.handles[0]), *b = open_at(&m.handles[1]), *again = open_at(&m.handles[0]);
  assert_ptr_equal(again, a);
  assert_int_equal(a[0], 'a');
  assert_int_equal(a[999], 'A');
  assert_int_equal(b[0], 'b');
  a[0] = 'x';
  assert_ok(weir_ipc_close(allocator, a - m.handles[0].offset));
  assert_int_equal(a[999], 'A'); /* still open once */
  say_number(1);
  hear_number(2);
  assert_int_equal(a[0], 'y');
  assert_ok(weir_ipc_close(allocator, a - m.handles[0].offset));
  if (b - m.handles[1].offset != a - m.handles[0].offset)
    assert_error_says(INVALID_ARGUMENT, "no handle is open", weir_ipc_close(allocator, a - m.handles[0].offset));
  say_number(3); /* the second is closed by the end */
}

/* Each driver call fails once; then the call succeeds, and nothing is leaked. */
static void child_fails(void) {
  message m = hear();
  for (unsigned long nth = 1; nth < 100; nth++) {
    unsigned long made = 0, faulty = 0;
    void *base = NULL;
    assert_ok(weir_fault_clear(faults));
    assert_ok(weir_fault_counts(faults, WEIR_CALL_COUNT, &made, &faulty));
    unsigned long before = faulty;
    assert_ok(weir_fault_nth_any(faults, nth, WEIR_CU_UNKNOWN));
    weir_status opened = weir_ipc_open(allocator, 0, m.handles[0].bytes, m.handles[0].length, &base);
    weir_status closed = opened ? WEIR_OK : weir_ipc_close(allocator, base);
    assert_ok(weir_fault_counts(faults, WEIR_CALL_COUNT, &made, &faulty));
    assert_ok(weir_fault_clear(faults));
    if (!opened && closed) /* it is still open */
      assert_ok(weir_ipc_close(allocator, base));
    assert_int_equal(soft_census().mappings, 0);
    assert_int_equal(soft_census().ipc_mappings, 0);
    assert_int_equal(soft_census().handles, 0);
    assert_int_equal(soft_census().reservations, 0);
    if (faulty == before)
      break; /* all calls have failed once */
  }
  say_number(1);
}

static uint64_t granted; /* one bit for each device with access */
static weir_cu_result (*set_access)(weir_driver *, weir_cu_deviceptr, size_t, const weir_cu_mem_access *, size_t);

static weir_cu_result note_access(weir_driver *self, weir_cu_deviceptr address, size_t bytes,
                                  const weir_cu_mem_access *access, size_t count) {
  for (size_t i = 0; i < count; i++)
    granted |= 1ull << access[i].location.id;
  return set_access(self, address, bytes, access, count);
}

/* Imported pages are accessible to the device and its peers, in either order. */
static void child_has_peers(void) {
  message m = hear();
  void *base;
  set_access = faults->MemSetAccess;
  faults->MemSetAccess = note_access;
  assert_ok(weir_ipc_open(allocator, 0, m.handles[0].bytes, m.handles[0].length, &base));
  assert_int_equal(granted, 1);
  assert_ok(weir_allocator_enable_peer_access(allocator, 1, 0)); /* nothing is open for device 1 */
  assert_int_equal(granted, 1);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemSetAccess, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuMemSetAccess", weir_allocator_enable_peer_access(allocator, 0, 1));
  granted = 0;
  assert_ok(weir_allocator_enable_peer_access(allocator, 0, 1));
  assert_int_equal(granted, 2);
  assert_ok(weir_ipc_close(allocator, base));
  granted = 0;
  assert_ok(weir_ipc_open(allocator, 0, m.handles[0].bytes, m.handles[0].length, &base));
  assert_int_equal(granted, 3);
  assert_ok(weir_ipc_close(allocator, base));
  faults->MemSetAccess = set_access;
  say_number(1);
}

static void child_is_lied_to(void) {
  message m = hear();
  weir_ipc_handle h = m.handles[0];
  void *base = NULL;
  assert_error(BAD_DATA, weir_ipc_open(allocator, 0, h.bytes, 1, &base));
  assert_error(BAD_DATA, weir_ipc_open(allocator, 0, h.bytes, h.length - 1, &base));
  assert_error(BAD_DATA, weir_ipc_open(allocator, 0, h.bytes, h.length + 4, &base));
  h.bytes[0] = 9;
  assert_error_says(BAD_DATA, "future version", weir_ipc_open(allocator, 0, h.bytes, h.length, &base));
  h.bytes[0] = 2;
  h.bytes[1] = 'q';
  assert_error_says(BAD_DATA, "kind", weir_ipc_open(allocator, 0, h.bytes, h.length, &base));
  memset(h.bytes, 0, sizeof h.bytes);
  h.bytes[0] = 3; /* one page of 2 MiB, with a fabric handle */
  h.bytes[1] = 'e';
  h.bytes[2 + 8 + 2] = 0x20;
  h.bytes[2 + 16] = 1;
  h.bytes[2 + 24] = 2;
  assert_error_says(NOT_SUPPORTED, "fabric handles", weir_ipc_open(allocator, 0, h.bytes, 2 + 32 + 64, &base));
  h.bytes[2 + 24] = 7;
  assert_error_says(BAD_DATA, "damaged", weir_ipc_open(allocator, 0, h.bytes, 2 + 32 + 4, &base));
  assert_error_says(BAD_DATA, "truncated", weir_ipc_open(allocator, 0, h.bytes, 2 + 24 + 4, &base));
  memset(h.bytes, 0, sizeof h.bytes); /* 64 bytes are the driver's, which knows none like it */
  assert_int_not_equal(weir_ipc_open(allocator, 0, h.bytes, 64, &base), WEIR_OK);
  memset(h.bytes, 255, sizeof h.bytes);
  h.bytes[0] = 2;
  h.bytes[1] = 'e';
  assert_error(BAD_DATA, weir_ipc_open(allocator, 0, h.bytes, 2 + 24 + 8, &base));
  int dead = 0x7ffffff0; /* not a process */
  memset(h.bytes + 2, 0, 100);
  memcpy(h.bytes + 2, &dead, 4);
  h.bytes[2 + 8 + 2] = 0x20; /* 2 MiB */
  h.bytes[2 + 16] = 1;
  assert_error_says(SYSTEM, "cannot get the file descriptors of process",
                    weir_ipc_open(allocator, 0, h.bytes, 2 + 24 + 4, &base));
  assert_null(base);
  assert_error(INVALID_DEVICE, weir_ipc_open(allocator, 3, h.bytes, 64, &base));
  assert_error(INVALID_ARGUMENT, weir_ipc_open(allocator, 0, NULL, 64, &base));
  say_number(1);
}

/* ---- Here ---- */

static void share_with_child(const char *conf, int version) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf;
  options.ipc_version = version;
  alloc_open_devices(WEIR_SOFT_THREADS, 1, GIB);
  assert_ok(weir_allocator_create(faults, &options, &allocator));
  peer_start(SOCK_STREAM, "reads", conf);
  char *before = get(5000, NULL), *a = get(1000, NULL), *b = get(30 * MIB, NULL);
  a[0] = 'a';
  a[999] = 'A';
  b[0] = 'b';
  static message m;
  m.handles[0] = share(a);
  m.handles[1] = share(b);
  weir_ipc_handle again = share(a);
  assert_int_equal(again.length, m.handles[0].length);
  assert_memory_equal(again.bytes, m.handles[0].bytes, again.length);
  assert_int_equal(m.handles[0].offset, a - before); /* both are at the start of the segment */
  assert_int_equal(again.bytes[0], version ? version : 2);
  say(&m);
  hear_number(1);
  assert_int_equal(a[0], 'x');
  a[0] = 'y';
  say_number(2);
  hear_number(3);
  peer_end();
  put(before);
  put(a);
  put(b);
  empty_cache();
  alloc_close();
}

TEST(fixed) {
  share_with_child("", 0);
  share_with_child("", 3);
}

TEST(expandable) {
  share_with_child("expandable_segments:True", 0);
  share_with_child("expandable_segments:True", 3);
}

static void fail_in_child(const char *role, const char *conf) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, conf);
  peer_start(SOCK_STREAM, role, conf);
  char *a = get(30 * MIB, NULL);
  static message m;
  m.handles[0] = share(a);
  say(&m);
  hear_number(1);
  peer_end();
  put(a);
  alloc_close();
}

TEST(faults) {
  fail_in_child("fails", "");
  fail_in_child("fails", "expandable_segments:True");
}

TEST(peers) { fail_in_child("peers", "expandable_segments:True"); }

/* The process, a gap, the page size, the number of pages, 1 for file descriptors, a gap, and the descriptors. */
TEST(version_3) {
  alloc_open_with(&(weir_allocator_options){
      .size = sizeof(weir_allocator_options), .conf = "expandable_segments:True", .ipc_version = 3});
  void *a = get(30 * MIB, NULL);
  weir_ipc_handle handle = share(a);
  assert_int_equal(handle.length, 2 + 32 + 2 * 4);
  int32_t process, form, gap;
  uint32_t newest, again;
  uint64_t page, count;
  memcpy(&process, handle.bytes + 2, 4);
  memcpy(&newest, handle.bytes + 2 + 4, 4);
  memcpy(&page, handle.bytes + 2 + 8, 8);
  memcpy(&count, handle.bytes + 2 + 16, 8);
  memcpy(&form, handle.bytes + 2 + 24, 4);
  memcpy(&gap, handle.bytes + 2 + 28, 4);
  assert_int_equal(process, getpid());
  assert_int_equal(page, 20 * MIB);
  assert_int_equal(count, 2);
  assert_int_equal(form, 1);
  assert_int_equal(gap, 0);
  /* The newest of the exports, which are numbered: two by that call. */
  assert_true(newest >= 2);
  void *b = get(30 * MIB, NULL);
  handle = share(b);
  memcpy(&again, handle.bytes + 2 + 4, 4);
  assert_true(again > newest);
  put(b);
  put(a);
  alloc_close();
}

TEST(wrong_names) { fail_in_child("lied", ""); }

static int open_files(void) {
  int count = 0;
  for (int i = 0; i < 1000; i++)
    count += fcntl(i, F_GETFD) != -1;
  return count;
}

/* File descriptors of pages are closed with the pages, and failed driver calls change nothing. */
TEST(files) {
  alloc_open("expandable_segments:True", GIB);
  void *a = get(30 * MIB, NULL), *b = get(100, NULL);
  int before = open_files();
  weir_ipc_handle handle = share(a);
  assert_int_equal(handle.length, 2 + 24 + 2 * 4);
  assert_int_equal(open_files(), before + 2);
  share(a);
  assert_int_equal(open_files(), before + 2);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemExportToShareableHandle, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuMemExport", weir_ipc_share(allocator, b, &handle));
  put(a);
  empty_cache(); /* also closes the descriptors of the unmapped pages */
  assert_int_equal(open_files(), before - 2);
  put(b);
  alloc_close();
}

TEST(memory_that_cannot_be_shared) {
  weir_ipc_handle handle = {.size = sizeof handle};
  alloc_open("backend:cudaMallocAsync", GIB);
  void *a = get(100, NULL);
  assert_error_says(NOT_SUPPORTED, "cudaMallocAsync does not yet support", weir_ipc_share(allocator, a, &handle));
  put(a);
  soft_step_all();
  alloc_close();

  setenv("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC", "0", 1);
  alloc_open("expandable_segments:True", GIB);
  unsetenv("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC");
  a = get(100, NULL);
  assert_error_says(NOT_SUPPORTED, "cannot be shared between processes", weir_ipc_share(allocator, a, &handle));
  put(a);
  assert_error(INVALID_ARGUMENT, weir_ipc_share(allocator, a, &handle));
  assert_error(INVALID_ARGUMENT, weir_ipc_share(allocator, NULL, &handle));
  handle.size = 8;
  assert_error(INVALID_ARGUMENT, weir_ipc_share(allocator, a, &handle));
  assert_error(INVALID_ARGUMENT, weir_ipc_close(allocator, a));
  alloc_close();
}

/* Memory of a back end and uncached memory can be shared as well, through the driver. */
TEST(other_memory) {
  weir_backend backend = plug_backend();
  plug_open(&backend, NULL);
  void *a = get(5000, NULL);
  weir_ipc_handle handle = share(a);
  assert_int_equal(handle.offset, 0);
  assert_int_equal(handle.bytes[1], 'c');
  put(a);
  alloc_close();
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  a = get(5000, NULL);
  assert_int_equal(share(a).length, 66);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_IpcGetMemHandle, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuIpcGetMemHandle", weir_ipc_share(allocator, a, &handle));
  put(a);
  alloc_close();
}

static int run_child(const char *role, const char *conf) {
  static const struct {
    const char *role;
    void (*body)(void);
    int devices;
  } roles[] = {{"reads", child_reads, 1},
               {"fails", child_fails, 1},
               {"lied", child_is_lied_to, 1},
               {"peers", child_has_peers, 2}};
  for (size_t i = 0; i < WEIR_COUNT_OF(roles); i++)
    if (!strcmp(roles[i].role, role)) {
      alloc_open_on(WEIR_SOFT_THREADS, roles[i].devices, GIB, conf);
      roles[i].body();
      /* Without alloc_close, which compares the memory of the device with the segments: imported memory is not in them.
       * */
      weir_allocator_destroy(allocator);
      allocator = NULL;
      alloc_close();
      return 0;
    }
  return 1;
}

static int role(int argc, char **argv) {
  if (peer_is_child(argc, argv))
    return run_child(argv[2], argv[3]);
  return RUN_TESTS;
}

FIXTURE(.role = role, .teardown = teardown)
