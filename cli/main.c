#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/outfile.h"
#include "base/text.h"
#include "weir/runtime.h"

static const struct command {
  const char *name;
  const char *summary;
  int (*run)(int argc, char **argv);
} commands[] = {
    {"bench", "measure how fast things are", weir_cmd_bench},
    {"demo", "run a training-shaped job, and say what it did and where its memory was", weir_cmd_demo},
    {"explain", "say why a recorded job ran out of memory, and what would have helped", weir_cmd_explain},
    {"export", "write a recorded memory history for other programs: JSON, SQLite, CSV, Perfetto", weir_cmd_export},
    {"info", "show the driver and its devices", weir_cmd_info},
    {"lint", "check a configuration string, and say what it will do", weir_cmd_lint},
    {"redact", "copy a recorded memory history without names and paths, to show it to others", weir_cmd_redact},
    {"replay", "feed recorded memory histories to the allocator, and check every decision", weir_cmd_replay},
    {"summary", "say what is in a recorded memory history", weir_cmd_summary},
    {"tune", "find the settings under which recorded jobs need least memory", weir_cmd_tune},
    {"whatif", "show what a recorded job would have done under other settings", weir_cmd_whatif},
};

enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *out) {
  fputs("Usage: weir COMMAND [OPTION...]\n"
        "       weir help [COMMAND]\n"
        "       weir --version\n",
        out);
}

static void print_help(void) {
  weir_cli_help_begin();
  print_usage(stdout);
  fputs("\nWeir is a GPU memory and device runtime. Most commands answer questions about a recorded job, of Weir or of "
        "PyTorch\n"
        "(torch.cuda.memory._dump_snapshot()), and need no GPU. Begin with 'weir demo', or with 'weir summary FILE' "
        "and then\n"
        "'weir explain FILE'.\n"
        "\n"
        "Commands:\n",
        stdout);
  for (int i = 0; i < COMMAND_COUNT; i++)
    printf("  %-9s%s\n", commands[i].name, commands[i].summary);
  fputs("  help     this text, or that of a command\n"
        "\n"
        "Options:\n"
        "  -h, --help      this text; after a command, that of the command\n"
        "  -V, --version   the version\n"
        "\n"
        "Environment:\n"
        "  WEIR_DRIVER           auto (NVIDIA's driver if it has a device, else the software device), cuda or soft\n"
        "  WEIR_LOG              error, warn (the default), info or debug\n"
        "  WEIR_ALLOC_CONF       the allocator's settings, as expandable_segments:True\n"
        "  WEIR_NO_MEMORY_CACHING\n"
        "                        1: every allocation and every free goes to the driver\n"
        "  WEIR_RECORD           a folder for a recording that can be read whatever becomes of the process\n"
        "  WEIR_RECORD_MB        the size of its file\n"
        "  WEIR_RECORD_STACKS    the stacks in it: none, state, alloc or all; alloc,native: native frames too\n"
        "  WEIR_RECORD_SIGNAL    SIGUSR1, SIGUSR2 or SIGHUP: the signal that writes a snapshot beside it\n"
        "  CUDA_VISIBLE_DEVICES  which devices there are, and in what order\n"
        "  WEIR_CUDA_LIBRARY     a file to load in the place of libcuda.so.1\n"
        "  WEIR_NVML_LIBRARY     a file to load in the place of libnvidia-ml.so.1\n"
        "  WEIR_SOFT_DEVICES     the software device: how many there are\n"
        "  WEIR_SOFT_MEMORY      its memory, as 80GiB\n"
        "  WEIR_SOFT_CLOCK       threads (real time) or stepped (counted time)\n"
        "  WEIR_SOFT_CLOCK_KHZ   the cycles of its clock in a millisecond\n"
        "  WEIR_SOFT_CAPABILITY  its compute capability, as 9.0\n"
        "  WEIR_SOFT_COPY_SPEED  the bytes that it copies in a second, as 50GB\n"
        "  COLUMNS               the width to fold text to; without it that of the terminal, or 120\n"
        "  NO_COLOR              if it is not empty, nothing is printed in bold\n"
        "\n"
        "Exit codes: 0 done, 1 failed, 2 invalid usage, 3 done and memory runs out (replay, tune).\n",
        stdout);
}

