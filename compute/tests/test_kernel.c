/*
 * Kernels from source: compiled, found, launched, captured.
 */
#include "weir/compute/kernel.h"

#include <string.h>

#include "support/runtime.h"

static const char source[] =
    "#include <cuda_fp16.h>\n"
    "namespace tools { template <class T> __device__ T twice(T x) { return x + x; } }\n"
    "extern \"C\" __global__ void saxpy(float a, const float *x, float *y, int n) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) y[i] = a * x[i] + y[i];\n"
    "}\n"
    "extern \"C\" {\n"
    "// extern \"C\" __global__ void commented(int) {}\n"
    "__global__ void __launch_bounds__(256) reverse(int *p) {\n"
    "  __shared__ int tile[256];\n"
    "  tile[threadIdx.x] = p[blockIdx.x * blockDim.x + threadIdx.x];\n"
    "  __syncthreads();\n"
    "  p[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];\n"
    "}\n"
    "__global__ void scan(int *p) {\n"
    "  extern __shared__ int held[];\n"
    "  int i = threadIdx.x;\n"
    "  held[i] = p[i];\n"
    "  for (int d = 1; d < blockDim.x; d *= 2) {\n"
    "    __syncthreads();\n"
    "    int add = i >= d ? held[i - d] : 0;\n"
    "    __syncthreads();\n"
    "    held[i] += add;\n"
    "  }\n"
    "  p[i] = held[i];\n"
    "}\n"
    "}\n"
    "extern \"C\" __global__ void warp_sum(const int *in, int *out) {\n"
    "  int v = in[threadIdx.x];\n"
    "  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);\n"
    "  unsigned odd = __ballot_sync(0xffffffffu, in[threadIdx.x] & 1);\n"
    "  if (threadIdx.x % 32 == 0) { atomicAdd(&out[0], v); atomicAdd(&out[1], __popc(odd)); }\n"
    "}\n"
    "extern \"C\" __global__ void halves(const float *in, float *out, int n) {\n"
    "  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = __half2float(__float2half(in[i]));\n"
    "}\n"
    "extern \"C\" __global__ void where(unsigned *out) {\n"
    "  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;\n"
    "  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;\n"
    "  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;\n"
    "}\n"
    "template <class T> __global__ void scale(T *p, T by, int n) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) p[i] = tools::twice(p[i]) * by;\n"
    "}\n"
    "extern \"C\" __global__ void nothing() {}\n";

static const char *const names[] = {"scale<float>", "scale<long long>"};

static weir_status compile(weir_module **module) {
  weir_compile_options options;
  weir_compile_options_init(&options);
  options.names = names;
  options.name_count = 2;
  return weir_module_compile(0, source, &options, module);
}

static weir_module *module;

static weir_kernel *kernel(const char *name) {
  weir_kernel *found;
  assert_ok(weir_module_kernel(module, name, &found));
  return found;
}

static int setup(void **state) {
  if (runtime_setup(state))
    return -1;
  if (!is_soft()) { /* needs NVRTC */
    char path[1024];
    const char *how;
    if (weir_library_find("nvrtc", path, sizeof path, NULL, &how))
      WAIVE_TEST("needs NVRTC");
  }
  assert_ok(compile(&module));
  return 0;
}

static int teardown(void **state) {
  weir_module_destroy(module);
  module = NULL;
  return runtime_teardown(state);
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = teardown)

/* Device memory with the contents of an array, and back. */
static void *upload(const void *from, size_t bytes) {
  void *to = device_memory(0, bytes);
  assert_cu(d->Memcpy(d, (uintptr_t)to, (uintptr_t)from, bytes));
  return to;
}

static void download(void *to, void *from, size_t bytes) {
  assert_ok(weir_device_synchronize(0));
  assert_cu(d->Memcpy(d, (uintptr_t)to, (uintptr_t)from, bytes));
  free_device_memory(0, from);
}

/* ---- Launches ---- */

TEST(saxpy) {
  enum { N = 1000 };
  float x[N], y[N], a = 2;
  int n = N;
  for (int i = 0; i < N; i++) {
    x[i] = (float)i;
    y[i] = 1;
  }
  void *dx = upload(x, sizeof x), *dy = upload(y, sizeof y);
  weir_stream stream = new_stream(0);
  weir_param params[] = {WEIR_PARAM(a), WEIR_PARAM(dx), WEIR_PARAM(dy), WEIR_PARAM(n)};
  weir_launch_dims dims = {.grid = {(N + 127) / 128}, .block = {128}};
  assert_ok(weir_kernel_launch(kernel("saxpy"), dims, stream, params, 4));
  assert_ok(weir_kernel_launch(kernel("saxpy"), dims, stream, params, 4));
  void *values[] = {&a, &dx, &dy, &n};
  assert_ok(weir_kernel_launch_unchecked(kernel("saxpy"), dims, raw_of(stream), values));
  download(y, dy, sizeof y);
  free_device_memory(0, dx);
  for (int i = 0; i < N; i++)
    assert_float_equal(y[i], 6 * i + 1, 0);
}

