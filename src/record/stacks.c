#include "record/stacks.h"

#include <string.h>

#include "base/base.h"
#include "base/library.h"
#include "base/thread.h"
#include "record/texts.h"
#include "record/this_thread.h"
#include "record/unwind.h"

/* A native frame is one word, its address. A frame of a language is two words, of which the first is no valid
 * address. */
#define LANGUAGE_FRAME (1ull << 63)

enum { usual_words = 160, most_words = WEIR__MAX_FRAMES, hook_frames = 1024 };

weir__intern weir__stacks = {.max_bytes = 256u << 20};

/* ---- Weir's own code ---- */

typedef struct code_range {
  uint64_t begin, end;
} code_range;

enum { MAX_RANGES = 8 };
static code_range own_code[MAX_RANGES]; /* written once, when native stacks are first needed, before the count */
static atomic_size_t own_count;

/* libweir.so itself, libraries that contain it (the Python extension, the preload library), and adapters on top of it.
 * In a program that contains libweir.a, the frames of both are kept: a reader of the file distinguishes them by
 * name. */
static void add_own_code(void *context, const weir__image *image) {
  size_t *count = context;
  const char *slash = strrchr(image->path, '/'), *name = slash ? slash + 1 : "";
  bool is_own = strncmp(name, "libweir", strlen("libweir")) == 0 || strncmp(name, "_weir.", strlen("_weir.")) == 0;
  if (is_own && image->code_begin < image->code_end && *count < MAX_RANGES)
    own_code[(*count)++] = (code_range){image->code_begin, image->code_end};
}

static inline bool is_own(uint64_t address, size_t ranges) {
  for (size_t i = 0; i < ranges; i++)
    if (address - own_code[i].begin < own_code[i].end - own_code[i].begin)
      return true;
  return false;
}

/* Removes Weir's frames at the inner end; returns how many are left. */
static size_t drop_own(uint64_t *addresses, size_t count) {
  size_t own = 0, ranges = atomic_load_explicit(&own_count, memory_order_acquire);
  while (own < count && is_own(addresses[own], ranges))
    own++;
  if (own)
    memmove(addresses, addresses + own, (count - own) * sizeof *addresses);
  return count - own;
}

/* ---- The walker: libunwind, or else glibc's backtrace ---- */

typedef int (*backtrace_fn)(void **addresses, int room);
static backtrace_fn backtrace_native; /* NULL if there is none; written once, as is the next */
static bool has_libunwind;
static weir__once_flag once = WEIR__ONCE_INIT;

/* glibc loads libgcc_s.so.1 in the first call, and finds no frames without it. Later calls allocate nothing. */
static void start_glibc(void) {
  void *library = weir__library_open("libc.so.6"), *probe[4];
  backtrace_fn found = NULL;
  if (library)
    *(void **)&found = weir__library_symbol(library, "backtrace");
  if (found && found(probe, WEIR_COUNT_OF(probe)) > 1)
    backtrace_native = found;
}

/* The library stays loaded. */
static void start(void) {
  size_t ranges = 0;
  weir__images_each(add_own_code, &ranges);
  atomic_store_explicit(&own_count, ranges, memory_order_release);
  static const char *const names[] = {"libunwind.so.8", "libunwind.so"};
  const bool fits = sizeof(void *) == sizeof(uint64_t); /* addresses are written straight into words */
  for (size_t i = 0; fits && i < WEIR_COUNT_OF(names) && !backtrace_native; i++) {
    void *library = weir__library_open(names[i]);
    if (library)
      *(void **)&backtrace_native = weir__library_symbol(library, "unw_backtrace");
    if (backtrace_native)
      weir__unwind_start(library);
  }
  has_libunwind = backtrace_native != NULL;
  if (fits && !has_libunwind)
    start_glibc();
}

static _Atomic(weir_stack_hook_fn) hook;
static _Atomic(weir_stack_key_fn) hook_key; /* NULL if the hook's stacks have no keys */
static _Atomic(void *) hook_context;

