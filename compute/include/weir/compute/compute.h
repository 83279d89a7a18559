/*
 * What the parts of libweir_compute share.
 */
#ifndef WEIR_COMPUTE_H
#define WEIR_COMPUTE_H

#include "weir/alloc.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes device memory from this allocator, which must be on the runtime's driver and outlive its use. NULL, the
 * default, is the process default allocator (weir/memory.h). Memory that was taken before returns to the allocator that
 * it came from. */
weir_status weir_compute_use_allocator(weir_allocator *allocator);

#ifdef __cplusplus
}
#endif
#endif