TEST(indices) {
  unsigned out[2 * 3 * 4 * 5 * 6 * 2];
  memset(out, 0xff, sizeof out);
  void *p = upload(out, sizeof out);
  weir_param params[] = {WEIR_PARAM(p)};
  weir_launch_dims dims = {.grid = {2, 3, 4}, .block = {5, 6, 2}};
  assert_ok(weir_kernel_launch(kernel("where"), dims, default_stream(0), params, 1));
  download(out, p, sizeof out);
  for (unsigned i = 0; i < 24 * 60; i++)
    assert_int_equal(out[i], i / 60 * 1000 + i % 60);
}

TEST(shared_memory) {
  int v[512];
  for (int i = 0; i < 512; i++)
    v[i] = i;
  void *p = upload(v, sizeof v);
  weir_param params[] = {WEIR_PARAM(p)};
  weir_launch_dims dims = {.grid = {2}, .block = {256}};
  assert_ok(weir_kernel_launch(kernel("reverse"), dims, default_stream(0), params, 1));
  download(v, p, sizeof v);
  for (int i = 0; i < 512; i++)
    assert_int_equal(v[i], i / 256 * 256 + 255 - i % 256);

  for (int i = 0; i < 512; i++)
    v[i] = 1;
  p = upload(v, sizeof v);
  params[0] = (weir_param)WEIR_PARAM(p);
  dims = (weir_launch_dims){.grid = {1}, .block = {512}, .shared_bytes = 512 * sizeof(int)};
  assert_ok(weir_kernel_launch(kernel("scan"), dims, default_stream(0), params, 1));
  download(v, p, sizeof v);
  for (int i = 0; i < 512; i++)
    assert_int_equal(v[i], i + 1);
}

TEST(warps_and_atomics) {
  int in[128], out[2] = {0}, sum = 0, odd = 0;
  for (int i = 0; i < 128; i++) {
    in[i] = i * 7 % 31;
    sum += in[i];
    odd += in[i] & 1;
  }
  void *din = upload(in, sizeof in), *dout = upload(out, sizeof out);
  weir_param params[] = {WEIR_PARAM(din), WEIR_PARAM(dout)};
  weir_launch_dims dims = {.grid = {3}, .block = {128}};
  assert_ok(weir_kernel_launch(kernel("warp_sum"), dims, default_stream(0), params, 2));
  download(out, dout, sizeof out);
  free_device_memory(0, din);
  assert_int_equal(out[0], 3 * sum);
  assert_int_equal(out[1], 3 * odd);
}

TEST(half) {
  const float in[] = {0, -1.5f, 65504, 65519.99f, 65520, 1e-8f, 6e-8f, 5.9604645e-8f, 2048.5f, 2049, 1.0f / 3, 1e-5f};
  const float expected[] = {0,    -1.5f, 65504,           65504,           1.0f / 0.0f, 0, 5.9604645e-8f, 5.9604645e-8f,
                            2048, 2048,  0.333251953125f, 1.0013580322e-5f};
  enum { N = sizeof in / sizeof *in };
  float out[N];
  int n = N;
  void *din = upload(in, sizeof in), *dout = upload(in, sizeof in);
  weir_param params[] = {WEIR_PARAM(din), WEIR_PARAM(dout), WEIR_PARAM(n)};
  assert_ok(weir_kernel_launch(kernel("halves"), (weir_launch_dims){.grid = {1}, .block = {32}}, default_stream(0),
                               params, 3));
  download(out, dout, sizeof out);
  free_device_memory(0, din);
  assert_memory_equal(out, expected, sizeof out);
}

TEST(templates) {
  long long v[100], by = 3;
  int n = 100;
  for (int i = 0; i < 100; i++)
    v[i] = i;
  void *p = upload(v, sizeof v);
  weir_param params[] = {WEIR_PARAM(p), WEIR_PARAM(by), WEIR_PARAM(n)};
  assert_ok(weir_kernel_launch(kernel("scale<long long>"), (weir_launch_dims){.grid = {2}, .block = {64}},
                               default_stream(0), params, 3));
  download(v, p, sizeof v);
  for (int i = 0; i < 100; i++)
    assert_int_equal(v[i], 6 * i);
  assert_string_equal(weir_kernel_name(kernel("scale<float>")), "scale<float>");
  assert_ptr_equal(kernel("scale<float>"), kernel("scale<float>"));
}

