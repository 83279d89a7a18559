/*
 * Out of memory from the text of the error: messages of each version, as people paste them.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/message.h"
#include "support/test.h"

#define KIB(n) ((uint64_t)((n)*1024.0))
#define MIB(n) ((uint64_t)((n)*1048576.0))
#define GIB(n) ((uint64_t)((n)*1073741824.0))

static weir__messages found;

static void find(const char *text) {
  size_t size = strlen(text);
  char *copy = malloc(size);
  assert_non_null(copy);
  memcpy(copy, text, size); /* NOLINT(bugprone-not-null-terminated-result): so that an overrun is found */
  weir__messages_free(&found);
  assert_int_equal(weir__messages_find(copy, size, &found), WEIR_OK);
  weir__messages_derive(&found);
  free(copy);
}

static const weir__message *find_one(const char *text) {
  find(text);
  assert_int_equal(found.count, 1);
  return &found.items[0];
}

static int tear_down(void **state) {
  (void)state;
  weir__messages_free(&found);
  return 0;
}

/* The figure is what a text with two decimals stands for. */
static void check_at(weir__figure f, uint64_t bytes, uint64_t unit, int line) {
  if (!f.is_known || f.least > bytes || f.most < bytes || f.most - f.least > unit / 50)
    fail_msg("line %d: %d, %llu to %llu, expected %llu", line, f.is_known, (unsigned long long)f.least,
             (unsigned long long)f.most, (unsigned long long)bytes);
}
#define check_kib(figure, n) check_at(figure, KIB(n), 1024, __LINE__)
#define check_mib(figure, n) check_at(figure, MIB(n), 1 << 20, __LINE__)
#define check_gib(figure, n) check_at(figure, GIB(n), 1 << 30, __LINE__)
#define check_unknown(figure) assert_false((figure).is_known)

#define HINT                                                                                                           \
  " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "      \
  "avoid "                                                                                                             \
  "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html)"

static const char current[] =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.82 GiB. GPU 0 has a total capacity of 139.80 GiB "
    "of which 118.97 GiB is free. Including non-PyTorch memory, this process has 12.50 GiB memory in use. 12.58 GiB "
    "allowed; Of the allocated memory 9.87 GiB is allocated by PyTorch, and 1.95 GiB is reserved by PyTorch but "
    "unallocated." HINT;

static void check_current(const weir__message *m) {
  assert_int_equal(m->kind, WEIR__MESSAGE_NATIVE);
  assert_int_equal(m->device, 0);
  check_gib(m->tried, 1.82);
  check_gib(m->total, 139.80);
  check_gib(m->free, 118.97);
  check_gib(m->own, 12.50);
  check_gib(m->allowed, 12.58);
  check_gib(m->allocated, 9.87);
  check_gib(m->unallocated, 1.95);
  check_unknown(m->pools);
  assert_int_equal(m->process_count, 0);
}

/* ---- Versions ---- */

FIXTURE(.end = tear_down)

/* A limit of the program's own, and enough memory that is unallocated. */
TEST(limit) {
  const weir__message *m = find_one(current);
  check_current(m);
  assert_int_equal(m->bound, WEIR__BOUND_LIMIT);
  assert_int_equal(m->cause, WEIR__MESSAGE_FRAGMENTED);
  /* 9.87 + 1.95 + 1.82 - 12.58 */
  assert_true(m->missing.least < GIB(1.06) && m->missing.most > GIB(1.06));
  assert_true(m->missing.most - m->missing.least <= GIB(0.0401));
  assert_true(m->non_pytorch.least < GIB(0.68) && m->non_pytorch.most > GIB(0.68));
  assert_true(m->others.is_known && m->others.most == 0);
  assert_string_equal(m->conf, "expandable_segments:True");
}

/* 2.1 has a spelling mistake; there is another process. */
TEST(processes) {
  const weir__message *m = find_one(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 138.00 MiB. GPU 3 has a total capacty of "
      "15.90 GiB of which 8.44 MiB is free. Process 1246069 has 577.00 MiB memory in use. Including non-PyTorch "
      "memory, "
      "this process has 15.32 GiB memory in use. Process 7 has 17179869184.00 GiB memory in use. Of the allocated "
      "memory 14.72 GiB is allocated by PyTorch, and 60.41 MiB is reserved by PyTorch but unallocated. If reserved but "
      "unallocated memory is large try setting max_split_size_mb to avoid fragmentation.");
  assert_int_equal(m->device, 3);
  check_gib(m->total, 15.90);
  check_mib(m->free, 8.44);
  check_gib(m->own, 15.32);
  assert_int_equal(m->process_count, 2);
  assert_int_equal(m->processes[0].pid, 1246069);
  check_mib(m->processes[0].used, 577);
  check_unknown(m->processes[1].used);
  check_unknown(m->others);
  check_unknown(m->allowed);
  assert_int_equal(m->bound, WEIR__BOUND_DEVICE);
  assert_int_equal(m->cause, WEIR__MESSAGE_EXHAUSTED);
  /* 136 to 138 MiB requested, and 60.41 + 8.44 to be had at most */
  assert_true(m->short_by.least > MIB(67) && m->short_by.least < MIB(67.2));
  assert_true(m->short_by.most > MIB(69.1) && m->short_by.most < MIB(69.2));
  check_mib(m->missing, 129.56);
}

/* Weir lists the largest other processes, and the sum of the rest. */
TEST(processes_of_weir) {
  const weir__message *m = find_one(
      "weir_allocator_alloc: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 139.80 "
      "GiB "
      "of which 44.00 MiB is free. Including non-Weir memory, this process has 9.00 GiB memory in use. Process 19 has "
      "20.00 GiB memory in use. Process 18 has 19.00 GiB memory in use. 12 other processes have 80.00 GiB. 12.00 GiB "
      "allowed; Of the allocated memory 5.00 GiB is allocated by Weir, and 3.50 GiB is reserved by Weir but "
      "unallocated.");
  assert_true(m->is_weirs);
  check_gib(m->own, 9);
  assert_int_equal(m->process_count, 2);
  check_gib(m->processes[1].used, 19);
  check_gib(m->allowed, 12);
  check_gib(m->allocated, 5);
  check_gib(m->unallocated, 3.5);
  m = find_one("weir_allocator_alloc: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of "
               "139.80 GiB of which 44.00 MiB is free. This process, perhaps under another number, has 20.00 MiB at "
               "least. Process 19 has 20.00 GiB memory in use. Of the allocated memory 5.00 MiB is allocated by Weir, "
               "and 15.00 MiB is reserved by Weir but unallocated.");
  check_unknown(m->own);
  assert_int_equal(m->process_count, 1);
  check_mib(m->allocated, 5);
}

