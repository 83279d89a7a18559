/*
 * A libFuzzer target, see scripts/fuzz: requests to weir view --serve. A response has a body only if the request knows
 * the word in the address and names this machine, and the body lies within the file.
 */
#include "../../cli/view_serve.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char page[] = "<!doctype html>", view[100] = "view";
  static const weir_cli_served files[] = {
      {.name = "", .type = "text/html", .bytes = page, .size = sizeof page - 1},
      {.name = "view.bin", .type = "application/octet-stream", .bytes = view, .size = sizeof view}};
  static const server s = {.files = files, .count = WEIR_COUNT_OF(files), .word = "0123456789abcdef"};
  connection *c = malloc(sizeof *c);
  if (!c)
    return 0;
  memset(c, 0, sizeof *c);
  c->got = size < REQUEST_SIZE ? size : REQUEST_SIZE;
  memcpy(c->request, data, c->got);
  c->request[c->got] = 0;
  consider(&s, c);
  for (size_t i = 0; i < WEIR_COUNT_OF(files); i++) {
    const char *begin = files[i].bytes;
    if (c->body_size && c->body >= begin && c->body < begin + files[i].size &&
        (!strstr(c->request, s.word) || c->body_size > files[i].size - (size_t)(c->body - begin)))
      abort();
  }
  if (c->header_size >= sizeof c->header)
    abort();
  uint64_t sum = 0;
  for (size_t i = 0; i < c->body_size; i++)
    sum += (unsigned char)c->body[i];
  __asm__ volatile("" : : "r"(sum));
  free(c);
  return 0;
}
