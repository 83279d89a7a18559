/*
 * Access to the real driver: which of its functions are replaced, and where the real ones are.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "weir/driver.h"

/* The functions that programs find instead of the driver's. */
#define ENTRY(symbol, name, since, stream, params)                                                                     \
  typedef weir_cu_result preload_##symbol params;                                                                      \
  __attribute__((visibility("default"))) preload_##symbol symbol;
#include "entries.h"

typedef enum preload_entry {
#define ENTRY(symbol, name, since, stream, params) PRELOAD_##symbol,
#include "entries.h"
  PRELOAD_COUNT
} preload_entry;

/* Returns the driver's function, or NULL if the driver is not loaded, or lacks it. */
void *preload_real(preload_entry entry);

#define ENTRY(symbol, name, since, stream, params)                                                                     \
  static inline preload_##symbol *preload_real_##symbol(void) {                                                        \
    void *address = preload_real(PRELOAD_##symbol);                                                                    \
    preload_##symbol *function;                                                                                        \
    memcpy(&function, &address, sizeof function);                                                                      \
    return function;                                                                                                   \
  }
#include "entries.h"

/* Calls the driver's own function. */
#define REAL(symbol, ...) (preload_real_##symbol() ? preload_real_##symbol()(__VA_ARGS__) : preload_absent())

/* The result of a function that the driver lacks. */
weir_cu_result preload_absent(void);

/* While this is set, the thread finds the driver's own functions. Set while Weir looks them up. */
extern _Thread_local bool preload_finds_real;