int weir_cli_usage(const char *command, const char *format, ...) {
  const char *space = command != NULL ? " " : "";
  if (command == NULL)
    command = "";
  fprintf(stderr, "weir%s%s: ", space, command);
  char text[WEIR__TEXT_SIZE];
  va_list args;
  va_start(args, format);
  weir__format_text(text, sizeof text, format, args);
  va_end(args);
  weir__escape_message(text, sizeof text, false); /* it quotes the command line */
  fprintf(stderr, "%s\nSee '", text);
  weir_cli_print_program(stderr);
  fprintf(stderr, "%s%s --help'.\n", space, command);
  return WEIR_EXIT_USAGE;
}

static const struct command *find_command(const char *name) {
  for (int i = 0; i < COMMAND_COUNT; i++) {
    if (strcmp(commands[i].name, name) == 0)
      return &commands[i];
  }
  return NULL;
}

static int unknown_command(const char *name) {
  char names[256] = "";
  size_t length = 0;
  for (int i = 0; i < COMMAND_COUNT && length < sizeof names; i++)
    length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? ", " : "", commands[i].name);
  return weir_cli_usage(NULL, "there is no command '%s'; there are: %s", name, names);
}

static int help(int argc, char **argv) {
  if (argc > 2)
    return weir_cli_usage(NULL, "help is for one command, and '%s' is one more", argv[2]);
  if (argc < 2) {
    print_help();
    return WEIR_EXIT_OK;
  }
  const struct command *command = find_command(argv[1]);
  if (command == NULL)
    return unknown_command(argv[1]);
  char option[] = "--help";
  char *command_line[] = {argv[1], option, NULL};
  return command->run(2, command_line);
}

static int run(int argc, char **argv) {
  if (argc < 2) {
    print_usage(stderr);
    fputs("See '", stderr);
    weir_cli_print_program(stderr);
    fputs(" --help'.\n", stderr);
    return WEIR_EXIT_USAGE;
  }
  const char *first = argv[1];
  const struct command *command = find_command(first);
  if (command != NULL) {
    if (command->run != weir_cmd_demo)
      unsetenv("WEIR_RECORD"); /* the others make allocators to replay and to measure */
    return command->run(argc - 1, argv + 1);
  }
  if (strcmp(first, "help") == 0)
    return help(argc - 1, argv + 1);

  int is_version = strcmp(first, "--version") == 0 || strcmp(first, "-V") == 0;
  if (is_version || strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0) {
    if (argc > 2)
      return weir_cli_usage(NULL, "%s takes no arguments (got '%s')", first, argv[2]);
    if (is_version)
      printf("weir %s\n", weir_version());
    else
      print_help();
    return WEIR_EXIT_OK;
  }
  if (first[0] == '-')
    return weir_cli_usage(NULL, "there is no option '%s'", first);
  return unknown_command(first);
}

/* Temporary files that have a name are removed; then the signal does what it always does. */
static void on_ending_signal(int number) {
  weir__outfile_abandon_all();
  signal(number, SIG_DFL);
  raise(number);
}

static void watch_signals(void) {
  static const int ending[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
  struct sigaction before, action = {.sa_handler = on_ending_signal};
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
    if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* as nohup sets it */
      sigaction(ending[i], &action, NULL);
  signal(SIGXFSZ, SIG_IGN); /* a file that becomes too large is an error, with a text */
}

int main(int argc, char **argv) {
  watch_signals();
  weir_cli_set_program(argc > 0 ? argv[0] : NULL);
  int code = run(argc, argv);
  weir_cli_fold_end();
  /* Output that could not be written is a failure, however well the command went. */
  if (fflush(stdout) != 0 || ferror(stdout)) {
    if (code == WEIR_EXIT_OK) {
      fprintf(stderr, "weir: cannot write the output: %s\n", strerror(errno));
      code = WEIR_EXIT_FAILED;
    }
  }
  return code;
}
