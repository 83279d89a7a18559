/*
 * The part of `weir demo` that computes.
 */
#ifndef WEIR_CLI_DEMO_H
#define WEIR_CLI_DEMO_H

#include "weir/weir.h"

/* How the error of a model fell. */
typedef struct weir_cli_learned {
  int steps;            /* 0 if it was left out */
  double first, last;   /* the mean squared error before the first step and after the last one */
  double difference;    /* the largest difference of a weight from that of the same steps in plain loops */
  const char *left_out; /* why it was; NULL if it was not */
} weir_cli_learned;

/* Trains a small model on device 0 with weir_array_* calls, in memory of the allocator, and by plain loops on the host. */
weir_status weir_cli_learn(weir_allocator *allocator, weir_stream stream, weir_cli_learned *learned);

#endif
