#include "json.h"

#include <stdlib.h>

#include "inspect/write_sink.h"

static weir__sink sink;

void weir_cli_json_begin(int line_depth) {
  weir__sink_begin(&sink, &weir__json_format, stdout);
  sink.line_depth = line_depth;
  weir__write_open_dict(&sink);
}

void weir_cli_json_end(void) {
  weir__write_close(&sink);
  weir__sink_end(&sink, NULL); /* main() reports an error of the standard output */
}

static void write_rounded(const weir_cli_json_item *item) {
  char digits[400];
  snprintf(digits, sizeof digits, "%.*f", item->decimals, item->real);
  if (item->decimals)
    sink.format->real(&sink, strtod(digits, NULL));
  else
    sink.format->integer(&sink, strtoll(digits, NULL, 10));
}

static void write_item(const weir_cli_json_item *item) {
  const weir__sink_format *to = sink.format;
  if (item->key)
    to->key(&sink, item->key, NULL);
  switch (item->kind) {
  case WEIR_CLI_JSON_OBJECT:
  case WEIR_CLI_JSON_LIST:
    to->open(&sink, item->kind == WEIR_CLI_JSON_OBJECT);
    break;
  case WEIR_CLI_JSON_CLOSE:
    to->close(&sink);
    break;
  case WEIR_CLI_JSON_TEXT:
    if (item->text)
      to->text(&sink, item->text, NULL);
    else
      to->null(&sink);
    break;
  case WEIR_CLI_JSON_BOOL:
    to->boolean(&sink, item->integer != 0);
    break;
  case WEIR_CLI_JSON_INTEGER:
    to->integer(&sink, item->integer);
    break;
  case WEIR_CLI_JSON_NATURAL:
    to->natural(&sink, item->natural);
    break;
  case WEIR_CLI_JSON_REAL:
    write_rounded(item);
    break;
  case WEIR_CLI_JSON_NULL:
    to->null(&sink);
    break;
  }
}

void weir_cli_json_write(const weir_cli_json_item *items, size_t count) {
  for (size_t i = 0; i < count; i++)
    write_item(&items[i]);
}
