/*
 * The history of an allocator: what it did, when, and who asked for it.
 *
 * Recording costs some tens of nanoseconds for an allocation and its free, and nothing while it is off. A snapshot
 * (weir/snapshot.h) writes what was recorded to a file.
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
  WEIR_HISTORY_STATE, /* blocks in use know who asked for them; of events only the last one is kept */
  WEIR_HISTORY_ALL    /* and events are kept */
} weir_history_mode;

/* What keeps a stack. Each has all of those before it. */
typedef enum weir_history_context {
  WEIR_CONTEXT_NONE,
  WEIR_CONTEXT_STATE, /* blocks in use, and segments: where they were asked for */
  WEIR_CONTEXT_ALLOC, /* and events. One of a free has the stack of the allocation */
  WEIR_CONTEXT_ALL    /* and frees and empty_cache have their own */
} weir_history_context;

typedef enum weir_history_stacks {
  WEIR_STACKS_LANGUAGE, /* the frames of weir_set_stack_hook's hook */
  WEIR_STACKS_ALL,      /* and the native ones behind them */
  WEIR_STACKS_EITHER    /* the hook's frames, or the native ones for a thread that has none of the hook's */
} weir_history_stacks;

typedef struct weir_history_options {
  size_t size; /* sizeof(weir_history_options) */
  weir_history_mode mode;
  weir_history_context context;
  weir_history_stacks stacks;
  size_t max_entries; /* of each device, and of annotations; at least 1. SIZE_MAX: as many as the host has memory for */
  unsigned skip;      /* 1u << weir_trace_action: events that are not kept; trackers hear of them all the same */
  int clear;          /* 1: what was kept so far goes */
} weir_history_options;

/* All, with all stacks, a million entries: 48 MB for each device at most. */
void weir_history_options_init(weir_history_options *options);

/* Begins, changes or ends recording. With WEIR_HISTORY_OFF all that was kept goes, the stacks of blocks too. A change of the
 * other options keeps what there is. options NULL: the defaults. */
weir_status weir_history_record(weir_allocator *allocator, const weir_history_options *options);

/* 1 while something is recorded. */
int weir_history_is_on(const weir_allocator *allocator);

/* The bit of an action by its name, as "free_requested". WEIR_ERROR_INVALID_ARGUMENT: there is none of that name. */
weir_status weir_history_action(const char *name, unsigned *bit);

/* Forgets the events and annotations of all devices. */
weir_status weir_history_clear(weir_allocator *allocator);

typedef struct weir_history_info {
  size_t size; /* sizeof(weir_history_info) */
  weir_history_mode mode;
  weir_history_context context;
  weir_history_stacks stacks;
  size_t max_entries;
  unsigned skip;
  uint64_t kept;        /* events of the device */
  uint64_t dropped;     /* older ones that made room, since the last clear */
  uint64_t annotations; /* kept, of all devices */
  uint64_t annotations_dropped;
  uint64_t lost; /* events, stacks and texts for which the host had no memory, or the table no room */
} weir_history_info;

void weir_history_info_init(weir_history_info *info);

/* Counts, which takes as long as a walk over the events. */
weir_status weir_history_get_info(weir_allocator *allocator, int device, weir_history_info *info);

/* ---- What the program says about itself ---- */

/* Notes something of the program's own, as the begin and the end of a step: pairs of a key and a value, as
 * {"name", "forward", "stage", "START"}. Nothing happens while nothing is recorded. */
weir_status weir_history_annotate(weir_allocator *allocator, int device, const char *const *pairs, size_t pair_count);

/* Puts an event with a text among the others of a device: action user_defined. */
weir_status weir_history_mark(weir_allocator *allocator, int device, const char *text);

/* The same about a live pointer: action annotate, and the event has its address and its size. A pointer that is not
 * live is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_history_mark_pointer(weir_allocator *allocator, const void *pointer, const char *text);

/* A text that every event of the device carries from now on; NULL or "" for none. */
weir_status weir_history_set_metadata(weir_allocator *allocator, int device, const char *text);

/* What the calling thread is doing, as "forward": its events carry it. They nest: leave takes what enter returned.
 *
 *     uint32_t before = weir_history_enter_phase("forward");
 *     ...
 *     weir_history_leave_phase(before);
 */
uint32_t weir_history_enter_phase(const char *name);
void weir_history_leave_phase(uint32_t before);

/* The phase of threads that work on behalf of another, such as autograd's: the events of a thread that has entered no phase and
 * for which the stack hook found no frames carry it. One for the process; the last call wins. `phase` is a number of
 * weir_history_text, 0 for none. */
void weir_history_share_phase(uint32_t phase);

/* As weir_history_enter_phase, for what a compiler is compiling; snapshots keep it apart. */
uint32_t weir_history_enter_compile(const char *name);
void weir_history_leave_compile(uint32_t before);

/* ---- Stacks of a language ---- */

/* The number of a text, the same for the same text as long as the process lives. 0: empty, or no room. */
uint32_t weir_history_text(const char *text);

/* The text of a number, "" for 0 and for one that is none. It stays as long as the process lives. */
const char *weir_history_text_of(uint32_t number);

typedef struct weir_stack_frame {
  uint32_t file, function; /* of weir_history_text */
  int line;
} weir_stack_frame;

/* Writes the frames of the calling thread, the innermost first, at most `room`, and returns how many. */
typedef size_t (*weir_stack_hook)(void *context, weir_stack_frame *frames, size_t room);

/* For all allocators of the process; NULL takes it away. It is called without any lock of Weir's, and may allocate: that has
 * no stack then. A call that is under way in another thread may go on after this returns. */
void weir_set_stack_hook(weir_stack_hook hook, void *context);

/* A key of the calling thread's stack, which is cheaper to find than its frames: equal keys are equal stacks, for as long as the
 * process runs. Returns 0 if the stack has no key now. Used beside the hook, whose frames are asked for only when a key is new;
 * where native frames follow the hook's, there is no use for it. Setting a hook takes the key of the one before it away. */
typedef int (*weir_stack_key)(void *context, uint64_t *key);
void weir_set_stack_key(weir_stack_key key);

/* The frames that the hook gave for a stack, by the number that it has in snapshots and in weir_pointer_info. Equal frames have
 * one number, which stays as long as the process lives. Writes at most `room`, and returns how many there are; native frames
 * are left out. */
size_t weir_history_frames(uint32_t stack, weir_stack_frame *frames, size_t room);

#ifdef __cplusplus
}
#endif
#endif
