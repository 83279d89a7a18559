/*
 * A table without a device: every entry counts its calls and returns a distinct result.
 */
#pragma once

#include <stdatomic.h>

#include "weir/driver.h"

/* The result of entry `call`. */
#define ECHO_OF(call) (10000 + (int)(call))

typedef struct echo_driver {
  weir_driver table; /* first, so that a weir_driver * can be cast to an echo_driver * */
  atomic_ulong calls[WEIR_CALL_COUNT];
} echo_driver;

/* The parameters are unused. */
#if defined(__clang__) || defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif
#define WEIR__ECHO(name)                                                                                               \
  atomic_fetch_add(&((echo_driver *)self)->calls[WEIR_CALL_##name], 1);                                                \
  return ECHO_OF(WEIR_CALL_##name);
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result echo_##name(weir_driver *self WEIR__AND params) { WEIR__ECHO(name) }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result echo_##name(weir_driver *self) { WEIR__ECHO(name) }
#include "weir/driver_entries.h"
#if defined(__clang__) || defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

static inline void echo_init(echo_driver *echo) {
  *echo = (echo_driver){.table = {.size = sizeof echo->table, .name = "echo"}};
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) echo->table.name = echo_##name;
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) echo->table.name = echo_##name;
#include "weir/driver_entries.h"
}
