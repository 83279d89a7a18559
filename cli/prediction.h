/*
 * What replay, whatif and tune share: options, and a checked history.
 */
#pragma once

#include <stdbool.h>

#include "offline/analyse/predict.h"
#include "options.h"

typedef struct weir_cli_prediction_options {
  int device;      /* -1 if not given */
  uint64_t memory; /* 0 if not given */
  double fraction; /* 0 if not given */
  bool force;      /* predict even from a file that is not reproduced */
  bool json;
  const char *costs_file; /* NULL for the default costs */
  weir__costs costs;
} weir_cli_prediction_options;

/* The options of the command that runs, and the table that fills them in. */
extern weir_cli_prediction_options weir_cli_prediction;
extern const weir_cli_option weir_cli_prediction_table[];

#define WEIR_CLI_THREADS_OPTION(int_pointer)                                                                           \
  {                                                                                                                    \
    "threads", .kind = WEIR_CLI_NUMBER, .value = "N", .target = (int_pointer), .least = 1, .most = 256,                \
               .help = "the number of threads. Default: one for each core"                                             \
  }

/* Reads the costs of driver calls, before anything is predicted. An exit code. */
int weir_cli_prediction_begin(void);

/* A file, and its replay under the recorded settings that was compared with it. */
typedef struct weir_cli_history {
  const char *file;
  weir__recording *recording;
  weir__replayer *history;
  int device;
  char name[1024]; /* of the file, with the device if there are several: "job.pickle, device 3" */
} weir_cli_history;

/* An exit code: WEIR_EXIT_FAILED, with a message, if the file cannot be read, or is not reproduced without --force. */
int weir_cli_history_open(const char *file, weir_cli_history *history);

/* The same for --check: the file need not be reproduced, and --memory and --fraction are those of the recording. */
int weir_cli_history_check(const char *file, weir_cli_history *history);
void weir_cli_history_close(weir_cli_history *history);

/* An exit code; reports what is wrong with the text. */
int weir_cli_read_conf(const char *conf, weir__settings *settings);