TEST(unknown_kernels) {
  weir_kernel *found = NULL;
  assert_error_says(INVALID_ARGUMENT, "no kernel named nope", weir_module_kernel(module, "nope", &found));
  assert_error(INVALID_ARGUMENT, weir_module_kernel(module, "commented", &found));
  assert_error(INVALID_ARGUMENT, weir_module_kernel(module, "scale<int>", &found));
  assert_error_says(INVALID_ARGUMENT, "module is NULL", weir_module_kernel(NULL, "saxpy", &found));
  assert_null(found);
}

/* ---- Errors of launches ---- */

TEST(parameters) {
  weir_kernel_attributes attributes;
  weir_kernel_attributes_init(&attributes);
  weir_kernel *saxpy = kernel("saxpy");
  assert_ok(weir_kernel_get_attributes(saxpy, &attributes));
  if (attributes.param_count < 0)
    WAIVE_TEST("the driver does not know the parameters");
  assert_int_equal(attributes.param_count, 4);
  float a = 1;
  double wide = 1;
  void *p = NULL;
  int n = 0;
  weir_launch_dims dims = {.grid = {1}, .block = {1}};
  weir_stream stream = default_stream(0);
  weir_param params[] = {WEIR_PARAM(a), WEIR_PARAM(p), WEIR_PARAM(p), WEIR_PARAM(n), WEIR_PARAM(n)};
  assert_error_says(INVALID_ARGUMENT, "saxpy takes 4 parameters (got 3)",
                    weir_kernel_launch(saxpy, dims, stream, params, 3));
  assert_error_says(INVALID_ARGUMENT, "saxpy takes 4 parameters (got 5)",
                    weir_kernel_launch(saxpy, dims, stream, params, 5));
  assert_error_says(INVALID_ARGUMENT, "params is NULL", weir_kernel_launch(saxpy, dims, stream, NULL, 4));
  assert_error_says(INVALID_ARGUMENT, "0 to 256", weir_kernel_launch(saxpy, dims, stream, params, -1));
  params[0] = (weir_param)WEIR_PARAM(wide);
  assert_error_says(INVALID_ARGUMENT, "parameter 0 of saxpy has 4 bytes (got 8)",
                    weir_kernel_launch(saxpy, dims, stream, params, 4));
  params[0].value = NULL;
  assert_error_says(INVALID_ARGUMENT, "parameter 0 of saxpy is NULL",
                    weir_kernel_launch(saxpy, dims, stream, params, 4));
  size_t bytes;
  assert_ok(weir_kernel_param_bytes(saxpy, 1, &bytes));
  assert_int_equal(bytes, 8);
  assert_error(INVALID_ARGUMENT, weir_kernel_param_bytes(saxpy, 4, &bytes));
  assert_ok(weir_kernel_launch(kernel("nothing"), dims, stream, NULL, 0));
}

TEST(dimensions) {
  weir_kernel *nothing = kernel("nothing");
  weir_stream stream = default_stream(0);
  assert_error_says(INVALID_ARGUMENT, "at least 1",
                    weir_kernel_launch(nothing, (weir_launch_dims){.grid = {0}, .block = {32}}, stream, NULL, 0));
  assert_error_says(INVALID_ARGUMENT, "a block has 2048 threads; the kernel allows 1024",
                    weir_kernel_launch(nothing, (weir_launch_dims){.grid = {1}, .block = {1024, 2}}, stream, NULL, 0));
  weir_launch_dims large = {.grid = {1}, .block = {32}, .shared_bytes = 64 << 10};
  assert_error_says(INVALID_ARGUMENT, "65536 bytes of dynamic shared memory; the kernel allows 49152",
                    weir_kernel_launch(nothing, large, stream, NULL, 0));
  assert_ok(weir_kernel_set_max_dynamic_shared(nothing, 64 << 10));
  assert_ok(weir_kernel_launch(nothing, large, stream, NULL, 0));
  if (devices() > 1)
    assert_error_says(INVALID_ARGUMENT, "the stream is of device 1, and the kernel nothing of device 0",
                      weir_kernel_launch(nothing, large, default_stream(1), NULL, 0));
}

/* ---- Attributes and occupancy ---- */

