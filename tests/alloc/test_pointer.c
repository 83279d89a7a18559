/*
 * Calls for language runtimes: properties of a pointer, allocations at an address, sizes of expandable segments, pools
 * that change and are destroyed, and captures by other code.
 */
#include <string.h>

#include "support/alloc.h"
#include "weir/history.h"
#include "weir/snapshot.h"

/* ---- Properties of a pointer ---- */

FIXTURE(.teardown = alloc_teardown)

TEST(describe) {
  alloc_open(NULL, GIB);
  weir_cu_stream stream = work_stream();
  weir_pool_id id = {0, 5};
  void *a = get(1000, stream);
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *b = get(3 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  weir_pointer_info info = {.size = sizeof info};
  assert_ok(weir_allocator_describe(allocator, a, &info));
  assert_int_equal(info.device, 0);
  assert_ptr_equal(info.stream, stream);
  assert_int_equal(info.bytes, 1024);
  assert_int_equal(info.requested, 1000);
  assert_int_equal(info.stack, 0);
  assert_int_equal(info.is_large, 0);
  assert_int_equal(info.is_expandable, 0);
  assert_int_equal(info.pool.first | info.pool.second, 0);
  assert_ok(weir_allocator_describe(allocator, b, &info));
  assert_int_equal(info.is_large, 1);
  assert_int_equal(info.pool.second, 5);
  weir_pointer_info old = {.size = offsetof(weir_pointer_info, bytes), .bytes = 77};
  assert_ok(weir_allocator_describe(allocator, a, &old));
  assert_int_equal(old.bytes, 77);
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(allocator, (char *)a + 512, &info));
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(allocator, NULL, &info));
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(allocator, a, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(NULL, a, &info));
  put(a);
  put(b);
  assert_error(INVALID_ARGUMENT, weir_allocator_describe(allocator, a, &info));
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

/* A hook that identifies a stack of its runtime by a number. */
static int hook_id;
static size_t hook(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  if (room < 2)
    return 0;
  frames[0] = (weir_stack_frame){.file = weir_history_text("runtime:context"), .line = hook_id};
  frames[1] = (weir_stack_frame){weir_history_text("model.py"), weir_history_text("forward"), 12};
  return 2;
}

TEST(contexts_of_a_runtime) {
  alloc_open(NULL, GIB);
  weir_history_options options;
  weir_history_options_init(&options);
  options.stacks = WEIR_STACKS_LANGUAGE;
  options.context = WEIR_CONTEXT_ALLOC;
  assert_int_equal(is_recording(allocator), 0);
  assert_ok(weir_history_record(allocator, &options));
  assert_int_equal(is_recording(allocator), 1);
  weir_stack_set_hook(hook, NULL);
  hook_id = 41;
  void *a = get(1000, NULL), *c = get(1000, NULL);
  hook_id = 42;
  void *b = get(1000, NULL);
  weir_stack_set_hook(NULL, NULL);
  weir_pointer_info of_a = {.size = sizeof of_a}, of_b = of_a, of_c = of_a;
  assert_ok(weir_allocator_describe(allocator, a, &of_a));
  assert_ok(weir_allocator_describe(allocator, b, &of_b));
  assert_ok(weir_allocator_describe(allocator, c, &of_c));
  assert_int_not_equal(of_a.stack, 0);
  assert_int_equal(of_c.stack, of_a.stack); /* equal stacks are stored once */
  assert_int_not_equal(of_b.stack, of_a.stack);
  weir_stack_frame frames[4];
  assert_int_equal(weir_history_frames(of_b.stack, frames, 4), 2);
  assert_int_equal(frames[0].line, 42);
  assert_string_equal(weir_history_text_of(frames[0].file), "runtime:context");
  assert_string_equal(weir_history_text_of(frames[1].function), "forward");
  assert_int_equal(weir_history_frames(of_a.stack, frames, 1), 2); /* the full depth */
  assert_int_equal(frames[0].line, 41);
  assert_int_equal(weir_history_frames(0, frames, 4), 0);
  assert_int_equal(weir_history_frames(0x7fffffff, NULL, 0), 0);
  assert_string_equal(weir_history_text_of(0), "");

  /* Events have the number too; a free has that of the allocation. */
  put(a);
  assert_ok(weir_history_mark_pointer(allocator, b, "weights"));
  assert_error_says(INVALID_ARGUMENT, "no live allocation found", weir_history_mark_pointer(allocator, a, "gone"));
  const char *pairs[] = {"name", "step", "stage", "START"};
  assert_ok(weir_history_annotate(allocator, 0, pairs, 2));
  weir_snapshot *snapshot = NULL;
  uint64_t count = 0, dropped = 0;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_ok(weir_snapshot_entries(snapshot, 0, &count, &dropped));
  assert_int_equal(count, 7); /* a segment, three allocations, a free, a mark */
  weir_snapshot_entry event = {.size = sizeof event};
  assert_ok(weir_snapshot_entry_at(snapshot, 0, 3, &event));
  assert_int_equal(event.action, WEIR_TRACE_ALLOC);
  assert_int_equal(event.address, (uint64_t)b);
  assert_int_equal(event.stack, of_b.stack);
  assert_string_equal(event.compile_context, "N/A");
  assert_string_equal(event.user_metadata, "");
  int64_t time = event.time_us;
  assert_true(time > 1000000000ll * 1000000);
  assert_ok(weir_snapshot_entry_at(snapshot, 0, 4, &event));
  assert_int_equal(event.action, WEIR_TRACE_FREE_REQUESTED);
  assert_int_equal(event.stack, of_a.stack);
  assert_true(event.time_us >= time);
  assert_ok(weir_snapshot_entry_at(snapshot, 0, 6, &event));
  assert_int_equal(event.action, WEIR_TRACE_ANNOTATE);
  assert_int_equal(event.address, (uint64_t)b);
  assert_int_equal(event.bytes, 1000);
  assert_string_equal(event.user_metadata, "weights");
  assert_error(INVALID_ARGUMENT, weir_snapshot_entry_at(snapshot, 0, 7, &event));
  assert_error(INVALID_DEVICE, weir_snapshot_entry_at(snapshot, 1, 0, &event));
  assert_error(INVALID_ARGUMENT, weir_snapshot_entry_at(snapshot, 0, 0, NULL));

  weir_snapshot_annotation annotation = {.size = sizeof annotation};
  const char *key = NULL, *value = NULL;
  size_t annotations;
  assert_ok(weir_snapshot_annotations(snapshot, &annotations));
  assert_int_equal(annotations, 1);
  assert_ok(weir_snapshot_annotation_at(snapshot, 0, &annotation));
  assert_int_equal(annotation.device, 0);
  assert_int_equal(annotation.pair_count, 2);
  assert_ok(weir_snapshot_annotation_pair(snapshot, 0, 1, &key, &value));
  assert_string_equal(key, "stage");
  assert_string_equal(value, "START");
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_pair(snapshot, 0, 2, &key, &value));
  assert_error(INVALID_ARGUMENT, weir_snapshot_annotation_at(snapshot, 1, &annotation));
  weir_snapshot_destroy(snapshot);
  put(b);
  put(c);
  alloc_close();
}

