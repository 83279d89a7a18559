/*
 * How the program prints for people: lines that fit the terminal, escaped text, and commands for the shell.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The columns to use: COLUMNS if it is set, else those of the terminal, else 120. At least 40. */
int weir_cli_width(void);

/* `text`, or a copy in which control characters and bytes that are not UTF-8 are escaped. A copy is valid for seven
 * more calls. All text from files and from the command line that a command prints for people goes through this,
 * except for what weir_last_error() and weir__describe_... return. */
const char *weir_cli_escaped(const char *text);
const char *weir_cli_escaped_part(const char *text, size_t length);

/* The same for the name of an input, which is "standard input" for -. */
const char *weir_cli_input_name(const char *path);

/* Texts of numbers, each valid for ten more calls of any of these: "1.82 GiB"; "6.44 ms"; "1 block" and "2 entries",
 * from a noun in the singular; "12.15 to 13.64 GiB", from two texts and " to ", or one if both read the same. */
const char *weir_cli_bytes(uint64_t bytes);
const char *weir_cli_ns(double ns);
const char *weir_cli_count(uint64_t count, const char *noun);
const char *weir_cli_range(const char *least, const char *to, const char *most);

/* The sequences that turn bold on and off if standard output is a terminal that wants it, else "". */
const char *weir_cli_bold(void);
const char *weir_cli_plain(void);

/* From here on, lines on standard output are folded to weir_cli_width(). They are broken between words, and
 * continuation lines are aligned with the text after the label. The last column of a table that does not fit moves to
 * a line of its own. Only for text: JSON and data are written without it. Further calls have no effect. */
void weir_cli_fold_begin(void);

/* Keeps the current line whole, since it is for pasting into a shell; the mark that does so, "" without folding. */
void weir_cli_keep_line(void);
const char *weir_cli_keep_mark(void);

/* Writes the rest, and ends folding. */
void weir_cli_fold_end(void);

/* From here to the end, what is printed to standard output goes to a text instead: not folded, not bold. The end
 * returns it, to be freed; NULL if out of host memory. */
bool weir_cli_capture_begin(void);
char *weir_cli_capture_end(void);

/* Keeps the name under which the program was called, for weir_cli_print_program(). */
void weir_cli_set_program(const char *argv0);

/* Writes how to call this program: its name if PATH finds it, else the path under which it was called. */
void weir_cli_print_program(FILE *out);

/* Writes a command line for pasting, "weir explain --device 1 'my file.pickle'", and ends the line. `options` may be
 * "". */
void weir_cli_print_command(const char *command, const char *options, const char *file);
