/*
 * Calls of the operating system that WASI lacks. There, those that return a descriptor fail with ENOSYS.
 */
#ifndef WEIR_BASE_SYSTEM_H
#define WEIR_BASE_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>

/* A second descriptor of the same open file, closed on exec; -1 with errno set on failure. */
int weir__descriptor_copy(int descriptor);

/* A descriptor that stands for another process, and a copy of one of that process's own; -1 with errno set on
 * failure. */
int weir__process_open(int process);
int weir__process_take_descriptor(int process_descriptor, int number);

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
