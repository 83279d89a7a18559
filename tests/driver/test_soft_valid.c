/*
 * The consistency check of the software device: it accepts every state that the device gets into, and names what is
 * wrong with a state that the test corrupted. Each corruption is tried in a child process.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/soft/soft.h"
#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB };

/* A device with objects of every kind. */
static struct {
  weir_cu_stream stream, waiting, capturing, joined;
  weir_cu_event event, captured;
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_deviceptr plain, chunk, freed, of_graph, va;
  weir_cu_mem_handle handle;
  struct gate *gate; /* blocks `stream` */
} w;

static void populate(weir_soft_clock clock) {
  soft_open(clock, 2, 64 * MIB);
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};
  w.stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  w.waiting = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  w.capturing = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  w.joined = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  w.event = soft_event();
  w.captured = soft_event();
  assert_cu(d->CtxEnablePeerAccess(d, contexts[1], 0));

  assert_cu(d->StreamBeginCapture(d, w.capturing, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemAllocAsync(d, &w.of_graph, 100, w.capturing));
  assert_cu(d->MemsetD8Async(d, w.of_graph, 1, 100, w.capturing));
  assert_cu(d->MemFreeAsync(d, w.of_graph, w.capturing));
  assert_cu(d->StreamEndCapture(d, w.capturing, &w.graph));
  assert_cu(d->GraphInstantiate(d, &w.exec, w.graph, 0));

  w.plain = soft_alloc(100);
  assert_cu(d->MemAllocAsync(d, &w.chunk, 100, w.stream));
  assert_cu(d->MemAllocAsync(d, &w.freed, 5 * MIB, w.stream));
  w.gate = gate_close(w.stream);
  assert_cu(d->GraphLaunch(d, w.exec, w.stream));
  assert_cu(d->MemFreeAsync(d, w.freed, w.stream));
  assert_cu(d->EventRecord(d, w.event, w.stream));
  assert_cu(d->StreamWaitEvent(d, w.waiting, w.event, 0));
  assert_cu(d->MemsetD8Async(d, w.plain, 1, 100, w.waiting));

  assert_cu(d->MemAddressReserve(d, &w.va, 4 * G, 0, 0, 0));
  assert_cu(d->MemCreate(d, &w.handle, G, &prop, 0));
  assert_cu(d->MemMap(d, w.va, G, 0, w.handle, 0));
  assert_cu(d->MemMap(d, w.va + 2 * G, G, 0, w.handle, 0));
  assert_cu(d->MemSetAccess(d, w.va, G, &access, 1));

  assert_cu(d->StreamBeginCapture(d, w.capturing, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, w.plain, 1, 100, w.capturing));
  assert_cu(d->MemsetD8Async(d, w.plain, 1, 100, w.capturing));
  assert_cu(d->EventRecord(d, w.captured, w.capturing));
  assert_cu(d->StreamWaitEvent(d, w.joined, w.captured, 0));
  assert_cu(d->EventDestroy(d, soft_event())); /* a free slot */
}

static struct soft *soft(void) { return (struct soft *)d; }
static model *m(void) { return &soft()->m; }
static void *object(const weir__handles *table, const void *handle) {
  void *found = weir__handles_get(table, (uintptr_t)handle);
  assert_non_null(found);
  return found;
}
static struct soft_stream *stream(weir_cu_stream handle) { return object(&m()->streams, handle); }
static struct soft_event *event(weir_cu_event handle) { return object(&m()->events, handle); }
static model_graph *graph(void) { return object(&m()->graphs, w.graph); }
static struct soft_range *range(weir_cu_deviceptr pointer) {
  return (struct soft_range *)weir__model_find_range(m(), pointer);
}
static model_mapping *mapping(void) { return weir__model_mapping(&range(w.va)->r, w.va); }
static model_device *device(int number) { return m()->devices[number]; }

