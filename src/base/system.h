/*
 * Calls of the operating system that WASI lacks. There, those that return a descriptor fail with ENOSYS. Elsewhere they
 * raise the process's limit of open files, where it keeps them from succeeding.
 */
#pragma once

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

/* When a process started, in clock ticks since boot; false, with errno set, if it does not exist or is hidden. */
bool weir__process_start_time(int process, uint64_t *ticks);

/* The number of the namespace in which the process has its id; 0 if it is not known. */
uint64_t weir__process_namespace(void);

/* The open file of a descriptor; zero if there is none. */
typedef struct weir__file_id {
  uint64_t device, file;
} weir__file_id;
weir__file_id weir__file_identity(int descriptor);

/* Keeps a lock on an open file until its last descriptor is closed, as it is when the process ends. false, with errno
 * set, if it is locked by another. */
bool weir__file_lock(int descriptor);
/* Whether such a lock is kept by another open file. */
bool weir__file_is_locked(int descriptor);

/* Creates a folder that only this user can enter, or checks that it is one. 0, or an errno value: EPERM if others can
 * enter it, or it is not this user's. */
int weir__private_folder(const char *path, bool create);

/* The user with whose rights the process runs. */
unsigned weir__user_id(void);

/* Whether a process has ended. True for a zombie too: its memory and its devices are gone. */
bool weir__process_has_ended(int process);
/* The same by a descriptor of weir__process_open. */
bool weir__opened_process_has_ended(int process_descriptor);

/* Opens a file that another process has open; -1 with errno set on failure, ENOENT if the file's name does not begin
 * with `name`. The kernel allows it for processes of the same user, also where it forbids taking a descriptor. */
int weir__process_open_file(int process, int number, const char *name);

/* After a call has failed with EMFILE: doubles the process's limit of open files, up to the hard limit. False, with
 * errno as before, if that is not possible. */
bool weir__descriptors_raise_limit(void);

/* The number of descriptors that the process may have open at present. */
size_t weir__descriptors_limit(void);

/* Sleeps until another thread wakes the word, which processes may share, or for this time. Returns at once unless the
 * word has the value. It may return early for no reason. */
void weir__futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns);
void weir__futex_wake(_Atomic uint32_t *word);

/* The bytes that the process could still use without swapping, by the system's estimate and the limit of its container;
 * UINT64_MAX if unknown. */
uint64_t weir__memory_available(void);

/* Fills memory with random bytes of the system, without waiting for them; false, with errno set, if it has none yet. */
bool weir__random_bytes(void *bytes, size_t size);

/* getenv, but NULL in a program that runs with privileges of another user. */
const char *weir__secure_getenv(const char *name);

/* The name of this machine, cut to `size` bytes with its NUL; "" if it has none. */
void weir__host_name(char *name, size_t size);

/* qsort_r: sorts items with a comparison that gets a context. */
void weir__sort(void *items, size_t count, size_t size, int (*compare)(const void *a, const void *b, void *context),
                void *context);
