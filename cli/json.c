#include "json.h"

#include <stdio.h>

#include "base/text.h"

void weir_cli_json_string(const char *text) {
  putchar('"');
  while (*text) {
    uint32_t code;
    size_t bytes = weir__utf8_length(text, &code);
    if (!bytes) /* JSON is UTF-8, whatever a file's name is */
      fputs("\xef\xbf\xbd", stdout);
    else if (code == '"' || code == '\\')
      printf("\\%c", (int)code);
    else if (code == '\n')
      fputs("\\n", stdout);
    else if (!weir__is_printable(code))
      printf("\\u%04x", (unsigned)code);
    else
      fwrite(text, 1, bytes, stdout);
    text += bytes ? bytes : 1;
  }
  putchar('"');
}