bool weir__stacks_start(void) {
  weir__once(&once, start);
  return backtrace_native != NULL;
}

/* No warning if there is a walker, or if a language supplies the frames and native ones are only the second choice. */
void weir__stacks_start_for(weir_history_stacks kind) {
  static atomic_flag is_said = ATOMIC_FLAG_INIT;
  weir__stacks_start();
  if (has_libunwind)
    return;
  bool has_frames = backtrace_native || (kind == WEIR_STACKS_EITHER && atomic_load(&hook));
  if (has_frames || !atomic_flag_test_and_set(&is_said))
    weir__log(has_frames ? WEIR_LOG_INFO : WEIR_LOG_WARN,
              "%s: libunwind.so.8 was not found; Debian has it in libunwind8",
              backtrace_native ? "native stacks come from glibc's backtrace, which is slower"
                               : "history has no native stacks");
}

/* ---- The hook ---- */

void weir_stack_set_hook(weir_stack_hook_fn given, void *context) {
  atomic_store(&hook_key, NULL);
  atomic_store(&hook, NULL);
  atomic_store(&hook_context, context);
  atomic_store(&hook, given);
}

void weir_stack_set_key(weir_stack_key_fn given) { atomic_store(&hook_key, given); }

/* Stacks by key, for all threads, without a lock. */
enum { KNOWN_STACKS = 4096 };
#define NO_KEY 0

static struct known_stack {
  _Atomic uint64_t check; /* key ^ stack: fails for two words of different writers */
  _Atomic uint64_t stack;
} known_stacks[KNOWN_STACKS];

/* Keys are hashes already. */
static struct known_stack *known_place(uint64_t key) { return &known_stacks[key >> 52]; }

static uint32_t find_known(uint64_t key) {
  const struct known_stack *known = known_place(key);
  uint64_t stack = atomic_load_explicit(&known->stack, memory_order_acquire);
  return (atomic_load_explicit(&known->check, memory_order_relaxed) ^ stack) == key ? (uint32_t)stack : 0;
}

static void note_known(uint64_t key, uint32_t stack) {
  struct known_stack *known = known_place(key);
  atomic_store_explicit(&known->check, key ^ stack, memory_order_relaxed);
  atomic_store_explicit(&known->stack, stack, memory_order_release);
}

uint32_t weir_history_text(const char *text) { return weir__text_number(text); }
const char *weir_history_text_of(uint32_t number) { return weir__text_of_number(number); }

size_t weir_history_frames(uint32_t stack, weir_stack_frame *frames, size_t room) {
  size_t length, count = 0;
  const uint64_t *words = weir__intern_get(&weir__stacks, stack, &length);
  weir__frame frame;
  for (size_t i = 0, end = length / sizeof *words; i < end;) {
    i += weir__stack_frame_of(words + i, end - i, &frame);
    if (frame.address)
      continue;
    if (frames && count < room)
      frames[count] = (weir_stack_frame){frame.file, frame.function, frame.line};
    count++;
  }
  return count;
}

/* What the hook itself allocates has no stack: it would be asked for another one, and so on. */
static size_t ask_hook(uint64_t *words, size_t room) {
  weir_stack_hook_fn ask = atomic_load_explicit(&hook, memory_order_acquire);
  if (!ask || weir__this_thread.is_in_hook)
    return 0;
  weir_stack_frame frames[hook_frames];
  size_t most = room / 2 < hook_frames ? room / 2 : hook_frames;
  weir__this_thread.is_in_hook = true;
  size_t count = ask(atomic_load_explicit(&hook_context, memory_order_relaxed), frames, most);
  weir__this_thread.is_in_hook = false;
  weir__this_thread.lacks_frames = count == 0;
  if (count > most)
    count = most;
  for (size_t i = 0; i < count; i++) {
    words[2 * i] = LANGUAGE_FRAME | (uint64_t)(frames[i].file & 0x7fffffff) << 32 | frames[i].function;
    words[2 * i + 1] = (uint32_t)frames[i].line;
  }
  return 2 * count;
}

