/*
 * Collectives between devices, with the names and rules of NCCL. Part of libweir_compute.
 *
 *     weir_nccl_unique_id id;
 *     weir_nccl_get_unique_id(&id);                        in one process, which sends the id to the others
 *     weir_nccl_init_rank(&id, ranks, rank, NULL, &comm);  in each rank, on its current device
 *     weir_nccl_all_reduce(send, recv, count, WEIR_FLOAT32, WEIR_NCCL_SUM, comm, stream);
 *     weir_stream_synchronize(stream);
 *     weir_nccl_async_error(comm);                         whether the work of the communicator has failed
 *     weir_nccl_destroy(comm);
 *
 * On GPUs the calls are NCCL's: libnccl is loaded at the first call (WEIR_NCCL_LIBRARY names it). On the software
 * device Weir has an implementation of its own, which works between threads and between processes of one machine. It
 * checks what NCCL leaves undefined, such as different counts: the communicator then fails on every rank, and the text
 * says which rank did what. A rank that dies, or that exceeds the time limit, is an error too. Results depend on the
 * values and the number of ranks alone: elements are combined in the order of the ranks.
 *
 * Collectives are enqueued on a stream, and can be captured in a graph. All ranks make the same calls on a communicator
 * in the same order. Work of one communicator of several ranks runs in the order of the calls, whichever streams they
 * are on. A thread that drives several ranks puts their calls in a group.
 *
 * The calls may be made from any thread, but those on one communicator from one thread at a time; only
 * weir_nccl_abort and weir_nccl_async_error may be called at any time.
 */
#ifndef WEIR_NCCL_H
#define WEIR_NCCL_H

#include <stddef.h>
#include <stdint.h>

#include "weir/compute/dtype.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_nccl_comm weir_nccl_comm;

enum { WEIR_NCCL_UNIQUE_ID_BYTES = 128, WEIR_NCCL_MAX_SOFT_RANKS = 256 };

/* Identifies a communicator that is to be created. Plain bytes, which can be sent to other processes. */
typedef struct weir_nccl_unique_id {
  char bytes[WEIR_NCCL_UNIQUE_ID_BYTES];
} weir_nccl_unique_id;

/* number, name, text. The numbers are NCCL's. */
#define WEIR_NCCL_OP_MAP(X)                                                                                            \
  X(0, SUM, "sum")                                                                                                     \
  X(1, PROD, "prod")                                                                                                   \
  X(2, MAX, "max")                                                                                                     \
  X(3, MIN, "min")                                                                                                     \
  X(4, AVG, "avg") /* of integers: rounded towards zero */

typedef enum weir_nccl_op {
#define X(number, name, text) WEIR_NCCL_##name = number,
  WEIR_NCCL_OP_MAP(X)
#undef X
} weir_nccl_op;

/* "sum"; NULL for an invalid number. */
const char *weir_nccl_op_name(weir_nccl_op op);

/* The version of NCCL, as 22809 for 2.28.9. On the software device, that of the NCCL whose calls it has. */
weir_status weir_nccl_version(int *version);

/* ---- Communicators ---- */

typedef struct weir_nccl_options {
  size_t size; /* sizeof(weir_nccl_options) */
  /* How long a rank waits for others, in seconds. 0 is WEIR_NCCL_TIMEOUT, whose default is 600. On GPUs the limit
   * applies to the creation of the communicator and to the calls; NCCL has none for work on the device, which
   * weir_nccl_synchronize adds. */
  double timeout_s;
  /* How long weir_nccl_destroy waits for other ranks, if that is less. 0 is the time limit. */
  double destroy_timeout_s;
  /* If not NULL, called about every 100 ms, with `interrupt_context`, while a call of the program waits for other
   * ranks; on the software device in the creation and in weir_nccl_synchronize. If it returns non-zero, the
   * communicator is aborted, and the call returns its error. Not called by weir_nccl_synchronize in stepped time. */
  int (*interrupt)(void *context);
  void *interrupt_context;
} weir_nccl_options;

/* Sets `size` and the defaults. */
void weir_nccl_options_init(weir_nccl_options *options);

/* A new id. On the software device the process must live until all ranks have been created. */
weir_status weir_nccl_get_unique_id(weir_nccl_unique_id *id);

/* Creates one rank of a communicator, on the current device, and waits for the others. In a group the wait is in
 * weir_nccl_group_end, and the communicator cannot be used before. Two ranks on one device are refused, as by NCCL; the
 * software devices of two processes are different devices. `options` may be NULL. */
weir_status weir_nccl_init_rank(const weir_nccl_unique_id *id, int ranks, int rank, const weir_nccl_options *options,
                                weir_nccl_comm **comm);

/* Creates all ranks of a communicator, one for each device; `devices` NULL means 0 to count - 1. On failure no
 * communicator is left. */
weir_status weir_nccl_init_all(int count, const int *devices, const weir_nccl_options *options, weir_nccl_comm **comms);

/* Waits for the work of this rank. Afterwards the communicator can only be destroyed. */
weir_status weir_nccl_finalize(weir_nccl_comm *comm);

/* Finalizes it if need be, and frees it: in a group that creates or uses it, when the group ends. If its work waits for
 * other ranks for longer than destroy_timeout_s, the communicator fails on all ranks. NULL is allowed. Graphs with its
 * collectives must not be launched any more; on the software device such a launch logs an error and leaves the results
 * as they were. */
void weir_nccl_destroy(weir_nccl_comm *comm);

