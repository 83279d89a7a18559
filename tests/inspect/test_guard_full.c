/*
 * Full guard on the software device: the access itself is reported, with the block that it was meant for.
 */
#include "guard_fixture.h"

#include "weir/soft.h"

FIXTURE(.teardown = alloc_teardown)

/* ---- A kernel that accesses one byte ---- */

static weir_cu_result touch_kernel(const weir_soft_launch *launch) {
  unsigned char *at;
  uint64_t writes;
  memcpy(&at, launch->params[0], sizeof at);
  memcpy(&writes, launch->params[1], sizeof writes);
  if (writes)
    *(volatile unsigned char *)at = 1;
  else
    (void)*(volatile unsigned char *)at;
  return WEIR_CU_SUCCESS;
}

static weir_cu_module launch_touch(const void *block, int64_t offset, bool writes, weir_cu_stream stream) {
  static const size_t sizes[] = {8, 8};
  weir_cu_module module;
  weir_cu_function function;
  uint64_t address = (uint64_t)block + (uint64_t)offset, is_write = writes;
  weir_soft_register_kernel(d, "touch", touch_kernel, 2, sizes); /* fails the second time */
  assert_cu(d->ModuleLoadData(d, &module, ".version 6.0\n.entry touch(.param .u64 a, .param .u64 b)"));
  assert_cu(d->ModuleGetFunction(d, &function, module, "touch"));
  void *params[] = {&address, &is_write};
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  return module;
}

static void touch(const void *block, int64_t offset, bool writes, weir_cu_stream stream) {
  weir_cu_module module = launch_touch(block, offset, writes, stream);
  soft_step_all();
  d->ModuleUnload(d, module); /* fails if the context is lost */
}

/* ---- Where blocks are ---- */

TEST(blocks_end_where_their_pages_end) {
  open_guarded("full", "");
  for (size_t bytes = 1; bytes < 9 * MIB; bytes = bytes * 3 + 1) {
    char *p = get(bytes, NULL);
    uint64_t end = (uint64_t)p + (bytes + 511) / 512 * 512;
    assert_int_equal(end % (2 * MIB), 0);
    assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, end, 0, 1, NULL));
    assert_int_equal(reserved(), (int64_t)((bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB)));
    put(p);
    assert_int_equal(reserved(), 0);
  }
  alloc_close();
}

TEST(freed_addresses_are_not_used_again) {
  open_guarded("full", "");
  void *last = NULL;
  for (int i = 0; i < 200; i++) {
    void *p = get(1000, NULL);
    assert_true(p > last);
    last = p;
    put(p);
  }
  alloc_close();
}

/* ---- Accesses ---- */

static void kernel_reads_past_the_end(bool bug) {
  void *p = get(1024, NULL);
  touch(p, bug ? 1024 : 1023, false, NULL);
}

static void kernel_writes_past_the_end(bool bug) {
  void *p = get(4 * MIB, NULL);
  touch(p, bug ? 4 * MIB + 100 : 4 * MIB - 1, true, work_stream());
}

static void kernel_writes_far_before(bool bug) {
  char *p = get(512, NULL);
  touch(p, bug ? -(int64_t)(3 * MIB) : 0, true, NULL);
}

static void memset_past_the_end(bool bug) {
  void *p = get(2048, NULL);
  d->MemsetD8Async(d, (uint64_t)p, 0, bug ? 2049 : 2048, NULL);
  put(p);
}

static void copy_reads_past_the_end(bool bug) {
  char *p = get(1024, NULL), *q = get(4096, NULL);
  d->MemcpyAsync(d, (uint64_t)q, (uint64_t)p, bug ? 1025 : 1024, NULL);
  put(p);
  put(q);
}

static void write_in_the_last_unit(bool bug) {
  void *p = get(1000, NULL);
  write_bytes(p, 0, bug ? 1001 : 1000, NULL);
  put(p);
}

static void write_just_before(bool bug) {
  void *p = get(1000, NULL);
  write_bytes(p, bug ? -1 : 0, 1, NULL);
  put(p);
}

