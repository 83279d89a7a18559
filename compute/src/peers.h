/*
 * What processes that work together share: files that live in memory, words to wait on, and whether the others are
 * alive.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens a new file of this size that lives in memory, and as long as it is open or mapped. Returns its descriptor, or
 * -1 with errno set. Raises the process's limit of open files where it is in the way, as weir__peer_open does. */
int weir__shared_file(const char *name, size_t bytes);

/* A file's first bytes, to be read and written; other processes see the changes. NULL on failure, with errno set. */
void *weir__shared_map(int file, size_t bytes);

/* Sleeps until another thread or process wakes the word, or for this time. Returns at once unless the word has the
 * value. It may return early for no reason. */
void weir__shared_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns);
void weir__shared_wake(_Atomic uint32_t *word);

/* A descriptor that stands for another process; -1 with errno set on failure. */
int weir__peer_open(int process);

/* Whether the process of a descriptor has ended. True for a zombie too: its memory and its devices are gone. */
bool weir__peer_has_ended(int descriptor);

/* When a process started, in clock ticks since boot; false if it does not exist or is hidden. */
bool weir__peer_start_time(int process, uint64_t *ticks);
