/*
 * Memory that is sent to other processes lives as long as any of them uses it.
 */
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "alloc/ipc/ipc.h"
#include "alloc/ipc/references.h"
#include "alloc/ipc/sent.h"
#include "alloc/ipc_fixture.h"
#include "alloc/plug_fixture.h"

static const char *const confs[] = {"", "expandable_segments:True", "moving_pages:True"};

/* ---- There ---- */

/* Receives, and does what it is told. */
static void child_obeys(void) {
  char *pointers[64] = {NULL};
  int count = 0;
  for (uint64_t order; (order = hear_any()) != 'q';)
    switch (order) {
    case 'r':
      pointers[count] = receive(hear_handle());
      say((unsigned char)pointers[count++][0]);
      break;
    case 'f': { /* fails to receive */
      void *pointer;
      const weir_ipc_handle *handle = hear_handle();
      say(try_receive(handle, &pointer));
      break;
    }
    case 'i':
      say((uint64_t)getpid());
      break;
    case 'p': /* reads again */
      say((unsigned char)pointers[count - 1][0]);
      break;
    case 'd':
      release(pointers[--count]);
      say('d');
      break;
    }
}

/* ---- Here ---- */

static uint64_t order(char what, const weir_ipc_handle *handle) {
  say((uint64_t)what);
  if (handle)
    say_handle(handle);
  return hear_any();
}

/* Freed memory is in limbo while the other process uses it, and is reused afterwards. */
TEST(limbo) {
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    with_peer("obeys", confs[i]);
    char *a = get(30 * MIB, NULL);
    a[0] = 'a';
    assert_int_equal(order('r', send_memory(a)), 'a');
    assert_int_equal(stats_of(0).ipc_references, 1);
    assert_int_equal(stats_of(0).ipc_limbo_blocks, 0);
    put(a);
    assert_int_equal(allocated(), 0);
    assert_true(active() >= (int64_t)(30 * MIB));
    assert_int_equal(stats_of(0).ipc_limbo_blocks, 1);
    assert_int_equal(stats_of(0).ipc_limbo_bytes, active());
    assert_int_equal(collect(), 0);
    char *b = get(30 * MIB, NULL);
    assert_ptr_not_equal(b, a);
    b[0] = 'b';
    assert_int_equal(order('p', NULL), 'a');
    put(b);
    empty_cache();
    assert_int_equal(order('p', NULL), 'a'); /* neither reused nor returned */
    assert_int_equal(order('d', NULL), 'd');
    assert_int_equal(collect(), 1);
    assert_int_equal(active(), 0);
    assert_int_equal(stats_of(0).ipc_limbo_bytes_peak > 0, 1);
    assert_int_equal(stats_of(0).ipc_lost_references, 0);
    assert_ptr_equal(get(30 * MIB, NULL), a);
    put(a);
    say('q');
    peer_end();
    close_all();
  }
}

/* A second allocator of the sender has another file of references, and pages with descriptors, of the same names while
 * the first ones are still held. */
TEST(sender_begins_again) {
  for (size_t k = 0; k < WEIR_COUNT_OF(confs); k++) {
    with_peer("obeys", confs[k]);
    for (int i = 0; i < 3; i++) {
      char *a = get(MIB, NULL);
      a[0] = (char)('a' + i);
      assert_int_equal(order('r', send_memory(a)), 'a' + i);
      weir_allocator_destroy(allocator);
      allocator = alloc_create(confs[k]);
    }
    for (int i = 0; i < 3; i++)
      assert_int_equal(order('d', NULL), 'd');
    say('q');
    peer_end();
    close_all();
  }
}

/* Memory that is not freed only loses its reference. */
TEST(released_first) {
  with_peer("obeys", "");
  char *a = get(1000, NULL);
  a[0] = 'a';
  for (int i = 0; i < 3; i++) {
    assert_int_equal(order('r', send_memory(a)), 'a');
    assert_int_equal(order('d', NULL), 'd');
  }
  assert_int_equal(stats_of(0).ipc_references, 3);
  assert_int_equal(collect(), 0);
  assert_int_equal(stats_of(0).ipc_references, 0);
  order('r', send_memory(a));
  order('d', NULL);
  put(a); /* finds that the reference is done */
  assert_int_equal(active(), 0);
  say('q');
  peer_end();
  close_all();
}

