/*
 * weir/compute/kernel.h for C++17 and later: modules of device code, and launches with typed arguments. Header-only,
 * for libweir_compute.
 *
 *     weir::kernel_module code = weir::kernel_module::compile(source);
 *     weir::kernel saxpy = code.kernel("saxpy");
 *     saxpy.launch(weir::launch_1d(n), stream, a, x.data(), y.data(), n);
 */
#ifndef WEIR_KERNEL_HPP
#define WEIR_KERNEL_HPP

#include "weir/compute/kernel.h"
#include "weir/weir.hpp"

namespace weir {

// A grid of enough blocks for `threads` threads.
constexpr weir_launch_dims launch_1d(unsigned threads, unsigned block = 256) noexcept {
  return {{threads / block + (threads % block != 0), 1, 1}, {block, 1, 1}, 0};
}

// A function of a module, which owns it.
class kernel {
public:
  constexpr kernel(weir_kernel *value) noexcept : kernel_(value) {}
  weir_kernel *get() const noexcept { return kernel_; }
  const char *name() const noexcept { return weir_kernel_name(kernel_); }

  // Arguments have the types of the kernel's parameters: their number and sizes are checked, not their types.
  template <class... Args> void launch(const weir_launch_dims &dims, stream stream, const Args &...args) const {
    detail::check(enqueue(dims, stream, args...));
  }
  template <class... Args>
  result<void> try_launch(const weir_launch_dims &dims, stream stream, const Args &...args) const noexcept {
    return detail::attempt(enqueue(dims, stream, args...));
  }

  weir_kernel_attributes attributes() const {
    weir_kernel_attributes attributes;
    weir_kernel_attributes_init(&attributes);
    return detail::checked(weir_kernel_get_attributes(kernel_, &attributes), attributes);
  }
  result<weir_kernel_attributes> try_attributes() const noexcept {
    weir_kernel_attributes attributes;
    weir_kernel_attributes_init(&attributes);
    return detail::attempted(weir_kernel_get_attributes(kernel_, &attributes), attributes);
  }

private:
  template <class... Args>
  weir_status enqueue(const weir_launch_dims &dims, stream stream, const Args &...args) const noexcept {
    static_assert((std::is_trivially_copyable_v<Args> && ...), "arguments are copied as bytes");
    const weir_param params[sizeof...(Args) + 1] = {{&args, sizeof args}..., {nullptr, 0}};
    return weir_kernel_launch(kernel_, dims, stream, params, static_cast<int>(sizeof...(Args)));
  }
  weir_kernel *kernel_;
};

// Device code on one device.
class kernel_module {
public:
  // Compiles CUDA C++; the error of a source that does not compile has the compiler's messages.
  static kernel_module compile(const char *source, device device = {}, const weir_compile_options *options = nullptr) {
    weir_module *made = nullptr;
    detail::check(weir_module_compile(device.number(), source, options, &made));
    return adopt(made);
  }
  static result<kernel_module> try_compile(const char *source, device device = {},
                                           const weir_compile_options *options = nullptr) noexcept {
    weir_module *made = nullptr;
    if (weir_status status = weir_module_compile(device.number(), source, options, &made))
      return detail::failure(status);
    return adopt(made);
  }

  // Loads PTX, a cubin or a fatbin.
  static kernel_module load(const void *image, std::size_t bytes, device device = {}) {
    weir_module *made = nullptr;
    detail::check(weir_module_load(device.number(), image, bytes, &made));
    return adopt(made);
  }
  static result<kernel_module> try_load(const void *image, std::size_t bytes, device device = {}) noexcept {
    weir_module *made = nullptr;
    if (weir_status status = weir_module_load(device.number(), image, bytes, &made))
      return detail::failure(status);
    return adopt(made);
  }
  static kernel_module adopt(weir_module *owned) noexcept { return kernel_module(owned); }
  weir_module *get() const noexcept { return module_.get(); }
  weir_module *release() noexcept { return module_.release(); }

  weir::kernel kernel(const char *name) const {
    weir_kernel *found = nullptr;
    return detail::checked(weir_module_kernel(get(), name, &found), found);
  }
  result<weir::kernel> try_kernel(const char *name) const noexcept {
    weir_kernel *found = nullptr;
    if (weir_status status = weir_module_kernel(get(), name, &found))
      return detail::failure(status);
    return weir::kernel(found);
  }
  const char *log() const noexcept { return weir_module_log(get()); } // the compiler's warnings, or ""

private:
  explicit kernel_module(weir_module *owned) noexcept : module_(owned) {}
  detail::handle<weir_module, weir_module_destroy> module_;
};

} // namespace weir

#endif
