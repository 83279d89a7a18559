/*
 * Calls for adapters, which put Weir under a framework with an allocator interface of its own, as adapters/torch does.
 * Programs that call Weir directly do not need them.
 */
#ifndef WEIR_ADAPTER_H
#define WEIR_ADAPTER_H

#include "weir/alloc.h"
#include "weir/driver.h"
#include "weir/host.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which history entries a witness gets. */
typedef enum weir_witness_scope {
  WEIR_WITNESS_ALL,     /* all; allocations and frees take the slow path then */
  WEIR_WITNESS_SEGMENTS /* those of segments, and others that take the slow path anyway */
} weir_witness_scope;

typedef void (*weir_witness_fn)(void *context, const weir_trace_entry *entry);

/* The witness is called inside each operation, by the thread that performs it and under the allocator's locks, so
 * that entries about one address come in the order in which they happen, whichever threads they come from. It must
 * not call the allocator; an observer may. There is one witness at a time, and NULL removes it. A call of it in
 * another thread may still be running when this returns, so its context must stay valid as long as the allocator. */
weir_status weir_allocator_set_witness(weir_allocator *allocator, weir_witness_fn witness, void *context,
                                       weir_witness_scope scope);

/* The same for pinned memory: the history of a weir_host_allocator, whose entries have device -1, no stream and no
 * pool, and the bytes of the whole block. First the witness gets what there is already, within this call: an entry
 * segment_alloc for each block and, if it is in use, alloc and possibly free_requested. A free_completed comes from the
 * thread that finds that streams have finished with the block. After the call that removes it, it is not called. */
weir_status weir_host_set_witness(weir_host_allocator *host, weir_witness_fn witness, void *context);

/* weir_allocator_alloc and weir_allocator_free for a caller that holds a lock which another thread may need before it
 * releases one of the allocator's, such as the GIL of Python, which a callback may take. They neither wait for a lock
 * nor call the driver, an observer or a back end: a request that needs any of these, or is invalid, is
 * WEIR_ERROR_NOT_READY, and nothing has changed, not even weir_last_error(). Release the other lock, then make the
 * plain call. */
weir_status weir_allocator_try_alloc(weir_allocator *allocator, int device, uint64_t bytes, weir_cu_stream stream,
                                     void **pointer);
weir_status weir_allocator_try_free(weir_allocator *allocator, void *pointer);

/* ---- For libraries beside libweir, whose errors are reported as Weir's own ---- */

/* Sets the last error of the calling thread and returns `status`. The text is "call: why". */
weir_status weir_report_error(weir_status status, const char *text);

/* WEIR_OK for WEIR_CU_SUCCESS. Otherwise sets a last error that names the public call `caller`, the driver call as
 * it is written in the source, and the reason that the driver gives, and returns the status of that result. */
weir_status weir_report_result(weir_driver *driver, weir_cu_result result, const char *caller, const char *call);

#ifdef __cplusplus
}
#endif
#endif
