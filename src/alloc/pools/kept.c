/*
 * Pieces of pinned host memory for what sleeps.
 */
#include "alloc/pools/kept.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/environment.h"
#include "base/memory_map.h"
#include "base/system.h"

#define LARGE_PAGE (2 * WEIR__MIB)
#define PIECE (256 * WEIR__MIB)

static uint64_t read_budget(void) {
  unsigned long long budget = 0;
  int64_t ranks = 1;
  if (!weir__env_bytes(WEIR__ENV_SLEEP_PINNED, &budget))
    weir__env_ignore(WEIR__ENV_SLEEP_PINNED, "a quarter of the host's memory is used");
  else if (weir__env_value(WEIR__ENV_SLEEP_PINNED))
    return budget;
  if (!weir__env_integer(WEIR__ENV_LOCAL_RANKS, &ranks))
    ranks = 1;
  uint64_t available = weir__memory_available();
  return available == UINT64_MAX ? available : available / 4 / (uint64_t)ranks;
}

weir__sleeper *weir__sleeper_new(void) {
  weir__sleeper *sleeper = calloc(1, sizeof *sleeper);
  if (!sleeper)
    return NULL;
  weir__mutex_init(&sleeper->lock);
  sleeper->budget = read_budget();
  return sleeper;
}

void weir__sleeper_delete(weir__sleeper *sleeper) {
  if (sleeper)
    weir__mutex_destroy(&sleeper->lock);
  free(sleeper);
}

weir_cu_result weir__kept_pin(weir__sleeper *sleeper, weir_driver *driver, weir__kept_piece *piece,
                              const char **failed_call) {
  if (piece->is_pinned)
    return WEIR_CU_SUCCESS;
  if (!weir__map_populate(piece->memory, (size_t)piece->bytes)) /* the driver would touch it with its locks held */
    for (uint64_t i = 0; i < piece->bytes; i += weir__map_page_size())
      ((volatile char *)piece->memory)[i] = 0;
  *failed_call = "cuMemHostRegister";
  weir_cu_result r = driver->MemHostRegister(driver, piece->memory, piece->bytes,
                                             WEIR_CU_MEMHOSTREGISTER_PORTABLE | WEIR_CU_MEMHOSTREGISTER_DEVICEMAP);
  if (r)
    return r;
  *failed_call = "cuMemHostGetDevicePointer";
  r = driver->MemHostGetDevicePointer(driver, &piece->device, piece->memory, 0);
  if (r)
    driver->MemHostUnregister(driver, piece->memory);
  else {
    piece->is_pinned = true;
    atomic_fetch_add(&sleeper->pinned, piece->bytes);
  }
  return r;
}

/* Frees a pinned piece. Memory that the driver refuses to unregister is lost. */
static void give(weir__sleeper *sleeper, weir_driver *driver, const weir__kept_piece *piece) {
  atomic_fetch_sub(&sleeper->pinned, piece->bytes);
  if (driver->MemHostUnregister(driver, piece->memory))
    weir__log(WEIR_LOG_WARN, "%llu bytes of pinned memory are lost: the driver refused to unregister them",
              (unsigned long long)piece->bytes);
  else
    weir__unmap(piece->memory, (size_t)piece->bytes);
}

static bool add(weir__kept *kept, const weir__kept_piece *piece) {
  if (!WEIR__RESERVE(kept->pieces, kept->piece_room, kept->piece_count + 1))
    return false;
  kept->pieces[kept->piece_count++] = *piece;
  return true;
}

/* Takes the last spare piece. */
static bool take_spare(weir__sleeper *sleeper, weir__kept *kept) {
  if (!sleeper->spare_count || !add(kept, &sleeper->spare[sleeper->spare_count - 1]))
    return false;
  sleeper->spare_bytes -= sleeper->spare[--sleeper->spare_count].bytes;
  return true;
}

static bool make(weir__kept *kept, uint64_t bytes) {
  weir__kept_piece piece = {.bytes = bytes < PIECE ? weir__round_up(bytes, LARGE_PAGE) : PIECE};
  piece.memory = weir__map_aligned_memory((size_t)piece.bytes, LARGE_PAGE);
  if (!piece.memory)
    return false;
  if (add(kept, &piece))
    return true;
  weir__unmap(piece.memory, (size_t)piece.bytes);
  return false;
}

static void give_all(weir__sleeper *sleeper, weir_driver *driver, weir__kept *kept) {
  while (kept->piece_count) {
    weir__kept_piece *piece = &kept->pieces[--kept->piece_count];
    if (atomic_load(&sleeper->is_busy))
      weir__log(WEIR_LOG_WARN, "%llu bytes of pinned memory are lost: the driver cannot say whether copies have ended",
                (unsigned long long)piece->bytes);
    else if (!piece->is_pinned)
      weir__unmap(piece->memory, (size_t)piece->bytes);
    else if (WEIR__RESERVE(sleeper->spare, sleeper->spare_room, sleeper->spare_count + 1)) {
      sleeper->spare[sleeper->spare_count++] = *piece;
      sleeper->spare_bytes += piece->bytes;
    } else
      give(sleeper, driver, piece);
  }
}

bool weir__kept_take(weir__sleeper *sleeper, weir_driver *driver, weir__kept *kept, uint64_t *available) {
  uint64_t have = 0;
  while (have < kept->bytes && take_spare(sleeper, kept))
    have += kept->pieces[kept->piece_count - 1].bytes;
  *available = weir__memory_available();
  bool can = have >= kept->bytes || kept->bytes - have < *available;
  while (can && have < kept->bytes && (can = make(kept, kept->bytes - have)))
    have += kept->pieces[kept->piece_count - 1].bytes;
  if (!can)
    give_all(sleeper, driver, kept);
  return can;
}

void weir__kept_drop(weir__sleeper *sleeper, weir_driver *driver, weir__kept *kept) {
  give_all(sleeper, driver, kept);
  free(kept->ranges);
  free(kept->pieces);
  free(kept);
  while (sleeper->spare_bytes > sleeper->budget) {
    const weir__kept_piece *piece = &sleeper->spare[--sleeper->spare_count];
    sleeper->spare_bytes -= piece->bytes;
    give(sleeper, driver, piece);
  }
}

void weir__kept_clear(weir__sleeper *sleeper, weir_driver *driver) {
  while (sleeper->spare_count)
    give(sleeper, driver, &sleeper->spare[--sleeper->spare_count]);
  sleeper->spare_bytes = 0;
  free(sleeper->spare);
  sleeper->spare = NULL;
  sleeper->spare_room = 0;
}
