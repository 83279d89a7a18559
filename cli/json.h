/*
 * The output of --json: one object at a time on the standard output, through the emitter of the library.
 *
 *   weir_cli_json_begin(0);
 *   WEIR_CLI_JSON(JSON_TEXT("file", name), JSON_OBJECT("peak"), JSON_NATURAL("bytes", bytes), JSON_CLOSE);
 *   weir_cli_json_end();
 */
#pragma once

#include "inspect/json.h"
#include "options.h"

extern weir__sink weir_cli_json_sink;

/* --json-fd N: JSON goes to that file descriptor in addition to the text on standard output, so one run serves both a
 * person and a program. */
#define WEIR_CLI_JSON_FD_OPTION                                                                                        \
  {                                                                                                                    \
    "json-fd", .value = "N", .read = weir_cli_json_read_fd, .takes = "the number of a file descriptor above 2",        \
               .help = "print text, and write the JSON of --json to file descriptor N as well, such as --json-fd 3 "   \
                       "3>OUT.json"                                                                                    \
  }
int weir_cli_json_read_fd(const char *text);

/* Whether JSON is wanted beside the text. */
bool weir_cli_json_is_separate(void);

#define WEIR_CLI_JSON(...) WEIR__JSON(&weir_cli_json_sink, __VA_ARGS__)

/* Where JSON goes: standard output, or the file of --json-fd. */
FILE *weir_cli_json_file(void);

/* Begins an object, and ends it with a newline. The members of that object and the items of lists are each on a line of
 * their own where they are nested at most `line_depth` deep; 0 writes one line. */
void weir_cli_json_begin(int line_depth);
void weir_cli_json_end(void);
