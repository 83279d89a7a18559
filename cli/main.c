#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/outfile.h"
#include "help.h"
#include "json.h"
#include "weir/runtime.h"

static bool version;

/* For a command line without a command. */
static int print_short_help(void) {
  fputs("Usage: ", stderr);
  weir_cli_print_usage(stderr, &weir_cmd);
  weir_cli_print_topics(stderr, &weir_cmd);
  fputs("\n'weir COMMAND --help' has the options of a command. Begin with 'weir demo', or with 'weir explain FILE'.\n",
        stderr);
  return WEIR_EXIT_USAGE;
}

static int run(int count, char **arguments) {
  if (version && count)
    return weir_cli_usage("--version takes no arguments (got '%s')", arguments[0]);
  if (version) {
    printf("weir %s\n", weir_version());
    return WEIR_EXIT_OK;
  }
  if (!count)
    return print_short_help();
  if (strcmp(arguments[0], "demo") != 0)
    unsetenv("WEIR_RECORD"); /* the allocators of other commands replay and measure, and are not to be recorded */
  return weir_cli_run_topic(&weir_cmd, count, arguments);
}

static const weir_cli_option option_table[] = {{"version", 'V', .target = &version, .help = "print the version"}, {0}};

static const weir_cli_command *const commands[] = {&weir_cmd_summary, &weir_cmd_explain,
                                                   &weir_cmd_view,    &weir_cmd_plot,
                                                   &weir_cmd_leaks,   &weir_cmd_diff,
                                                   &weir_cmd_info,    &weir_cmd_lint,
                                                   &weir_cmd_top,     &weir_cmd_metrics,
                                                   &weir_cmd_record,  &weir_cmd_replay,
                                                   &weir_cmd_whatif,  &weir_cmd_tune,
                                                   &weir_cmd_export,  &weir_cmd_redact,
                                                   &weir_cmd_digest,  &weir_cmd_merge,
                                                   &weir_cmd_ranks,   &weir_cmd_demo,
                                                   &weir_cmd_help,    NULL};

const weir_cli_command weir_cmd = {
    .summary = "inspect, predict and share GPU memory histories",
    .description =
        "Weir is a GPU memory and device runtime. Most commands answer questions about a recorded job, of Weir or of "
        "PyTorch (torch.cuda.memory._dump_snapshot()), and need no GPU. Begin with 'weir demo', or with 'weir summary "
        "FILE' and then 'weir explain FILE'.\n"
        "'weir COMMAND --help' has the options of a command, 'weir help environment' the environment variables.",
    .argument = "COMMAND",
    .options = option_table,
    .topics = commands,
    .exit = {"done", "failed", NULL, "done, and memory runs out (replay, tune), leaks (leaks) or grew (diff)"},
    .run = run};

/* Removes temporary files that have a name, and then lets the signal end the process. */
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
    if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* not ignored, as nohup does */
      sigaction(ending[i], &action, NULL);
  signal(SIGXFSZ, SIG_IGN); /* a file that becomes too large is then an error with a message */
}

int main(int argc, char **argv) {
  watch_signals();
  weir_cli_set_program(argc > 0 ? argv[0] : NULL);
  int code = weir_cli_run(&weir_cmd, argc, argv);
  weir_cli_fold_end();
  /* Output that could not be written is a failure, whatever the command found out. Files have reported theirs. */
  FILE *json = weir_cli_json_file();
  if (fflush(stdout) != 0 || ferror(stdout) || fflush(json) != 0 || ferror(json)) {
    int error = weir_cli_json_sink.error ? weir_cli_json_sink.error : errno;
    fprintf(stderr, "weir: cannot write the output: %s\n", strerror(error));
    code = WEIR_EXIT_FAILED;
  }
  return code;
}
