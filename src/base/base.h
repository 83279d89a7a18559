/*
 * What every file uses: errors with a text, log messages, small helpers.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "weir/log.h"
#include "weir/status.h"

#define WEIR_PRINTF(at, first) __attribute__((format(printf, at, first)))
#define WEIR_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Sets the thread's last error and returns `status`. The function that first decides which error it is calls this; its
 * callers only pass the status on. The text is "call: why" with the public call's name. */
weir_status weir__fail(weir_status status, const char *format, ...) WEIR_PRINTF(2, 3);

/* The same with the driver's result code. */
weir_status weir__fail_result(weir_status status, int driver_result, const char *format, ...) WEIR_PRINTF(3, 4);

/* For a public call that consists of other public calls: replaces the name of the inner call in the thread's last error
 * by `caller`, unless `status` is WEIR_OK. Returns `status`. */
weir_status weir__fail_as(const char *caller, weir_status status);

/* The failure of a call whose output a weir_write_fn has refused with a number of errno. `caller` may be NULL. */
weir_status weir__fail_output(const char *caller, int error);

/* Keeps facts about the failure that this thread has just set, at most WEIR__FACTS_SIZE bytes, until the next one. */
enum { WEIR__FACTS_SIZE = 256 };
void weir__keep_facts(const void *facts, size_t size);

/* Those of the last failure; NULL if it has none. */
const void *weir__last_facts(void);

#ifdef __clang_analyzer__ /* which does not see that the result is the argument, and so not WEIR_OK */
static inline weir_status weir__fail_as_analyzed(const char *caller, weir_status status) {
  (void)weir__fail_as(caller, status);
  return status;
}
#define weir__fail(status, ...) (weir__fail(status, __VA_ARGS__), (status))
#define weir__fail_as(caller, status) weir__fail_as_analyzed(caller, status)
#endif

/* First in a public call, for each pointer that must not be NULL: fails with "<call>: <argument> is NULL". */
#define WEIR__CHECK_ARGUMENT(argument)                                                                                 \
  do {                                                                                                                 \
    if (!(argument))                                                                                                   \
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", __func__, #argument);                           \
  } while (0)

void weir__log(weir_log_level level, const char *format, ...) WEIR_PRINTF(2, 3);

/* Bytes in the largest unit of which there is at least one: "512 bytes", "2.00 MiB". Returns `text`. */
const char *weir__format_bytes(unsigned long long bytes, char text[32]);

/* The same as PyTorch writes it, which has no TiB, and 1 GiB as "1024.00 MiB": for messages that PyTorch has too. */
const char *weir__format_bytes_as_pytorch(unsigned long long bytes, char text[32]);

/* "80GiB", "512 MB", "1024": a number, with K, M, G, T (powers of 1024 with "iB" or nothing, of 1000 with "B"). */
bool weir__parse_bytes(const char *text, unsigned long long *bytes);

/* Lists of items that have `previous` and `next`, with a pointer to the first one: add in front, and remove. */
#define WEIR__LIST_ADD(first, item)                                                                                    \
  do {                                                                                                                 \
    (item)->previous = NULL;                                                                                           \
    if (((item)->next = (first)))                                                                                      \
      (item)->next->previous = (item);                                                                                 \
    (first) = (item);                                                                                                  \
  } while (0)
#define WEIR__LIST_REMOVE(first, item)                                                                                 \
  do {                                                                                                                 \
    *((item)->previous ? &(item)->previous->next : &(first)) = (item)->next;                                           \
    if ((item)->next)                                                                                                  \
      (item)->next->previous = (item)->previous;                                                                       \
  } while (0)

static inline uint64_t weir__round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

/* A clock that never goes back and stops while the machine is suspended. */
static inline uint64_t weir__monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Copies a struct of a caller that may have another version: fields that the caller does not have stay as they are. */
void weir__copy_sized(void *to, size_t to_size, const void *from, size_t from_size);

/* The same for options that a caller gave to the public call `caller`; NULL keeps the defaults. A size of 0 was
 * forgotten: then the rest of the struct is not known to be set either, and this fails. `from` begins with its size. */
weir_status weir__read_options(const char *caller, const char *name, void *to, size_t to_size, const void *from);