/* A handle is received once. */
TEST(received_once) {
  with_peer("obeys", "");
  char *a = get(1000, NULL);
  static weir_ipc_handle first;
  first = *send_memory(a);
  order('r', &first);
  assert_int_equal(order('f', &first), WEIR_ERROR_BAD_STATE);
  order('d', NULL);
  assert_int_equal(order('f', &first), WEIR_ERROR_BAD_STATE);
  collect();
  send_memory(a);
  assert_int_equal(order('f', &first), WEIR_ERROR_BAD_STATE);
  put(a);
  say('q');
  peer_end();
  assert_int_equal(collect(), 0); /* the last message is under way */
  assert_int_equal(stats_of(0).ipc_references, 1);
  weir_allocator_destroy(allocator);
  allocator = NULL;
  alloc_close();
}

TEST(several) {
  with_peer("obeys", "expandable_segments:True");
  char *a = get(3000, NULL), *b = get(3000, NULL);
  a[0] = 'a', b[0] = 'b';
  for (int i = 0; i < 5; i++) {
    assert_int_equal(order('r', send_memory(a)), 'a');
    assert_int_equal(order('r', send_memory(b)), 'b');
  }
  put(a);
  put(b);
  for (int i = 0; i < 9; i++) {
    order('d', NULL);
    assert_int_equal(collect(), i == 8); /* the first message was of a */
  }
  order('d', NULL);
  assert_int_equal(collect(), 1);
  say('q');
  peer_end();
  close_all();
}

/* ---- Processes that are killed ---- */

/* Kills this process, or the other one, within the nth driver call. */
static int calls_left = -1;
static bool kills_peer;

static weir_cu_result (*next_open)(weir_driver *, weir_cu_deviceptr *, weir_cu_ipc_mem_handle, unsigned);
static weir_cu_result (*next_close)(weir_driver *, weir_cu_deviceptr);
static weir_cu_result (*next_import)(weir_driver *, weir_cu_mem_handle *, void *, int);
static weir_cu_result (*next_map)(weir_driver *, weir_cu_deviceptr, size_t, size_t, weir_cu_mem_handle,
                                  unsigned long long);
static weir_cu_result (*next_event)(weir_driver *, weir_cu_event *, weir_cu_ipc_event_handle);
static weir_cu_result (*next_wait)(weir_driver *, weir_cu_stream, weir_cu_event, unsigned);
static weir_cu_result (*next_synchronize)(weir_driver *, weir_cu_stream);
static weir_cu_result (*next_unmap)(weir_driver *, weir_cu_deviceptr, size_t);

static void maybe_die(void) {
  if (calls_left < 0 || calls_left-- != 0)
    return;
  if (kills_peer)
    peer_kill();
  else
    kill(getpid(), SIGKILL);
}

static weir_cu_result die_open(weir_driver *s, weir_cu_deviceptr *p, weir_cu_ipc_mem_handle h, unsigned f) {
  maybe_die();
  return next_open(s, p, h, f);
}
static weir_cu_result die_close(weir_driver *s, weir_cu_deviceptr p) {
  maybe_die();
  return next_close(s, p);
}
static weir_cu_result die_import(weir_driver *s, weir_cu_mem_handle *m, void *h, int t) {
  maybe_die();
  return next_import(s, m, h, t);
}
static weir_cu_result die_map(weir_driver *s, weir_cu_deviceptr p, size_t n, size_t o, weir_cu_mem_handle m,
                              unsigned long long f) {
  maybe_die();
  return next_map(s, p, n, o, m, f);
}
static weir_cu_result die_event(weir_driver *s, weir_cu_event *e, weir_cu_ipc_event_handle h) {
  maybe_die();
  return next_event(s, e, h);
}
static weir_cu_result die_wait(weir_driver *s, weir_cu_stream t, weir_cu_event e, unsigned f) {
  maybe_die();
  return next_wait(s, t, e, f);
}
static weir_cu_result die_synchronize(weir_driver *s, weir_cu_stream t) {
  maybe_die();
  return next_synchronize(s, t);
}
static weir_cu_result die_unmap(weir_driver *s, weir_cu_deviceptr p, size_t n) {
  maybe_die();
  return next_unmap(s, p, n);
}

