/*
 * Recording from the environment (WEIR_RECORD). Without a ring file nothing happens.
 */
#ifndef WEIR_INSPECT_RECORD_ENV_H
#define WEIR_INSPECT_RECORD_ENV_H

#include "alloc/heap.h"

/* Recording has begun, or was cleared: the state now is where the recording starts. No lock is held. */
void weir__record_begun(weir_allocator *allocator);

#endif