static void intact(void) {}
static void used_too_much(void) { device(0)->used++; }
static void used_elsewhere(void) { device(1)->used = 4096; }
static void wrong_mapping_count(void) { range(w.va)->r.mappings--; }
static void mapping_lost_a_page(void) {
  range(w.va)->r.tables[0]->pages[3] = mapping();
  mapping()->bytes = 4 * G;
}
static void range_elsewhere(void) { range(w.plain)->r.base++; }
static void range_too_long(void) { range(w.plain)->r.bytes = 5000; }
static void range_without_number(void) { range(w.plain)->r.id = 0; }
static void memory_outside(void) { range(w.plain)->extent.offset = 1ull << 40; }
static void memory_kept_too_long(void) { mapping()->memory->mappings++; }
static void mapping_write_only(void) { mapping()->readers = 0; }
static void mapping_for_missing_device(void) { mapping()->readers |= 1ull << 2; }
static void lost_free_slot(void) { m()->events.spare = 0; }
static void circle_of_free_slots(void) {
  weir__handle *slot = weir__handles_slot(&m()->events, m()->events.spare - 1);
  slot->link = m()->events.spare;
}
static void handle_unknown(void) { event(w.event)->e.head.link += 16; }
static void pending_too_many(void) { stream(w.stream)->pending++; }
static void last_is_not_last(void) { stream(w.waiting)->last = stream(w.waiting)->first; }
static void work_out_of_order(void) { stream(w.waiting)->last->seq = 1; }
static void stream_unlinked(void) { stream(w.waiting)->link = &soft()->ready; }
static void stream_over(void) { stream(w.capturing)->s.dropped = true; }
static void end_of_another(void) { stream(w.waiting)->first->signal->owner = stream(w.waiting); }
static void wait_for_nothing(void) { stream(w.waiting)->first->signal = NULL; }
static void ready_count(void) { soft()->ready_count++; }
static void ready_without_list(void) { stream(w.waiting)->queued = true; }
static void two_legacy_streams(void) { stream(w.waiting)->s.is_legacy = true; }
static void ahead_of_time(void) { stream(w.waiting)->time_ns = soft()->now_ns + 1; }
static void pool_reserved(void) { device(0)->default_pool->reserved -= G; }
static void pool_used(void) { device(0)->default_pool->used++; }
static void pool_high(void) { device(0)->default_pool->used_high = 1; }
static void pool_gone(void) { device(0)->pool = (model_pool *)&w; }
static void chunk_with_extra_reference(void) { range(w.chunk)->r.refs++; }
static void chunk_freed_and_used(void) { range(w.freed)->r.idle = false; }
static void chunk_of_no_graph(void) { device(0)->graph_used = 0; }
static void graph_out_of_order(void) {
  weir_cu_graph_node *nodes = graph()->nodes.items, node = nodes[0];
  nodes[0] = nodes[1];
  nodes[1] = node;
}
static void node_of_another(void) { weir__model_node(m(), graph()->nodes.items[0])->graph = NULL; }
static void capture_without_stream(void) { stream(w.capturing)->s.capture = NULL; }
static void capture_without_member(void) { stream(w.joined)->s.member_next = m()->captures->members = NULL; }
static void capture_of_no_thread(void) { m()->captures->thread = (model_thread *)&w; }
static void capture_over(void) { stream(w.stream)->s.capture = (model_capture *)&w; }
static void at_of_another(void) { stream(w.joined)->s.at.items[0] = graph()->nodes.items[0]; }
static void event_at_of_another(void) { event(w.captured)->e.at.items[0] = graph()->nodes.items[0]; }
static void event_shared(void) { event(w.event)->e.flags = 4; }
static void not_retained(void) { device(1)->retains = 0; }
static void context_without_stream(void) { device(1)->legacy = NULL; }
static void peer_of_itself(void) { device(0)->peers |= 1; }

