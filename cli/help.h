/*
 * Help, manual pages and shell completion, made from the tables of options.h and of the environment.
 */
#ifndef WEIR_CLI_HELP_H
#define WEIR_CLI_HELP_H

#include <stdio.h>

#include "options.h"

void weir_cli_print_usage(FILE *out, const weir_cli_command *command);
void weir_cli_print_help(const weir_cli_command *command);

/* An environment variable. A table of them ends with one that has no names. */
typedef struct weir_cli_variable {
  const char *group;  /* its heading, NULL for that of the one before */
  const char *names;  /* separated by ", " */
  const char *values; /* what it may be set to */
  const char *preset; /* what it is if not set, NULL if it then has no effect */
  const char *help;
} weir_cli_variable;

extern const weir_cli_variable weir_cli_environment[];

#endif