/* ---- At an address ---- */

static weir_status at(void *address, size_t bytes, weir_cu_stream stream) {
  weir_status status = weir_allocator_alloc_at(allocator, 0, bytes, stream, address);
  assert_valid();
  return status;
}

TEST(alloc_at) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  char *base = get(512, NULL);
  put(base);
  assert_ok(at(base + 4096, 1000, NULL));
  assert_layout(base, "4K 1K* 2043K");
  assert_ok(at(base, 512, NULL)); /* at the beginning */
  assert_layout(base, "512* 3584 1K* 2043K");
  assert_ok(at(base + 512, 3584, NULL)); /* a whole block */
  assert_layout(base, "512* 3584* 1K* 2043K");
  assert_error_says(BAD_STATE, "exact address",
                    weir_allocator_alloc_at(allocator, 0, 512, NULL, base + 4096)); /* in use */
  assert_error_says(
      BAD_STATE, "exact address",
      weir_allocator_alloc_at(allocator, 0, 1024, NULL, base + 5120 + 2043 * KIB - 512)); /* beyond the end */
  assert_error_says(BAD_STATE, "exact address", weir_allocator_alloc_at(allocator, 0, 512, other, base + 8192));
  assert_error_says(BAD_STATE, "exact address",
                    weir_allocator_alloc_at(allocator, 0, 2 * MIB, NULL, base + 8192)); /* of the other pool */
  assert_error_says(BAD_STATE, "exact address", weir_allocator_alloc_at(allocator, 0, 512, NULL, (void *)512));
  assert_error_says(INVALID_ARGUMENT, "not aligned", weir_allocator_alloc_at(allocator, 0, 512, NULL, base + 100));
  assert_error(INVALID_ARGUMENT, weir_allocator_alloc_at(allocator, 0, 0, NULL, base));
  assert_error(INVALID_DEVICE, weir_allocator_alloc_at(allocator, 1, 512, NULL, base));
  assert_error(INVALID_ARGUMENT, weir_allocator_alloc_at(NULL, 0, 512, NULL, base));
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].current, 3);
  put(base + 512);
  put(base);
  put(base + 4096);
  assert_layout(base, "2M");
  alloc_close();
}