static const struct corruption {
  void (*apply)(void);
  const char *says; /* NULL if the check passes */
} corruptions[] = {
    {intact, NULL},
    {used_too_much, "memory: bytes used"},
    {used_elsewhere, "memory: bytes used"},
    {wrong_mapping_count, "mappings: counted 2, recorded 1"},
    {mapping_lost_a_page, "the page table lacks pages"},
    {range_elsewhere, "ranges:"},
    {range_too_long, "ranges:"},
    {range_without_number, "has no valid id"},
    {memory_outside, "ranges:"},
    {memory_kept_too_long, "memory: mappings of a handle: counted 2, recorded 3"},
    {mapping_write_only, "mappings:"},
    {mapping_for_missing_device, "mappings:"},
    {lost_free_slot, "free slots are missing"},
    {circle_of_free_slots, "the free list goes in a circle"},
    {handle_unknown, "does not know its handle"},
    {pending_too_many, "streams: work items: counted 6, recorded 7"},
    {last_is_not_last, "streams: the tail is not the last item"},
    {work_out_of_order, "streams: work items are out of order"},
    {stream_unlinked, "streams: a stream is in the wrong list"},
    {stream_over, "streams: a finished stream was not freed"},
    {end_of_another, "work: the end signal of an item has the wrong owner"},
    {wait_for_nothing, "work: a wait for a signal that nothing sets"},
    {ready_count, "ready list: count"},
    {ready_without_list, "streams: a stream is in the ready list in stepped time"},
    {two_legacy_streams, "streams: the legacy stream of the device is another one"},
    {ahead_of_time, "streams: a stream is ahead of the clock"},
    {pool_reserved, "pools: bytes reserved"},
    {pool_used, "pools: bytes used"},
    {pool_high, "pools: a high-water mark is too low"},
    {pool_gone, "devices: the current or default pool is invalid"},
    {chunk_with_extra_reference, "pools: work items that refer to a range"},
    {chunk_freed_and_used, "pools: a range is both in use and being freed"},
    {chunk_of_no_graph, "memory: bytes used by graphs"},
    {graph_out_of_order, "graphs: a node depends on a later node"},
    {node_of_another, "graphs: a node belongs to another graph"},
    {capture_without_stream, "captures:"},
    {capture_without_member, "captures: a capture does not list a stream that is in it"},
    {capture_of_no_thread, "captures: a capture belongs to a thread that has exited"},
    {capture_over, "captures: a stream is in a capture that has ended"},
    {at_of_another, "captures: a stream depends on a node of another graph"},
    {event_at_of_another, "events: an event depends on a node of another graph"},
    {event_shared, "events: the interprocess flag and the shared page disagree"},
    {not_retained, "devices: an invalid peer"},
    {context_without_stream, "devices: a context without a legacy stream, or the reverse"},
    {peer_of_itself, "devices: an invalid peer"},
};

static int message[2]; /* a pipe for the error output of the child */

static void corrupt_and_check(void *data) {
  const struct corruption *corruption = data;
  dup2(message[1], STDERR_FILENO);
  populate(WEIR_SOFT_STEPPED);
  corruption->apply();
  weir__soft_is_valid(soft());
  /* Not closed: the corrupt device ends with the process. */
}

FIXTURE(.teardown = soft_teardown)

TEST(corruption_is_named) {
  for (size_t i = 0; i < sizeof corruptions / sizeof *corruptions; i++) {
    char text[4096] = "";
    assert_int_equal(pipe(message), 0);
    int status = soft_in_child(corrupt_and_check, (void *)(uintptr_t)&corruptions[i]);
    close(message[1]);
    ssize_t length = read(message[0], text, sizeof text - 1);
    assert_true(length >= 0);
    text[length] = 0;
    close(message[0]);
    if (!corruptions[i].says) {
      assert_string_equal(text, "");
      assert_int_equal(status, 0);
      continue;
    }
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
      fail_msg("corruption %zu (\"%s\") ended with %x and said \"%s\"", i, corruptions[i].says, (unsigned)status, text);
    if (!strstr(text, "weir: the software device is corrupt: ") || !strstr(text, corruptions[i].says))
      fail_msg("corruption %zu said \"%s\", not \"%s\"", i, text, corruptions[i].says);
  }
}

/* In real time, while one stream runs, one waits, and one has finished. */
TEST(busy_device_is_valid) {
  populate(WEIR_SOFT_THREADS);
  for (int i = 0; i < 100; i++) {
    pthread_mutex_lock(&soft()->lock);
    weir__soft_is_valid(soft());
    pthread_mutex_unlock(&soft()->lock);
  }
  weir_cu_graph graph;
  assert_cu(d->EventRecord(d, w.captured, w.joined));
  assert_cu(d->StreamWaitEvent(d, w.capturing, w.captured, 0));
  assert_cu(d->StreamEndCapture(d, w.capturing, &graph));
  assert_cu(d->MemUnmap(d, w.va, 4 * G));
  assert_cu(d->MemRelease(d, w.handle));
  assert_cu(d->MemAddressFree(d, w.va, 4 * G));
  gate_open(w.gate);
  soft_close();
}
