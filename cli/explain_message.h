/*
 * weir explain --message: the report from the text of an error.
 */
#pragma once

#include <stdbool.h>

/* Explains the messages in a file, all or those of one device (-1 for all). Returns an exit code. */
int weir_cli_explain_message(const char *name, int device, bool json);

/* Whether a file that is no recording has such messages. */
bool weir_cli_has_message(const char *name);
