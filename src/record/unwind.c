#include "record/unwind.h"

#if defined(__x86_64__)

#include <stdatomic.h>
#include <ucontext.h>

#include "base/library.h"
#include "base/thread.h"

/* ---- libunwind's calls, as far as they are needed. Their types are its own: only their sizes and a few places matter ---- */

enum { RBP = 6, RSP = 7, RIP = 16, IN_MEMORY = 1 }; /* its numbers of registers, and where one was saved */

typedef struct cursor {
  uint64_t words[256]; /* it takes 127 */
} cursor;

typedef struct save_loc {
  int type;
  uint64_t address;
  uint64_t rest[6];
} save_loc;

static int (*init_local)(cursor *, ucontext_t *);
static int (*step)(cursor *);
static int (*get_reg)(cursor *, int, uint64_t *);
static int (*get_save_loc)(cursor *, int, save_loc *);

bool weir__unwind_start(void *library) {
  *(void **)&init_local = weir__library_symbol(library, "_ULx86_64_init_local");
  *(void **)&get_reg = weir__library_symbol(library, "_ULx86_64_get_reg");
  *(void **)&get_save_loc = weir__library_symbol(library, "_ULx86_64_get_save_loc");
  *(void **)&step = init_local && get_reg && get_save_loc ? weir__library_symbol(library, "_ULx86_64_step") : NULL;
  return step != NULL;
}

/* ---- What is known of a place ---- */

/* How the frame of a call that returns to a place is left: where it ends, the canonical frame address, and where in it the frame
 * around it has its frame pointer. In units of 8 bytes. */
typedef union rule {
  struct {
    uint16_t kind;
    uint16_t saved;  /* from the end: the frame pointer; 0: it was not touched */
    uint32_t length; /* BY_STACK: from the stack pointer to the end */
  };
  uint64_t word;
} rule;

enum {
  UNKNOWN,
  BY_STACK, /* the stack pointer is always as far from the end */
  BY_FRAME, /* the frame pointer points to the one that was saved, right before the address that is returned to */
  OUTERMOST,
  STRANGE /* none of these: only libunwind can tell */
};

/* Two threads may write the same slot at once. A reader that sees a half of each finds no place in it, since the first word is the
 * place only with its own rule. */
enum { SLOTS = 4096 };
static struct slot {
  _Atomic uint64_t mixed; /* the place ^ the rule */
  _Atomic uint64_t rule;
} known[SLOTS];

static struct slot *slot_of(uint64_t place) { return &known[place * 0x9e3779b97f4a7c15u >> 52]; }

static rule find(uint64_t place) {
  struct slot *slot = slot_of(place);
  rule found = {.word = atomic_load_explicit(&slot->rule, memory_order_relaxed)};
  return atomic_load_explicit(&slot->mixed, memory_order_relaxed) == (place ^ found.word) ? found : (rule){.word = 0};
}

static void put(uint64_t place, rule told) {
  struct slot *slot = slot_of(place);
  atomic_store_explicit(&slot->rule, told.word, memory_order_relaxed);
  atomic_store_explicit(&slot->mixed, place ^ told.word, memory_order_relaxed);
}

/* ---- Walking ---- */

/* Nothing beyond the thread's stack is read. 0: not asked yet; 1: not known. */
static _Thread_local uint64_t stack_begin __attribute__((tls_model("initial-exec")));
static _Thread_local uint64_t stack_end __attribute__((tls_model("initial-exec")));

static _Thread_local bool met_unknown
    __attribute__((tls_model("initial-exec"))); /* the last walk ended at such a place */

static __attribute__((noinline)) void find_stack(void) {
  uintptr_t begin = 1, end = 1;
  weir__thread_stack(&begin, &end);
  stack_begin = begin;
  stack_end = end;
}

