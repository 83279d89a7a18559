/*
 * How the program shows things to people: lines that fit the terminal, and commands for the shell.
 */
#ifndef WEIR_CLI_FORMAT_H
#define WEIR_CLI_FORMAT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The columns to use: COLUMNS if it is set, else the width of the terminal that standard output is, else 120. At least 40. */
int weir_cli_width(void);

/* `text`, or a copy in which control characters and bytes that are not UTF-8 are escaped. A copy is valid for seven more
 * calls. All text from files and from the command line that a command prints for people goes through this, except for
 * what weir_last_error() and weir__describe_... return. */
const char *weir_cli_escaped(const char *text);
const char *weir_cli_escaped_part(const char *text, size_t length);

/* The sequences that turn bold on and off if standard output is a terminal that wants it, else "". */
const char *weir_cli_bold(void);
const char *weir_cli_plain(void);

/* From here on standard output is folded to weir_cli_width(): long lines are broken between words, and continuation lines
 * begin below the text of the line that they continue. The last column of a table moves to a line of its own where it has no
 * room. Where the source broke a text for a wider terminal, it is joined first. For text alone: JSON and data are written
 * without it. Calling it again has no effect. */
void weir_cli_fold_begin(void);

/* The same for a help text, whose paragraphs are joined too. */
void weir_cli_help_begin(void);

/* The line that is being written is for pasting into a shell: it is not folded. */
void weir_cli_keep_line(void);

/* Writes out what is left and undoes it. */
void weir_cli_fold_end(void);

/* Remembers how the program was called, for weir_cli_print_program(). */
void weir_cli_set_program(const char *argv0);

/* Writes what to type to run this program: its plain name if that is what PATH leads to, else the path it was called by. */
void weir_cli_print_program(FILE *out);

/* Writes a word so that a shell reads it back as it is. Control characters are written as escapes. */
void weir_cli_print_quoted(FILE *out, const char *word);

/* Writes a command line to paste, and ends the line: "weir explain --device 1 'my file.pickle'". `options` is written as it
 * is, and may be "". The line is never folded. */
void weir_cli_print_command(const char *command, const char *options, const char *file);

#endif