TEST(other_processes_suffice) {
  const weir__message *m = find_one(
      "CUDA out of memory. Tried to allocate 138.00 MiB. GPU 0 has a total capacity of 15.90 GiB of which 8.44 MiB is "
      "free. Process 1 has 577.00 MiB memory in use. Process 2 has 1.25 GiB memory in use. Including non-PyTorch "
      "memory, "
      "this process has 14.32 GiB memory in use. Of the allocated memory 13.72 GiB is allocated by PyTorch, and 60.41 "
      "MiB is reserved by PyTorch but unallocated.");
  assert_true(m->others.least >= MIB(1851) && m->others.most <= MIB(1863));
  assert_true(m->others_suffice);
  assert_int_equal(m->cause, WEIR__MESSAGE_EXHAUSTED);
}

/* In a container this process has another number. */
TEST(container) {
  const weir__message *m = find_one(
      "CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 "
      "MiB is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated "
      "by PyTorch, and 330.42 MiB is reserved by PyTorch but unallocated.");
  check_unknown(m->own);
  check_unknown(m->others);
  check_unknown(m->non_pytorch);
  assert_int_equal(m->process_count, 1);
  assert_true(m->outside.least > MIB(125) && m->outside.most < MIB(160));
  assert_int_equal(m->cause, WEIR__MESSAGE_UNDECIDED);
}

TEST(private_pools) {
  const weir__message *m = find_one(
      "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 100.00 MiB is "
      "free. Including non-PyTorch memory, this process has 78.99 GiB memory in use. Of the allocated memory 77.00 GiB "
      "is allocated by PyTorch, with 8.12 GiB allocated in private pools (e.g., CUDA Graphs), and 200.00 MiB is "
      "reserved by PyTorch but unallocated." HINT);
  check_gib(m->pools, 8.12);
  check_gib(m->allocated, 77.00);
  assert_int_equal(m->cause, WEIR__MESSAGE_EXHAUSTED);
  assert_true(m->pools_suffice);
  assert_null(m->conf);
}

/* 1.4 to 2.0: reserved in total, with or without a limit. */
TEST(reserved_in_total) {
  const weir__message *m = find_one("RuntimeError: CUDA out of memory. Tried to allocate 236.00 MiB (GPU 1; 15.78 GiB "
                                    "total capacity; 14.25 GiB already allocated; 83.50 MiB free; 14.34 GiB reserved "
                                    "in total by PyTorch)");
  assert_int_equal(m->kind, WEIR__MESSAGE_PARENTHESES);
  assert_int_equal(m->device, 1);
  check_mib(m->tried, 236);
  check_gib(m->total, 15.78);
  check_gib(m->allocated, 14.25);
  check_mib(m->free, 83.5);
  check_gib(m->reserved, 14.34);
  /* 0.09 GiB, within 0.01 GiB */
  assert_true(m->unallocated.least > MIB(81) && m->unallocated.most < MIB(103));
  assert_int_equal(m->bound, WEIR__BOUND_DEVICE);
  assert_int_equal(m->cause, WEIR__MESSAGE_EXHAUSTED);

  m = find_one(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.99 GiB total "
      "capacity; 7.85 GiB already allocated; 14.25 GiB free; 9.60 GiB allowed; 8.14 GiB reserved in total by "
      "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  "
      "See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF");
  check_gib(m->allowed, 9.60);
  assert_int_equal(m->bound, WEIR__BOUND_LIMIT);
  assert_int_equal(m->cause, WEIR__MESSAGE_EXHAUSTED); /* 7.85 + 2.00 > 9.60 */
}

/* 1.0 to 1.3: cached. */
TEST(cached) {
  const weir__message *m = find_one(
      "RuntimeError: CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 0; 11.17 GiB total capacity; 10.90 "
      "GiB already allocated; 576.00 KiB free; 30.96 MiB cached)");
  assert_true(m->has_old_rules);
  check_kib(m->tried, 1024);
  check_kib(m->free, 576);
  check_mib(m->unallocated, 30.96);
  assert_true(m->reserved.is_known);
  assert_int_equal(m->cause, WEIR__MESSAGE_FRAGMENTED);
  assert_null(m->conf); /* a key that this version does not have */
}

/* The driver refuses although there is enough: no limit is named. */
TEST(refused) {
  const weir__message *m = find_one(
      "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB "
      "already allocated; 9.28 GiB free; 4.68 MiB cached)");
  assert_int_equal(m->cause, WEIR__MESSAGE_REFUSED);
  assert_int_equal(m->bound, WEIR__BOUND_NOT_KNOWN);
  check_unknown(m->missing);
}

TEST(async) {
  const weir__message *m =
      find_one("torch.OutOfMemoryError: Allocation on device 2 would exceed allowed memory. (out of "
               "memory)\nCurrently allocated     : 30.00 GiB\nRequested               : 12.00 GiB\n"
               "Device limit            : 79.10 GiB\nFree (according to CUDA): 48.51 GiB\n"
               "PyTorch limit (set by user-supplied memory fraction)\n"
               "                        : 39.55 GiB\n");
  assert_int_equal(m->kind, WEIR__MESSAGE_ASYNC);
  assert_int_equal(m->device, 2);
  check_gib(m->allocated, 30);
  check_gib(m->tried, 12);
  check_gib(m->total, 79.10);
  check_gib(m->free, 48.51);
  check_gib(m->allowed, 39.55);
  assert_int_equal(m->bound, WEIR__BOUND_LIMIT);
  assert_true(m->missing.least < GIB(2.45) && m->missing.most > GIB(2.45));
  assert_int_equal(m->cause, WEIR__MESSAGE_NOT_KNOWN); /* the driver's pool does not say what it holds */
}