TEST(accesses_outside_of_a_block) {
  static const planted bugs[] = {
      {.kind = "out_of_bounds", .run = kernel_reads_past_the_end, .offset = 1024, .breaks = true},
      {.kind = "out_of_bounds", .run = kernel_writes_past_the_end, .offset = 4 * MIB + 100, .breaks = true},
      {.kind = "out_of_bounds", .run = kernel_writes_far_before, .offset = -(int64_t)(3 * MIB), .breaks = true},
      {.kind = "out_of_bounds", .run = memset_past_the_end, .offset = 2048},
      {.kind = "out_of_bounds", .run = copy_reads_past_the_end, .offset = 1024},
      {.kind = "out_of_bounds", .run = write_in_the_last_unit, .offset = 1000, .is_freed = true},
      {.kind = "out_of_bounds", .run = write_just_before, .offset = -1, .is_freed = true},
  };
  run_planted("full", bugs, WEIR_COUNT_OF(bugs));
}

static void kernel_reads_after_free(bool bug) {
  void *p = get(3000, NULL);
  if (!bug)
    touch(p, 10, false, NULL);
  put(p);
  if (bug)
    touch(p, 10, false, NULL);
}

static void memset_after_free(bool bug) {
  weir_cu_stream other = work_stream();
  void *p = get(3000, other);
  put(p);
  if (bug)
    d->MemsetD8Async(d, (uint64_t)p + 7, 0, 1, other);
}

static void kernel_reads_what_another_stream_freed(bool bug) {
  weir_cu_stream other = work_stream();
  void *p = get(8 * MIB, NULL);
  if (!bug)
    also_used_by(p, other);
  put(p);
  touch(p, bug ? 5 * MIB : 0, true, bug ? other : NULL);
}

static void copy_after_the_cache_was_emptied(bool bug) {
  char *p = get(1000, NULL), *q = get(1000, NULL);
  put(p);
  assert_ok(weir_allocator_empty_cache(allocator));
  if (bug)
    d->MemcpyAsync(d, (uint64_t)q, (uint64_t)p + 1, 10, NULL);
  put(q);
}

TEST(accesses_after_free) {
  static const planted bugs[] = {
      {.kind = "use_after_free", .run = kernel_reads_after_free, .offset = 10, .is_freed = true, .breaks = true},
      {.kind = "use_after_free", .run = memset_after_free, .offset = 7, .is_freed = true},
      {.kind = "use_after_free",
       .run = kernel_reads_what_another_stream_freed,
       .offset = 5 * MIB,
       .is_freed = true,
       .breaks = true},
      {.kind = "use_after_free", .run = copy_after_the_cache_was_emptied, .offset = 1, .is_freed = true},
  };
  run_planted("full", bugs, WEIR_COUNT_OF(bugs));
}

/* The worker that runs the kernel reports, while the program waits. */
TEST(threads_of_the_device_report) {
  here = "elsewhere";
  weir_stack_set_hook(stack_hook, NULL);
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, "guard:full");
  weir_cu_stream stream = work_stream();
  void *p = get(1024, stream);
  assert_cu(d->StreamSynchronize(d, stream));
  launch_touch(p, 1024, true, stream);
  assert_cu_error(ILLEGAL_ADDRESS, d->StreamSynchronize(d, stream));
  findings();
  assert_kind("out_of_bounds");
  assert_has("offset", 1024);
  assert_non_null(strstr(json, "\"access\": \"write\", \"work\": \"touch\""));
  assert_stack("alloc_stack", "allocating");
  alloc_teardown(NULL);
}