#define INTERPOSE(entry, name) (next_##name = faults->entry, faults->entry = die_##name)

static void interpose(void) {
  INTERPOSE(IpcOpenMemHandle, open);
  INTERPOSE(IpcCloseMemHandle, close);
  INTERPOSE(MemImportFromShareableHandle, import);
  INTERPOSE(MemMap, map);
  INTERPOSE(IpcOpenEventHandle, event);
  INTERPOSE(StreamWaitEvent, wait);
  INTERPOSE(StreamSynchronize, synchronize);
  INTERPOSE(MemUnmap, unmap);
}

/* Dies within a driver call; lives if it makes fewer. */
static void child_dies(void) {
  interpose();
  int nth = (int)hear_any();
  weir_ipc_handle *handle = hear_handle();
  calls_left = nth;
  char *a = receive(handle);
  assert_int_equal(a[0], 'a');
  release(a);
  calls_left = -1;
  say('s');
}

static int role(int argc, char **argv) {
  if (peer_is_child(argc, argv))
    return play_role(argv[2], argv[3],
                     (const child_role[]){{"obeys", child_obeys}, {"dies", child_dies}, {"sends", child_sends}, {0}});
  return RUN_TESTS;
}

FIXTURE(.role = role, .teardown = ipc_teardown)

/* Whether the other process says that it has done everything, rather than being killed. */
static bool survives(void) {
  uint64_t word;
  return recv(peer_socket, &word, sizeof word, MSG_WAITALL) == sizeof word;
}

/* A receiver that is killed at any point of receiving and releasing leaves nothing behind after a collection. */
TEST(killed_receiver) {
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    bool alive = false;
    int nth = 0;
    for (; !alive && nth < 50; nth++) {
      with_peer("dies", confs[i]);
      char *a = get(30 * MIB, NULL);
      a[0] = 'a';
      say((uint64_t)nth);
      say_handle(send_memory(a));
      put(a);
      alive = survives();
      if (alive)
        peer_end();
      else {
        assert_int_equal(active() > 0, 1);
        peer_kill();
        close(peer_socket);
      }
      assert_int_equal(collect(), 1);
      assert_int_equal(active(), 0);
      assert_int_equal(stats_of(0).ipc_lost_references, !alive);
      close_all();
    }
    assert_true(alive && nth > 4);
  }
}

/* So does one that is killed before it received anything, if the sender knows it; otherwise the message expires. */
TEST(killed_before) {
  with_peer("obeys", "");
  uint64_t process = order('i', NULL);
  void *a = get(1000, NULL), *b = get(1000, NULL);
  send_with(a, NULL, &(weir_ipc_send_options){.size = sizeof(weir_ipc_send_options), .receiver = (int)process});
  send_with(b, NULL, &(weir_ipc_send_options){.size = sizeof(weir_ipc_send_options), .timeout = 0.05});
  void *c = get(1000, NULL), *d = get(1000, NULL);
  const weir_ipc_handle *handle = send_memory(c);
  assert_ok(weir_ipc_set_receiver(allocator, handle->bytes, handle->length, (int)process));
  weir_ipc_handle late = *send_memory(d);
  put(a);
  put(b);
  put(c);
  put(d);
  assert_int_equal(collect(), 0);
  peer_kill();
  close(peer_socket);
  assert_int_equal(collect(), 2);
  nanosleep(&(struct timespec){0, 60000000}, NULL);
  assert_int_equal(collect(), 1);
  assert_int_equal(stats_of(0).ipc_lost_references, 3);
  assert_ok(weir_ipc_set_receiver(allocator, late.bytes, late.length, (int)process)); /* which is gone */
  assert_int_equal(collect(), 1);
  assert_error(BAD_STATE, weir_ipc_set_receiver(allocator, late.bytes, late.length, (int)process));
  assert_error(BAD_STATE, weir_ipc_set_receiver(allocator, late.bytes, late.length, getpid()));
  close_all();
}

static int timeout_warnings;

