/*
 * Copies and fills.
 */
#ifndef WEIR_COPY_H
#define WEIR_COPY_H

#include <stddef.h>
#include <stdint.h>

#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Host or device, either way, also between devices: the addresses tell. In the stream's order. Host memory that is not
 * page-locked is allowed; the call may then wait for the stream. */
weir_status weir_copy_async(void *to, const void *from, uint64_t bytes, weir_stream stream);

/* The same, and waits for it on the host. Sync debug mode has a say. */
weir_status weir_copy(void *to, const void *from, uint64_t bytes, weir_stream stream);

/* Between two named devices. */
weir_status weir_copy_peer_async(void *to, int to_device, const void *from, int from_device, uint64_t bytes,
                                 weir_stream stream);

/* Every byte, or every aligned 32-bit word, of device memory. */
weir_status weir_fill_async(void *to, uint8_t value, uint64_t bytes, weir_stream stream);
weir_status weir_fill32_async(void *to, uint32_t value, uint64_t words, weir_stream stream);

#ifdef __cplusplus
}
#endif
#endif