/* Memory of one device, used by another one that has no access to it. */
TEST(the_wrong_device) {
  weir_cu_context context;
  here = "elsewhere";
  weir_stack_set_hook(stack_hook, NULL);
  for (int bug = 0; bug <= 1; bug++) {
    alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "guard:full");
    here = "allocating";
    void *p = get_on(0, 4096, NULL);
    assert_cu(d->DevicePrimaryCtxRetain(d, &context, bug));
    assert_cu(d->CtxSetCurrent(d, context));
    weir_cu_result r = d->MemsetD8Async(d, (uint64_t)p + 7, 0, 1, NULL);
    assert_int_equal(r, bug ? WEIR_CU_INVALID_VALUE : WEIR_CU_SUCCESS);
    assert_cu(d->DevicePrimaryCtxRelease(d, bug));
    assert_int_equal(found(), bug);
    findings();
    if (bug) {
      assert_kind("wrong_device");
      assert_has("offset", 7);
      assert_stack("alloc_stack", "allocating");
    }
    assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
    assert_cu(d->CtxSetCurrent(d, context));
    assert_cu(d->DevicePrimaryCtxRelease(d, 0));
    put(p);
    alloc_close();
  }
}

/* ---- Without an address: the candidates ---- */

TEST(a_lost_context_names_candidates) {
  open_guarded("full", "");
  void *p = get(1000, NULL), *q = get(2000, NULL);
  put(q);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_StreamSynchronize, 1, WEIR_CU_ILLEGAL_ADDRESS, 1));
  weir_allocator_free(allocator, p);
  assert_ok(weir_fault_clear(faults));
  assert_int_equal(found(), 1);
  findings();
  assert_kind("fault");
  assert_non_null(strstr(json, "\"work\": \"CUDA_ERROR_ILLEGAL_ADDRESS\""));
  assert_non_null(strstr(json, "\"candidates\": [{"));
  assert_has("requested", 1000);
  assert_has("requested", 2000);
  assert_stack("alloc_stack", "allocating");
  assert_stack("free_stack", "freeing");
  alloc_teardown(NULL);
}

/* A driver that does not name what faults is not waited for: a fence unmaps the pages. */
TEST(without_names_of_faults_nothing_waits) {
  open_guarded("full", "");
  faults->capabilities &= ~(uint64_t)WEIR_DRIVER_NAMES_FAULTS;
  weir_cu_stream stream = work_stream();
  void *p = get(1000, stream);
  work(stream);
  put(p);
  assert_int_equal(reserved(), 2 * MIB);
  soft_step_all();
  p = get(2 * MIB, NULL); /* polls */
  soft_step_all();
  put(p); /* its ends need no checks, so its stream is idle, which needs no fence */
  assert_int_equal(reserved(), 0);
  assert_int_equal(found(), 0);
  alloc_close();
}

/* ---- Captures ---- */

/* What a graph writes to at each replay stays mapped. */
TEST(memory_of_graphs_stays_mapped) {
  weir_pool_id id = {0, 9};
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  open_guarded("full", "");
  weir_cu_stream stream = work_stream();
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  void *p = get(1000, stream);
  write_bytes(p, 0, 1000, stream);
  put(p);
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_allocator_end_capture(allocator, 0));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->GraphLaunch(d, exec, stream));
  soft_step_all();
  assert_int_equal(found(), 0);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

/* A block of the default pool that is freed during a capture is unmapped after it. */
TEST(frees_during_a_capture_wait) {
  open_guarded("full", "");
  void *p = get(1000, NULL);
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  put(p);
  assert_int_equal(reserved(), 2 * MIB);
  assert_ok(weir_allocator_end_capture(allocator, 0));
  put(get(1, NULL));
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* ---- Faults of the driver ---- */

static void open_for_faults(const void *conf) { open_guarded("full", conf); }

static void act_on_faults(void) {
  void *p = get_live(0, 1000, NULL);
  get_live(0, 3 * MIB, NULL);
  put_live(p);
  weir_guard_check(allocator, NULL);
  put_all_live();
  weir_allocator_empty_cache(allocator);
  get_live(0, 1000, NULL);
}

static void close_after_faults(void) {
  assert_ok(weir_fault_clear(faults));
  put_all_live();
  assert_valid();
  assert_ok(weir_allocator_empty_cache(allocator));
  assert_int_equal(reserved(), 0);
  alloc_close();
}

TEST(driver_faults) { sweep_driver_calls(&(fault_sweep){open_for_faults, act_on_faults, close_after_faults, ""}); }
