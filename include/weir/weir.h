/*
 * Weir: a GPU memory and device runtime.
 *
 * Everything in one include. Conventions:
 * - weir_<object>_<verb>. Calls return a weir_status; outputs come last and are written only on WEIR_OK.
 * - On any other status weir_last_error() says which call, on what, and why.
 * - Every call may be made from any thread. The first one that needs a device starts the runtime.
 * - Structs that carry a `size` field are filled by their _init function first, so that fields can be added: options
 *   get their defaults, and what a call fills in becomes zero. Setting `size` to the sizeof of the struct, and the rest
 *   to zero, is as good for the latter. NULL is allowed, and does nothing.
 * - In a process that was forked after the runtime had started, calls return WEIR_ERROR_BAD_FORK. weir_device_count and
 *   weir_device_is_available answer with the parent's devices. Allocators stay the parent's: destroying one does
 *   nothing.
 */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include "weir/adapter.h"
#include "weir/alloc.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/driver.h"
#include "weir/event.h"
#include "weir/graph.h"
#include "weir/history.h"
#include "weir/host.h"
#include "weir/ipc.h"
#include "weir/log.h"
#include "weir/memory.h"
#include "weir/pool.h"
#include "weir/runtime.h"
#include "weir/snapshot.h"
#include "weir/soft.h"
#include "weir/status.h"
#include "weir/stream.h"

#endif