static char heard[256];
static void hear(void *context, const weir_trace_entry *entry) {
  size_t used = strlen(heard);
  (void)context;
  snprintf(heard + used, sizeof heard - used, "%s%d:%d", used ? " " : "", (int)entry->action, (int)entry->bytes);
}

TEST(alloc_at_is_traced) {
  alloc_open(NULL, GIB);
  char *base = get(512, NULL);
  put(base);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = hear)));
  *heard = 0;
  assert_ok(at(base + 2048, 600, NULL));
  assert_string_equal(heard, "0:2048 0:600 1:2048 2:2048");
  put(base + 2048);
  alloc_close();
}

/* In a scope the address must be in the pool, and in an expandable segment it must be mapped. */
TEST(alloc_at_elsewhere) {
  alloc_open("expandable_segments:True", GIB);
  weir_pool_id id = {0, 2};
  char *a = get(30 * MIB, NULL);
  put(a);
  assert_ok(at(a + 4 * MIB, 3 * MIB, NULL));
  assert_error(BAD_STATE, weir_allocator_alloc_at(allocator, 0, 2 * MIB, NULL, a + 39 * MIB)); /* 40 MiB are mapped */
  put(a + 4 * MIB);
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  char *b = get(2 * MIB, NULL);
  put(b);
  assert_error(BAD_STATE, weir_allocator_alloc_at(allocator, 0, 2 * MIB, NULL, a));
  assert_ok(at(b + MIB, 2 * MIB, NULL));
  assert_ok(weir_pool_end(allocator, 0, id));
  put(b + MIB);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

/* ---- Segments and pools ---- */

TEST(expandable_segments) {
  alloc_open("expandable_segments:True", GIB);
  weir_cu_stream stream = work_stream();
  size_t count = 7;
  weir_expandable_segment found[4];
  weir_expandable_segment_init(found);
  assert_ok(weir_allocator_expandable_segments(allocator, 0, found, 4, &count));
  assert_int_equal(count, 0);
  void *a = get(100, stream), *b = get(30 * MIB, stream);
  assert_ok(weir_allocator_expandable_segments(allocator, 0, found, 4, &count));
  assert_int_equal(count, 2);
  int small = found[0].is_small ? 0 : 1;
  assert_ptr_equal(found[small].stream, stream);
  assert_int_equal(found[small].bytes, 2 * MIB);
  assert_int_equal(found[1 - small].is_small, 0);
  assert_int_equal(found[1 - small].bytes, 40 * MIB);
  assert_int_equal(found[1].size, sizeof found[1]);
  struct {
    weir_expandable_segment known;
    uint64_t later;
  } newer[2] = {{.known.size = sizeof newer[0], .later = 1}, {.later = 2}}; /* of a program that knows more fields */
  assert_ok(weir_allocator_expandable_segments(allocator, 0, &newer[0].known, 2, &count));
  for (int i = 0; i < 2; i++) {
    assert_int_equal(newer[i].known.size, sizeof newer[i]);
    assert_int_equal(newer[i].known.bytes, found[i].bytes);
    assert_int_equal(newer[i].later, i + 1);
  }
  assert_ok(weir_allocator_expandable_segments(allocator, 0, NULL, 0, &count));
  assert_int_equal(count, 2);
  configure("expandable_segments:False");
  void *c = get(100, NULL); /* not in an expandable segment */
  assert_ok(weir_allocator_expandable_segments(allocator, 0, found, 1, &count));
  assert_int_equal(count, 2);
  assert_error(INVALID_DEVICE, weir_allocator_expandable_segments(allocator, 2, found, 1, &count));
  assert_error(INVALID_ARGUMENT, weir_allocator_expandable_segments(allocator, 0, NULL, 1, &count));
  put(a);
  put(b);
  put(c);
  alloc_close();
}

TEST(no_split) {
  alloc_open(NULL, GIB);
  weir_pool_id id = {0, 9};
  assert_error(INVALID_ARGUMENT, weir_pool_set_no_split(allocator, 0, id, 1));
  assert_ok(weir_pool_create(allocator, 0, id, NULL));
  assert_ok(weir_pool_set_no_split(allocator, 0, id, 1));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *a = get(512, NULL);
  assert_layout(a, "2M*");
  assert_ok(weir_pool_set_no_split(allocator, 0, id, 0));
  void *b = get(512, NULL);
  assert_layout(b, "512* 2096640");
  assert_ok(weir_pool_end(allocator, 0, id));
  put(a);
  put(b);
  assert_ok(weir_pool_release(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

static void is_gone(void *context) {
  size_t bytes;
  ++*(int *)context;
  assert_ok(weir_allocator_largest_block(allocator, 0, &bytes)); /* no lock is held */
}

static void count_only(void *context) { ++*(int *)context; }

/* The owner of a pool is notified of its destruction: at the next opportunity after the last release, or when the
 * allocator is destroyed. */
TEST(end_of_a_pool) {
  alloc_open(NULL, GIB);
  weir_pool_id one = {0, 1}, two = {0, 2}, three = {0, 3};
  int gone = 0, left = 0;
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.context = &gone;
  options.destroy = is_gone;
  assert_ok(weir_pool_create(allocator, 0, one, &options));
  assert_ok(weir_pool_create(allocator, 0, two, &options));
  assert_ok(weir_pool_begin(allocator, 0, one, NULL, NULL));
  void *a = get(512, NULL);
  assert_ok(weir_pool_end(allocator, 0, one));
  assert_ok(weir_pool_release(allocator, 0, one));
  assert_ok(weir_pool_release(allocator, 0, one));
  empty_cache();
  assert_int_equal(gone, 0); /* memory of the pool is in use */
  put(a);
  assert_ok(weir_allocator_empty_pool(allocator, one));
  assert_int_equal(gone, 1);
  assert_ok(weir_pool_release(allocator, 0, two));
  void *p = NULL;
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 2 * GIB, NULL, &p));
  assert_int_equal(gone, 2); /* running out of memory is an opportunity too */
  for (uint64_t i = 0; i < 300; i++) {
    assert_ok(weir_pool_create(allocator, 0, (weir_pool_id){9, i}, &options));
    assert_ok(weir_pool_release(allocator, 0, (weir_pool_id){9, i}));
  }
  assert_int_equal(gone, 256); /* every 256th new pool frees the released ones */
  options.context = &left;
  options.destroy = count_only;
  assert_ok(weir_pool_create(allocator, 0, three, &options));
  alloc_close();
  assert_int_equal(left, 1);
}

/* ---- Watching ---- */

static size_t rejected[3];
static void on_rejection(void *context, const weir_shortage *shortage) {
  (void)context;
  rejected[0] = shortage->wanted;
  rejected[1] = shortage->reserved;
  rejected[2] = shortage->total;
  put(get(100, NULL)); /* no lock is held */
}

TEST(rejections) {
  alloc_open("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.25", GIB);
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.rejection = on_rejection)));
  void *a = get(30 * MIB, NULL), *s = get(100, NULL), *p = NULL;
  assert_error_says(OUT_OF_MEMORY, "preemptively", weir_allocator_alloc(allocator, 0, 300 * MIB, NULL, &p));
  assert_int_equal(rejected[0], 300 * MIB);
  assert_int_equal(rejected[1], 32 * MIB);
  assert_int_equal(rejected[2], GIB);
  weir_shortage shortage = {.size = sizeof shortage};
  assert_ok(weir_last_shortage(&shortage));
  assert_true(shortage.is_rejection);
  assert_int_equal(shortage.limit, 256 * MIB);
  assert_error(INVALID_ARGUMENT, weir_allocator_attach(allocator, OBSERVER(.rejection = NULL)));
  for (int i = 1; i < WEIR__MAX_OBSERVERS; i++)
    assert_ok(weir_allocator_attach(allocator, OBSERVER(.rejection = on_rejection)));
  assert_error(BAD_STATE, weir_allocator_attach(allocator, OBSERVER(.rejection = on_rejection)));
  put(a);
  put(s);
  alloc_close();
}

