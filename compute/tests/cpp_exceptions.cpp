/*
 * kernel.hpp with exceptions, on the software device.
 */
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "../../tests/cpp/check.hpp"
#include "weir/compute/kernel.hpp"
#include "weir/soft.h"
#include "weir/weir.hpp"

namespace {

static_assert(!std::is_copy_constructible_v<weir::kernel_module> && !std::is_copy_assignable_v<weir::kernel_module> &&
              std::is_nothrow_move_constructible_v<weir::kernel_module> &&
              std::is_nothrow_destructible_v<weir::kernel_module>);

weir_cu_result scale(const weir_soft_launch *launch) {
  auto *values = *static_cast<float **>(launch->params[0]);
  const float factor = *static_cast<float *>(launch->params[1]);
  for (unsigned i = 0; i < launch->grid[0] * launch->block[0]; i++)
    values[i] *= factor;
  return WEIR_CU_SUCCESS;
}

// The status of what a function throws; WEIR_OK if it throws nothing.
template <class Function> weir_status thrown(Function function) {
  try {
    function();
  } catch (const weir::error &error) {
    return error.status();
  }
  return WEIR_OK;
}

void test_kernels() {
  const std::size_t sizes[] = {sizeof(void *), sizeof(float)};
  CHECK(weir_soft_register_kernel(test::soft, "scale", scale, 2, sizes) == WEIR_OK);
  const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry scale() { ret; }\n";
  weir::kernel_module code = weir::kernel_module::load(ptx, sizeof ptx, 0);
  const weir::kernel kernel = code.kernel("scale");
  CHECK(std::string(kernel.name()) == "scale" && kernel.attributes().param_count == 2);
  const weir::stream first = weir::stream::create(0);
  weir::buffer<float> values(512, first);
  weir::fill_async(values, 2.0f, first);
  kernel.launch(weir::launch_1d(512), first, values.data(), 4.0f);
  std::vector<float> host(512);
  weir::copy(host, values, first);
  CHECK(host[0] == 8.0f && host[511] == 8.0f);
  CHECK(thrown([&] { kernel.launch(weir::launch_1d(512), first, values.data()); }) == WEIR_ERROR_INVALID_ARGUMENT);
  CHECK(thrown([&] { (void)code.kernel("missing"); }) == WEIR_ERROR_INVALID_ARGUMENT);
  static_assert(weir::launch_1d(513).grid[0] == 3 && weir::launch_1d(0xffffffffu).grid[0] == 1u << 24);
}

} // namespace

int main() {
  test::run("kernels", test_kernels);
  return test::failures != 0;
}
