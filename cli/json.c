#include "json.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"

weir__sink weir_cli_json_sink;

static FILE *separate_stream; /* NULL without --json-fd */

int weir_cli_json_read_fd(const char *text) {
  char *end;
  long number = strtol(text, &end, 10);
  if (*text < '0' || *text > '9' || *end || number <= STDERR_FILENO || number > 1 << 20)
    return WEIR_EXIT_USAGE;
  if (separate_stream)
    return weir_cli_fail("--json-fd was given twice");
  int flags = fcntl((int)number, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
    return weir_cli_fail("--json-fd %ld: that file descriptor is not open for writing", number);
  separate_stream = fdopen((int)number, "w");
  return separate_stream ? WEIR_EXIT_OK : weir_cli_fail("--json-fd %ld: the file descriptor cannot be used", number);
}

bool weir_cli_json_is_separate(void) { return separate_stream; }

FILE *weir_cli_json_file(void) { return separate_stream ? separate_stream : stdout; }

void weir_cli_json_begin(int line_depth) {
  weir__sink_begin(&weir_cli_json_sink, &weir__json_format, weir_write_file, weir_cli_json_file());
  weir_cli_json_sink.line_depth = line_depth;
  weir__write_open_dict(&weir_cli_json_sink);
}

void weir_cli_json_end(void) {
  weir__write_close(&weir_cli_json_sink);
  weir__sink_end(&weir_cli_json_sink, NULL); /* main() reports an error of the output */
}