static void count_timeout_warning(void *context, weir_log_level level, const char *text) {
  (void)context;
  timeout_warnings += level == WEIR_LOG_WARN && strstr(text, "invalid WEIR_IPC_TIMEOUT=") != NULL;
}

/* The variable is read when an allocator first sends memory. */
TEST(default_timeout) {
  static const struct {
    const char *text;
    bool is_valid, expires;
  } cases[] = {{"0.02", true, true}, {"1e-9", true, true},   {"-1", true, false},
               {"inf", true, false}, {"", true, false},      {"0", false, false},
               {"1s", false, false}, {"soon", false, false}, {"nan", false, false}};
  weir_log_set_sink(count_timeout_warning, NULL);
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    timeout_warnings = 0;
    setenv("WEIR_IPC_TIMEOUT", cases[i].text, 1);
    alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, "");
    void *a = get(1000, NULL), *b = get(1000, NULL);
    weir_ipc_handle first = *send_memory(a);
    setenv("WEIR_IPC_TIMEOUT", "later", 1);
    weir_ipc_handle second =
        *send_with(b, NULL, &(weir_ipc_send_options){.size = sizeof(weir_ipc_send_options), .timeout = 600});
    put(a);
    put(b);
    nanosleep(&(struct timespec){0, 30000000}, NULL);
    assert_int_equal(collect(), cases[i].expires);
    assert_int_equal(timeout_warnings, !cases[i].is_valid);
    if (cases[i].expires)
      assert_error(BAD_STATE, weir_ipc_cancel(allocator, first.bytes, first.length));
    else
      assert_ok(weir_ipc_cancel(allocator, first.bytes, first.length));
    assert_ok(weir_ipc_cancel(allocator, second.bytes, second.length));
    close_all();
  }
  unsetenv("WEIR_IPC_TIMEOUT");
  weir_log_set_sink(NULL, NULL);
}

/* The receiver that was named need not be the one that receives. */
TEST(another_receiver) {
  with_peer("obeys", "");
  void *a = get(1000, NULL), *b;
  const weir_ipc_handle *handle = send_memory(a);
  uint64_t process = order('i', NULL);
  assert_ok(weir_ipc_set_receiver(allocator, handle->bytes, handle->length, (int)process));
  assert_ok(try_receive(handle, &b));
  assert_error(BAD_STATE, weir_ipc_set_receiver(allocator, handle->bytes, handle->length, (int)process));
  put(a);
  peer_kill();
  close(peer_socket);
  assert_int_equal(collect(), 0);
  release(b);
  assert_int_equal(collect(), 1);
  close_all();
}

/* A receiver that fails once is still the one that was named. */
TEST(failed_receiver) {
  with_peer("obeys", "");
  weir_ipc_send_options options;
  weir_ipc_send_options_init(&options);
  options.receiver = (int)order('i', NULL);
  options.timeout = -1;
  char *a = get(1000, NULL);
  weir_ipc_handle *handle = send_with(a, NULL, &options);
  weir__ipc_message message;
  memcpy(&message, handle->bytes, sizeof message);
  message.offset += 1ull << 40;
  memcpy(handle->bytes, &message, sizeof message);
  assert_int_equal(order('f', handle), WEIR_ERROR_BAD_DATA);
  put(a);
  peer_kill();
  close(peer_socket);
  assert_int_equal(collect(), 1);
  close_all();
}

/* A zombie counts as ended: peer_kill waits for it, and this does not. */
TEST(memory_of_the_dead_serves_requests) {
  with_peer("obeys", "");
  pid_t process = (pid_t)order('i', NULL);
  char *a = get(600 * MIB, NULL), *b;
  order('r', send_memory(a));
  put(a);
  assert_error_says(OUT_OF_MEMORY, "600.00 MiB was freed, but is used by other processes",
                    weir_allocator_alloc(allocator, 0, 600 * MIB, NULL, (void **)&b));
  kill(process, SIGKILL);
  uint64_t end;
  assert_int_equal(recv(peer_socket, &end, sizeof end, MSG_WAITALL), 0);
  nanosleep(&(struct timespec){0, 20000000}, NULL);
  b = get(600 * MIB, NULL);
  assert_ptr_equal(b, a);
  put(b);
  peer_kill();
  close(peer_socket);
  close_all();
}

