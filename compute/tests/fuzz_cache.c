/*
 * A libFuzzer target, see scripts/fuzz: a file of the cache of compiled code with arbitrary contents. Its checksum is
 * fixed up in half of the inputs.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/kernel_cache.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHECKSUM_AT = 24, SIZES_AT = 32, REST_AT = 48 };

static char folder[64], path[128];

static void end(void) {
  unlink(path);
  rmdir(folder);
}

static void begin(const weir__bytes *key) {
  snprintf(folder, sizeof folder, "/tmp/weir-fuzz-cache-XXXXXX");
  if (!mkdtemp(folder) || setenv("WEIR_CACHE_DIR", folder, 1))
    abort();
  snprintf(path, sizeof path, "%s/%016llx.kernel", folder,
           (unsigned long long)weir__hash_bytes(0, key->data, key->count));
  atexit(end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  weir__bytes key = {0};
  weir__bytes_add(&key, "key", 3);
  if (!*folder)
    begin(&key);
  uint8_t *bytes = malloc(size + 1);
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (!bytes || file < 0)
    abort();
  memcpy(bytes, data, size);
  if (size >= REST_AT && size % 2) {
    uint64_t sizes = weir__hash_bytes(1, bytes + SIZES_AT, 16);
    sizes = weir__hash_bytes(sizes, bytes + REST_AT, size - REST_AT);
    memcpy(bytes + CHECKSUM_AT, &sizes, sizeof sizes);
  }
  if (write(file, bytes, size) != (ssize_t)size || close(file))
    abort();
  unsigned char *found;
  size_t count;
  if (weir__cache_read(&key, &found, &count)) {
    if (count > size)
      abort();
    uint64_t sum = weir__hash_bytes(0, found, count);
    __asm__ volatile("" : : "r"(sum));
    free(found);
  }
  free(bytes);
  weir__bytes_end(&key);
  return 0;
}
