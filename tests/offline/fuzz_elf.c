/*
 * A libFuzzer target, see scripts/fuzz: build IDs and symbols of ELF files that a recording names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "offline/read/elf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int file = -1;
  char path[32];
  uint64_t address = 0, sum = 0;
  if (file < 0 && (file = memfd_create("elf", MFD_CLOEXEC)) < 0)
    abort();
  if (ftruncate(file, (off_t)size) || pwrite(file, data, size, 0) != (ssize_t)size)
    abort();
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  weir__elf *elf = weir__elf_open(path);
  if (!elf)
    return 0;
  size_t bytes = 0;
  const unsigned char *id = weir__elf_build_id(elf, &bytes);
  for (size_t i = 0; id && i < bytes; i++)
    sum += id[i];
  for (size_t at = size > 64 ? size - 64 : 0; at + 8 <= size; at += 8) {
    memcpy(&address, data + at, 8);
    const char *name = weir__elf_function(elf, address);
    sum += name ? strlen(name) : 0;
  }
  for (address = 0; address < 4096; address += 256) {
    const char *name = weir__elf_function(elf, address);
    sum += name ? strlen(name) : 0;
  }
  __asm__ volatile("" : : "r"(sum));
  weir__elf_close(elf);
  return 0;
}
