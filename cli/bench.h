/*
 * weir bench: one file per topic, one list in bench.c.
 */
#ifndef WEIR_CLI_BENCH_H
#define WEIR_CLI_BENCH_H

#include <stdbool.h>

#include "patterns.h"
#include "options.h"

extern const weir_cli_command weir_bench_alloc;
extern const weir_cli_command weir_bench_observe;

enum { WEIR_BENCH_REASON = 160 };

/* The time of a pair in the rounds of a pattern, in ns. */
typedef struct weir_bench_result {
  bool is_there;
  double median, least, most;
} weir_bench_result;

/* PyTorch's allocator, in a process of its own: a program is compiled against the PyTorch that python3 imports. If
 * that is not possible, start returns false with a short reason; stop also sets the reason if the process failed. */
bool weir_bench_torch_start(char version[64], char reason[WEIR_BENCH_REASON]);
void weir_bench_torch_stop(char reason[WEIR_BENCH_REASON]);
extern const bench_player weir_bench_torch_player;

#endif