/* Ends work that is under way, without waiting for other ranks, whose communicators fail: their text says that this
 * rank aborted. Afterwards the communicator can only be destroyed. */
weir_status weir_nccl_abort(weir_nccl_comm *comm);

/* WEIR_OK while the communicator works. After a failure the error, which every later call on the communicator returns
 * too; the text says which rank did what. Results of its collectives since then are undefined. */
weir_status weir_nccl_async_error(weir_nccl_comm *comm);

/* Waits for the stream, at most for the time limit of the communicator, and returns its error if it has one. After the
 * time limit the communicator is aborted, with WEIR_ERROR_TIMEOUT. */
weir_status weir_nccl_synchronize(weir_nccl_comm *comm, weir_stream stream);

/* The number of ranks, the rank of this communicator, and its device. */
weir_status weir_nccl_count(const weir_nccl_comm *comm, int *ranks);
weir_status weir_nccl_rank(const weir_nccl_comm *comm, int *rank);
weir_status weir_nccl_device(const weir_nccl_comm *comm, int *device);

/* NCCL's own handle (an ncclComm_t), for calls that Weir does not wrap; NULL on the software device. */
void *weir_nccl_raw(const weir_nccl_comm *comm);

/* ---- Collectives ----
 *
 * Counts are in elements. The stream is of the communicator's device, and so is the memory. Send and receive buffers
 * may be the same memory where the description says so, and otherwise do not overlap.
 *
 * Types: NCCL has no int16, bool and complex numbers. Data of all types can be moved (broadcast, all_gather, send,
 * recv). Reductions of bool follow PyTorch: a sum is a logical or, a product or minimum a logical and; there is no
 * average. Complex numbers can be summed and averaged. Reductions of int16 are WEIR_ERROR_NOT_SUPPORTED on every
 * device. On the software device 16-bit floats are combined in float32 and rounded once, integers wrap around, and
 * minima and maxima are NaN if an element is. */

/* recv[i] = op over all ranks of send[i], on every rank. In place if send == recv. */
weir_status weir_nccl_all_reduce(const void *send, void *recv, size_t count, weir_dtype dtype, weir_nccl_op op,
                                 weir_nccl_comm *comm, weir_stream stream);

/* The same on the root alone; recv of other ranks is ignored and may be NULL. */
weir_status weir_nccl_reduce(const void *send, void *recv, size_t count, weir_dtype dtype, weir_nccl_op op, int root,
                             weir_nccl_comm *comm, weir_stream stream);

/* Copies send of the root to recv of every rank. In place if send == recv; send of other ranks is ignored and may be
 * NULL. */
weir_status weir_nccl_broadcast(const void *send, void *recv, size_t count, weir_dtype dtype, int root,
                                weir_nccl_comm *comm, weir_stream stream);

/* recv has count elements of every rank, in their order. In place if send == recv + rank * count. */
weir_status weir_nccl_all_gather(const void *send, void *recv, size_t count, weir_dtype dtype, weir_nccl_comm *comm,
                                 weir_stream stream);

/* send has ranks * count elements; recv[i] = op over all ranks of send[rank * count + i]. In place if
 * recv == send + rank * count. */
weir_status weir_nccl_reduce_scatter(const void *send, void *recv, size_t count, weir_dtype dtype, weir_nccl_op op,
                                     weir_nccl_comm *comm, weir_stream stream);

/* A send and the receive of the peer meet in the order of the calls between the two. A rank that sends and receives, or
 * that exchanges data with several peers, puts the calls in a group, which makes progress with all of them at once. */
weir_status weir_nccl_send(const void *send, size_t count, weir_dtype dtype, int peer, weir_nccl_comm *comm,
                           weir_stream stream);
weir_status weir_nccl_recv(void *recv, size_t count, weir_dtype dtype, int peer, weir_nccl_comm *comm,
                           weir_stream stream);

/* Collects the calls of this thread until the matching end, which enqueues them together. Groups nest. If a call in
 * the group has failed, the end enqueues nothing and returns that error. On the software device a group may have 4,096
 * calls of a communicator, those of all its ranks in the group included: more are WEIR_ERROR_NOT_SUPPORTED. */
weir_status weir_nccl_group_start(void);
weir_status weir_nccl_group_end(void);

/* ---- Memory of communicators ---- */

typedef struct weir_nccl_memory {
  size_t size;           /* sizeof(weir_nccl_memory) */
  uint64_t device_bytes; /* memory of the device that the communicator has allocated */
  uint64_t host_bytes;   /* memory of the host shared by the ranks; 0 if not known */
  /* The part that weir_nccl_suspend frees, and whether it has; 0 if NCCL is older than 2.29.7. */
  uint64_t suspendable_bytes;
  int is_suspended;
  /* 1 if NCCL reports the number. 0 if it is the difference of the device's free memory before and after the
   * creation of the communicator: other work of the device at that time is then included. */
  int is_exact;
} weir_nccl_memory;

/* Sets `size` and makes the rest zero, for weir_nccl_get_memory. */
void weir_nccl_memory_init(weir_nccl_memory *memory);
/* The memory of a communicator. */
weir_status weir_nccl_get_memory(weir_nccl_comm *comm, weir_nccl_memory *memory);

/* Frees memory of an idle communicator; calls on it fail until it is resumed (WEIR_ERROR_BAD_STATE). All ranks make the
 * call. WEIR_ERROR_NOT_SUPPORTED before NCCL 2.29.7; on the software device there is nothing to free. */
weir_status weir_nccl_suspend(weir_nccl_comm *comm);
weir_status weir_nccl_resume(weir_nccl_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
