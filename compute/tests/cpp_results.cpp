/*
 * kernel.hpp without exceptions and without run-time type information: the functions with try_.
 */
#include "../../tests/cpp/check.hpp"
#include "weir/compute/kernel.hpp"
#include "weir/soft.h"
#include "weir/weir.hpp"

#if defined(__cpp_exceptions)
#error "compile this file with -fno-exceptions"
#endif

namespace {

void test_kernels() {
  const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry none() { ret; }\n";
  const auto stream = weir::stream::try_create(0);
  if (!CHECK(stream.has_value()))
    return;
  CHECK(!weir::kernel_module::try_load("nothing", 7, 0));
  CHECK(weir_soft_register_kernel(
            test::soft, "none", [](const weir_soft_launch *) { return 0; }, 0, nullptr) == WEIR_OK);
  auto code = weir::kernel_module::try_load(ptx, sizeof ptx, 0);
  CHECK(code && code->try_kernel("none") && !code->try_kernel("some"));
  CHECK(code->try_kernel("none")->try_launch(weir::launch_1d(1), *stream) && stream->device().try_synchronize());
}

} // namespace

int main() {
  test::run("kernels", test_kernels);
  return test::failures != 0;
}
