/*
 * The kernels of the core, as two small modules. Every other kernel belongs to libweir_compute.
 *
 *   weir_spin   keeps a stream busy (runtime/spin.c)
 *   weir_guard  fills memory with a pattern, and checks that memory still has it (alloc/guard/)
 *   weir_copy_pieces  copies many pieces of memory, of the device and of the host (alloc/pools/carry.c)
 *
 * The driver compiles a module for its device. The software device runs no PTX: it knows these kernels by name.
 */
#ifndef WEIR_DRIVER_KERNELS_H
#define WEIR_DRIVER_KERNELS_H

#include <stdatomic.h>
#include <stdint.h>

#include "weir/driver.h"

extern const char weir__kernels_ptx[]; /* weir_spin and weir_guard */
extern const char weir__copy_ptx[];    /* weir_copy_pieces */

/* What weir_guard writes about bytes that differ. Memory that the device and the host see; `number` is written after
 * the rest, and then the flag becomes 1. */
typedef struct weir__guard_slot {
  uint64_t first, last; /* offsets from the base */
  uint64_t count;
  _Atomic uint64_t number; /* of the check */
  uint64_t open;           /* software device: another stream whose work on the memory had not completed; else 0 */
} weir__guard_slot;

/* The parameters of weir_guard, all of 64 bits. It fills [base + start, base + middle), and checks
 * [base + middle, base + end), where it restores the pattern, so that a difference is found once. The base is a
 * multiple of 16. Byte i of both has byte i % 8 of the pattern. Between dense and sparse, only
 * the first 64 bytes of each 4 KiB count. With start 0, the software device also looks for work of other streams on
 * [base, base + end). */
enum { WEIR__GUARD_PARAMS = 10 };
typedef struct weir__guard_params {
  uint64_t base, start, middle, end, pattern;
  weir_cu_deviceptr slot, flag;
  uint64_t number;
  uint64_t dense, sparse; /* multiples of 16 */
} weir__guard_params;

/* A piece of weir_copy_pieces. Addresses and bytes are multiples of 16. The parameters are the address of an array of
 * these, which the device can read, and how many there are. */
typedef struct weir__copy_piece {
  weir_cu_deviceptr to, from;
  uint64_t bytes;
} weir__copy_piece;

/* Its threads per block. Any number of blocks handles all pieces. */
enum { WEIR__COPY_THREADS = 256 };

/* Threads per block of weir_guard. Each handles 16 bytes at a time, and any number of blocks handles all of them. */
enum { WEIR__GUARD_THREADS = 256 };

#endif
