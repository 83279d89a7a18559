/*
 * A libFuzzer target, see scripts/fuzz: CUDA C++ source that is prepared for the host's compiler, and the code of
 * elementwise functions. Nothing is compiled.
 */
#include <stdlib.h>
#include <string.h>

#include "src/compile.h"
#include "src/jit_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const names[] = {"scale<float>"};
  const weir_compile_options options = {.size = sizeof options, .names = names, .name_count = 1};
  weir__bytes text = {0};
  char *source = malloc(size + 1);
  if (!source)
    return 0;
  memcpy(source, data, size);
  source[size] = 0;
  weir__soft_source(source, &options, &text);
  weir__bytes_end(&text);
  char *name = weir__jit_parse_name(source);
  if (name && (!*name || !strstr(source, name)))
    abort();
  free(name);
  free(source);
  return 0;
}