TEST(killed_sender) {
  for (int before = 0; before < 2; before++) {
    with_peer("sends", "expandable_segments:True");
    hear_any();
    weir_ipc_handle *handle = hear_handle();
    int files = open_files();
    void *a = NULL;
    if (!before)
      a = receive(handle);
    peer_kill();
    close(peer_socket);
    if (before)
      assert_receive_fails(SYSTEM, "it has ended", handle, &a);
    else {
      assert_int_equal(*(char *)a, 'a');
      assert_receive_fails(BAD_STATE, "received before", handle, &a);
      release(a);
    }
    assert_int_equal(open_files(), files - 1);
    assert_int_equal(soft_census().mappings, 0);
    assert_int_equal(soft_census().handles, 0);
    assert_null(allocator->senders);
    close_all();
  }
}

/* Makes the next process get an id. False if the system does not allow that. */
static bool set_next_process(pid_t process) {
  FILE *file = fopen("/proc/sys/kernel/ns_last_pid", "w");
  return file && (fprintf(file, "%d", (int)process - 1), !fclose(file));
}

/* A process with the id of one that has ended, and with the same descriptors, has other pages. */
TEST(process_id_again) {
  static weir_ipc_handle first;
  with_peer("sends", "expandable_segments:True");
  pid_t process = (pid_t)hear_any(), again = 0;
  first = *hear_handle();
  void *a = receive(&first), *b = NULL;
  for (int i = 0; i < 100 && again != process; i++) {
    peer_kill();
    close(peer_socket);
    nanosleep(&(struct timespec){0, 20000000}, NULL); /* a start is known in ticks of 10 ms */
    if (!set_next_process(process))
      WAIVE_TEST("the id of a process cannot be chosen");
    peer_start(SOCK_STREAM, "sends", "expandable_segments:True");
    again = (pid_t)hear_any();
    const weir_ipc_handle *handle = hear_handle();
    if (again == process) {
      assert_memory_equal(handle->bytes + sizeof(weir__ipc_message), first.bytes + sizeof(weir__ipc_message),
                          first.length - sizeof(weir__ipc_message));
      b = receive(handle);
    }
  }
  if (again != process)
    WAIVE_TEST("process %d could not be created", (int)process);
  assert_ptr_not_equal(a, b);
  release(a);
  release(b);
  say('q');
  peer_end();
  close_all();
}

/* The sender is killed within each driver call of the receiver, which succeeds or fails, and keeps nothing. */
TEST(killed_meanwhile) {
  int failures = 0;
  for (size_t i = 0; i < 2; i++) {
    bool alive = false;
    for (int nth = 0; !alive && nth < 50; nth++) {
      with_peer("sends", confs[i]);
      hear_any();
      const weir_ipc_handle *handle = hear_handle();
      void *a = NULL;
      interpose();
      kills_peer = true;
      calls_left = nth;
      if (try_receive(handle, &a))
        failures++;
      else
        release(a);
      alive = calls_left >= 0;
      calls_left = -1;
      kills_peer = false;
      peer_kill();
      close(peer_socket);
      assert_int_equal(soft_census().mappings, 0);
      assert_int_equal(soft_census().ipc_mappings, 0);
      assert_int_equal(soft_census().handles, 0);
      assert_int_equal(soft_census().reservations, 0);
      assert_null(allocator->senders);
      assert_null(allocator->received);
      close_all();
    }
    assert_true(alive);
  }
  assert_true(failures > 0);
}

/* A receiver that ends without releasing anything. */
TEST(left_open) {
  with_peer("obeys", "");
  char *a = get(1000, NULL);
  order('r', send_memory(a));
  order('r', send_memory(a));
  put(a);
  say('q');
  peer_end(); /* destroys its allocator */
  assert_int_equal(collect(), 1);
  assert_int_equal(stats_of(0).ipc_lost_references, 0);
  close_all();
}

/* ---- One process ---- */

