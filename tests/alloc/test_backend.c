/*
 * A pluggable back end: every allocation calls it, and every feature of the allocator other than caching works with it.
 */
#include "alloc/plug_fixture.h"
#include "weir/history.h"
#include "weir/snapshot.h"

/* ---- Calls ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(every_call_is_the_back_ends) {
  weir_backend backend = plug_backend();
  plug_open(&backend, NULL);
  assert_backend("pluggable");
  weir_cu_stream stream = work_stream();
  void *a = get(1000, stream);
  assert_int_equal(plugged.allocs, 1);
  assert_int_equal(plugged.last_bytes, 1000); /* not rounded */
  assert_ptr_equal(plugged.last_stream, stream);
  void *b = get(3 * MIB + 1, NULL);
  assert_int_equal(plugged.last_bytes, 3 * MIB + 1);
  put(a);
  assert_int_equal(plugged.frees, 1);
  assert_ptr_equal(plugged.last_freed, a);
  assert_int_equal(plugged.last_bytes, 1000);
  assert_ptr_equal(plugged.last_stream, stream);
  assert_ptr_equal(get(0, NULL), NULL);
  assert_ok(weir_allocator_free(allocator, NULL));
  assert_error_says(INVALID_ARGUMENT, "invalid device pointer", weir_allocator_free(allocator, a));
  assert_error_says(INVALID_ARGUMENT, "invalid device pointer", weir_allocator_free(allocator, (char *)b + 1));
  assert_error_says(INVALID_ARGUMENT, "invalid device pointer", weir_allocator_record_stream(allocator, a, stream));
  assert_error_says(OUT_OF_MEMORY, "1EB", weir_allocator_alloc(allocator, 0, 1ull << 60, NULL, &a));
  put(b);
  assert_int_equal(plugged.frees, 2);
  alloc_close();
}

TEST(names_and_options) {
  weir_backend backend = plug_backend();
  backend.name = "mine";
  plug_open(&backend, "backend:native");
  assert_backend("mine");
  assert_ok(weir_allocator_set_caching(allocator, 0)); /* there is no cache to turn off */
  assert_int_equal(is_caching(allocator), 1);
  put(get(512, NULL));
  assert_int_equal(plugged.allocs, 1);
  assert_error_says(NOT_SUPPORTED, "mine", weir_allocator_configure(allocator, "backend:cudaMallocAsync"));
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "";
  options.backend = &backend;
  weir_allocator *other = NULL;
  backend.free = NULL;
  assert_error_says(INVALID_ARGUMENT, "alloc and free", weir_allocator_create(faults, &options, &other));
  backend.free = plug_free;
  backend.alloc = NULL;
  assert_error_says(INVALID_ARGUMENT, "alloc and free", weir_allocator_create(faults, &options, &other));
  assert_null(other);
  backend.alloc = plug_alloc;
  backend.size = offsetof(weir_backend, init); /* a program built for an older version */
  backend.init = (void (*)(void *, int))1;
  assert_ok(weir_allocator_create(faults, &options, &other));
  weir_allocator_destroy(other);
  alloc_close();
}

/* Live and waiting memory is freed with the allocator, on the device that it belongs to. */
TEST(left_behind) {
  weir_backend backend = plug_backend();
  plug_open_on(WEIR_SOFT_STEPPED, 2, &backend, NULL);
  weir_cu_stream other = work_stream();
  for (int i = 0; i < 20; i++) {
    void *p = get_on(i % 2, 1000 + (size_t)i, NULL);
    if (i == 4) {
      work(other);
      also_used_by(p, other);
      put(p);
    }
  }
  soft_step_all();
  alloc_close();
  assert_int_equal(plugged.frees, 20);
  assert_int_equal(plugged.last_device >= 0, 1);
}

static int old_allocator_frees;
static void count_free(void *context, void *p, size_t bytes, int device, weir_cu_stream stream) {
  old_allocator_frees++;
  plug_free(context, p, bytes, device, stream);
}

/* ---- Counting ---- */

