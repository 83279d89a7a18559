/*
 * Kernels: load options, attributes, parameters, shared memory and occupancy.
 */
#include "driver/rules.h"

FIXTURE(RULES)

TEST(load_options) {
  char log[256] = "untouched";
  int options[] = {WEIR_CU_JIT_ERROR_LOG_BUFFER, WEIR_CU_JIT_ERROR_LOG_BUFFER_SIZE};
  void *values[] = {log, (void *)(uintptr_t)sizeof log};
  weir_cu_module module = NULL;
  assert_cu_error(INVALID_IMAGE, d->ModuleLoadDataEx(d, &module, "garbage", 2, options, values));
  assert_null(module);
  assert_cu(d->ModuleLoadDataEx(d, &module, spin_ptx, 0, NULL, NULL));
  assert_cu(d->ModuleUnload(d, module));
  values[1] = (void *)(uintptr_t)sizeof log;
  assert_cu(d->ModuleLoadDataEx(d, &module, spin_ptx, 2, options, values));
  assert_string_equal(log, "");
  assert_cu(d->ModuleUnload(d, module));
}

static int attribute(int number) {
  int value = -1;
  assert_cu(d->DeviceGetAttribute(d, &value, number, 0));
  return value;
}

static int func_attribute(int attribute) {
  int value = -1;
  assert_cu(d->FuncGetAttribute(d, &value, attribute, spin_function()));
  return value;
}

TEST(attributes) {
  weir_cu_function function = spin_function();
  assert_int_equal(func_attribute(WEIR_CU_FUNC_ATTR_MAX_THREADS_PER_BLOCK), 1024);
  assert_int_equal(func_attribute(WEIR_CU_FUNC_ATTR_SHARED_SIZE), 0);
  assert_int_equal(func_attribute(WEIR_CU_FUNC_ATTR_LOCAL_SIZE), 0);
  assert_int_equal(func_attribute(WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE), 48 * KIB);
  assert_in_range(func_attribute(WEIR_CU_FUNC_ATTR_NUM_REGS), 0, 255);
  int value = 7;
  assert_cu_error(INVALID_VALUE, d->FuncGetAttribute(d, &value, 9999, function));
  assert_cu_error(INVALID_VALUE, d->FuncGetAttribute(d, NULL, WEIR_CU_FUNC_ATTR_SHARED_SIZE, function));
  assert_int_equal(value, 7);
}

TEST(parameters) {
  if (!d->FuncGetParamInfo)
    return;
  size_t offset = 7, bytes = 7;
  assert_cu(d->FuncGetParamInfo(d, spin_function(), 0, &offset, &bytes));
  assert_int_equal(offset, 0);
  assert_int_equal(bytes, 8);
  assert_cu(d->FuncGetParamInfo(d, spin_function(), 0, &offset, NULL));
  assert_cu_error(INVALID_VALUE, d->FuncGetParamInfo(d, spin_function(), 1, &offset, &bytes));
}

/* A block has 48 KiB of shared memory without asking, and more if it is asked for. */
TEST(dynamic_shared_memory) {
  weir_cu_module module;
  weir_cu_function function;
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  assert_cu(d->ModuleGetFunction(d, &function, module, "weir_spin"));
  int most = attribute(WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  uint64_t cycles = 1;
  void *params[] = {&cycles};
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 32, 1, 1, 48 * KIB, NULL, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, function, 1, 1, 1, 32, 1, 1, 48 * KIB + 1, NULL, params, NULL));
  assert_cu(d->FuncSetAttribute(d, function, WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE, most));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 32, 1, 1, (unsigned)most, NULL, params, NULL));
  assert_cu_error(INVALID_VALUE, d->FuncSetAttribute(d, function, WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE, most + 1));
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->ModuleUnload(d, module));
}

static int active_blocks(int threads, size_t dynamic_bytes) {
  int blocks = -1;
  assert_cu(d->OccupancyMaxActiveBlocksPerMultiprocessor(d, &blocks, spin_function(), threads, dynamic_bytes));
  return blocks;
}

TEST(occupancy) {
  int threads = attribute(WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR);
  assert_int_equal(active_blocks(1024, 0), threads / 1024);
  assert_int_equal(active_blocks(512, 0), threads / 512);
  assert_int_equal(active_blocks(1000, 0), threads / 1024); /* whole warps */
  assert_in_range(active_blocks(32, 0), 16, 32);
  assert_in_range(active_blocks(32, 40 * KIB), 1, 5);
  int blocks = 7;
  assert_cu_error(INVALID_VALUE, d->OccupancyMaxActiveBlocksPerMultiprocessor(d, &blocks, spin_function(), 0, 0));
  assert_cu_error(INVALID_VALUE, d->OccupancyMaxActiveBlocksPerMultiprocessor(d, NULL, spin_function(), 32, 0));
  assert_int_equal(blocks, 7);
}
