/*
 * weir bench: how fast things are, by topic.
 */
#include "bench.h"

#include "cli.h"
#include "help.h"

static const weir_cli_command *const topics[] = {&weir_bench_alloc, &weir_bench_observe, NULL};

static int run(int count, char **arguments) {
  if (count)
    return weir_cli_run_topic(&weir_cmd_bench, count, arguments);
  weir_cli_print_help(&weir_cmd_bench);
  return WEIR_EXIT_OK;
}

const weir_cli_command weir_cmd_bench = {
    .name = "bench",
    .summary = "measure the speed of the allocator and of recording",
    .description = "Measure on this machine, now. Use an optimized build, which 'make' makes.",
    .argument = "TOPIC",
    .topics = topics,
    .exit = {"measured", "something failed"},
    .run = run};
