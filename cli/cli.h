/*
 * The program weir: one file per command, one table in main.c.
 */
#ifndef WEIR_CLI_H
#define WEIR_CLI_H

#include "format.h" /* all commands print */

/* Exit codes. */
enum {
  WEIR_EXIT_OK = 0,
  WEIR_EXIT_FAILED = 1, /* the command could not do its work; stderr says why */
  WEIR_EXIT_USAGE = 2,  /* invalid usage; nothing was done */
  WEIR_EXIT_SHORT = 3   /* done, and the answer is that memory runs out */
};

/* A command gets its own part of the command line: argv[0] is its name. It understands --help, and returns an exit code. */
int weir_cmd_bench(int argc, char **argv);
int weir_cmd_demo(int argc, char **argv);
int weir_cmd_explain(int argc, char **argv);
int weir_cmd_export(int argc, char **argv);
int weir_cmd_info(int argc, char **argv);
int weir_cmd_lint(int argc, char **argv);
int weir_cmd_redact(int argc, char **argv);
int weir_cmd_replay(int argc, char **argv);
int weir_cmd_summary(int argc, char **argv);
int weir_cmd_tune(int argc, char **argv);
int weir_cmd_whatif(int argc, char **argv);

/* Says on stderr what is wrong with the command line of a command ("info") or, with NULL, of weir itself, and where the
 * help is. Returns WEIR_EXIT_USAGE. */
int weir_cli_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