/* ---- Gathering ---- */

/* The number, and whether there may be more than there was room for. The first `own` native frames are of this file:
 * they are written over what lies before the place of the native ones, which is put back then. */
static inline __attribute__((always_inline)) uint32_t gather(weir_history_stacks kind, uint64_t *words, size_t room,
                                                             size_t own, bool *is_full) {
  uint64_t *first = words + own, saved[2];
  size_t count = atomic_load_explicit(&hook, memory_order_relaxed) ? ask_hook(first, room - own) : 0;
  *is_full = count + own + 2 > room; /* a frame of the hook's takes two */
  size_t walked = 0, native_at = count;
  bool wants_native = backtrace_native && (kind == WEIR_STACKS_ALL || (kind == WEIR_STACKS_EITHER && !count));
  if (wants_native && own == 1)
    walked = weir__unwind_walk(__builtin_frame_address(0), first + count, room - own - count);
  count += walked;
  if (wants_native && !walked && !*is_full) {
    memcpy(saved, words + count, own * sizeof *words);
    int native = backtrace_native((void **)(words + count), (int)(room - count));
    memcpy(words + count, saved, own * sizeof *words);
    *is_full = native > 0 && count + (size_t)native == room;
    count += native > (int)own ? (size_t)native - own : 0;
    if (own == 1)
      weir__unwind_learn((size_t)native + 2);
  }
  count = native_at + drop_own(first + native_at, count - native_at);
  return *is_full && room < most_words ? 0 : weir__intern_put(&weir__stacks, first, count * sizeof *first);
}

static __attribute__((noinline)) uint32_t gather_deep(weir_history_stacks kind) {
  uint64_t words[most_words];
  bool is_full;
  words[0] = words[1] = 0;
  uint32_t stack = gather(kind, words, most_words, 2, &is_full);
  __asm__ volatile("" : : : "memory"); /* keeps the compiler from a tail call: this function needs a frame of its own */
  return stack;
}

__attribute__((noinline)) uint32_t weir__stack_gather(weir_history_stacks kind) {
  uint64_t words[usual_words], key = NO_KEY;
  bool is_full;
  if (weir__this_thread.is_in_hook)
    return 0;
  weir_stack_key_fn find_key = atomic_load_explicit(&hook_key, memory_order_acquire);
  if (find_key && kind != WEIR_STACKS_ALL &&
      find_key(atomic_load_explicit(&hook_context, memory_order_relaxed), &key)) {
    uint32_t known = find_known(key);
    if (known) {
      weir__this_thread.lacks_frames = false;
      return known;
    }
  }
  words[0] = 0;
  uint32_t stack = gather(kind, words, usual_words, 1, &is_full);
  if (is_full)
    stack = gather_deep(kind);
  if (key != NO_KEY && stack && !weir__this_thread.lacks_frames)
    note_known(key, stack);
  __asm__ volatile("" : : : "memory");
  return stack;
}

size_t weir__stack_frame_of(const uint64_t *words, size_t count, weir__frame *frame) {
  if (!(words[0] & LANGUAGE_FRAME) || count < 2) {
    *frame = (weir__frame){.address = (uintptr_t)words[0]};
    return 1;
  }
  *frame = (weir__frame){0, (uint32_t)(words[0] >> 32 & 0x7fffffff), (uint32_t)words[0], (int)words[1]};
  return 2;
}

size_t weir__stack_frames(uint32_t stack, weir__frame *frames, size_t room) {
  size_t length, count = 0;
  const uint64_t *words = weir__intern_get(&weir__stacks, stack, &length);
  weir__frame frame;
  for (size_t i = 0, end = length / sizeof *words; i < end; count++) {
    i += weir__stack_frame_of(words + i, end - i, &frame);
    if (count < room)
      frames[count] = frame;
  }
  return count;
}
