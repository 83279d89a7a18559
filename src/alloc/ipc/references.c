#include "alloc/ipc/references.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_map.h"
#include "base/system.h"
#include "base/thread.h"

static const char magic[8] = "weirREF";
static const char file_name[] = "weir-ipc-references";

/* A word: 2 bits of state, 16 of generation, 46 of process. */
enum { PROCESS_BITS = 22, START_BITS = 24, IDENTITY_BITS = PROCESS_BITS + START_BITS, GENERATION_BITS = 16 };

static const uint64_t identity_mask = (1ull << IDENTITY_BITS) - 1;
static const uint32_t generation_mask = (1u << GENERATION_BITS) - 1;

static uint64_t word_of(weir__reference_state state, uint32_t generation, weir__process_identity process) {
  return (uint64_t)state << (IDENTITY_BITS + GENERATION_BITS) |
         (uint64_t)(generation & generation_mask) << IDENTITY_BITS | (process & identity_mask);
}

static weir__reference_state state_of(uint64_t word) {
  return (weir__reference_state)(word >> (IDENTITY_BITS + GENERATION_BITS));
}

static uint32_t generation_of(uint64_t word) { return (uint32_t)(word >> IDENTITY_BITS) & generation_mask; }

/* ---- Processes ---- */

weir__process_identity weir__process_identity_of(int process) {
  uint64_t started;
  if (process <= 0 || process >> PROCESS_BITS || !weir__process_start_time(process, &started))
    return 0;
  return (started & ((1ull << START_BITS) - 1)) << PROCESS_BITS | (uint64_t)process;
}

int weir__process_of(weir__process_identity identity) { return (int)(identity & ((1u << PROCESS_BITS) - 1)); }

bool weir__identity_has_ended(weir__process_identity identity) {
  if (!identity)
    return false;
  if (weir__process_has_ended(weir__process_of(identity)))
    return true;
  weir__process_identity now = weir__process_identity_of(weir__process_of(identity));
  return now && now != identity; /* the id belongs to another process by now */
}

/* ---- The sender ---- */

weir__references *weir__references_new(int *file) {
  int made = weir__map_memory_file(file_name, sizeof(weir__references));
  weir__references *references = made < 0 ? NULL : weir__map_shared_file(made, sizeof *references);
  if (!references) {
    if (made >= 0)
      close(made);
    return NULL;
  }
  references->owner = weir__process_identity_of(weir__process_id());
  memcpy(references->magic, magic, sizeof magic);
  *file = made;
  return references;
}

void weir__references_delete(weir__references *references, int file) {
  if (!references)
    return;
  memset(references->magic, 0, sizeof references->magic); /* for receivers that have it open */
  weir__unmap(references, sizeof *references);
  close(file);
}

/* The search begins at a place that differs from call to call, so that a word is used again as late as possible. */
bool weir__reference_take(weir__references *references, weir__process_identity receiver, uint32_t *slot,
                          uint32_t *generation) {
  static _Atomic uint32_t next;
  uint32_t begin = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
  for (uint32_t i = 0; i < WEIR__REFERENCES_MAX; i++) {
    uint32_t at = (begin + i) % WEIR__REFERENCES_MAX;
    uint64_t word = atomic_load(&references->words[at]);
    uint32_t made = generation_of(word) + 1;
    if (state_of(word) == WEIR__REFERENCE_FREE &&
        atomic_compare_exchange_strong(&references->words[at], &word, word_of(WEIR__REFERENCE_SENT, made, receiver))) {
      *slot = at;
      *generation = made & generation_mask;
      return true;
    }
  }
  return false;
}

weir__reference_state weir__reference_read(const weir__references *references, uint32_t slot,
                                           weir__process_identity *process) {
  uint64_t word = atomic_load(&references->words[slot]);
  *process = word & identity_mask;
  return state_of(word);
}

bool weir__reference_withdraw(weir__references *references, uint32_t slot) {
  uint64_t word = atomic_load(&references->words[slot]);
  return state_of(word) == WEIR__REFERENCE_SENT &&
         atomic_compare_exchange_strong(&references->words[slot], &word,
                                        word_of(WEIR__REFERENCE_FREE, generation_of(word), 0));
}

void weir__reference_free(weir__references *references, uint32_t slot) {
  uint64_t word = atomic_load(&references->words[slot]);
  atomic_store(&references->words[slot], word_of(WEIR__REFERENCE_FREE, generation_of(word), 0));
}

/* ---- The receiver ---- */

weir__references *weir__references_open(const weir__reference_name *name) {
  struct stat st;
  int file = weir__process_open_file(weir__process_of(name->sender), name->file, "/memfd:weir-ipc-references");
  if (file < 0) {
    errno = errno == ENOENT ? ESRCH : errno;
    return NULL;
  }
  bool fits = !fstat(file, &st) && (uint64_t)st.st_size == sizeof(weir__references);
  weir__references *references = fits ? weir__map_shared_file(file, sizeof *references) : NULL;
  int error = fits ? errno : ESRCH;
  close(file);
  if (references && (!weir__references_are_current(references) || references->owner != name->sender)) {
    weir__unmap(references, sizeof *references);
    references = NULL;
    error = ESRCH;
  }
  errno = error;
  return references;
}

bool weir__references_are_current(const weir__references *references) {
  return memcmp(references->magic, magic, sizeof magic) == 0;
}

void weir__references_close(weir__references *references) { weir__unmap(references, sizeof *references); }

static bool change(weir__references *references, const weir__reference_name *name, uint64_t from, uint64_t to) {
  return name->slot < WEIR__REFERENCES_MAX && atomic_compare_exchange_strong(&references->words[name->slot], &from, to);
}

/* Whether a word has this message, under way. */
static bool is_under_way(uint64_t word, const weir__reference_name *name) {
  return state_of(word) == WEIR__REFERENCE_SENT && generation_of(word) == name->generation;
}

bool weir__reference_address(weir__references *references, const weir__reference_name *name,
                             weir__process_identity receiver) {
  uint64_t word = atomic_load(&references->words[name->slot]);
  return is_under_way(word, name) &&
         change(references, name, word, word_of(WEIR__REFERENCE_SENT, name->generation, receiver));
}

bool weir__reference_hold(weir__references *references, const weir__reference_name *name, weir__process_identity self,
                          weir__process_identity *receiver) {
  if (name->slot >= WEIR__REFERENCES_MAX)
    return false;
  uint64_t word = atomic_load(&references->words[name->slot]);
  *receiver = word & identity_mask;
  return is_under_way(word, name) &&
         change(references, name, word, word_of(WEIR__REFERENCE_HELD, name->generation, self));
}

void weir__reference_end(weir__references *references, const weir__reference_name *name, weir__process_identity self) {
  change(references, name, word_of(WEIR__REFERENCE_HELD, name->generation, self),
         word_of(WEIR__REFERENCE_DONE, name->generation, self));
}

void weir__reference_return(weir__references *references, const weir__reference_name *name, weir__process_identity self,
                            weir__process_identity receiver) {
  change(references, name, word_of(WEIR__REFERENCE_HELD, name->generation, self),
         word_of(WEIR__REFERENCE_SENT, name->generation, receiver));
}
