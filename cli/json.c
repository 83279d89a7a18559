#include "json.h"

weir__sink weir_cli_json_sink;

void weir_cli_json_begin(int line_depth) {
  weir__sink_begin(&weir_cli_json_sink, &weir__json_format, stdout);
  weir_cli_json_sink.line_depth = line_depth;
  weir__write_open_dict(&weir_cli_json_sink);
}

void weir_cli_json_end(void) {
  weir__write_close(&weir_cli_json_sink);
  weir__sink_end(&weir_cli_json_sink, NULL); /* main() reports an error of the standard output */
}
