#include <stdio.h>
#include <weir/weir.h>

int main(void) {
  printf("%s %s\n", weir_version(), weir_status_name(WEIR_ERROR_NO_DEVICE));
  return weir_device_is_available() ? 0 : 1;
}
