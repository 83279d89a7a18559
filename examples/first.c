/*
 * The first program of the README: allocates device memory, fills it, and reads it back.
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
  weir_stream stream;
  void *memory;

  check(weir_stream_create(0, 0, &stream)); /* on device 0, with normal priority */
  check(weir_malloc(sizeof words, stream, &memory));
  check(weir_fill32_async(memory, 42, COUNT, stream));
  check(weir_copy_async(words, memory, sizeof words, stream));
  check(weir_free(memory)); /* no need to wait: the stream does its work in order */
  check(weir_stream_synchronize(stream));

  printf("word 0 is %u, word %d is %u\n", words[0], COUNT - 1, words[COUNT - 1]);
  check(weir_shutdown());
  return words[0] == 42 && words[COUNT - 1] == 42 ? 0 : 1;
}