TEST(statistics) {
  weir_backend backend = plug_backend();
  plug_open(&backend, "max_split_size_mb:30");
  void *a = get(1000, NULL), *b = get(40 * MIB, NULL);
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_ALL].current, 1000 + 40 * MIB);
  assert_int_equal(s.requested_bytes[WEIR_STAT_ALL].current, 1000 + 40 * MIB);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_ALL].current, 1000 + 40 * MIB);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_SMALL_POOL].current, 1000);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_LARGE_POOL].current, 40 * MIB);
  assert_int_equal(s.segment[WEIR_STAT_ALL].current, 2);
  assert_int_equal(s.allocation[WEIR_STAT_ALL].current, 2);
  assert_int_equal(s.inactive_split[WEIR_STAT_ALL].current, 0);
  assert_int_equal(s.oversize_allocations.current, 1);
  assert_int_equal(s.oversize_segments.current, 1);
  assert_int_equal(s.num_device_alloc, 2);
  put(b);
  s = stats_of(0);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_ALL].current, 1000);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_ALL].peak, 1000 + 40 * MIB);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_ALL].peak, 1000 + 40 * MIB);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_ALL].freed, 40 * MIB);
  assert_int_equal(s.oversize_allocations.current, 0);
  assert_int_equal(s.num_device_free, 1);
  assert_ok(weir_allocator_reset_peak_stats(allocator, 0));
  assert_int_equal(stats_of(0).reserved_bytes[WEIR_STAT_ALL].peak, 1000);
  void *base = NULL;
  size_t bytes = 0;
  assert_ok(weir_allocator_base(allocator, a, &base, &bytes));
  assert_ptr_equal(base, a);
  assert_int_equal(bytes, 1000);
  weir_pointer_info info = {.size = sizeof info};
  assert_ok(weir_allocator_describe(allocator, a, &info));
  assert_int_equal(info.bytes, 1000);
  assert_int_equal(info.is_large, 0);
  size_t largest = 0;
  assert_ok(weir_allocator_largest_block(allocator, 0, &largest));
  assert_true(largest > 0 && largest < GIB);
  put(a);
  alloc_close();
}

/* ---- Watching ---- */

static char heard[1024];
static void hear(void *context, const weir_trace_entry *entry) {
  size_t used = strlen(heard);
  (void)context;
  snprintf(heard + used, sizeof heard - used, "%s%s %d", used ? ", " : "", weir_trace_action_name(entry->action),
           (int)entry->bytes);
}

TEST(trackers_and_history) {
  weir_backend backend = plug_backend();
  plug_open(&backend, NULL);
  *heard = 0;
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = hear)));
  assert_ok(weir_history_record(allocator, NULL));
  weir_cu_stream other = work_stream();
  void *a = get(1000, NULL);
  put(a);
  assert_string_equal(heard,
                      "segment_alloc 1000, alloc 1000, free_requested 1000, free_completed 1000, segment_free 1000");
  *heard = 0;
  a = get(700, NULL);
  also_used_by(a, other);
  work(other);
  put(a);
  assert_string_equal(heard, "segment_alloc 700, alloc 700, free_requested 700");
  assert_int_equal(plugged.frees, 1); /* the other stream is not done */
  weir_pointer_info info = {.size = sizeof info};
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(allocator, a, &info));
  soft_step_all();
  void *b = get(800, NULL); /* polls the events */
  assert_int_equal(plugged.frees, 2);
  assert_string_equal(heard, "segment_alloc 700, alloc 700, free_requested 700, free_completed 700, segment_free 700, "
                             "segment_alloc 800, alloc 800");
  assert_ok(weir_allocator_describe(allocator, b, &info));
  assert_int_not_equal(info.stack, 0);

  weir_snapshot *snapshot = NULL;
  const weir_snapshot_segment *segments = NULL;
  size_t count = 0;
  uint64_t events = 0, dropped = 0;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_ok(weir_snapshot_segments(snapshot, &segments, &count));
  assert_int_equal(count, 1);
  assert_int_equal(segments[0].address, (uint64_t)b);
  assert_int_equal(segments[0].bytes, 800);
  assert_int_equal(segments[0].block_count, 1);
  assert_int_equal(segments[0].blocks[0].state, WEIR_BLOCK_ACTIVE_ALLOCATED);
  assert_int_equal(segments[0].blocks[0].stack, info.stack);
  assert_ok(weir_snapshot_entries(snapshot, 0, &events, &dropped));
  assert_int_equal(events, 12);
  weir_snapshot_entry event = {.size = sizeof event};
  assert_ok(weir_snapshot_entry_at(snapshot, 0, 11, &event));
  assert_int_equal(event.action, WEIR_TRACE_ALLOC);
  assert_int_equal(event.address, (uint64_t)b);
  assert_int_equal(event.bytes, 800);
  assert_int_equal(event.stack, info.stack);
  weir_snapshot_destroy(snapshot);
  put(b);
  alloc_close();
}

