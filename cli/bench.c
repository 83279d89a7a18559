/*
 * weir bench: how fast things are, by topic.
 */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"

static const struct topic {
  const char *name;
  const char *summary;
  int (*run)(int argc, char **argv);
} topics[] = {
    {"alloc", "the caching allocator, beside mimalloc and PyTorch", weir_bench_alloc},
    {"observe", "what recording the history adds", weir_bench_observe},
};

static void print_help(void) {
  weir_cli_help_begin();
  fputs("Usage: weir bench TOPIC [OPTION...]\n"
        "\n"
        "Measures on this machine, now. A build with optimisation is the one to measure: `make` makes it.\n"
        "\n"
        "Topics:\n",
        stdout);
  for (size_t i = 0; i < WEIR_COUNT_OF(topics); i++)
    printf("  %-12s%s\n", topics[i].name, topics[i].summary);
  fputs("\n"
        "Options:\n"
        "  -h, --help  this text; after a topic, that of the topic\n"
        "\n"
        "Exit codes: 0 measured, 1 something failed, 2 invalid usage.\n",
        stdout);
}

int weir_cmd_bench(int argc, char **argv) {
  if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    print_help();
    return WEIR_EXIT_OK;
  }
  for (size_t i = 0; i < WEIR_COUNT_OF(topics); i++)
    if (strcmp(argv[1], topics[i].name) == 0)
      return topics[i].run(argc - 1, argv + 1);
  if (argv[1][0] == '-')
    return weir_cli_usage("bench", "there is no option '%s'", argv[1]);
  char names[256] = "";
  size_t length = 0;
  for (size_t i = 0; i < WEIR_COUNT_OF(topics) && length < sizeof names; i++)
    length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i > 0 ? ", " : "", topics[i].name);
  return weir_cli_usage("bench", "there is no topic '%s'; there are: %s", argv[1], names);
}
