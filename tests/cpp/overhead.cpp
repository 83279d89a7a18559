// Compiled by compile.sh, which counts the calls that are left: a buffer costs what the two C calls cost.
#include "weir/weir.hpp"

void use(void *pointer) noexcept;

extern "C" void with_buffer(weir_stream stream, std::size_t bytes) {
  const weir::buffer<std::byte> buffer(bytes, stream);
  weir::buffer<std::byte> moved = weir::buffer<std::byte>(bytes, stream);
  use(moved.data());
}

extern "C" void with_c(weir_stream stream, std::size_t bytes) {
  void *first = nullptr, *second = nullptr;
  weir::detail::check(weir_malloc(bytes, stream, &first));
  weir::detail::check(weir_malloc(bytes, stream, &second));
  use(second);
  weir_free(second);
  weir_free(first);
}