TEST(attributes) {
  weir_kernel_attributes attributes;
  weir_kernel_attributes_init(&attributes);
  assert_ok(weir_kernel_get_attributes(kernel("nothing"), &attributes));
  assert_int_equal(attributes.max_threads, 1024);
  assert_int_equal(attributes.shared_bytes, 0);
  assert_int_equal(attributes.max_dynamic_shared_bytes, 48 << 10);
  attributes.size = 0;
  assert_error_says(INVALID_ARGUMENT, "size", weir_kernel_get_attributes(kernel("nothing"), &attributes));
}

TEST(occupancy) {
  int blocks = 0, grid = 0, block = 0;
  weir_kernel *nothing = kernel("nothing");
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  assert_ok(weir_device_get_properties(0, &properties));
  int threads = properties.max_threads_per_multiprocessor;
  assert_ok(weir_kernel_max_active_blocks(nothing, 256, 0, &blocks));
  assert_int_equal(blocks, threads / 256);
  assert_ok(weir_kernel_suggest_block(nothing, 0, 0, &grid, &block));
  assert_int_equal(block, 1024);
  assert_int_equal(grid, threads / 1024 * properties.multiprocessor_count);
  assert_ok(weir_kernel_suggest_block(nothing, 0, 100, &grid, &block));
  assert_in_range(block, 64, 100);
  assert_error_says(INVALID_ARGUMENT, "no block of nothing fits",
                    weir_kernel_suggest_block(nothing, 1 << 20, 0, &grid, &block));
}

/* ---- Captures, and the end of the runtime ---- */

TEST(capture) {
  long long v = 1, by = 1;
  int n = 1;
  void *p = upload(&v, sizeof v);
  weir_stream stream = new_stream(0);
  weir_graph *graph;
  weir_param params[] = {WEIR_PARAM(p), WEIR_PARAM(by), WEIR_PARAM(n)};
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_ok(
      weir_kernel_launch(kernel("scale<long long>"), (weir_launch_dims){.grid = {1}, .block = {1}}, stream, params, 3));
  assert_ok(weir_graph_end_capture(graph));
  for (int i = 0; i < 3; i++)
    assert_ok(weir_graph_replay(graph));
  download(&v, p, sizeof v);
  assert_int_equal(v, 8);
  weir_graph_destroy(graph);
}

TEST(shutdown) {
  weir_kernel *nothing = kernel("nothing");
  weir_stream stream = default_stream(0);
  assert_ok(weir_shutdown());
  weir_launch_dims dims = {.grid = {1}, .block = {1}};
  assert_error_says(INVALID_HANDLE, "shut down", weir_kernel_launch(nothing, dims, stream, NULL, 0));
  assert_error_says(INVALID_HANDLE, "shut down", weir_module_kernel(module, "nothing", &nothing));
}

static void use_in_child(void *data) {
  weir_kernel *nothing = data, *found;
  weir_launch_dims dims = {.grid = {1}, .block = {1}};
  child_assert(weir_kernel_launch_unchecked(nothing, dims, NULL, NULL) == WEIR_ERROR_BAD_FORK);
  child_assert(weir_module_kernel(module, "nothing", &found) == WEIR_ERROR_BAD_FORK);
  weir_module_destroy(module);
}

TEST(fork) {
  NEED_SOFT("NVIDIA's driver cannot be used in children that are forked after its start");
  in_process(use_in_child, kernel("nothing"));
  assert_ok(weir_kernel_launch_unchecked(kernel("nothing"), (weir_launch_dims){.grid = {1}, .block = {1}}, NULL, NULL));
}

/* ---- Failures ---- */

static weir_status use_kernel(void) {
  weir_module *made;
  weir_kernel *found;
  weir_kernel_attributes attributes;
  weir_kernel_attributes_init(&attributes);
  int grid, block;
  weir_status status = compile(&made);
  if (status)
    return status;
  status = weir_module_kernel(made, "nothing", &found);
  if (!status)
    status = weir_kernel_get_attributes(found, &attributes);
  if (!status)
    status = weir_kernel_set_max_dynamic_shared(found, 60 << 10);
  if (!status)
    status = weir_kernel_suggest_block(found, 0, 64, &grid, &block);
  if (!status)
    status = weir_kernel_launch_unchecked(found, (weir_launch_dims){.grid = {1}, .block = {1}}, NULL, NULL);
  only_giving_back();
  weir_module_destroy(made);
  return status;
}

TEST_SETUP(failing_calls, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("makes calls of the software device fail");
  sweep_faults(use_kernel);
}
