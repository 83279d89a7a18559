/*
 * The result file of weir tune: the best settings, with validators that say for what they were found.
 */
#pragma once

#include "offline/render/predict_report.h"

/* What the result depends on. */
typedef struct weir_cli_tuned_for {
  char **files; /* recordings; none are known if there are 0 */
  int file_count;
  const char *pytorch; /* the version of PyTorch, NULL if not given */
  const char *costs;   /* the file of costs, NULL if not given */
  uint64_t memory;     /* options of the prediction, as given */
  double fraction;
  int device;
} weir_cli_tuned_for;

typedef struct weir_cli_tuned {
  char conf[WEIR__CONF_TEXT]; /* "" for the defaults */
  double cost_ns;
  bool has_moving; /* there is a better one with moving_pages: */
  char moving[WEIR__CONF_TEXT];
  double moving_cost_ns;
} weir_cli_tuned;

/* Looks at this machine's GPU and driver, which the process cannot open once it has given up its rights (sandbox.h).
 * They are not known if no process can be started for that. */
void weir_cli_tuned_prepare(int device);

/* Both return an exit code, and report what is wrong. */
int weir_cli_tuned_save(const char *path, const weir_cli_tuned_for *purpose, const weir_cli_tuned *tuned);

/* Refuses a file whose validators differ from those of the purpose and of this machine. */
int weir_cli_tuned_load(const char *path, const weir_cli_tuned_for *purpose, weir_cli_tuned *tuned);