TEST(without_figures) {
  const weir__message *m =
      find_one("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.");
  assert_int_equal(m->kind, WEIR__MESSAGE_HUGE);
  assert_int_equal(m->cause, WEIR__MESSAGE_TOO_LARGE);
  m = find_one(
      "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
      "per_process_memory_fraction limit. Requested size: 2.50 GiB");
  assert_int_equal(m->kind, WEIR__MESSAGE_REJECTED);
  assert_int_equal(m->bound, WEIR__BOUND_LIMIT);
  check_gib(m->tried, 2.5);
  check_unknown(m->missing);
  m = find_one("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`");
  assert_int_equal(m->kind, WEIR__MESSAGE_LIBRARY);
}

/* What PyTorch says where NVML does not answer; other programs assert such things, too. */
TEST(nvml) {
  static const char *const forms[] = {
      "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"../c10/cuda/CUDACachingAllocator.cpp\":830, please "
      "report a bug to PyTorch. ",
      "[rank1]: RuntimeError: NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at\n"
      "[rank1]: \"/opt/conda/conda-bld/pytorch_1695392035891/work/c10/cuda/CUDACachingAlloca\n[rank1]: tor.cpp\":963"};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    const weir__message *m = find_one(forms[i]);
    assert_int_equal(m->kind, WEIR__MESSAGE_NVML);
    assert_int_equal(m->library, WEIR__LIBRARY_TORCH);
    assert_int_equal(m->cause, WEIR__MESSAGE_NOT_KNOWN);
    assert_int_equal(found.found, 1);
    check_unknown(m->tried);
    check_unknown(m->missing);
  }
  find(
      "assert NVML_SUCCESS == result\nNVML_SUCCESS == r INTERNAL ASSERT FAILED at \"../c10/cuda/driver_api.cpp\":20\n");
  assert_int_equal(found.count, 0);
}

/* PyTorch names the error again in its advice, which is not another failure; alone it is one. */
TEST(advice) {
#define ADVICE                                                                                                         \
  "Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html " \
  "for more information.\nCUDA kernel errors might be asynchronously reported at some other API call\n"
  const weir__message *m = find_one("torch.AcceleratorError: CUDA error: out of memory\n" ADVICE);
  assert_int_equal(m->kind, WEIR__MESSAGE_CUDA);
  assert_int_equal(m->cause, WEIR__MESSAGE_OUTSIDE);
  assert_int_equal(m->repeated, 0);
  assert_int_equal(found.found, 1);
  m = find_one("CUDA error: out of memory\n" ADVICE "CUDA error: out of memory\nSearch\nfor `cudaErrorMemory\n"
               "Allocation' in https://docs.nvidia.com");
  assert_int_equal(m->repeated, 1);
  m = find_one(ADVICE);
  assert_int_equal(m->kind, WEIR__MESSAGE_CUDA);
  find("[rank0]: CUDA error: out of memory\n[rank1]: CUDA error: out of memory\n[rank0]: " ADVICE "[rank1]: " ADVICE);
  assert_int_equal(found.count, 2);
  assert_int_equal(found.found, 2);
  m = find_one("HIP error: out of memory\nSearch for `hipErrorOutOfMemory' in https://docs.nvidia.com/");
  assert_int_equal(m->repeated, 0);
}

TEST(other_allocators) {
  const weir__message *m =
      find_one("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 25,600,000 bytes (allocated so far: "
               "3,635,267,072 bytes, limit set to: 3,640,000,000 bytes).");
  assert_int_equal(m->kind, WEIR__MESSAGE_CUPY);
  assert_int_equal(m->tried.least, 25600000);
  assert_int_equal(m->missing.least, 25600000 + 3635267072 - 3640000000);
  assert_int_equal(m->missing.most, m->missing.least);
  m = find_one("OutOfMemoryError: out of memory to allocate 1200000000 bytes (total 7204800000 bytes)");
  assert_int_equal(m->kind, WEIR__MESSAGE_CUPY);
  assert_int_equal(m->reserved.least, 6004800000);
  check_unknown(m->missing);
  m = find_one("MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/opt/x.hpp:196: Maximum pool size exceeded");
  assert_int_equal(m->kind, WEIR__MESSAGE_RMM);
  m = find_one("MemoryError: std::bad_alloc: CUDA error at: ../x.hpp68: cudaErrorMemoryAllocation out of memory");
  assert_int_equal(m->kind, WEIR__MESSAGE_RMM);
  m = find_one("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.");
  assert_int_equal(m->kind, WEIR__MESSAGE_XLA);
  assert_int_equal(m->tried.least, 20029400304);
  m = find_one("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.");
  assert_int_equal(m->kind, WEIR__MESSAGE_XLA);
  m = find_one(
      "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of "
      "63.98 GiB of which 0 bytes is free. Of the allocated memory 63.00 GiB is allocated by PyTorch, and 10.00 "
      "MiB is reserved by PyTorch but unallocated.");
  assert_int_equal(m->device, 1);
  assert_int_equal(m->free.most, 0);
  assert_true(m->is_hip);
  assert_true(find_one("torch.AcceleratorError: HIP error: out of memory")->is_hip);
  assert_true(find_one("RuntimeError: hipErrorOutOfMemory")->is_hip);
  assert_false(find_one(current)->is_hip);
}