/* A snapshot shows waiting blocks. */
TEST(pending_in_a_snapshot) {
  weir_backend backend = plug_backend();
  plug_open(&backend, NULL);
  weir_cu_stream other = work_stream();
  void *a = get(700, NULL);
  also_used_by(a, other);
  work(other);
  put(a);
  assert_int_equal(allocated(), 0);
  assert_int_equal(active(), 700);
  assert_int_equal(reserved(), 700);
  weir_snapshot *snapshot = NULL;
  const weir_snapshot_segment *segments = NULL;
  size_t count = 0;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_ok(weir_snapshot_segments(snapshot, &segments, &count));
  assert_int_equal(count, 1);
  assert_int_equal(segments[0].blocks[0].state, WEIR_BLOCK_ACTIVE_PENDING_FREE);
  weir_snapshot_destroy(snapshot);
  soft_step_all();
  empty_cache();
  assert_int_equal(active(), 0);
  assert_int_equal(plugged.frees, 1);
  alloc_close();
}

/* ---- The optional functions ---- */

static void on_init(void *context, int count) {
  plug_log *log = context;
  log->inits += count;
}

static void on_reset(void *context) {
  plug_log *log = context;
  log->resets++;
  if (log->holds)
    log->refuse = 0;
}

static void on_fraction(void *context, double fraction, int device) {
  plug_log *log = context;
  log->fraction = fraction + device;
}

static void *on_base(void *context, void *pointer, size_t *bytes) {
  (void)context;
  *bytes = 4096;
  return (char *)pointer - 64;
}

static void on_stream(void *context, void *pointer, weir_cu_stream stream) {
  plug_log *log = context;
  log->last_freed = pointer;
  log->last_stream = stream;
  note_call("stream", 0, (weir_pool_id){0, 0});
}

static int (*told_filter)(void *context, weir_cu_stream stream);
static void *told_filter_context;
static void on_begin(void *context, int device, weir_pool_id pool, int (*filter)(void *, weir_cu_stream),
                     void *filter_context) {
  (void)context;
  told_filter = filter;
  told_filter_context = filter_context;
  note_call("begin", device, pool);
}
static void on_end(void *context, int device, weir_pool_id pool) {
  (void)context;
  note_call("end", device, pool);
}
static void on_release(void *context, int device, weir_pool_id pool) {
  (void)context;
  note_call("release", device, pool);
}

static int only_odd(void *context, weir_cu_stream stream) {
  (void)context;
  return (uintptr_t)stream & 1;
}

TEST(optional_functions) {
  weir_backend backend = plug_backend();
  backend.init = on_init;
  backend.reset = on_reset;
  backend.set_fraction = on_fraction;
  backend.base = on_base;
  backend.record_stream = on_stream;
  backend.begin_pool = on_begin;
  backend.end_pool = on_end;
  backend.release_pool = on_release;
  plug_open_on(WEIR_SOFT_STEPPED, 2, &backend, "per_process_memory_fraction:0.5");
  assert_int_equal(plugged.inits, 2);
  assert_true(plugged.fraction == 1.5); /* of device 1, the last one */
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.25));
  assert_true(plugged.fraction == 0.25);
  empty_cache();
  assert_int_equal(plugged.resets, 1); /* once, not per device */
  void *a = get(512, NULL), *base = NULL;
  size_t bytes = 0;
  assert_ok(weir_allocator_base(allocator, a, &base, &bytes));
  assert_ptr_equal(base, (char *)a - 64);
  assert_int_equal(bytes, 4096);

  /* The back end handles streams itself, so the allocator does not wait for them. */
  weir_cu_stream other = work_stream();
  work(other);
  also_used_by(a, other);
  assert_ptr_equal(plugged.last_stream, other);
  assert_error(INVALID_ARGUMENT, weir_allocator_record_stream(allocator, (char *)a + 8, other));
  put(a);
  assert_int_equal(plugged.frees, 1);
  soft_step_all();

  weir_pool_id id = {0, 7};
  *plugged.call_log = 0;
  assert_ok(weir_pool_begin(allocator, 1, id, only_odd, &backend));
  assert_true(told_filter == only_odd);
  assert_ptr_equal(told_filter_context, &backend);
  assert_error(BAD_STATE, weir_pool_begin(allocator, 1, id, NULL, NULL));
  assert_ok(weir_pool_end(allocator, 1, id));
  assert_ok(weir_pool_release(allocator, 1, id));
  assert_error(INVALID_ARGUMENT, weir_pool_release(allocator, 1, id));
  assert_string_equal(plugged.call_log, "begin 1 {0,7}; end 1 {0,7}; release 1 {0,7}");
  alloc_close();
}

