/*
 * Sync debug mode: warns about calls that synchronize, or forbids them.
 */
#include <stdatomic.h>

#include "runtime/runtime.h"
#include "weir/runtime.h"

static atomic_int current_mode = WEIR_SYNC_DEBUG_DEFAULT;

weir_status weir_set_sync_debug(weir_sync_debug mode) {
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  if ((unsigned)mode > WEIR_SYNC_DEBUG_ERROR)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: mode is %d; allowed are 0 (default), 1 (warn) and 2 (error)",
                      __func__, (int)mode);
  current_mode = (int)mode;
  return WEIR_OK;
}

weir_sync_debug weir_get_sync_debug(void) { return (weir_sync_debug)current_mode; }

weir_status weir__check_sync(const char *caller) {
  switch ((weir_sync_debug)current_mode) {
  case WEIR_SYNC_DEBUG_ERROR:
    return weir__fail(WEIR_ERROR_SYNC_FORBIDDEN, "%s: called a synchronizing device operation", caller);
  case WEIR_SYNC_DEBUG_WARN:
    weir__log(WEIR_LOG_WARN, "%s: called a synchronizing device operation", caller);
    return WEIR_OK;
  case WEIR_SYNC_DEBUG_DEFAULT:
    break;
  }
  return WEIR_OK;
}
