/*
 * A libFuzzer target, see scripts/fuzz: files of tuning results, of PyTorch's TunableOp. What was read
 * must be the same after it was written and read again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/tuning_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int make_file(const char *name, char path[32]) {
  int file = memfd_create(name, MFD_CLOEXEC);
  if (file < 0)
    abort();
  snprintf(path, 32, "/proc/self/fd/%d", file);
  return file;
}

static void compare(const weir__tuning_file *a, const weir__tuning_file *b) {
  if (a->row_count != b->row_count || weir__tuning_file_check("fuzz", "file", a, b) != WEIR_OK)
    abort();
  for (size_t i = 0; i < a->row_count; i++)
    if (strcmp(a->rows[i].op, b->rows[i].op) || strcmp(a->rows[i].params, b->rows[i].params) ||
        strcmp(a->rows[i].solution, b->rows[i].solution))
      abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int file = -1;
  static char path[32], copy[64];
  weir__tuning_file read = {0}, again = {0};
  if (file < 0) {
    file = make_file("tuning", path);
    snprintf(copy, sizeof copy, "/tmp/weir-fuzz-tuning-%d", (int)getpid());
  }
  if (ftruncate(file, (off_t)size) || pwrite(file, data, size, 0) != (ssize_t)size)
    abort();
  if (weir__tuning_file_read("fuzz", path, &read) == WEIR_OK && size && data[size - 1] % 64 == 0) { /* it takes long */
    if (weir__tuning_file_write("fuzz", copy, &read) || weir__tuning_file_read("fuzz", copy, &again))
      abort();
    compare(&read, &again);
    unlink(copy);
  }
  weir__tuning_file_clear(&read);
  weir__tuning_file_clear(&again);
  return 0;
}