TEST(own_memory) {
  alloc_open("", GIB);
  void *a = get(1000, NULL);
  uint64_t size = 0;
  const weir_ipc_handle *handle = send_memory(a);
  put(a);
  void *b;
  assert_ok(weir_ipc_receive(allocator, 0, handle->bytes, handle->length, NULL, &b, &size));
  assert_ptr_equal(a, b);
  assert_int_equal(size, 1024);
  assert_int_equal(collect(), 0);
  release(b);
  assert_error_says(INVALID_ARGUMENT, "was received", weir_ipc_release(allocator, b, NULL));
  assert_int_equal(collect(), 1);
  close_all();
}

/* Of several messages with the same memory, the one whose stream was waited for is released. */
TEST(message_of_the_stream) {
  alloc_open("", GIB);
  void *a = get(1000, NULL), *b;
  weir_cu_stream streams[3] = {work_stream(), work_stream(), work_stream()};
  weir__ipc_message messages[3];
  for (int i = 0; i < 3; i++) {
    const weir_ipc_handle *handle = send_memory(a);
    memcpy(&messages[i], handle->bytes, sizeof messages[i]);
    assert_ok(weir_ipc_receive(allocator, 0, handle->bytes, handle->length, streams[i], &b, NULL));
  }
  for (int i = 0; i < 3; i++) {
    weir__process_identity process;
    assert_ok(weir_ipc_release(allocator, b, i < 2 ? streams[i] : NULL));
    assert_int_equal(weir__reference_read(allocator->references, messages[i].reference.slot, &process),
                     WEIR__REFERENCE_DONE);
  }
  put(a);
  close_all();
}

/* An allocator does not know what another one has sent, so it could not check the address. */
TEST(another_allocator) {
  alloc_open("", GIB);
  weir_allocator *second;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  assert_ok(weir_allocator_create(d, &options, &second));
  void *a = get(1000, NULL), *b;
  const weir_ipc_handle *handle = send_memory(a);
  assert_error_says(NOT_SUPPORTED, "another allocator",
                    weir_ipc_receive(second, 0, handle->bytes, handle->length, NULL, &b, NULL));
  release(receive(handle));
  put(a);
  weir_allocator_destroy(second);
  close_all();
}

TEST(cancel) {
  alloc_open("", GIB);
  void *a = get(1000, NULL), *b;
  const weir_ipc_handle *handle = send_memory(a);
  put(a);
  assert_ok(weir_ipc_cancel(allocator, handle->bytes, handle->length));
  assert_receive_fails(BAD_STATE, "canceled", handle, &b);
  assert_error(BAD_STATE, weir_ipc_cancel(allocator, handle->bytes, handle->length));
  assert_int_equal(collect(), 1);
  assert_error(BAD_STATE, weir_ipc_cancel(allocator, handle->bytes, handle->length));
  close_all();
}

/* Beyond a number of events, the sender waits for its stream. */
TEST(many) {
  enum { MANY = 1100 };
  alloc_open("", GIB);
  void *a = get(1000, NULL);
  static weir_ipc_handle small[MANY];
  for (int i = 0; i < MANY; i++)
    small[i] = *send_memory(a);
  put(a);
  assert_int_equal(stats_of(0).ipc_references, MANY);
  assert_int_equal(allocator->heaps[0].sent.events, 1000);
  for (int i = 0; i < MANY; i++) {
    assert_int_equal(collect(), 0);
    release(receive(&small[i]));
  }
  assert_int_equal(collect(), 1);
  close_all();
}

/* Sends that lack an event do not visit all references each time, but find those that have ended before long. */
TEST(collecting_for_events) {
  enum { MANY = WEIR__SENT_EVENTS_MAX };
  alloc_open("", GIB);
  void *a = get(1000, NULL);
  static weir_ipc_handle sent[MANY];
  for (int i = 0; i < MANY; i++)
    sent[i] = *send_memory(a);
  weir_ipc_handle last = *send_memory(a); /* collects, and finds nothing */
  for (int i = 0; i < MANY; i++)
    assert_ok(weir_ipc_cancel(allocator, sent[i].bytes, sent[i].length));
  int skipped = 0;
  while (stats_of(0).ipc_references > MANY) {
    weir_ipc_handle handle = *send_memory(a);
    assert_ok(weir_ipc_cancel(allocator, handle.bytes, handle.length));
    skipped++;
  }
  assert_in_range(skipped, MANY / 10, MANY / 5);
  put(a);
  assert_ok(weir_ipc_cancel(allocator, last.bytes, last.length));
  close_all();
}

