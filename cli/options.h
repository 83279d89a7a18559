/*
 * The command line: every command states its options and arguments in a table, which parses them, reports errors and
 * makes the help, the manual pages and the shell completion.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum weir_cli_kind {
  WEIR_CLI_FLAG,     /* bool; takes no value */
  WEIR_CLI_TEXT,     /* const char * */
  WEIR_CLI_PATH,     /* const char *, the name of a file */
  WEIR_CLI_NUMBER,   /* int from least to most */
  WEIR_CLI_SIZE,     /* uint64_t, bytes, from 1 to most */
  WEIR_CLI_FRACTION, /* double above 0 and up to 1 */
  WEIR_CLI_CHOICE,   /* int, an index into choices */
  WEIR_CLI_LIST      /* unsigned, bit i for choices[i]; the value is a comma-separated list */
} weir_cli_kind;

typedef struct weir_cli_choice {
  const char *name;
  const char *help; /* NULL for all choices of an option, or for none */
} weir_cli_choice;

/* A table of options ends with one that has no name. */
typedef struct weir_cli_option {
  const char *name; /* without dashes */
  char letter;      /* the short form, 0 if there is none */
  bool is_required; /* the command needs it */
  bool is_optional; /* its value may be left out, and is a number: `read` gets NULL then */
  weir_cli_kind kind;
  const char *value; /* what the help calls the value, NULL for a flag */
  void *target;      /* of the type that kind names */
  const char *help;
  int64_t least, most;
  const weir_cli_choice *choices; /* end with one that has no name */
  const char *needs;              /* the name of another option that must be given too */
  /* Reads the value instead of kind, and returns an exit code. WEIR_EXIT_USAGE makes the parser report `takes`, which
   * says what the value must be. */
  int (*read)(const char *text);
  const char *takes;
} weir_cli_option;

typedef struct weir_cli_command weir_cli_command;
struct weir_cli_command {
  const char *name;  /* as typed after "weir": "replay"; NULL for weir itself */
  const char *group; /* its heading in the list of commands, NULL for the heading of the one before */
  const char *summary;
  const char *description; /* one line for each paragraph */
  const char
      *argument; /* "FILE", "FILE..." for one or more, "FILE [FILE]" for one or two, "[FILE]" if it may be left out;
                         * NULL if there are none */
  const weir_cli_option *options, *shared; /* either may be NULL; every command has --help as well */
  const weir_cli_command *const *topics;   /* commands of its own, ended by NULL; NULL if there are none */
  const char *examples;                    /* command lines, each ended by a newline; may be NULL */
  const char *exit[4];                     /* what each exit code means; 2 is always invalid usage */
  int (*run)(int count, char **arguments); /* without options; returns an exit code */

  /* What a command that reads recordings may do besides reading its arguments, and reading or writing the files that
   * its options name (sandbox.h). Options that name a file to read call their value FILE, IN or HTML. */
  void (*prepare)(int count, char **arguments); /* called while nothing is restricted; may be NULL */
  const bool *listens;                          /* it is a server if this is set; may be NULL */
  bool writes_here;                             /* without an output, it writes a file in the current folder */
  bool is_confined;                             /* it reads no recording, and is restricted as if it did */
  bool reads_arguments;                         /* they are other files or folders that it reads */
};

/* The option of that index: its own, then shared ones, then --help. NULL after the last. */
const weir_cli_option *weir_cli_option_at(const weir_cli_command *command, size_t index);

/* Whether an option of the kind WEIR_CLI_PATH names a file to read; the others name a file to write. */
bool weir_cli_names_input(const weir_cli_option *option);

/* Parses the options and runs the command, or prints its help. argv[0] is its name. Returns an exit code. */
int weir_cli_run(const weir_cli_command *command, int argc, char **argv);

/* Runs a function that returns an exit code for each file. Returns WEIR_EXIT_FAILED if it failed for any, else the
 * first code other than WEIR_EXIT_OK. */
int weir_cli_for_each(int count, char **files, int (*run)(const char *file));

/* Runs the topic that argv[0] names. */
int weir_cli_run_topic(const weir_cli_command *command, int argc, char **argv);

/* NULL if there is no such topic. */
const weir_cli_command *weir_cli_find_topic(const weir_cli_command *command, const char *name);

/* Reports that there is no such topic, and which one was probably meant, or which there are. Returns
 * WEIR_EXIT_USAGE. */
int weir_cli_unknown_topic(const weir_cli_command *command, const char *name);

/* The last word of its name. */
const char *weir_cli_word(const weir_cli_command *command);

/* Reports an error in the command line of the running command, and where its help is. Returns WEIR_EXIT_USAGE. */
int weir_cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Reports why the running command failed. Returns WEIR_EXIT_FAILED. */
int weir_cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
