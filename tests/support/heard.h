/*
 * A log sink that keeps the last message.
 */
#pragma once

#include <stdio.h>

#include "weir/log.h"

struct heard {
  int count;
  weir_log_level level;
  char message[4096];
};

static inline void hear(void *context, weir_log_level level, const char *message) {
  struct heard *heard = context;
  heard->count++;
  heard->level = level;
  snprintf(heard->message, sizeof heard->message, "%s", message);
}
