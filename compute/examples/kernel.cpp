/*
 * A kernel from source, in C++: y = a * x + y, compiled for the device at run time. On a GPU this needs NVRTC, on the
 * software device a C++ compiler.
 */
#include <cstdio>
#include <numeric>
#include <vector>
#include <weir/compute/kernel.hpp>

static const char saxpy_source[] = "extern \"C\" __global__ void saxpy(float a, const float *x, float *y, int n) {\n"
                                   "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                   "  if (i < n)\n"
                                   "    y[i] = a * x[i] + y[i];\n"
                                   "}\n";

int main() {
  const int n = 1000;
  std::vector<float> host(n);
  std::iota(host.begin(), host.end(), 0.0f);
  try {
    {
      const weir::stream stream = weir::stream::create(0);
      weir::buffer<float> x(host.size(), stream), y(host.size(), stream);
      weir::copy_async(x, host, stream);
      weir::fill_async(y, 1.0f, stream);
      const weir::kernel_module code = weir::kernel_module::compile(saxpy_source);
      const weir::kernel saxpy = code.kernel("saxpy");
      saxpy.launch(weir::launch_1d(n), stream, 3.0f, x.data(), y.data(), n);
      weir::copy(host, y, stream);
    }
    weir::shutdown();
  } catch (const weir::error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.status() == WEIR_ERROR_NOT_SUPPORTED ? 77 : 1; // no compiler
  }
  std::printf("y[%d] is %g\n", n - 1, static_cast<double>(host.back()));
  return host.back() == 3.0f * 999 + 1 ? 0 : 1;
}