TEST(xla) {
  const weir__message *m = find_one("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate "
                                    "request for 176.00MiB (184549376B) on device ordinal 3");
  assert_int_equal(m->kind, WEIR__MESSAGE_XLA);
  assert_int_equal(m->library, WEIR__LIBRARY_JAX);
  assert_int_equal(m->device, 3);
  assert_int_equal(m->tried.least, 184549376);
  assert_int_equal(m->tried.most, 184549376);
  m = find_one("W external/xla/xla/tsl/framework/bfc_allocator.cc:501] Allocator (GPU_1_bfc) ran out of memory trying "
               "to allocate 1.25TiB (rounded to 1374521760000)requested by op");
  assert_int_equal(m->kind, WEIR__MESSAGE_XLA);
  assert_int_equal(m->device, 1);
  assert_int_equal(m->tried.least, 1374521760000 - 255);
  assert_int_equal(m->tried.most, 1374521760000);
  /* Here a GiB is "1.00GiB", and what is less than a MiB is dropped. */
  m = find_one("Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00GiB");
  assert_true(m->tried.least <= 1ull << 30 && m->tried.most >= (1ull << 30) + MIB(6));
  m = find_one("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.00GiB.");
  check_at(m->tried, GIB(4), 1 << 30, __LINE__);
  m = find_one("Execution of replica 0 failed: Resource exhausted: Out of memory allocating 5520758552 bytes.");
  assert_int_equal(m->kind, WEIR__MESSAGE_XLA);
  /* The size is ahead of the error; it is not the program's, so that a later one takes its place. */
  find("failed to allocate 3.39G (3640655872 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n");
  assert_int_equal(found.count, 1);
  assert_int_equal(found.items[0].kind, WEIR__MESSAGE_XLA);
  assert_int_equal(found.items[0].tried.least, 3640655872);
  assert_int_equal(found.items[0].tried.most, 3640655872);
  m = find_one("failed to allocate 7.37GiB (7915110400 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
               "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.");
  assert_int_equal(m->tried.least, 7406166528);
  assert_int_equal(m->repeated, 1);
  assert_false(m->is_drivers);
  /* More than there can be: the size counts as not known. */
  m = find_one("Failed to allocate request for 185154163100000.00GiB");
  assert_false(m->tried.is_known);
  /* A warning, and words of other programs. */
  find("Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB with freed_by_count=0. The caller indicates "
       "that this is not a failure, but this may mean that there could be performance gains if more memory were "
       "available.\nFailed to allocate request for sending ATP\nRan out of memory trying to allocate a buffer");
  assert_int_equal(found.count, 0);
  find("Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.00GiB\n"
       "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB with freed_by_count=0. The caller indicates "
       "that this is not a failure");
  assert_int_equal(found.count, 1);
  assert_int_equal(found.found, 1);
}

TEST(rmm) {
  const weir__message *m =
      find_one("MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/opt/x.hpp:257: Maximum "
               "pool size exceeded (failed to allocate 8.00 GiB)");
  assert_int_equal(m->kind, WEIR__MESSAGE_RMM);
  assert_false(m->is_drivers);
  check_gib(m->tried, 8);
  m = find_one("Maximum pool size exceeded (failed to allocate 1.000000 GiB): std::bad_alloc");
  check_gib(m->tried, 1);
  m = find_one("MemoryError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 8589934592 bytes) at: "
               "/opt/cuda_memory_resource.hpp:62: cudaErrorMemoryAllocation out of memory");
  assert_int_equal(m->kind, WEIR__MESSAGE_RMM);
  assert_true(m->is_drivers);
  assert_int_equal(m->tried.least, 8589934592);
  m = find_one("std::bad_alloc: CUDA error at: ../x.hpp68: cudaErrorMemoryAllocation out of memory");
  assert_true(m->is_drivers);
  check_unknown(m->tried);
}

/* Whose text it is, where the words of CUDA do not say so. */
TEST(libraries) {
  static const struct {
    const char *text;
    weir__message_kind kind;
    weir__message_library library;
  } forms[] = {
      {"RuntimeError: CUDA error: out of memory", WEIR__MESSAGE_CUDA, WEIR__LIBRARY_TORCH},
      {"CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported", WEIR__MESSAGE_CUDA,
       WEIR__LIBRARY_TORCH},
      {"CUDA error: out of memory\n  current device: 0, in function alloc at ggml-cuda.cu:291", WEIR__MESSAGE_CUDA,
       WEIR__LIBRARY_NOT_KNOWN},
      {"RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", WEIR__MESSAGE_LIBRARY, WEIR__LIBRARY_TORCH},
      {"cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", WEIR__MESSAGE_CUDA,
       WEIR__LIBRARY_CUPY},
      {"jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_OUT_OF_MEMORY", WEIR__MESSAGE_CUDA,
       WEIR__LIBRARY_JAX},
      {"node1:12:34 [0] misc/cudawrap.cc:36 NCCL WARN Cuda failure 2 'out of memory'", WEIR__MESSAGE_CUDA,
       WEIR__LIBRARY_NOT_KNOWN},
      {"NCCL WARN Cuda failure 'out of memory'", WEIR__MESSAGE_CUDA, WEIR__LIBRARY_NOT_KNOWN},
      {"RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58",
       WEIR__MESSAGE_THC, WEIR__LIBRARY_TORCH},
      {"torch.OutOfMemoryError: XPU out of memory. Tried to allocate 20.00 MiB.", WEIR__MESSAGE_NATIVE,
       WEIR__LIBRARY_TORCH_OTHER},
      {"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB.", WEIR__MESSAGE_NATIVE,
       WEIR__LIBRARY_TORCH},
  };
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    const weir__message *m = find_one(forms[i].text);
    if (m->kind != forms[i].kind || m->library != forms[i].library)
      fail_msg("form %zu: kind %d, library %d", i, (int)m->kind, (int)m->library);
  }
  assert_int_equal(find_one(forms[8].text)->cause, WEIR__MESSAGE_NOT_KNOWN); /* the allocator itself says this */
}

