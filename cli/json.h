/*
 * The output of --json: one object at a time on the standard output, through the emitter of the library.
 *
 *   weir_cli_json_begin(0);
 *   WEIR_CLI_JSON(JSON_TEXT("file", name), JSON_OBJECT("peak"), JSON_NATURAL("bytes", bytes), JSON_CLOSE);
 *   weir_cli_json_end();
 */
#ifndef WEIR_CLI_JSON_H
#define WEIR_CLI_JSON_H

#include "inspect/json.h"

extern weir__sink weir_cli_json_sink;

#define WEIR_CLI_JSON(...) WEIR__JSON(&weir_cli_json_sink, __VA_ARGS__)

/* Begins an object, and ends it with a newline. The members of that object and the items of lists are each on a line of
 * their own where they are nested at most `line_depth` deep; 0 writes one line. */
void weir_cli_json_begin(int line_depth);
void weir_cli_json_end(void);

#endif
