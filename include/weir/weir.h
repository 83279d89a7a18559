/*
 * Weir: a GPU memory and device runtime.
 *
 * This header includes those of libweir. The headers of libweir_compute (weir/compute/kernel.h, weir/compute/array.h
 * and others) and of libweir_offline (weir/offline.h) are included one by one. Conventions:
 * - weir_<object>_<verb>. Calls return a weir_status; outputs come last and are written only on WEIR_OK.
 * - On any other status weir_last_error() says which call, on what, and why.
 * - Every call is thread-safe. The first call that needs a device starts the runtime.
 * - A struct with a `size` field is initialized by its _init function, so that fields can be added later: options get
 *   their defaults, and structs that a call fills in become zero. For the latter it is enough to set `size` to the
 *   sizeof of the struct and the rest to zero. The _init functions accept NULL.
 * - The elements of an array of structs begin with `size` too, and it is the distance to the next element, so that they
 *   can grow as well. In an array that the program provides, it initializes the first element. In one that the library
 *   provides, an inline function with the suffix _at returns an element by its index.
 * - A call that returns text writes at most `size` bytes of it with a NUL, and the length of the whole text to *length,
 *   which may be NULL. `text` may be NULL if size is 0. Names that never change are returned as they are.
 * - Output of any length goes to a function of the program (weir/output.h).
 * - What a call tells about an object is an output, also a yes (1) or no (0). Calls that need no object and cannot fail
 *   return their answer.
 * - A getter is named after what it returns (weir_stream_priority). It has get_ if there is a set_ for the same
 *   (weir_stream_get_current) and if it fills in a struct (weir_device_get_properties). A yes or no is is_, has_, can_
 *   or owns. The type of a function of the program ends in _fn.
 * - Streams: calls of the runtime take a weir_stream. Calls on an object that was created on a driver (allocators,
 *   pinned memory, pools, memory of other processes, the software device) take the driver's stream, a weir_cu_stream,
 *   and its device, because that driver need not be the runtime's. No call has two forms: weir_stream_raw and
 *   weir_stream_external convert one into the other.
 * - In a child that was forked after the start of the runtime, calls return WEIR_ERROR_BAD_FORK. weir_device_count and
 *   weir_device_is_available report the parent's devices. Allocators belong to the parent, and destroying one in the
 *   child does nothing.
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
#include "weir/guard.h"
#include "weir/history.h"
#include "weir/host.h"
#include "weir/ipc.h"
#include "weir/log.h"
#include "weir/maintain.h"
#include "weir/memory.h"
#include "weir/output.h"
#include "weir/pool.h"
#include "weir/runtime.h"
#include "weir/snapshot.h"
#include "weir/soft.h"
#include "weir/status.h"
#include "weir/stream.h"
#include "weir/tag.h"

#endif
