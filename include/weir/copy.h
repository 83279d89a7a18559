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

/* Copies between host and devices in any direction, which follows from the addresses, in the stream's order. Host
 * memory may be pageable; the call may then wait for the stream. */
weir_status weir_copy_async(void *to, const void *from, uint64_t bytes, weir_stream stream);

/* The same, and waits until the copy is done. The sync debug mode applies (weir/runtime.h). */
weir_status weir_copy(void *to, const void *from, uint64_t bytes, weir_stream stream);

/* Copies between two given devices. */
weir_status weir_copy_peer_async(void *to, int to_device, const void *from, int from_device, uint64_t bytes,
                                 weir_stream stream);

/* Sets every byte, or every aligned 32-bit word, of device memory. */
weir_status weir_fill_async(void *to, uint8_t value, uint64_t bytes, weir_stream stream);
weir_status weir_fill32_async(void *to, uint32_t value, uint64_t words, weir_stream stream);

#ifdef __cplusplus
}
#endif
#endif
