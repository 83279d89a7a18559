/*
 * The first program of the README: fills device memory and reads it back.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weir/weir.h>

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "%s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

int main(void) {
  enum { COUNT = 1 << 20 };
  static uint32_t words[COUNT];

  char name[256];
  weir_stream stream;
  check(weir_device_set(0));
  check(weir_device_name(0, name, sizeof name));
  check(weir_stream_create(0, 0, &stream));

  /* Device memory comes from the driver table, which speaks as the CUDA driver does. */
  weir_driver *driver;
  weir_cu_deviceptr memory;
  check(weir_get_driver(&driver));
  if (driver->MemAlloc(driver, &memory, sizeof words) != WEIR_CU_SUCCESS)
    return 1;

  /* The stream does one after the other; the host goes on, until it waits. */
  check(weir_fill32_async((void *)(uintptr_t)memory, 42, COUNT, stream));
  check(weir_copy_async(words, (const void *)(uintptr_t)memory, sizeof words, stream));
  check(weir_stream_synchronize(stream));
  printf("%s: word 0 is %u, word %d is %u\n", name, words[0], COUNT - 1, words[COUNT - 1]);

  driver->MemFree(driver, memory);
  check(weir_shutdown());
  return words[0] == 42 && words[COUNT - 1] == 42 ? 0 : 1;
}