TEST(no_words_left) {
  alloc_open("", GIB);
  char *a = get(1000, NULL);
  static weir_ipc_handle handle;
  send_memory(a);
  uint32_t slot, generation, first = 0;
  for (int i = 0; i < WEIR__REFERENCES_MAX - 1; i++) {
    assert_true(weir__reference_take(allocator->references, 0, &slot, &generation));
    first = i ? first : slot;
  }
  handle.size = sizeof handle;
  assert_error_says(NOT_SUPPORTED, "which is the maximum", weir_ipc_send(allocator, a, NULL, NULL, &handle));
  assert_true(weir__reference_withdraw(allocator->references, first));
  assert_ok(weir_ipc_send(allocator, a, NULL, NULL, &handle));
  put(a);
  weir_allocator_destroy(allocator);
  allocator = NULL;
  alloc_close();
}

static void send_on_faults(size_t bytes) {
  static weir_ipc_handle handle;
  void *a = get_live(0, bytes, NULL), *b = NULL;
  handle.size = sizeof handle;
  weir_status sent = a ? weir_ipc_send(allocator, a, NULL, NULL, &handle) : WEIR_ERROR_DRIVER;
  weir_status received = sent ? sent : try_receive(&handle, &b);
  put_live(a);
  if (!sent && received && try_receive(&handle, &b)) /* can be received again */
    fail();
  if (!sent)
    weir_ipc_release(allocator, b, NULL); /* if that fails, a collection does it */
}

static void act_on_faults(void) {
  for (int i = 0; i < 3; i++) {
    send_on_faults(1000);
    send_on_faults(30 * MIB);
  }
  weir_ipc_collect(allocator, NULL);
}

static void open_for_faults(const void *conf) { alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, conf); }

static void close_after_faults(void) {
  assert_ok(weir_fault_clear(faults));
  put_all_live();
  collect();
  close_all();
}

TEST(faults) {
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++)
    sweep_driver_calls(&(fault_sweep){open_for_faults, act_on_faults, close_after_faults, confs[i]});
}

/* A failure of the driver loses no reference: a collection tries again. */
TEST(release_fails) {
  static const struct {
    const char *conf;
    weir_driver_call call;
  } cases[] = {{"", WEIR_CALL_StreamSynchronize},
               {"", WEIR_CALL_IpcCloseMemHandle},
               {"expandable_segments:True", WEIR_CALL_MemUnmap},
               {"expandable_segments:True", WEIR_CALL_MemAddressFree}};
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    with_peer("sends", cases[i].conf);
    hear_any();
    void *a = receive(hear_handle());
    assert_ok(weir_fault_nth(faults, cases[i].call, 1, WEIR_CU_UNKNOWN, 0));
    assert_error(DRIVER, weir_ipc_release(allocator, a, NULL));
    assert_non_null(allocator->received);
    assert_error_says(INVALID_ARGUMENT, "was received", weir_ipc_release(allocator, a, NULL));
    collect();
    assert_null(allocator->received);
    assert_null(allocator->senders);
    say('q');
    peer_end();
    close_all();
  }
}

TEST(backend) {
  weir_backend backend = plug_backend();
  plug_open(&backend, NULL);
  void *a = get(5000, NULL), *b = NULL;
  const weir_ipc_handle *handle = send_memory(a);
  int frees = plugged.frees;
  put(a);
  assert_int_equal(plugged.frees, frees);
  assert_ok(try_receive(handle, &b));
  release(b);
  assert_int_equal(collect(), 1);
  assert_int_equal(plugged.frees, frees + 1);
  alloc_close();
}

/* Other streams and other processes use it: it waits for both. */
TEST(with_streams) {
  alloc_open("", GIB);
  weir_cu_stream other = work_stream();
  for (int stream_first = 0; stream_first < 2; stream_first++) {
    void *a = get(1000, NULL);
    also_used_by(a, other);
    work(other);
    void *b = receive(send_memory(a));
    put(a);
    if (stream_first) {
      soft_step_all();
      put(get(5000, NULL));
    }
    assert_int_equal(active(), 1024);
    release(b);
    assert_int_equal(collect(), 1);
    if (!stream_first) {
      assert_int_equal(active(), 1024);
      soft_step_all();
      put(get(5000, NULL));
    }
    assert_int_equal(active(), 0);
  }
  close_all();
}