/* ---- Pools ---- */

static void pool_is_gone(void *context) { ++*(int *)context; }

/* Allocations in a scope belong to the pool, and a pool's own functions take precedence over the back end. */
TEST(pools) {
  weir_backend backend = plug_backend();
  plug_open(&backend, NULL);
  weir_pool_id id = {0, 3}, own = {0, 4};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *a = get(600, NULL), *b = get(2 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  void *c = get(600, NULL), *live[] = {b, a};
  int equal = 0;
  assert_ok(weir_pool_has_exactly(allocator, 0, id, live, 2, &equal));
  assert_int_equal(equal, 1);
  weir_pointer_info info = {.size = sizeof info};
  assert_ok(weir_allocator_describe(allocator, a, &info));
  assert_int_equal(info.pool.second, 3);
  weir_stat held[WEIR_STAT_KINDS];
  assert_ok(weir_pool_reserved_bytes(allocator, 0, id, held));
  assert_int_equal(held[WEIR_STAT_ALL].current, 600 + 2 * MIB);
  weir_checkpoint *checkpoint = NULL;
  assert_error_says(NOT_SUPPORTED, "pluggable", weir_pool_checkpoint(allocator, 0, id, &checkpoint));
  assert_ok(weir_pool_release(allocator, 0, id));
  put(a);
  put(b);
  empty_cache();
  assert_error(INVALID_ARGUMENT, weir_pool_use_count(allocator, 0, id, &equal)); /* destroyed */
  assert_ok(weir_pool_reserved_bytes(allocator, 0, id, held));
  assert_int_equal(held[WEIR_STAT_ALL].current, 0);

  plug_log other = {0};
  int gone = 0, before = plugged.allocs;
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = plug_alloc;
  options.free = count_free;
  options.context = &other;
  old_allocator_frees = 0;
  assert_ok(weir_pool_create(allocator, 0, own, &options));
  assert_ok(weir_pool_begin(allocator, 0, own, NULL, NULL));
  a = get(500, NULL);
  assert_int_equal(other.allocs, 1);
  assert_int_equal(plugged.allocs, before);
  assert_ok(weir_pool_end(allocator, 0, own));
  put(a);
  assert_int_equal(old_allocator_frees, 1);
  assert_ok(weir_pool_release(allocator, 0, own));
  assert_ok(weir_pool_release(allocator, 0, own));
  empty_cache();
  put(c);

  options.context = &gone;
  options.alloc = NULL;
  options.free = NULL;
  options.destroy = pool_is_gone;
  assert_ok(weir_pool_create(allocator, 0, own, &options));
  assert_ok(weir_pool_release(allocator, 0, own));
  assert_int_equal(gone, 0);
  empty_cache();
  assert_int_equal(gone, 1);
  alloc_close();
}

/* ---- Out of memory ---- */

static size_t oom_bytes;
static void on_oom(void *context, const weir_shortage *shortage) {
  (void)context;
  oom_bytes = shortage->wanted + shortage->limit;
}

static void *to_free;
static int free_one(void *context, int device) {
  (void)context;
  (void)device;
  if (!to_free)
    return 0;
  assert_ok(weir_allocator_free(allocator, to_free));
  to_free = NULL;
  return 1;
}

TEST(out_of_memory) {
  weir_backend backend = plug_backend();
  backend.reset = on_reset;
  plug_open(&backend, NULL);
  *heard = 0;
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = on_oom)));
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = hear)));
  void *p = NULL;
  plugged.refuse = -1;
  assert_error_says(OUT_OF_MEMORY, "Tried to allocate 3.00 MiB", weir_allocator_alloc(allocator, 0, 3 * MIB, NULL, &p));
  assert_null(p);
  assert_int_equal(oom_bytes, 3 * MIB + GIB);
  assert_int_equal(plugged.resets, 1);
  assert_string_equal(heard, "oom 3145728");
  assert_int_equal(stats_of(0).num_ooms, 1);
  assert_int_equal(stats_of(0).num_alloc_retries, 1);
  assert_valid();

  /* The back end releases memory on request. */
  plugged.holds = 1;
  p = get(3 * MIB, NULL);
  assert_int_equal(plugged.resets, 2);
  assert_int_equal(stats_of(0).num_ooms, 1);
  put(p);
  alloc_close();
}