__attribute__((no_sanitize("address"))) size_t weir__unwind_walk(const void *frame, uint64_t *addresses, size_t room) {
  if (!step)
    return 0;
  if (!stack_end)
    find_stack();
  const uint64_t end_of_stack = stack_end;
  uint64_t end = (uint64_t)frame + 16, pointer = ((const uint64_t *)frame)[0];
  uint64_t place = ((const uint64_t *)frame)[1];
  if ((uint64_t)frame < stack_begin || end > end_of_stack) /* another stack, as those of coroutines */
    return 0;
  for (size_t count = 0; count < room;) {
    addresses[count++] = place;
    rule how = find(place);
    uint64_t next;
    if (how.kind == BY_STACK)
      next = end + 8 * (uint64_t)how.length;
    else if (how.kind == BY_FRAME)
      next = pointer + 16;
    else {
      met_unknown = how.kind == UNKNOWN;
      return how.kind == OUTERMOST ? count : 0;
    }
    if (next <= end || next > end_of_stack || next % 8)
      return 0;
    place = *(const uint64_t *)(next - 8);
    if (how.saved)
      pointer = *(const uint64_t *)(next - 8 * (uint64_t)how.saved);
    end = next;
  }
  return 0;
}

/* ---- Asking ---- */

/* From what libunwind says of a frame, and of the one around it. */
static __attribute__((no_sanitize("address"))) rule judge(uint64_t stack, uint64_t pointer, uint64_t next_place,
                                                          uint64_t next_stack, uint64_t next_pointer,
                                                          const save_loc *saved) {
  rule told = {.kind = STRANGE};
  uint64_t length = next_stack - stack;
  if (next_stack <= stack || length % 8 || length / 8 > UINT32_MAX || *(const uint64_t *)(next_stack - 8) != next_place)
    return told; /* a signal's, or something that was made by hand */
  if (saved->type == IN_MEMORY && saved->address >= stack && saved->address < next_stack - 8) {
    uint64_t back = next_stack - saved->address;
    if (back % 8 || back / 8 > UINT16_MAX || *(const uint64_t *)saved->address != next_pointer)
      return told;
    told.saved = (uint16_t)(back / 8);
  }
  told.length = (uint32_t)(length / 8);
  if (told.saved == 2 && pointer == next_stack - 16)
    told.kind = BY_FRAME;
  else if (pointer < stack || pointer >= next_stack)
    told.kind = BY_STACK;
  /* Else it points into the frame, but not where usual: a frame that is aligned, and whose length is not the same each time. */
  return told;
}

__attribute__((noinline)) void weir__unwind_learn(size_t most) {
  ucontext_t here;
  cursor at;
  uint64_t place, stack, pointer;
  /* Where there are always new places, as in code that is made while it runs, asking each time would cost more than it saves. */
  enum { OFTEN = 256, SELDOM = 64 };
  static _Thread_local unsigned asked;
  if (!step || !met_unknown || (asked++ >= OFTEN && asked % SELDOM))
    return;
  met_unknown = false;
  if (getcontext(&here) != 0 || init_local(&at, &here) < 0)
    return;
  for (size_t i = 0; i < most; i++) {
    if (get_reg(&at, RIP, &place) < 0 || get_reg(&at, RSP, &stack) < 0 || get_reg(&at, RBP, &pointer) < 0)
      return;
    int more = step(&at);
    if (more == 0)
      put(place, (rule){.kind = OUTERMOST});
    if (more <= 0)
      return;
    save_loc saved = {0};
    uint64_t next_place, next_stack, next_pointer;
    if (get_reg(&at, RIP, &next_place) < 0 || get_reg(&at, RSP, &next_stack) < 0 ||
        get_reg(&at, RBP, &next_pointer) < 0 || get_save_loc(&at, RBP, &saved) < 0)
      return;
    put(place, judge(stack, pointer, next_place, next_stack, next_pointer, &saved));
  }
}

#else

bool weir__unwind_start(void *library) {
  (void)library;
  return false;
}

size_t weir__unwind_walk(const void *frame, uint64_t *addresses, size_t room) {
  (void)frame;
  (void)addresses;
  (void)room;
  return 0;
}

void weir__unwind_learn(size_t most) { (void)most; }

#endif
