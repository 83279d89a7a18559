#include "base/region.h"

#include <string.h>

#include "base/memory_map.h"
#include "base/thread.h"

/* Pieces are multiples of this, so that their cold parts are whole pages. */
enum { STEP = 8 << 10, SIZES = WEIR__REGION_PIECE / STEP, SMALL = 32 << 10 };

static const uint64_t max_bytes = (uint64_t)1 << 32;
static const uint64_t least_bytes = (uint64_t)64
                                    << 20;        /* where address space is memory, this is all that is reserved */
static const size_t ready_step = (size_t)1 << 20; /* the system is asked for this much at once */

char *weir__region_base, *weir__region_cold;

static weir__mutex lock = WEIR__MUTEX_INIT;
static char *begin, *cold;            /* guarded by the lock, as is all that follows */
static size_t page;                   /* of the system; set with these */
static size_t reserved, ready, taken; /* bytes from the beginning */
static void *pieces[SIZES];           /* those given back, by size, linked through their first word */

/* A leak checker in the process. It does not search mapped memory unless it is told to, and the index has pointers to
 * allocated memory there. */
extern void __lsan_register_root_region(const void *memory, size_t bytes) __attribute__((weak));

/* The child of a fork finds the region as it was between two calls. */
static void lock_region(void) { weir__mutex_lock(&lock); }
static void unlock_region(void) { weir__mutex_unlock(&lock); }
WEIR__AT_LOAD(WEIR__LOAD_MEMORY) void watch_forks(void) { weir__at_fork(lock_region, unlock_region, unlock_region); }

/* Address space costs nothing, but a process may be limited in it; then the region is far smaller, because the program
 * needs some too. A range that begins at a multiple of its size, a power of two, never crosses a multiple of 4 GiB. */
static bool reserve(void) {
  for (uint64_t bytes = sizeof(size_t) < 8 ? least_bytes : max_bytes; bytes >= least_bytes; bytes /= 8) {
    char *space = weir__map_reserve((size_t)(bytes + bytes / 2), (size_t)bytes);
    if (!space)
      continue;
    begin = space;
    reserved = (size_t)bytes;
    cold = begin + reserved;
    taken = STEP; /* reference 0 points to nothing */
    size_t offset = (size_t)((uintptr_t)begin & (max_bytes - 1));
    weir__region_base = begin - offset;
    weir__region_cold = cold - offset / 2;
    page = weir__map_page_size();
    if (__lsan_register_root_region)
      __lsan_register_root_region(begin, reserved);
    return true;
  }
  return false;
}

bool weir__region_prepare(void) {
  weir__mutex_lock(&lock);
  bool is_reserved = reserved || reserve();
  weir__mutex_unlock(&lock);
  return is_reserved;
}

static bool make_ready(size_t until) {
  if (until <= ready)
    return true;
  size_t end = (until + ready_step - 1) / ready_step * ready_step;
  if (end > reserved || !weir__map_commit(begin + ready, end - ready) ||
      !weir__map_commit(cold + ready / 2, (end - ready) / 2))
    return false;
  ready = end;
  return true;
}

void *weir__region_alloc(size_t bytes) {
  size_t steps = (bytes + STEP - 1) / STEP;
  void *piece = NULL;
  if (!steps || steps > SIZES)
    return NULL;
  weir__mutex_lock(&lock);
  if (pieces[steps - 1]) {
    piece = pieces[steps - 1];
    pieces[steps - 1] = *(void **)piece;
    *(void **)piece = NULL;
  } else if ((reserved || reserve()) && make_ready(taken + steps * STEP)) {
    piece = begin + taken;
    taken += steps * STEP;
  }
  weir__mutex_unlock(&lock);
  return piece;
}

/* The system takes the memory back and supplies zeros the next time. It can only take whole pages, which may be larger
 * than a piece, and refuses when the program has locked its memory. Zeroing a small piece costs less than that call and
 * the page faults after it. */
static void wipe(void *memory, size_t bytes) {
  if (bytes <= SMALL || ((uintptr_t)memory | bytes) % page || !weir__map_discard(memory, bytes))
    memset(memory, 0, bytes);
}

void weir__region_free(void *piece, size_t bytes) {
  size_t steps = (bytes + STEP - 1) / STEP;
  wipe(piece, steps * STEP);
  wipe(weir__cold_of(piece), steps * STEP / 2);
  weir__mutex_lock(&lock);
  *(void **)piece = pieces[steps - 1];
  pieces[steps - 1] = piece;
  weir__mutex_unlock(&lock);
}
