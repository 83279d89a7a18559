/*
 * What every file uses: errors with a text, log messages, growing arrays and small helpers. They are defined here,
 * since libweir keeps its own to itself, and both may be linked into one program.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weir/adapter.h"
#include "weir/log.h"
#include "weir/status.h"

#define WEIR_PRINTF(at, first) __attribute__((format(printf, at, first)))
#define WEIR_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

enum { WEIR__TEXT_SIZE = 2048 }; /* of the longest error or message, with its NUL */

/* ---- Errors and messages ---- */

/* vsnprintf, but a text that had to be cut ends in "...", so that it is not mistaken for the whole. */
WEIR_PRINTF(2, 0) static inline void weir__format(char text[WEIR__TEXT_SIZE], const char *format, va_list args) {
  if (vsnprintf(text, WEIR__TEXT_SIZE, format, args) >= WEIR__TEXT_SIZE)
    memcpy(text + WEIR__TEXT_SIZE - sizeof "...", "...", sizeof "...");
}

/* Sets the thread's last error and returns `status`. The function that first decides which error it is calls this; its
 * callers only pass the status on. The text is "call: why" with the public call's name. */
WEIR_PRINTF(2, 3) static inline weir_status weir__fail(weir_status status, const char *format, ...) {
  char text[WEIR__TEXT_SIZE];
  va_list args;
  va_start(args, format);
  weir__format(text, format, args);
  va_end(args);
  return weir_report_error(status, text);
}

/* For a public call that consists of other public calls: replaces the name of the inner call in the thread's last error
 * by `caller`, unless `status` is WEIR_OK. Returns `status`. */
static inline weir_status weir__fail_as(const char *caller, weir_status status) {
  if (status)
    weir_report_as(caller, status);
  return status;
}

#ifdef __clang_analyzer__ /* which does not see that the result is the argument, and so not WEIR_OK */
#define weir__fail(status, ...) (weir__fail(status, __VA_ARGS__), (status))
#endif

/* First in a public call, for each pointer that must not be NULL: fails with "<call>: <argument> is NULL". */
#define WEIR__CHECK_ARGUMENT(argument)                                                                                 \
  do {                                                                                                                 \
    if (!(argument))                                                                                                   \
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", __func__, #argument);                           \
  } while (0)

WEIR_PRINTF(2, 3) static inline void weir__log(weir_log_level level, const char *format, ...) {
  if (level > weir_log_get_level())
    return;
  char text[WEIR__TEXT_SIZE];
  va_list args;
  va_start(args, format);
  weir__format(text, format, args);
  va_end(args);
  weir_log_message(level, text);
}

/* For a public call that returns text: at most `size` bytes with a NUL, and the whole length unless `length` is NULL.
 * Without room, the text may be NULL. */
static inline weir_status weir__return_text(const char *from, char *text, size_t size, size_t *length) {
  if (size)
    snprintf(text, size, "%s", from);
  if (length)
    *length = strlen(from);
  return WEIR_OK;
}

/* ---- Growing arrays: a pointer from malloc, and the items that there is room for ---- */

/* Makes room for `needed` items, at least twice as many as before. `items` is the address of the pointer. false if out
 * of host memory; the array is then as before. */
static inline bool weir__array_reserve(void *items, size_t *room, size_t needed, size_t item_size) {
  enum { FIRST_ROOM = 4 };
  if (needed <= *room)
    return true;
  size_t more = *room > SIZE_MAX / 2 ? needed : *room ? 2 * *room : FIRST_ROOM;
  if (more < needed)
    more = needed;
  void *old;
  memcpy(&old, items, sizeof old); /* a pointer of any type */
  void *grown = more > SIZE_MAX / item_size ? NULL : realloc(old, more * item_size);
  if (!grown)
    return false;
  memcpy(items, &grown, sizeof grown);
  *room = more;
  return true;
}

/* For an array whose pointer is typed: WEIR__RESERVE(list->items, list->room, list->count + 1). */
#define WEIR__RESERVE(items, room, needed) weir__array_reserve(&(items), &(room), (needed), sizeof *(items))

/* ---- Structs that carry their size ---- */

/* Copies options of a program that may have another version: fields that it does not have stay as they are, and NULL
 * keeps the defaults. A size of 0 was forgotten: then the rest of the struct is not known to be set either, and this
 * fails. */
static inline weir_status weir__read_options(const char *caller, const char *name, void *to, size_t to_size,
                                             const void *from) {
  size_t size;
  if (!from)
    return WEIR_OK;
  memcpy(&size, from, sizeof size);
  if (size < sizeof size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the size of %s is not set; call its _init function first",
                      caller, name);
  memcpy(to, from, size < to_size ? size : to_size);
  return WEIR_OK;
}

/* ---- Time ---- */

/* A clock that never goes back and stops while the machine is suspended. */
static inline uint64_t weir__monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A signal may end it early. */
static inline void weir__sleep_ns(uint64_t ns) {
  nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)}, NULL);
}

static inline uint64_t weir__round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }
