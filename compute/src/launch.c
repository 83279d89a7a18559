/*
 * Launches, attributes and occupancy of kernels.
 */
#include "src/module.h"

static inline unsigned at_least_1(unsigned n) { return n ? n : 1; }

/* Between these two the driver works on the kernel's device. */
static weir_status enter(const char *caller, const weir_kernel *kernel, weir__on_device *on) {
  weir_status status = weir__module_check(caller, kernel->module);
  return status ? status : weir__compute_enter(caller, kernel->module->device, on);
}

/* ---- Launches ---- */

/* INVALID_VALUE is explained as far as the limits are known. */
static weir_status explain(const char *caller, const weir__on_device *on, const weir_kernel *kernel,
                           weir_launch_dims dims, weir_cu_result result, const char *call) {
  weir_driver *driver = on->driver;
  int most, dynamic;
  uint64_t threads = (uint64_t)dims.block[0] * at_least_1(dims.block[1]) * at_least_1(dims.block[2]);
  if (result != WEIR_CU_INVALID_VALUE && result != WEIR_CU_LAUNCH_OUT_OF_RESOURCES)
    return weir__driver_status(driver, result, caller, call);
  if (!dims.grid[0] || !dims.block[0])
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: %s: the grid has %u blocks of %u threads in x; both must be at least 1", caller,
                      kernel->name, dims.grid[0], dims.block[0]);
  if (!driver->FuncGetAttribute(driver, &most, WEIR_CU_FUNC_ATTR_MAX_THREADS_PER_BLOCK, kernel->function) &&
      threads > (uint64_t)most)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s: a block has %llu threads; the kernel allows %d", caller,
                      kernel->name, (unsigned long long)threads, most);
  if (!driver->FuncGetAttribute(driver, &dynamic, WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE, kernel->function) &&
      dims.shared_bytes > (unsigned)dynamic)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: %s: a block has %u bytes of dynamic shared memory; the kernel allows %d, and "
                      "weir_kernel_set_max_dynamic_shared raises that",
                      caller, kernel->name, dims.shared_bytes, dynamic);
  return weir__driver_status(driver, result, caller, call);
}

static weir_status launch(const char *caller, weir_kernel *kernel, weir_launch_dims dims, weir_cu_stream stream,
                          void **params) {
  weir__on_device on;
  weir_status status = enter(caller, kernel, &on);
  if (status)
    return status;
  weir_cu_result result = on.driver->LaunchKernel(on.driver, kernel->function, dims.grid[0], at_least_1(dims.grid[1]),
                                                  at_least_1(dims.grid[2]), dims.block[0], at_least_1(dims.block[1]),
                                                  at_least_1(dims.block[2]), dims.shared_bytes, stream, params, NULL);
  if (result)
    status = explain(caller, &on, kernel, dims, result, "cuLaunchKernel(driver, function, ...)");
  weir__compute_leave(&on);
  return status;
}

static weir_status collect(const char *caller, const weir_kernel *kernel, const weir_param *params, int count,
                           void **values) {
  if (count < 0 || count > WEIR__MAX_PARAMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: param_count is %d; allowed are 0 to %d", caller, count,
                      WEIR__MAX_PARAMS);
  if (count && !params)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: params is NULL", caller);
  if (kernel->param_count >= 0 && count != kernel->param_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s takes %d parameter%s (got %d)", caller, kernel->name,
                      kernel->param_count, kernel->param_count == 1 ? "" : "s", count);
  for (int i = 0; i < count; i++) {
    if (!params[i].value)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the value of parameter %d of %s is NULL", caller, i,
                        kernel->name);
    if (kernel->param_count >= 0 && params[i].bytes != kernel->param_bytes[i])
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: parameter %d of %s has %zu bytes (got %zu)", caller, i,
                        kernel->name, kernel->param_bytes[i], params[i].bytes);
    values[i] = (void *)(uintptr_t)params[i].value;
  }
  return WEIR_OK;
}

weir_status weir_kernel_launch(weir_kernel *kernel, weir_launch_dims dims, weir_stream stream, const weir_param *params,
                               int param_count) {
  WEIR__CHECK_ARGUMENT(kernel);
  void *values[WEIR__MAX_PARAMS];
  weir_cu_stream raw;
  if (stream.device != kernel->module->device)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the stream is of device %d, and the kernel %s of device %d",
                      __func__, stream.device, kernel->name, kernel->module->device);
  weir_status status = collect(__func__, kernel, params, param_count, values);
  if (!status && (status = weir_stream_raw(stream, &raw)))
    return weir__fail_as(__func__, status);
  return status ? status : launch(__func__, kernel, dims, raw, values);
}

weir_status weir_kernel_launch_unchecked(weir_kernel *kernel, weir_launch_dims dims, weir_cu_stream stream,
                                         void **params) {
  WEIR__CHECK_ARGUMENT(kernel);
  return launch(__func__, kernel, dims, stream, params);
}

/* ---- Attributes ---- */

weir_status weir_kernel_get_attributes(weir_kernel *kernel, weir_kernel_attributes *attributes) {
  WEIR__CHECK_ARGUMENT(kernel);
  WEIR__CHECK_ARGUMENT(attributes);
  weir_kernel_attributes all = {.size = sizeof all, .param_count = kernel->param_count};
  const struct {
    int number, *value;
  } wanted[] = {{WEIR_CU_FUNC_ATTR_NUM_REGS, &all.registers},
                {WEIR_CU_FUNC_ATTR_SHARED_SIZE, &all.shared_bytes},
                {WEIR_CU_FUNC_ATTR_LOCAL_SIZE, &all.local_bytes},
                {WEIR_CU_FUNC_ATTR_CONST_SIZE, &all.constant_bytes},
                {WEIR_CU_FUNC_ATTR_MAX_THREADS_PER_BLOCK, &all.max_threads},
                {WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE, &all.max_dynamic_shared_bytes},
                {WEIR_CU_FUNC_ATTR_PTX_VERSION, &all.ptx_version},
                {WEIR_CU_FUNC_ATTR_BINARY_VERSION, &all.binary_version}};
  weir__on_device on;
  weir_status status = enter(__func__, kernel, &on);
  if (status)
    return status;
  weir_driver *driver = on.driver;
  for (size_t i = 0; i < WEIR_COUNT_OF(wanted) && !status; i++)
    status = WEIR__CALL(driver, FuncGetAttribute(driver, wanted[i].value, wanted[i].number, kernel->function));
  weir__compute_leave(&on);
  if (status)
    return status;
  size_t size = attributes->size;
  if (!size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: attributes->size is not set", __func__);
  memcpy(attributes, &all, size < sizeof all ? size : sizeof all);
  attributes->size = size;
  return WEIR_OK;
}

weir_status weir_kernel_param_bytes(weir_kernel *kernel, int index, size_t *bytes) {
  WEIR__CHECK_ARGUMENT(kernel);
  WEIR__CHECK_ARGUMENT(bytes);
  if (kernel->param_count < 0)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the driver does not know the parameters of %s", __func__,
                      kernel->name);
  if (index < 0 || index >= kernel->param_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s takes %d parameters; index is %d", __func__, kernel->name,
                      kernel->param_count, index);
  *bytes = kernel->param_bytes[index];
  return WEIR_OK;
}

weir_status weir_kernel_set_max_dynamic_shared(weir_kernel *kernel, int bytes) {
  WEIR__CHECK_ARGUMENT(kernel);
  weir__on_device on;
  weir_status status = enter(__func__, kernel, &on);
  if (status)
    return status;
  weir_driver *driver = on.driver;
  status =
      WEIR__CALL(driver, FuncSetAttribute(driver, kernel->function, WEIR_CU_FUNC_ATTR_MAX_DYNAMIC_SHARED_SIZE, bytes));
  weir__compute_leave(&on);
  return status;
}

/* ---- Occupancy ---- */

static weir_status active_blocks(const char *caller, const weir__on_device *on, const weir_kernel *kernel,
                                 int block_threads, size_t dynamic_bytes, int *blocks) {
  weir_driver *driver = on->driver;
  return WEIR__CALL_FOR(
      caller, driver,
      OccupancyMaxActiveBlocksPerMultiprocessor(driver, blocks, kernel->function, block_threads, dynamic_bytes));
}

weir_status weir_kernel_max_active_blocks(weir_kernel *kernel, int block_threads, size_t dynamic_bytes, int *blocks) {
  WEIR__CHECK_ARGUMENT(kernel);
  WEIR__CHECK_ARGUMENT(blocks);
  weir__on_device on;
  weir_status status = enter(__func__, kernel, &on);
  if (status)
    return status;
  int found;
  status = active_blocks(__func__, &on, kernel, block_threads, dynamic_bytes, &found);
  weir__compute_leave(&on);
  if (!status)
    *blocks = found;
  return status;
}

weir_status weir_kernel_suggest_block(weir_kernel *kernel, size_t dynamic_bytes, int limit, int *grid, int *block) {
  WEIR__CHECK_ARGUMENT(kernel);
  WEIR__CHECK_ARGUMENT(grid);
  WEIR__CHECK_ARGUMENT(block);
  weir__on_device on;
  weir_status status = enter(__func__, kernel, &on);
  if (status)
    return status;
  weir_driver *driver = on.driver;
  int most = 0, warp = 32, units = 1, best = 0, best_blocks = 0;
  status =
      WEIR__CALL(driver, FuncGetAttribute(driver, &most, WEIR_CU_FUNC_ATTR_MAX_THREADS_PER_BLOCK, kernel->function));
  if (!status)
    status = WEIR__CALL(driver, DeviceGetAttribute(driver, &warp, WEIR_CU_ATTR_WARP_SIZE, on.device));
  if (!status)
    status = WEIR__CALL(driver, DeviceGetAttribute(driver, &units, WEIR_CU_ATTR_MULTIPROCESSOR_COUNT, on.device));
  if (!status && limit > 0 && limit < most)
    most = limit;
  for (int threads = status ? 0 : (most + warp - 1) / warp * warp; threads > 0 && !status; threads -= warp) {
    int size = threads < most ? threads : most, blocks;
    status = active_blocks(__func__, &on, kernel, size, dynamic_bytes, &blocks);
    if (!status && blocks * size > best * best_blocks) {
      best = size;
      best_blocks = blocks;
    }
  }
  weir__compute_leave(&on);
  if (!status && !best)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: no block of %s fits with %zu bytes of dynamic shared memory",
                        __func__, kernel->name, dynamic_bytes);
  if (!status) {
    *block = best;
    *grid = best_blocks * units;
  }
  return status;
}
