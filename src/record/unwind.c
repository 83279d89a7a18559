#include "record/unwind.h"

#if defined(__x86_64__)

#include <stdatomic.h>
#include <ucontext.h>

#include "base/library.h"
#include "base/thread.h"

/* ---- The functions of libunwind that are used. Of its types only sizes and a few offsets matter ---- */

enum { RBP = 6, RSP = 7, RIP = 16, IN_MEMORY = 1 }; /* its register numbers, and the kind of a saved location */

typedef struct cursor {
  uint64_t words[256]; /* it uses 127 */
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

/* ---- Rules of call sites ---- */

/* How to leave the frame of a call by its return address: where the frame ends (the canonical frame address), and where
 * it saved the frame pointer of the frame around it. In units of 8 bytes. */
typedef union rule {
  struct {
    uint16_t kind;
    uint16_t saved;  /* the saved frame pointer, from the end; 0 if it was not changed */
    uint32_t length; /* BY_STACK: from the stack pointer to the end */
  };
  uint64_t word;
} rule;

enum {
  UNKNOWN,
  BY_STACK, /* the distance from the stack pointer to the end is constant */
  BY_FRAME, /* the frame pointer points to the saved one, right before the return address */
  OUTERMOST,
  STRANGE /* none of these: only libunwind can walk it */
};

/* Two threads may write the same slot at once. A reader that sees half of each write finds no address in it, because
 * the first word yields the address only with its own rule. */
enum { SLOTS = 4096 };
static struct slot {
  _Atomic uint64_t mixed; /* the address ^ the rule */
  _Atomic uint64_t rule;
} known[SLOTS];

static struct slot *slot_of(uint64_t place) { return &known[place * 0x9e3779b97f4a7c15u >> 52]; }

static rule find(uint64_t place) {
  struct slot *slot = slot_of(place);
  rule found = {.word = atomic_load_explicit(&slot->rule, memory_order_relaxed)};
  return atomic_load_explicit(&slot->mixed, memory_order_relaxed) == (place ^ found.word) ? found : (rule){.word = 0};
}

static void put(uint64_t place, rule how) {
  struct slot *slot = slot_of(place);
  atomic_store_explicit(&slot->rule, how.word, memory_order_relaxed);
  atomic_store_explicit(&slot->mixed, place ^ how.word, memory_order_relaxed);
}

/* ---- Walking ---- */

/* Nothing outside of the thread's stack is read. 0 if not determined yet, 1 if not known. */
static _Thread_local uint64_t stack_begin __attribute__((tls_model("initial-exec")));
static _Thread_local uint64_t stack_end __attribute__((tls_model("initial-exec")));

static _Thread_local bool met_unknown
    __attribute__((tls_model("initial-exec"))); /* the last walk ended at an unknown call site */

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
  if ((uint64_t)frame < stack_begin || end > end_of_stack) /* another stack, such as a coroutine's */
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

/* ---- Asking libunwind ---- */

/* The rule that follows from what libunwind reports about a frame and the one around it. */
static __attribute__((no_sanitize("address"))) rule judge(uint64_t stack, uint64_t pointer, uint64_t next_place,
                                                          uint64_t next_stack, uint64_t next_pointer,
                                                          const save_loc *saved) {
  rule result = {.kind = STRANGE};
  uint64_t length = next_stack - stack;
  if (next_stack <= stack || length % 8 || length / 8 > UINT32_MAX || *(const uint64_t *)(next_stack - 8) != next_place)
    return result; /* a signal frame, or hand-written code */
  if (saved->type == IN_MEMORY && saved->address >= stack && saved->address < next_stack - 8) {
    uint64_t back = next_stack - saved->address;
    if (back % 8 || back / 8 > UINT16_MAX || *(const uint64_t *)saved->address != next_pointer)
      return result;
    result.saved = (uint16_t)(back / 8);
  }
  result.length = (uint32_t)(length / 8);
  if (result.saved == 2 && pointer == next_stack - 16)
    result.kind = BY_FRAME;
  else if (pointer < stack || pointer >= next_stack)
    result.kind = BY_STACK;
  /* Otherwise it points into the frame at an unusual offset: an aligned frame, whose length varies. */
  return result;
}

__attribute__((noinline)) void weir__unwind_learn(size_t most) {
  ucontext_t here;
  cursor at;
  uint64_t place, stack, pointer;
  /* With ever new call sites, as in code generated at run time, asking each time would cost more than it saves. */
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

#pragma GCC diagnostic ignored "-Wunused-parameter" /* without registers that are known, nothing is walked */

bool weir__unwind_start(void *library) { return false; }
size_t weir__unwind_walk(const void *frame, uint64_t *addresses, size_t room) { return 0; }
void weir__unwind_learn(size_t most) {}

#endif
