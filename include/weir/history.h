/*
 * The history of an allocator: what it did, when, and for which code.
 *
 * Recording costs some tens of nanoseconds for an allocation and its free, and nothing while it is off. A snapshot
 * (weir/snapshot.h) writes the history to a file.
 */
#ifndef WEIR_HISTORY_H
#define WEIR_HISTORY_H

#include <stddef.h>
#include <stdint.h>

#include "weir/alloc.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weir_history_mode {
  WEIR_HISTORY_OFF,
  WEIR_HISTORY_STATE, /* allocated blocks have a stack; of the entries, only the last is kept */
  WEIR_HISTORY_ALL    /* and history entries are kept */
} weir_history_mode;

/* What gets a stack. Each value includes those before it. */
typedef enum weir_history_context {
  WEIR_CONTEXT_NONE,
  WEIR_CONTEXT_STATE, /* allocated blocks, and segments that have one: that of the allocation */
  WEIR_CONTEXT_ALLOC, /* and entries; a free has the stack of its allocation */
  WEIR_CONTEXT_ALL    /* and frees and empty_cache have stacks of their own */
} weir_history_context;

typedef enum weir_history_stacks {
  WEIR_STACKS_LANGUAGE, /* the frames of the hook of weir_stack_set_hook */
  WEIR_STACKS_ALL,      /* and the native frames after them */
  WEIR_STACKS_EITHER    /* the hook's frames, or native frames if the hook has none for the thread */
} weir_history_stacks;

typedef struct weir_history_options {
  size_t size; /* sizeof(weir_history_options) */
  weir_history_mode mode;
  weir_history_context context;
  weir_history_stacks stacks;
  size_t max_entries; /* per device, and of annotations; at least 1. SIZE_MAX: limited by host memory */
  unsigned skip;      /* 1u << action: entries that are not kept; trackers still get them */
  int clear;          /* 1: drop what was recorded so far */
} weir_history_options;

/* Everything is recorded, with all stacks, up to a million entries: at most 48 MB per device. */
static inline void weir_history_options_init(weir_history_options *options) {
  if (!options)
    return;
  WEIR__INIT(options);
  options->mode = WEIR_HISTORY_ALL;
  options->context = WEIR_CONTEXT_ALL;
  options->stacks = WEIR_STACKS_ALL;
  options->max_entries = 1000000;
}

/* Begins, changes or ends recording. WEIR_HISTORY_OFF drops everything, including the stacks of blocks. A change of
 * other options keeps what was recorded. NULL options are the defaults. */
weir_status weir_history_record(weir_allocator *allocator, const weir_history_options *options);

/* *is_on is 1 while recording is on. */
weir_status weir_history_is_on(const weir_allocator *allocator, int *is_on);

/* 1 while an allocator of the process records. */
int weir_history_is_on_anywhere(void);

/* The bit of an action by name, such as "free_requested". WEIR_ERROR_INVALID_ARGUMENT if there is no such action. */
weir_status weir_history_action(const char *name, unsigned *bit);

/* Drops the entries and annotations of all devices. */
weir_status weir_history_clear(weir_allocator *allocator);

typedef struct weir_history_info {
  size_t size; /* sizeof(weir_history_info) */
  weir_history_mode mode;
  weir_history_context context;
  weir_history_stacks stacks;
  size_t max_entries;
  unsigned skip;
  uint64_t kept;        /* entries of the device */
  uint64_t dropped;     /* older entries that were dropped since the last clear */
  uint64_t annotations; /* of all devices */
  uint64_t annotations_dropped;
  uint64_t lost; /* entries, stacks and texts that were lost for lack of memory or room */
} weir_history_info;

/* Sets `size` and makes the rest zero, for weir_history_get_info. */
static inline void weir_history_info_init(weir_history_info *info) { WEIR__INIT(info); }

/* Walks over all entries to count them. */
weir_status weir_history_get_info(weir_allocator *allocator, int device, weir_history_info *info);

/* ---- Annotations and phases ---- */

/* Adds an annotation, such as the beginning of a step: pairs of a key and a value, as
 * {"name", "forward", "stage", "START"}. Does nothing while recording is off. */
weir_status weir_history_annotate(weir_allocator *allocator, int device, const char *const *pairs, size_t pair_count);

/* Adds an annotation to the history of every allocator that records. A device that an allocator does not have counts
 * as its first. */
