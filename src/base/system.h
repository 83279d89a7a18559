/*
 * Calls of the operating system that WASI lacks. There, those that return a descriptor fail with ENOSYS.
 */
#ifndef WEIR_BASE_SYSTEM_H
#define WEIR_BASE_SYSTEM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A second descriptor of the same open file, closed on exec; -1 with errno set on failure. */
int weir__descriptor_copy(int descriptor);

/* A descriptor that stands for another process, and a copy of one of that process's own; -1 with errno set on
 * failure. */
int weir__process_open(int process);
int weir__process_take_descriptor(int process_descriptor, int number);

/* Whether a process has ended, also if its parent has not waited for it; by a descriptor of weir__process_open. */
bool weir__process_has_ended(int process_descriptor);

/* Sleeps until another thread wakes the word, which processes may share, or for this time. Returns at once unless the
 * word has the value. It may return early for no reason. */
void weir__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns);
void weir__futex_wake(_Atomic uint32_t *word);

/* Fills memory with random bytes of the system, without waiting for them; false, with errno set, if it has none yet. */
bool weir__random_bytes(void *bytes, size_t size);

/* getenv, but NULL in a program that runs with privileges of another user. */
const char *weir__secure_getenv(const char *name);

/* The name of this machine, cut to `size` bytes with its NUL; "" if it has none. */
void weir__host_name(char *name, size_t size);

/* qsort_r: sorts items with a comparison that gets a context. */
void weir__sort(void *items, size_t count, size_t size, int (*compare)(const void *a, const void *b, void *context),
                void *context);

#endif
