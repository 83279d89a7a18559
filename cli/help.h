/*
 * Help, manual pages and shell completion, made from the tables of options.h and of the environment.
 */
#pragma once

#include <stdio.h>

#include "options.h"

void weir_cli_print_usage(FILE *out, const weir_cli_command *command);
void weir_cli_print_help(const weir_cli_command *command);

/* "Inspect:", and the names and summaries of the commands below it. */
void weir_cli_print_topics(FILE *out, const weir_cli_command *command);

/* Manual pages in roff: of a command, of the environment, or all of them in a folder, as weir-replay.1 (an exit
 * code). */
void weir_cli_print_page(FILE *out, const weir_cli_command *command);
void weir_cli_print_environment_page(FILE *out);
int weir_cli_write_pages(const char *folder);

/* A script for bash. */
void weir_cli_print_completion(void);

enum { WEIR_CLI_LABEL_SIZE = 64 };

/* "-o, --output FILE"; returns `label`. */
const char *weir_cli_option_label(const weir_cli_option *option, char label[WEIR_CLI_LABEL_SIZE]);

/* Whether the choices of an option, if it has any, are listed with descriptions. */
bool weir_cli_has_described_choices(const weir_cli_option *option);

/* Whether the arguments are recordings; the text says what that is. */
bool weir_cli_takes_recordings(const weir_cli_command *command);
extern const char weir_cli_recording_text[];

/* An environment variable, or a heading. The table ends with an item that is neither. */
typedef struct weir_cli_variable {
  const char *group;        /* a heading, and then nothing else */
  const char *const *names; /* up to NULL */
  const char *values;       /* what it may be set to */
  const char *preset;       /* what it is if not set, NULL if it then has no effect */
  const char *help;
} weir_cli_variable;

extern const weir_cli_variable weir_cli_environment[];

/* The names with ", " between. Returns `text`. */
enum { WEIR_CLI_NAMES_SIZE = 256 };
const char *weir_cli_variable_names(const weir_cli_variable *variable, char *text, size_t size);
extern const char weir_cli_environment_text[];
