/*
 * What a tag keeps while it is asleep: its live bytes, packed one behind the other, in pieces of pinned host memory.
 *
 *   kept.c   the pieces: taken for a tag, and kept for the next one up to a budget
 *   carry.c  copies between the device and the pieces
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/cache/heap.h"
#include "base/thread.h"

/* Host memory that is touched and registered with the driver as a whole, when it is used first. Several threads do that
 * for pieces of their own, since it takes as long as copying. */
typedef struct weir__kept_piece {
  char *memory;
  uint64_t bytes;
  bool is_pinned;
  weir_cu_deviceptr device; /* the device's address of it, once it is pinned */
} weir__kept_piece;

/* Live bytes of the device. */
typedef struct weir__kept_range {
  uint64_t address, bytes; /* multiples of the unit */
  uint64_t at;             /* among all that is kept */
} weir__kept_range;

struct weir__kept {
  weir__kept_range *ranges; /* by `at` */
  size_t count, room;
  uint64_t bytes; /* of all ranges */
  weir__kept_piece *pieces;
  size_t piece_count, piece_room;
};

/* Of a heap: what its tags share. The lock is held by a sleep, a wake or a preparation from its beginning to its end;
 * it comes before all locks of the allocator. */
struct weir__sleeper {
  weir__mutex lock;
  weir__kept_piece *spare; /* pieces that no tag uses, all pinned */
  size_t spare_count, spare_room;
  atomic_uint_fast64_t pinned;  /* bytes of all pieces; read without the lock */
  uint64_t spare_bytes, budget; /* and how many of them may stay pinned */
  bool has_kernel, has_no_kernel;
  weir_cu_module module;
  weir_cu_function function;
  weir_cu_stream stream;           /* of its copies; NULL until one is made */
  struct weir__copy_piece *pieces; /* of the kernel: pinned, and its address for the device */
  weir_cu_deviceptr pieces_device;
  size_t pieces_room;
  const char *failed_call; /* of the last failure */
  atomic_bool is_busy;     /* copies may be under way that could not be waited for */
};

/* ---- Pieces (kept.c). The sleeper's lock is held, and the device's context is current ---- */

/* Takes pieces for so many bytes. False, with nothing taken, if the host has too little memory: *available is what it
 * has then. */
bool weir__kept_take(weir__sleeper *sleeper, weir_driver *driver, weir__kept *kept, uint64_t *available);

/* Pins a piece, if it is not pinned. Needs no lock if no other thread uses the piece. */
weir_cu_result weir__kept_pin(weir__sleeper *sleeper, weir_driver *driver, weir__kept_piece *piece,
                              const char **failed_call);

/* Ends what is kept: the pieces become spare ones, as far as the budget allows. */
void weir__kept_drop(weir__sleeper *sleeper, weir_driver *driver, weir__kept *kept);

/* Frees all spare pieces. */
void weir__kept_clear(weir__sleeper *sleeper, weir_driver *driver);

/* NULL without host memory. Its budget is a quarter of what the host has, divided by the processes of the job there,
 * unless the environment says otherwise. */
weir__sleeper *weir__sleeper_new(void);

/* The end, after weir__kept_clear and weir__carry_end if the device was ever used. NULL is allowed. */
void weir__sleeper_delete(weir__sleeper *sleeper);

/* ---- Copies (carry.c). The same ---- */

typedef struct weir__carry {
  bool to_host;
  void (*progress)(void *context, uint64_t done, uint64_t bytes); /* called by one thread at a time; may be NULL */
  void *progress_context;
} weir__carry;

/* Copies all ranges to the pieces, or back, and waits for the copies. sleeper->failed_call says which call failed.
 * sleeper->is_busy is set if the copies may still be under way: then what they use must neither be unmapped nor be used
 * again. */
weir_cu_result weir__kept_carry(weir__heap *heap, weir__sleeper *sleeper, const weir__kept *kept,
                                const weir__carry *carry);

/* Pins all pieces, with several threads. */
weir_cu_result weir__kept_pin_all(weir__heap *heap, weir__sleeper *sleeper, const weir__kept *kept);

void weir__carry_end(weir__sleeper *sleeper, weir_driver *driver);