TEST(limits) {
  weir_backend backend = plug_backend();
  plug_open(&backend, NULL);
  assert_ok(weir_allocator_set_limit(allocator, 0, 10 * MIB));
  void *a = get(6 * MIB, NULL), *b = NULL;
  assert_error_says(OUT_OF_MEMORY, "10.00 MiB allowed", weir_allocator_alloc(allocator, 0, 6 * MIB, NULL, &b));
  assert_int_equal(plugged.allocs, 1); /* the back end was not called */
  b = get(4 * MIB, NULL);
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 1, NULL, &a));
  put(b);

  /* A callback frees memory, and so does waiting for a stream. */
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = free_one)));
  to_free = a;
  b = get(8 * MIB, NULL);
  assert_null(to_free);
  weir_cu_stream other = work_stream();
  also_used_by(b, other);
  work(other);
  put(b);
  assert_int_equal(reserved(), 8 * MIB);
  b = get(8 * MIB, NULL);
  assert_int_equal(stats_of(0).num_sync_all_streams > 0, 1);
  put(b);
  assert_ok(weir_allocator_set_limit(allocator, 0, SIZE_MAX));
  configure("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.01");
  assert_error_says(OUT_OF_MEMORY, "preemptively", weir_allocator_alloc(allocator, 0, 20 * MIB, NULL, &b));
  assert_int_equal(stats_of(0).num_oom_rejections, 1);
  alloc_close();
}

/* ---- Invalid and unusual back ends ---- */

static void *same_again(void *context, size_t bytes, int device, weir_cu_stream stream) {
  static char memory[64];
  (void)context;
  (void)bytes;
  (void)device;
  (void)stream;
  return memory;
}
static void keep(void *context, void *p, size_t bytes, int device, weir_cu_stream stream) {
  (void)p;
  (void)bytes;
  (void)device;
  (void)stream;
  ++*(int *)context;
}

TEST(memory_twice) {
  int kept = 0;
  weir_backend backend = {.size = sizeof backend, .name = "twice", .context = &kept, .alloc = same_again, .free = keep};
  plug_open(&backend, NULL);
  void *a = get(16, NULL), *b = NULL;
  assert_error_says(BAD_STATE, "twice returned memory", weir_allocator_alloc(allocator, 0, 16, NULL, &b));
  assert_null(b);
  assert_int_equal(kept, 0);
  assert_valid();
  put(a);
  assert_int_equal(kept, 1);
  alloc_close();
}

/* Small adjacent pieces of any alignment, in one page and of several streams. */
static char pieces[4096];
static size_t pieces_used;
static void *next_piece(void *context, size_t bytes, int device, weir_cu_stream stream) {
  (void)context;
  (void)device;
  (void)stream;
  void *p = pieces + pieces_used;
  pieces_used += bytes;
  return p;
}

TEST(small_pieces) {
  int kept = 0;
  weir_backend backend = {.size = sizeof backend, .context = &kept, .alloc = next_piece, .free = keep};
  plug_open(&backend, NULL);
  weir_cu_stream streams[] = {NULL, work_stream(), work_stream()};
  void *all[300];
  pieces_used = 1;
  for (int i = 0; i < 300; i++)
    all[i] = get(1 + (size_t)i % 7, streams[i % 3]);
  for (int i = 0; i < 300; i++)
    put(all[(i * 7) % 300]);
  assert_int_equal(kept, 300);
  assert_int_equal(active(), 0);
  alloc_close();
}

/* The back end is called without locks and may allocate, from another allocator or from this one. */
static void *alloc_inside(void *context, size_t bytes, int device, weir_cu_stream stream) {
  plug_log *log = context;
  if (bytes == 777 && log->holds == 0) {
    void *p = NULL;
    log->holds = 1;
    assert_ok(weir_allocator_alloc(allocator, device, 100, stream, &p));
    assert_ok(weir_allocator_empty_cache(allocator));
    assert_ok(weir_allocator_free(allocator, p));
  }
  return plug_alloc(context, bytes, device, stream);
}

TEST(calls_from_inside) {
  weir_backend backend = plug_backend();
  backend.alloc = alloc_inside;
  plug_open(&backend, NULL);
  assert_ok(weir_history_record(allocator, NULL));
  put(get(777, NULL));
  assert_int_equal(plugged.allocs, 2);
  assert_int_equal(plugged.frees, 2);
  assert_error_says(NOT_SUPPORTED, "allocation at an address",
                    weir_allocator_alloc_at(allocator, 0, 512, NULL, (void *)4096));
  alloc_close();
}
