#include "record/texts.h"

#include <string.h>

weir__intern weir__texts = {.max_bytes = 64u << 20};

uint32_t weir__text_number(const char *text) { return text ? weir__intern_put(&weir__texts, text, strlen(text)) : 0; }

const char *weir__text_of_number(uint32_t number) {
  size_t length;
  const char *text = weir__intern_get(&weir__texts, number, &length);
  return text ? text : "";
}
