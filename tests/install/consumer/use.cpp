#include <iostream>
#include <weir/weir.h>

int main() {
  std::cout << weir_version() << ' ' << weir_status_name(WEIR_ERROR_NO_DEVICE) << '\n';
  return weir_device_is_available() ? 0 : 1;
}
