/*
 * A table that wraps another one, and asks the program for a context in threads that have none.
 *
 * Every entry has a wrapper, generated from the list of entries.
 */
#include <stdlib.h>

#include "base/base.h"
#include "driver/call.h"
#include "weir/driver.h"

typedef struct contexts {
  weir_driver table; /* first, so that a weir_driver * can be cast to a contexts * */
  weir_driver *inner;
  weir_context_fn provide;
  void *context;
} contexts;

#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  static weir_cu_result name(weir_driver *self WEIR__AND params) {                                                     \
    weir_driver *inner = ((contexts *)self)->inner;                                                                    \
    return inner->name(inner WEIR__AND args);                                                                          \
  }
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need)                                                                  \
  static weir_cu_result name(weir_driver *self) {                                                                      \
    weir_driver *inner = ((contexts *)self)->inner;                                                                    \
    return inner->name(inner);                                                                                         \
  }
#include "weir/driver_entries.h"

static weir_cu_result current_context(weir_driver *self, weir_cu_context *current) {
  contexts *c = (contexts *)self;
  weir_cu_result result = CtxGetCurrent(self, current);
  return !result && !*current && c->provide(c->context) ? CtxGetCurrent(self, current) : result;
}

static void destroy(weir_driver *self) { free(self); }

weir_status weir_driver_open_contexts(weir_driver *inner, weir_context_fn provide, void *context,
                                      weir_driver **driver) {
  WEIR__CHECK_ARGUMENT(inner);
  WEIR__CHECK_ARGUMENT(provide);
  WEIR__CHECK_ARGUMENT(driver);
  contexts *c = calloc(1, sizeof *c);
  if (!c)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the table", __func__);
  *c = (contexts){.inner = inner, .provide = provide, .context = context};
  c->table.size = sizeof c->table;
  c->table.name = inner->name;
  c->table.capabilities = inner->capabilities;
  c->table.destroy = destroy;
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  c->table.name = WEIR__DRIVER_HAS(inner, name) ? name : NULL;
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) c->table.name = inner->name ? name : NULL;
#include "weir/driver_entries.h"
  c->table.CtxGetCurrent = current_context;
  *driver = &c->table;
  return WEIR_OK;
}