/* A message whose offset or size is beyond the end of what its handle opens. */
TEST(too_much) {
  static weir_ipc_handle handle;
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    with_peer("obeys", confs[i]);
    char *a = get(1000, NULL);
    a[0] = 'a';
    handle = *send_memory(a);
    weir__ipc_message message, changed;
    memcpy(&message, handle.bytes, sizeof message);
    for (int k = 0; k < 4; k++) {
      changed = message;
      changed.offset += k == 0 ? 1ull << 40 : k == 1 ? UINT64_MAX - 8 - message.offset : 0;
      changed.bytes += k == 2 ? 1ull << 40 : k == 3 ? UINT64_MAX - 8 - message.bytes : 0;
      memcpy(handle.bytes, &changed, sizeof changed);
      assert_int_equal(order('f', &handle), WEIR_ERROR_BAD_DATA);
    }
    memcpy(handle.bytes, &message, sizeof message);
    assert_int_equal(order('r', &handle), 'a');
    assert_int_equal(order('d', NULL), 'd');
    put(a);
    say('q');
    peer_end();
    close_all();
  }
}

TEST(bad_messages) {
  alloc_open("", GIB);
  void *a = get(1000, NULL), *b = NULL;
  weir_ipc_handle *handle = send_memory(a);
  assert_error_says(BAD_DATA, "truncated", weir_ipc_receive(allocator, 0, handle->bytes, 20, NULL, &b, NULL));
  assert_error_says(BAD_DATA, "damaged",
                    weir_ipc_receive(allocator, 0, handle->bytes, handle->length - 1, NULL, &b, NULL));
  assert_error_says(BAD_DATA, "future version", weir_ipc_open(allocator, 0, handle->bytes, handle->length, &b));
  assert_error(INVALID_DEVICE, weir_ipc_receive(allocator, 1, handle->bytes, handle->length, NULL, &b, NULL));
  assert_error(INVALID_ARGUMENT, weir_ipc_receive(allocator, 0, NULL, handle->length, NULL, &b, NULL));
  assert_error(INVALID_ARGUMENT, weir_ipc_receive(allocator, 0, handle->bytes, handle->length, NULL, NULL, NULL));
  static weir_ipc_handle other;
  other = *handle;
  other.bytes[16] = 77; /* the descriptor */
  assert_receive_fails(SYSTEM, "it has ended", &other, &b);
  other = *handle;
  other.bytes[0] = 'x';
  assert_receive_fails(BAD_DATA, "weir_ipc_send", &other, &b);
  for (size_t at = offsetof(weir__ipc_message, address); at < offsetof(weir__ipc_message, offset); at++) {
    other = *handle;
    other.bytes[at] ^= 0x80; /* of the address, or of the size: it is another allocation, or more than was sent */
    assert_receive_fails(BAD_DATA, "does not name the memory", &other, &b);
  }
  other.size = 100;
  assert_error(INVALID_ARGUMENT, weir_ipc_send(allocator, a, NULL, NULL, &other));
  assert_error(INVALID_ARGUMENT, weir_ipc_send(allocator, a, NULL, NULL, NULL));
  other.size = sizeof other;
  assert_error(INVALID_ARGUMENT, weir_ipc_send(allocator, NULL, NULL, NULL, &other));
  assert_error(INVALID_ARGUMENT, weir_ipc_send(allocator, &other, NULL, NULL, &other));
  assert_error_says(INVALID_ARGUMENT, "no process",
                    weir_ipc_send(allocator, a, NULL,
                                  &(weir_ipc_send_options){.size = sizeof(weir_ipc_send_options), .receiver = 1 << 22},
                                  &other));
  assert_ok(weir_ipc_cancel(allocator, handle->bytes, handle->length));
  put(a);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  a = get(1000, NULL);
  assert_error_says(NOT_SUPPORTED, "caching off", weir_ipc_send(allocator, a, NULL, NULL, &other));
  put(a);
  close_all();
}