/* ---- Captures by other code ---- */

TEST(foreign_capture) {
  alloc_open(NULL, GIB);
  weir_cu_stream stream = work_stream(), other = work_stream();
  weir_pool_id id = {7, 0};
  void *a = get(512, stream);
  also_used_by(a, other);
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *b = get(30 * MIB, stream); /* a driver call, which leaves the capture valid */
  put(a);                          /* no event is recorded */
  put(b);
  empty_cache();
  int status = 0;
  assert_cu(d->StreamIsCapturing(d, stream, &status));
  assert_int_equal(status, WEIR_CU_CAPTURE_STATUS_ACTIVE);
  assert_ok(weir_pool_end(allocator, 0, id));
  weir_cu_graph graph = NULL;
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_ok(weir_allocator_end_capture(allocator, 0));
  assert_int_equal(active(), 512);
  put(get(512, other));
  soft_step_all();
  put(get(512, other)); /* polls again */
  assert_int_equal(active(), 0);
  assert_error(BAD_STATE, weir_allocator_end_capture(allocator, 0));
  assert_error(INVALID_DEVICE, weir_allocator_begin_capture(allocator, 4));
  assert_error(INVALID_ARGUMENT, weir_allocator_begin_capture(NULL, 0));
  assert_error(INVALID_ARGUMENT, weir_allocator_end_capture(NULL, 0));
  assert_ok(weir_pool_release(allocator, 0, id));
  assert_cu(d->GraphDestroy(d, graph));
  alloc_close();
}
