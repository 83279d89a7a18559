/*
 * Texts that come from files and from the command line, for a terminal.
 */
#ifndef WEIR_CLI_SHOWN_H
#define WEIR_CLI_SHOWN_H

#include <stddef.h>

/* `text`, or a copy with escapes in the place of control characters and of what is not UTF-8. A copy is good for seven more
 * calls. What a command prints for people goes through this, unless weir_last_error() or weir__describe_... has made it. */
const char *weir_cli_shown(const char *text);
const char *weir_cli_shown_part(const char *text, size_t length);

#endif