/* What XLA's allocator writes after its list of chunks belongs to its message. */
TEST(xla_statistics) {
  static const char log[] =
      "W tensorflow/core/common_runtime/bfc_allocator.cc:431] Allocator (GPU_0_bfc) ran out of memory trying to "
      "allocate "
      "%s (rounded to %llu)requested by op Mul\n"
      "I tensorflow/core/common_runtime/bfc_allocator.cc:1039] 84 Chunks of size 512 totalling 42.0KiB\n"
      "I tensorflow/core/common_runtime/bfc_allocator.cc:1046] Stats: \n"
      "Limit:                      8000000000\n"
      "InUse:                      6000000000\n"
      "MaxInUse:                   7265472256\n";
  char text[1024];
  snprintf(text, sizeof text, log, "4.00GiB", 4294967296ull);
  const weir__message *m = find_one(text);
  assert_int_equal(m->library, WEIR__LIBRARY_TENSORFLOW);
  assert_int_equal(m->allowed.least, 8000000000);
  assert_int_equal(m->allocated.most, 6000000000);
  assert_int_equal(m->cause, WEIR__MESSAGE_EXHAUSTED);
  assert_int_equal(m->missing.most, 2294967296);
  snprintf(text, sizeof text, log, "1.00GiB", 1073741824ull);
  assert_int_equal(find_one(text)->cause, WEIR__MESSAGE_FRAGMENTED);
  /* More in use than the limit is no statistic. */
  snprintf(text, sizeof text, log, "4.00GiB", 4294967296ull);
  memcpy(strstr(text, "8000000000"), "5000000000", 10);
  check_unknown(find_one(text)->allowed);
  /* Without a failure it is nothing. */
  find("Stats: \nLimit: 10\nInUse: 5\n");
  assert_int_equal(found.count, 0);
}

TEST(tensorflow) {
  const weir__message *m =
      find_one("ResourceExhaustedError: OOM when allocating tensor with shape[32,2048,64,64] and type "
               "float on /job:localhost/replica:0/task:0/device:GPU:3 by allocator GPU_3_bfc");
  assert_int_equal(m->kind, WEIR__MESSAGE_TENSORFLOW);
  assert_int_equal(m->library, WEIR__LIBRARY_TENSORFLOW);
  assert_int_equal(m->device, 3);
  assert_int_equal(m->tried.least, 1073741824);
  assert_int_equal(m->tried.most, 1073741824);
  assert_string_equal(m->tensor, "[32,2048,64,64] of float");
  m = find_one("Resource exhausted: OOM when allocating tensor with shape[3,3,512,1024]");
  assert_string_equal(m->tensor, "[3,3,512,1024]");
  check_unknown(m->tried);
  m = find_one("OOM when allocating tensor with shape[4294967296,4294967296,16] and type double on /device:GPU:0");
  check_unknown(m->tried);
  /* The allocator's log and the exception are one failure. */
  m = find_one(
      "tensorflow/core/common_runtime/bfc_allocator.cc:431] Allocator (GPU_0_bfc) ran out of memory trying to "
      "allocate 1.00GiB (rounded to 1073741824)requested by op\nResourceExhaustedError: OOM when allocating tensor "
      "with shape[32,2048,64,64] and type float on /job:localhost/replica:0/task:0/device:GPU:0");
  assert_int_equal(m->repeated, 0);
  assert_string_equal(m->tensor, "[32,2048,64,64] of float");
}

TEST(program_of_xla) {
  const weir__message *m =
      find_one("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4112345678 "
               "bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n"
               "             parameter allocation:    7.78GiB\n"
               "              constant allocation:         0B\n"
               "        maybe_live_out allocation:  301.25MiB\n"
               "     preallocated temp allocation:    3.83GiB\n"
               "  preallocated temp fragmentation:         0B (0.00%)\n"
               "                 total allocation:   11.90GiB\n"
               "              total fragmentation:     5.5KiB (0.00%)\n"
               "Peak buffers:\n\tBuffer 1:\n\t\tSize: 3.83GiB\n"
               "\t\tOperator: op_name=\"jit(step)/lm_head\" source_file=\"/x/dtypes.py\"\n"
               "\tBuffer 2:\n\t\tSize: 1.00GiB\n\t\tOperator: op_name=\"other\"\n");
  check_gib(m->arguments, 7.78);
  check_gib(m->temporaries, 3.83);
  check_gib(m->program, 11.90);
  check_gib(m->largest, 3.83);
  check_mib(m->results, 301.25);
  assert_true(m->constants.is_known && m->constants.most == 0);
  assert_string_equal(m->largest_name, "jit(step)/lm_head");
}

/* A text that was cut off. */
TEST(program_of_xla_without_a_total) {
  const weir__message *m = find_one("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4112345678 bytes.\n"
                                    "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n"
                                    "             parameter allocation:    7.78GiB\n"
                                    "     preallocated temp allocation:    3.83GiB\nPeak buffers:\n");
  check_gib(m->arguments, 7.78);
  check_gib(m->temporaries, 3.83);
  check_unknown(m->constants);
  check_unknown(m->results);
  check_unknown(m->program);
}

/* What XLA and TensorFlow say of the program or the operation that failed. */
TEST(operations) {
  const weir__message *m =
      find_one("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.95GiB\nwith "
               "allocator GPU_1_bfc on device 1.\n[executable_name='jit_greater'] [tf-allocator-allocation-error='']");
  check_gib(m->tried, 1.95);
  assert_int_equal(m->library, WEIR__LIBRARY_JAX);
  assert_int_equal(m->device, 1);
  assert_string_equal(m->operation, "jit_greater");
  m = find_one("JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 96.00MiB. "
               "[tf-allocator-allocation-error='']");
  assert_string_equal(m->operation, "");
  m = find_one("tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node "
               "__wrapped__AddV2_device_/job:localhost/replica:0/task:0/device:GPU:2}} failed to allocate memory "
               "[Op:AddV2] name: ");
  check_unknown(m->tried);
  assert_int_equal(m->library, WEIR__LIBRARY_TENSORFLOW);
  assert_int_equal(m->device, 2);
  assert_string_equal(m->operation, "AddV2");
}

