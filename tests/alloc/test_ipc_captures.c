/*
 * Captures while memory is shared with other processes: they stay valid, and what they forbid waits for their end.
 */
#include "alloc/ipc/ipc.h"
#include "alloc/ipc_fixture.h"

static const char *const confs[] = {"", "expandable_segments:True"};

static int role(int argc, char **argv) {
  if (peer_is_child(argc, argv))
    return play_role(argv[2], argv[3], (const child_role[]){{"sends", child_sends}, {0}});
  return RUN_TESTS;
}

FIXTURE(.role = role, .teardown = ipc_teardown)

/* During a capture nothing can be sent, a free waits for its end, and so does a release. */
TEST(capture) {
  alloc_open("", GIB);
  weir_cu_stream stream = work_stream();
  void *a = get(1000, stream), *b;
  static weir_ipc_handle handle;
  weir_cu_graph graph;
  handle.size = sizeof handle;
  const weir_ipc_handle *sent = send_with(a, stream, NULL);
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_error_says(BAD_STATE, "captured", weir_ipc_send(allocator, a, stream, NULL, &handle));
  put(a);
  assert_int_equal(stats_of(0).ipc_limbo_blocks, 0);
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_ok(weir_allocator_end_capture(allocator, 0));
  assert_cu(d->GraphDestroy(d, graph));
  put(get(1000, NULL)); /* polls */
  assert_int_equal(stats_of(0).ipc_limbo_blocks, 1);
  b = receive(sent);
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  release(b);
  assert_int_equal(collect(), 0);
  assert_ok(weir_allocator_end_capture(allocator, 0));
  assert_int_equal(collect(), 1);
  close_all();
}

static void begin_capture(weir_cu_stream stream, int device) {
  assert_ok(weir_allocator_begin_capture(allocator, device));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
}

/* The capture must still be valid. */
static void end_capture(weir_cu_stream stream, int device) {
  weir_cu_graph graph;
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_ok(weir_allocator_end_capture(allocator, device));
  assert_cu(d->GraphDestroy(d, graph));
}

/* Without an event for the message, the sender waits for its stream, which is not the one that is being captured. */
TEST(send_without_an_event) {
  alloc_open("", GIB);
  weir_cu_stream stream = work_stream(), other = work_stream();
  void *a = get(1000, other);
  begin_capture(stream, 0);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_EventCreate, 1, WEIR_CU_NOT_SUPPORTED, 0));
  const weir_ipc_handle *sent = send_with(a, other, NULL);
  assert_int_equal(calls(WEIR_CALL_StreamSynchronize), 1);
  end_capture(stream, 0);
  put(a);
  assert_ok(weir_ipc_cancel(allocator, sent->bytes, sent->length));
  close_all();
}

/* A refused message can be received after the capture. */
TEST(receive_in_a_capture) {
  for (int own = 0; own < 2; own++) {
    with_peer("sends", "");
    weir_cu_stream stream = work_stream(), used = own ? NULL : stream;
    hear_any();
    void *a = get(1000, NULL), *b = NULL;
    const weir_ipc_handle *handle = own ? send_memory(a) : hear_handle();
    begin_capture(stream, 0);
    assert_error_says(BAD_STATE, "captur",
                      weir_ipc_receive(allocator, 0, handle->bytes, handle->length, used, &b, NULL));
    end_capture(stream, 0);
    assert_ok(weir_ipc_receive(allocator, 0, handle->bytes, handle->length, used, &b, NULL));
    release(b);
    put(a);
    peer_kill();
    close(peer_socket);
    close_all();
  }
}