weir_status weir_history_annotate_all(int device, const char *const *pairs, size_t pair_count);

/* The same for weir_history_mark. */
weir_status weir_history_mark_all(int device, const char *text);

/* Adds an entry with a text to the history of a device. Its action is user_defined. */
weir_status weir_history_mark(weir_allocator *allocator, int device, const char *text);

/* Adds an entry about an allocated pointer, with its address and size. Its action is annotate. A pointer that is not
 * allocated is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_history_mark_pointer(weir_allocator *allocator, const void *pointer, const char *text);

/* Sets a text that every later entry of the device carries; NULL or "" for none. */
weir_status weir_history_set_metadata(weir_allocator *allocator, int device, const char *text);

/* Sets a text that later entries of the calling thread carry in place of the device's, and returns the previous one:
 * numbers of weir_history_text, 0 for none. */
uint32_t weir_history_exchange_metadata(uint32_t text);

/* Sets the phase of the calling thread, such as "forward", which its entries carry. Phases nest: leave takes what enter
 * returned.
 *
 *     uint32_t before = weir_history_enter_phase("forward");
 *     ...
 *     weir_history_leave_phase(before);
 */
uint32_t weir_history_enter_phase(const char *name);
void weir_history_leave_phase(uint32_t before);

/* Sets the phase for threads that work on behalf of others, such as autograd's: those that have entered no phase and
 * for which the stack hook finds no frames. There is one for the process, and the last call wins. `phase` is a
 * number of weir_history_text, 0 for none. */
void weir_history_share_phase(uint32_t phase);

/* Like weir_history_enter_phase, for what a compiler is compiling; a separate field in snapshots. */
uint32_t weir_history_enter_compile(const char *name);
void weir_history_leave_compile(uint32_t before);

/* ---- Stacks of a language ---- */

/* The number of a text, which is fixed for the life of the process. 0 if the text is empty or there is no room. */
uint32_t weir_history_text(const char *text);

/* The text of a number, "" for 0 and for an unknown number. Valid for the life of the process. */
const char *weir_history_text_of(uint32_t number);

typedef struct weir_stack_frame {
  uint32_t file, function; /* numbers of weir_history_text */
  int line;
} weir_stack_frame;

/* Writes at most `room` frames of the calling thread, innermost first, and returns their number. */
typedef size_t (*weir_stack_hook_fn)(void *context, weir_stack_frame *frames, size_t room);

/* Sets the hook for all allocators of the process; NULL removes it. The hook is called without a lock of Weir. It may
 * allocate; such allocations have no stack. A call in another thread may still be running when this returns. */
void weir_stack_set_hook(weir_stack_hook_fn hook, void *context);

/* Computes a key for the calling thread's stack that is cheaper than its frames: equal keys mean equal stacks, for
 * the life of the process. Returns 0 if the stack has no key now. The hook is then called only for new keys. The key
 * is not used if native frames follow those of the hook. Setting a hook removes the key function. */
typedef int (*weir_stack_key_fn)(void *context, uint64_t *key);
void weir_stack_set_key(weir_stack_key_fn key);

/* The frames of the hook for a stack, by the stack's number in snapshots and in weir_pointer_info. Equal stacks have
 * one number, which is fixed for the life of the process. Writes at most `room` frames, without native ones, and
 * returns the number of frames. */
size_t weir_history_frames(uint32_t stack, weir_stack_frame *frames, size_t room);

/* ---- Stacks on request ---- */

/* Captures the stack of the calling thread, without a recording. *stack is its number, 0 if it has no frames; see
 * weir_history_frames. Each distinct stack is kept for the life of the process. */
weir_status weir_stack_capture(weir_history_stacks stacks, uint32_t *stack);

/* Receives one frame: its function and file, "??" if they are not known, its line, 0 if not known, and whether it is
 * machine code or a frame of the hook. The texts are valid during the call. A result other than 0 ends the visit. */
typedef int (*weir_frame_fn)(void *context, const char *function, const char *file, int line, int is_native);

/* Visits the frames of a stack, innermost first. Native frames are resolved to function, file and line, and functions
 * that were inlined count as frames. 0 has no frames; an unknown number is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_stack_visit(uint32_t stack, weir_frame_fn visit, void *context);

#ifdef __cplusplus
}
#endif
#endif
