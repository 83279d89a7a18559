/*
 * What the commands that predict share: their options, a history that has proved itself, and how a prediction is printed.
 */
#ifndef WEIR_CLI_PREDICTION_H
#define WEIR_CLI_PREDICTION_H

#include <stdbool.h>

#include "offline/predict.h"

typedef struct weir_cli_predicting {
  const char *command; /* "whatif", for messages */
  int device;          /* -1: not given */
  uint64_t memory;     /* 0: not given */
  double fraction;     /* 0: not given */
  bool force;          /* predict even from a file that is not reproduced */
  bool json;
  unsigned threads; /* 0: all cores */
  weir__costs costs;
} weir_cli_predicting;

/* For getopt_long: the options that all of them have. */
enum { WEIR_CLI_MEMORY = 1000, WEIR_CLI_FRACTION, WEIR_CLI_DEVICE, WEIR_CLI_COSTS, WEIR_CLI_FORCE, WEIR_CLI_JSON };
#define WEIR_CLI_PREDICTING_OPTIONS                                                                                    \
  {"memory", required_argument, NULL, WEIR_CLI_MEMORY}, {"fraction", required_argument, NULL, WEIR_CLI_FRACTION},      \
      {"device", required_argument, NULL, WEIR_CLI_DEVICE}, {"costs", required_argument, NULL, WEIR_CLI_COSTS},        \
      {"force", no_argument, NULL, WEIR_CLI_FORCE}, {                                                                  \
    "json", no_argument, NULL, WEIR_CLI_JSON                                                                           \
  }

/* Their lines of help. */
extern const char weir_cli_predicting_help[];

void weir_cli_predicting_init(weir_cli_predicting *options, const char *command);

/* Takes what getopt_long returned: an exit code, WEIR_EXIT_OK when all is well. Also answers ':' and what is unknown. */
int weir_cli_predicting_take(weir_cli_predicting *options, int option, char **argv);

/* When all options are known; an exit code. */
int weir_cli_predicting_check(const weir_cli_predicting *options);

int weir_cli_take_threads(const char *command, const char *text, unsigned *threads);

/* A file whose replay under the recorded settings was compared with it. */
typedef struct weir_cli_history {
  const char *file;
  weir__recording *snapshot;
  weir__replayer *history;
  int device;
  char name[1024]; /* the file's; and the device, where there are several: "job.pickle, device 3" */
} weir_cli_history;

/* An exit code. WEIR_EXIT_FAILED, and stderr says why: the file cannot be read, or is not reproduced and there is no force. */
int weir_cli_history_open(const weir_cli_predicting *options, const char *file, weir_cli_history *history);

/* The same for a check: it need not be reproduced, and --memory and --fraction are those of the recording. */
int weir_cli_history_check(const weir_cli_predicting *options, const char *file, weir_cli_history *history);
void weir_cli_history_close(weir_cli_history *history);

/* An exit code; stderr says what is wrong with the text. */
int weir_cli_read_conf(const weir_cli_predicting *options, const char *conf, weir__settings *settings);

enum { WEIR_CLI_CONF_TEXT = 4096 };

/* The text of settings, as one exports it: "" for the defaults. Returns `text`. */
const char *weir_cli_conf_text(const weir__settings *settings, char text[WEIR_CLI_CONF_TEXT]);

/* "6.44 ms", "850 us"; returns `text`. */
const char *weir_cli_format_ns(double ns, char text[32]);

/* "165 alloc, 12 free": all kinds that were called. */
void weir_cli_print_calls(const weir__meter_counts *calls);

/* "event 13750: a request of ...", without a line's end. */
void weir_cli_print_failure(const weir__prediction *prediction);

/* Where the recording began late: "395 blocks (9.87 GiB) in 156 segments (10.33 GiB) were there before it", without a line's end.
 * false, and nothing: it did not. */
bool weir_cli_print_start(const weir__replayer *history);

/* Members of the JSON object that is being written. */
void weir_cli_json_start(const weir__replayer *history);
void weir_cli_json_prediction(const weir__prediction *prediction);
void weir_cli_json_calls(const weir__prediction *prediction);

#endif