/* Releases of a capture end although their stream does not exist any more, and although another one fails. */
TEST(collect_after_a_capture) {
  with_peer("sends", "");
  weir_cu_stream stream;
  assert_cu(d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  hear_any();
  void *a = get(1000, NULL), *b = receive(send_memory(a)), *c = receive(hear_handle());
  put(a);
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_ok(weir_ipc_release(allocator, b, stream));
  assert_ok(weir_ipc_release(allocator, c, NULL));
  assert_ok(weir_allocator_end_capture(allocator, 0));
  assert_cu(d->StreamDestroy(d, stream));
  assert_ok(weir_fault_nth(faults, WEIR_CALL_IpcCloseMemHandle, 1, WEIR_CU_UNKNOWN, 0));
  assert_error(DRIVER, weir_ipc_collect(allocator, NULL));
  assert_int_equal(stats_of(0).ipc_references, 0);
  collect();
  assert_null(allocator->received);
  say('q');
  peer_end();
  close_all();
}

static unsigned long waits(void) { return calls(WEIR_CALL_StreamSynchronize) + calls(WEIR_CALL_CtxSynchronize); }

/* Work of a stream: begins a capture once the host waits. */
static void begin_capture_then(void *waits_before) {
  while (waits() == *(unsigned long *)waits_before)
    usleep(100);
  weir_allocator_begin_capture(allocator, 0);
}

/* A capture that another thread begins while a release, or a collection, waits for the work on the memory. The sender
 * may free the memory only after it is unmapped here, which the capture forbids. */
TEST(capture_begins_meanwhile) {
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    with_peer("sends", confs[i]);
    weir_cu_stream stream = work_stream();
    hear_any();
    void *a = receive(hear_handle());
    unsigned long before = waits();
    assert_cu(d->LaunchHostFunc(d, stream, begin_capture_then, &before));
    assert_ok(weir_ipc_release(allocator, a, stream));
    assert_non_null(allocator->received);
    assert_error_says(INVALID_ARGUMENT, "no memory", weir_ipc_release(allocator, a, stream));
    assert_ok(weir_allocator_end_capture(allocator, 0));
    before = waits();
    assert_cu(d->LaunchHostFunc(d, stream, begin_capture_then, &before));
    collect();
    assert_non_null(allocator->received);
    assert_ok(weir_allocator_end_capture(allocator, 0));
    collect();
    assert_null(allocator->received);
    assert_null(allocator->ipc);
    peer_kill();
    close(peer_socket);
    close_all();
  }
}

/* Memory that is closed in a capture stays open until a collection after it. */
TEST(close_in_a_capture) {
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    with_peer("sends", confs[i]);
    weir_cu_stream stream = work_stream();
    hear_any();
    const weir_ipc_handle *handle = hear_handle();
    const unsigned char *name = handle->bytes + sizeof(weir__ipc_message);
    size_t length = handle->length - sizeof(weir__ipc_message);
    void *base, *again;
    assert_ok(weir_ipc_open(allocator, 0, name, length, &base));
    for (int opened_again = 1; opened_again >= 0; opened_again--) {
      begin_capture(stream, 0);
      assert_ok(weir_ipc_close(allocator, base));
      assert_error_says(INVALID_ARGUMENT, "no handle is open", weir_ipc_close(allocator, base));
      collect();
      assert_non_null(allocator->ipc);
      end_capture(stream, 0);
      if (opened_again) {
        assert_ok(weir_ipc_open(allocator, 0, name, length, &again));
        assert_ptr_equal(again, base);
      }
      collect();
      assert_int_equal(allocator->ipc != NULL, opened_again);
    }
    assert_int_equal(soft_census().mappings, 0);
    assert_int_equal(soft_census().ipc_mappings, 0);
    peer_kill();
    close(peer_socket);
    close_all();
  }
}

/* A capture of one device, which forbids unsafe calls on all of them, and a release on another one. */
TEST(capture_of_another_device) {
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    alloc_open_on(WEIR_SOFT_THREADS, 2, GIB, confs[i]);
    peer_start(SOCK_STREAM, "sends", confs[i]);
    hear_any();
    const weir_ipc_handle *handle = hear_handle();
    soft_use(1);
    weir_cu_stream stream = work_stream();
    begin_capture(stream, 1);
    release(receive(handle));
    assert_null(allocator->received);
    end_capture(stream, 1);
    soft_use(0);
    peer_kill();
    close(peer_socket);
    close_all();
  }
}