TEST(vllm) {
  const weir__message *m =
      find_one("ERROR 06-02 05:17:18 [core.py:387] ValueError: To serve at least one request with the models's max seq "
               "len (40960), "
               "(10.00 GiB KV cache is needed, which is larger than the available KV cache memory (1.25 GiB). Based on "
               "the available "
               "memory, the estimated maximum model length is 5120. Try increasing `gpu_memory_utilization`");
  assert_int_equal(m->cause, WEIR__MESSAGE_NO_CACHE);
  assert_int_equal(m->library, WEIR__LIBRARY_VLLM);
  check_gib(m->tried, 10);
  check_gib(m->allowed, 1.25);
  assert_true(m->missing.least <= GIB(8.75) && m->missing.most >= GIB(8.75));
  assert_int_equal(m->tokens, 40960);
  assert_int_equal(m->tokens_fit, 5120);
  m = find_one("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
               "initializing the engine.");
  assert_int_equal(m->cause, WEIR__MESSAGE_NO_CACHE);
  check_unknown(m->tried);
  m = find_one(
      "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored "
      "in KV cache (12144).");
  assert_int_equal(m->tokens, 32768);
  assert_int_equal(m->tokens_fit, 12144);
  m = find_one("ValueError: Free memory on device cuda:2 (6.9/8.0 GiB) on startup is less than desired GPU memory "
               "utilization (0.9, 7.2 GiB).");
  assert_int_equal(m->cause, WEIR__MESSAGE_OCCUPIED);
  assert_int_equal(m->device, 2);
  assert_true(m->free.least <= GIB(6.9) && m->free.most >= GIB(6.9));
  assert_true(m->total.least <= GIB(8) && m->total.most >= GIB(8));
  assert_true(m->tried.least <= GIB(7.2) && m->tried.most >= GIB(7.2));
}

TEST(weirs_own) {
  const weir__message *m = find_one(
      "WEIR_ERROR_OUT_OF_MEMORY: weir_malloc: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
      "capacity "
      "of 64.00 MiB of which 4.00 MiB is free. Of the allocated memory 40.00 MiB is allocated by Weir, and 20.00 MiB "
      "is "
      "reserved by Weir but unallocated. expandable_segments is enabled. If instead the process runs out of address "
      "space, the reserves are too large.");
  assert_true(m->is_weirs && m->is_expandable);
  assert_int_equal(m->cause, WEIR__MESSAGE_UNDECIDED);
  assert_null(m->conf);
  m = find_one(
      "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 79.00 GiB of which 70.00 GiB "
      "is free. Of the allocated memory 1.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
      "unallocated. This allocation exceeds the expandable-segment reserve of 2.00 GiB for this stream, and a "
      "single allocation cannot span expandable segments.");
  check_gib(m->reserve, 2);
  assert_int_equal(m->cause, WEIR__MESSAGE_ADDRESS_SPACE);
}

/* The segment is larger than a small request. */
TEST(request) {
  static const char rest[] = " GPU 0 has a total capacity of 15.48 GiB of which 17.75 MiB is free.";
  char text[256];
  snprintf(text, sizeof text, "CUDA out of memory. Tried to allocate 2.00 MiB.%s", rest);
  const weir__message *m = find_one(text);
  assert_int_equal(m->request.least, 1);
  assert_int_equal(m->request.most, 1 << 20);
  snprintf(text, sizeof text, "CUDA out of memory. Tried to allocate 20.00 MiB.%s", rest);
  m = find_one(text);
  assert_int_equal(m->request.least, (1 << 20) + 1);
  snprintf(text, sizeof text, "CUDA out of memory. Tried to allocate 100.00 MiB.%s", rest);
  m = find_one(text);
  assert_int_equal(m->request.least, MIB(99.995) + 1 - (2 << 20) + 1);
  check_unknown(m->usable);
  assert_int_equal(m->cause, WEIR__MESSAGE_NOT_KNOWN);
  snprintf(text, sizeof text, "CUDA out of memory. Tried to allocate 128.00 GiB.%s", rest);
  assert_int_equal(find_one(text)->cause, WEIR__MESSAGE_TOO_LARGE);
}

/* ---- As it is pasted ---- */

/* Puts a prefix before each line of a text that is wrapped after `width` characters. */
static char *wrap(const char *text, size_t width, const char *prefix, const char *suffix) {
  static char out[8192];
  char *to = out;
  for (size_t length = strlen(text), at = 0; at < length; at += width) {
    int part = (int)(length - at < width ? length - at : width);
    to += snprintf(to, (size_t)(out + sizeof out - to), "%s%.*s%s\n", prefix, part, text + at, suffix);
  }
  return out;
}

