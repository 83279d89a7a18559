/*
 * For those who put Weir under a framework that has an allocator interface of its own, as adapters/torch does: what such an
 * interface asks for, and a program that calls Weir itself does not need.
 */
#ifndef WEIR_ADAPTER_H
#define WEIR_ADAPTER_H

#include "weir/alloc.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of what a witness is told. */
typedef enum weir_witness_scope {
  WEIR_WITNESS_ALL,     /* every event; allocations and frees take a longer way for that */
  WEIR_WITNESS_SEGMENTS /* events of segments; of the others, those that took the longer way anyway */
} weir_witness_scope;

/* Called in the middle of an event, by the thread that causes it and with locks of the allocator held: what happens to an
 * address is told in the order in which it happens, whatever the threads. A witness must not call the allocator; whoever wants
 * to attaches a tracker. There is one at a time, and NULL takes it away; a call that is under way in another thread may go on
 * after this returns, so its context stays valid as long as the allocator does. */
weir_status weir_allocator_set_witness(weir_allocator *allocator, weir_trace_tracker witness, void *context,
                                       weir_witness_scope scope);

/* Parses a size as Weir's own variables have it: "1024", "512 MB" (1000 * 1000), "80GiB" (1024 * 1024 * 1024). Anything else is
 * WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_bytes_parse(const char *text, unsigned long long *bytes);

/* The ids of a device's private pools whose statistics are known (weir_pool_get_stats): as weir_allocator_pools, and
 * also of the most recent 128 pools that had memory and are gone. PyTorch's statistics by pool have those too. */
weir_status weir_allocator_pools_ever(weir_allocator *allocator, int device, weir_pool_id *pools, size_t room,
                                      size_t *count);

#ifdef __cplusplus
}
#endif
#endif
