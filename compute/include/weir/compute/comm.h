/*
 * Arrays of several devices of one process: copies, pieces and sums, as torch.cuda.comm. Part of libweir_compute.
 *
 *     const int devices[] = {0, 1, 2, 3};
 *     weir_array parts[4] = {{0}}, whole = {0};
 *     int count;
 *     weir_comm_scatter(&batch, devices, 4, NULL, 0, NULL, parts, &count);
 *     ...
 *     weir_comm_gather(parts, count, 0, weir_place_device(0), &whole);
 *
 * Work is enqueued on the current streams of the devices, which wait for each other by events. The host waits only for
 * copies to its memory, as in PyTorch, and for copies from memory that is not pinned. Checks and error texts are
 * PyTorch's. Complex numbers stay complex numbers, where torch.cuda.comm gives their real and imaginary parts.
 *
 * Results must be {0}; on failure all of them are {0}.
 */
#ifndef WEIR_COMM_H
#define WEIR_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "weir/compute/array.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The size of the buffers of the coalesced calls, in bytes. */
enum { WEIR_COMM_BUFFER_BYTES = 10 << 20 };

/* A copy of the array on each device. On the device of the array it is the array itself, in the same storage. */
weir_status weir_comm_broadcast(const weir_array *array, const int *devices, int count, weir_array *results);

/* The same into arrays that exist, on any devices. */
weir_status weir_comm_broadcast_out(const weir_array *array, weir_array *outs, int count);

/* Broadcasts several arrays, which are on devices[0], in few copies: arrays of a type are put together in buffers of
 * about buffer_bytes. results[d * array_count + i] is array i on device d; results on a device may share a storage. */
weir_status weir_comm_broadcast_coalesced(const weir_array *arrays, int array_count, const int *devices,
                                          int device_count, size_t buffer_bytes, weir_array *results);

/* Pieces of an array along a dimension, one for each device. The sizes of the pieces are chunk_sizes, or if that is
 * NULL as equal as possible, in which case there may be less pieces than devices: *result_count. A piece on the device
 * of the array is a view. If streams is not NULL, streams[i], if that is not NULL, is used on devices[i]. */
weir_status weir_comm_scatter(const weir_array *array, const int *devices, int count, const int64_t *chunk_sizes,
                              int dim, const weir_stream *const *streams, weir_array *results, int *result_count);

/* The same into arrays that exist, whose sizes decide about the pieces. */
weir_status weir_comm_scatter_out(const weir_array *array, weir_array *outs, int count, int dim,
                                  const weir_stream *const *streams);

/* The arrays, which are on devices, one after the other along a dimension. Device -1 of the destination is the current
 * one. */
weir_status weir_comm_gather(const weir_array *arrays, int count, int dim, weir_place destination, weir_array *result);
weir_status weir_comm_gather_out(const weir_array *arrays, int count, int dim, weir_array *out);

/* The sum of arrays of one shape, on the device of one of them; -1 is the current device. A single array is returned as
 * it is, in the same storage. */
weir_status weir_comm_reduce_add(const weir_array *arrays, int count, int destination, weir_array *result);

/* Sums of several arrays: inputs[k * array_count + i] is array i of device k, and results[i] is its sum. Arrays of a
 * type are put together in buffers of about buffer_bytes; results may share a storage. */
weir_status weir_comm_reduce_add_coalesced(const weir_array *inputs, int input_count, int array_count, int destination,
                                           size_t buffer_bytes, weir_array *results);

#ifdef __cplusplus
}
#endif
#endif