TEST(wrapped) {
  static const struct {
    const char *prefix, *suffix;
    weir__message_source source;
    uint64_t number;
  } forms[] = {{"", "", WEIR__SOURCE_NONE, 0},
               {"", "\r", WEIR__SOURCE_NONE, 0},
               {"> > ", "", WEIR__SOURCE_NONE, 0},
               {"\xe2\x94\x82 ", " \xe2\x94\x82", WEIR__SOURCE_NONE, 0},
               {"| ", " |", WEIR__SOURCE_NONE, 0},
               {"\x1b[31m[rank11]:\x1b[0m ", "", WEIR__SOURCE_RANK, 11},
               {"[default3]:[rank11]: ", "", WEIR__SOURCE_RANK, 11},
               {"[default3]:", "", WEIR__SOURCE_LOCAL, 3},
               {"[1,5]<stderr>:", "", WEIR__SOURCE_TASK, 5},
               {"7: ", "", WEIR__SOURCE_TASK, 7},
               {"2026-11-16 21:37:46,123 ERROR [rank2]: ", "", WEIR__SOURCE_RANK, 2},
               {"2026-11-16T21:37:46.1234Z ", "", WEIR__SOURCE_NONE, 0},
               {"(EngineCore_DP0 pid=6) ERROR 11-16 21:37:46 [core.py:123] ", "", WEIR__SOURCE_PROCESS, 6},
               {"(RayTrainWorker pid=1234, ip=10.0.0.3) ", "", WEIR__SOURCE_PROCESS, 1234},
               {"worker-1  | [rank1]: ", "", WEIR__SOURCE_RANK, 1},
               {"Nov 16 21:37:46 host python[42]: ", "", WEIR__SOURCE_NONE, 0},
               {"[rank3]:[E1116 12:00:00.123 x.cpp:616] [Rank 3] ", "", WEIR__SOURCE_RANK, 3},
               {"rank 3: ", "", WEIR__SOURCE_RANK, 3},
               {"rank3: ", "", WEIR__SOURCE_RANK, 3},
               {"Rank 3 - ", "", WEIR__SOURCE_RANK, 3},
               {"RANK 12 | ", "", WEIR__SOURCE_RANK, 12},
               {"rank=3 ", "", WEIR__SOURCE_RANK, 3},
               {"local_rank=3 ", "", WEIR__SOURCE_LOCAL, 3},
               {"local_rank=3 rank=11 ", "", WEIR__SOURCE_RANK, 11},
               {"2026-11-16 21:37:46,123 ERROR rank 2: ", "", WEIR__SOURCE_RANK, 2},
               {"[node_rank=1 local_rank=3] ", "", WEIR__SOURCE_LOCAL, 3},
               {"(Worker local_rank=3 rank=11 pid=42) ", "", WEIR__SOURCE_RANK, 11},
               {"worker-3 | ", "", WEIR__SOURCE_TASK, 3},
               {"worker-3a | ", "", WEIR__SOURCE_NONE, 0},
               {"[3] ", "", WEIR__SOURCE_NONE, 0}}; /* or an item of a list, or a job of the shell */
  static const size_t widths[] = {10, 37, 80, 119, 4000};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
      find(wrap(current, widths[k], forms[i].prefix, forms[i].suffix));
      if (found.count != 1)
        fail_msg("form %zu, width %zu: %zu messages", i, widths[k], found.count);
      check_current(&found.items[0]);
      assert_int_equal(found.items[0].source, forms[i].source);
      assert_int_equal(found.items[0].source_number, forms[i].number);
    }
}

/* A log of PowerShell is UTF-16. */
TEST(utf16) {
  char text[2 * sizeof current + 2] = "\xff\xfe";
  for (size_t i = 0; i < sizeof current - 1; i++)
    text[2 + 2 * i] = current[i];
  weir__messages_free(&found);
  assert_int_equal(weir__messages_find(text, sizeof text, &found), WEIR_OK);
  weir__messages_derive(&found);
  assert_int_equal(found.count, 1);
  check_current(&found.items[0]);
}

/* Lines of several ranks are mixed, and the same rank fails twice. */
TEST(ranks) {
  find("[rank1]: Traceback (most recent call last):\n"
       "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total\n"
       "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total\n"
       "[rank1]:  capacity of 79.10 GiB of which 1.50 MiB is free. Of the allocated memory 78.00 GiB is allocated by\n"
       "[rank0]:  capacity of 79.20 GiB of which 2.50 MiB is free. Of the allocated memory 70.00 GiB is allocated by\n"
       "[rank0]:  PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated.\n"
       "[rank1]:  PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated.\n"
       "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 1 has a total\n");
  assert_int_equal(found.count, 2);
  assert_int_equal(found.found, 3);
  assert_int_equal(found.lines, 8);
  const weir__message *one = &found.items[0], *zero = &found.items[1];
  assert_int_equal(one->source_number, 1);
  assert_int_equal(one->line, 2);
  assert_int_equal(one->repeated, 1);
  check_gib(one->tried, 1.5);
  check_gib(one->total, 79.10);
  check_mib(one->unallocated, 10);
  assert_int_equal(one->cause, WEIR__MESSAGE_EXHAUSTED);
  check_gib(zero->tried, 3);
  check_gib(zero->total, 79.20);
  check_gib(zero->unallocated, 7);
  assert_int_equal(zero->cause, WEIR__MESSAGE_FRAGMENTED);
}

/* Without ranks, devices are told apart; an error without a device belongs to the one before. */
TEST(devices) {
  find("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.50 MiB is "
       "free.\n"
       "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.50 MiB is "
       "free.\n"
       "CUDA error: out of memory\n"
       "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 1 has a total capacity of 79.10 GiB of which 1.50 MiB is "
       "free.\n");
  assert_int_equal(found.count, 2);
  assert_int_equal(found.found, 4);
  check_gib(found.items[0].tried, 1.5);
  assert_int_equal(found.items[0].repeated, 1);
  assert_int_equal(found.items[1].repeated, 1);
}

/* Words of a sentence are no prefix. */
TEST(no_ranks) {
  static const char *const lines[] = {"rank 3 failed: ", "ranks 3: ",   "rank 1234567: ", "Rank 3-",
                                      "node_rank=3 ",    "worker 3 | ", "worker- | "};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    char text[256];
    snprintf(text, sizeof text, "%sCUDA out of memory. Tried to allocate 1.00 GiB.", lines[i]);
    if (find_one(text)->source != WEIR__SOURCE_NONE)
      fail_msg("'%s' is taken for a prefix", lines[i]);
  }
}

/* A quotation with parts left out, text without a message, and figures that are none. */
TEST(incomplete) {
  const weir__message *m =
      find_one("CUDA out of memory. Tried to allocate 1.82 GiB. GPU 0 has ... of which\n118.97 GiB is "
               "free. ... 12.58 GiB allowed; Of the allocated memory 9.87 GiB is allocated by PyTorch, "
               "and 1.95 GiB is reserved\nby PyTorch but unallocated.");
  check_unknown(m->total);
  check_gib(m->free, 118.97);
  check_gib(m->unallocated, 1.95);
  assert_int_equal(m->cause, WEIR__MESSAGE_FRAGMENTED);
  find("");
  assert_int_equal(found.count, 0);
  find("epoch 3, loss 0.12\nthe job ran out of memory? no\n\n\n");
  assert_int_equal(found.count, 0);
  assert_int_equal(found.lines, 4);
  m = find_one("CUDA out of memory. Tried to allocate .. GiB. GPU 99999999999999999999 has a total capacity of "
               "99999999999999999999999.00 GiB of which 1.2.3 GiB is free.");
  check_unknown(m->tried);
  check_unknown(m->total);
  check_unknown(m->free);
  assert_int_equal(m->cause, WEIR__MESSAGE_NOT_KNOWN);
}

