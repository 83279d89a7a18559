#include <iostream>
#include <weir/weir.hpp>

int main() {
  std::cout << weir::version() << ' ' << weir::status_name(WEIR_ERROR_NO_DEVICE) << '\n';
  return weir::device::is_available() ? 0 : 1;
}