/* Every failure counts, but no more are kept than there is room for. */
TEST(many) {
  enum { COUNT = 20000, LENGTH = 64 };
  char *text = malloc(COUNT * LENGTH), *to = text;
  assert_non_null(text);
  for (int i = 0; i < COUNT; i++)
    to += snprintf(to, LENGTH, "[rank%d]: CUDA out of memory. Tried to allocate 1.00 GiB.\n", i);
  weir__messages_free(&found);
  assert_int_equal(weir__messages_find(text, (size_t)(to - text), &found), WEIR_OK);
  assert_int_equal(found.count, WEIR__MESSAGE_MAX);
  assert_int_equal(found.found, COUNT);
  free(text);
}

/* Figures stand for the range of values that are printed like that. */
TEST(rounding) {
  const weir__message *m = find_one("CUDA out of memory. Tried to allocate 1.00 GiB.");
  assert_int_equal(m->tried.least, (1ull << 30) + 1); /* 1 GiB is "1024.00 MiB" */
  m = find_one("CUDA out of memory. Tried to allocate 1024.00 MiB.");
  assert_int_equal(m->tried.most, 1ull << 30);
  m = find_one("CUDA out of memory. Tried to allocate 1500.00 MiB."); /* not PyTorch's form */
  check_mib(m->tried, 1500);
  m = find_one("CUDA out of memory. Tried to allocate 01.2040 KiB."); /* less than a byte */
  assert_int_equal(m->tried.least, m->tried.most);
  m = find_one("CUDA out of memory. Tried to allocate 0 bytes.");
  assert_int_equal(m->request.most, 0);
  assert_int_equal(m->request.least, 0);
  m = find_one("CUDA out of memory. Tried to allocate 512 bytes.");
  assert_int_equal(m->tried.least, 512);
  assert_int_equal(m->tried.most, 512);
  m = find_one("CUDA out of memory. Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of 139.80 GiB");
  assert_int_equal(m->cause, WEIR__MESSAGE_TOO_LARGE);
}

/* ---- Random figures ---- */

static uint64_t random_state = 1;

static uint64_t random_below(uint64_t most) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  /* cppcheck-suppress zerodiv ; it takes GIB(140) for 0 */
  return (random_state >> 20) % most;
}

/* Of any order of magnitude. */
static uint64_t random_bytes(uint64_t most) { return random_below((most >> random_below(24)) + 1) & ~511ull; }

static void holds(weir__figure f, uint64_t truth, int line) {
  if (!f.is_known || f.least > truth || f.most < truth)
    fail_msg("line %d: %llu is not within %llu to %llu", line, (unsigned long long)truth, (unsigned long long)f.least,
             (unsigned long long)f.most);
}

/* The ranges have the true values, and a verdict is true, whatever the values are that were rounded. */
TEST(random) {
  size_t causes[WEIR__MESSAGE_CAUSES] = {0};
  for (int i = 0; i < 20000; i++) {
    uint64_t total = GIB(1) + random_below(GIB(140)), mib2 = 2u << 20;
    uint64_t allocated = random_bytes(total), unallocated = random_bytes(total - allocated);
    uint64_t reserved = allocated + unallocated, free = random_bytes(total - reserved);
    uint64_t request = 512 + random_bytes(GIB(4)), tried = (request + mib2 - 1) / mib2 * mib2;
    if (request <= 1u << 20)
      tried = mib2;
    else if (request < 10u << 20)
      tried = 10 * mib2;
    bool has_limit = random_below(2);
    uint64_t limit = reserved + random_bytes(total - reserved);
    uint64_t headroom = has_limit && limit - reserved < free ? limit - reserved : free;
    if (tried <= headroom)
      continue; /* it does not fail */
    char text[7][32], allowed[64] = "", message[1024];
    if (has_limit)
      snprintf(allowed, sizeof allowed, "%s allowed; ", weir__format_bytes_as_pytorch(limit, text[5]));
    snprintf(message, sizeof message,
             "CUDA out of memory. Tried to allocate %s. GPU 0 has a total capacity of %s of which %s is free. %sOf the "
             "allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated.",
             weir__format_bytes_as_pytorch(tried, text[0]), weir__format_bytes_as_pytorch(total, text[1]),
             weir__format_bytes_as_pytorch(free, text[2]), allowed, weir__format_bytes_as_pytorch(allocated, text[3]),
             weir__format_bytes_as_pytorch(unallocated, text[4]));
    const weir__message *m = find_one(message);
    holds(m->tried, tried, __LINE__);
    holds(m->request, request, __LINE__);
    holds(m->reserved, reserved, __LINE__);
    holds(m->headroom, headroom, __LINE__);
    holds(m->usable, unallocated + headroom, __LINE__);
    holds(m->outside, total - free - reserved, __LINE__);
    if (m->missing.is_known)
      holds(m->missing, tried - headroom, __LINE__);
    bool fits = request <= unallocated + headroom;
    if (m->cause == WEIR__MESSAGE_EXHAUSTED && fits)
      fail_msg("not exhausted: %s", message);
    if (m->cause == WEIR__MESSAGE_FRAGMENTED && unallocated < tried)
      fail_msg("not fragmented: %s", message);
    if (m->bound == WEIR__BOUND_LIMIT && limit - reserved >= tried)
      fail_msg("not the limit: %s", message);
    if (m->bound == WEIR__BOUND_DEVICE && has_limit && limit - reserved < tried)
      fail_msg("not the device: %s", message);
    causes[m->cause]++;
  }
  assert_true(causes[WEIR__MESSAGE_EXHAUSTED] > 1000 && causes[WEIR__MESSAGE_FRAGMENTED] > 1000);
  assert_true(causes[WEIR__MESSAGE_UNDECIDED] > 100);
}
