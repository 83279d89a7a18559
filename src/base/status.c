#include "weir/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/text.h"

/* The room for the text is made when a thread first fails: a library that is loaded into a running program can have only little
 * memory in every thread. */
static _Thread_local struct {
  const char *text; /* NULL: nothing failed yet */
  char *room;       /* WEIR__TEXT_SIZE; NULL: not made yet */
  int driver_result;
} last;

static pthread_key_t room_key; /* frees it when the thread ends */
static pthread_once_t room_once = PTHREAD_ONCE_INIT;
static int has_room_key;

static void forget_room(void *room) {
  free(room);
  last.text = NULL;
  last.room = NULL;
}

static void make_room_key(void) { has_room_key = !pthread_key_create(&room_key, forget_room); }

/* A library that is unloaded takes forget_room along. */
static __attribute__((destructor)) void forget_room_key(void) {
  if (has_room_key)
    pthread_key_delete(room_key);
}

/* NULL: no host memory. */
static char *find_room(void) {
  if (last.room)
    return last.room;
  pthread_once(&room_once, make_room_key);
  char *room = has_room_key ? malloc(WEIR__TEXT_SIZE) : NULL;
  if (!room)
    return NULL;
  if (pthread_setspecific(room_key, room)) {
    free(room);
    return NULL;
  }
  return last.room = room;
}

const char *weir_status_name(weir_status status) {
  switch ((int)status) {
#define X(number, name, text)                                                                                          \
  case number:                                                                                                         \
    return "WEIR_" #name;
    WEIR_STATUS_MAP(X)
#undef X
  }
  return "WEIR_ERROR_UNKNOWN";
}

const char *weir_status_string(weir_status status) {
  switch ((int)status) {
#define X(number, name, text)                                                                                          \
  case number:                                                                                                         \
    return text;
    WEIR_STATUS_MAP(X)
#undef X
  }
  return "no status has this number";
}

const char *weir_last_error(void) { return last.text ? last.text : ""; }

int weir_last_driver_result(void) { return last.driver_result; }

static void fail(weir_status status, int driver_result, const char *format, va_list args) {
  /* Not straight into its place: the arguments may quote it. */
  char text[WEIR__TEXT_SIZE], *room = find_room();
  weir__format_text(text, sizeof text, format, args);
  weir__escape_message(text, sizeof text, strchr(format, '\n') != NULL); /* it may quote a file's names */
  last.text = room ? memcpy(room, text, strlen(text) + 1) : weir_status_string(status);
  last.driver_result = driver_result;
  weir__log(WEIR_LOG_DEBUG, "%s: %s", weir_status_name(status), text);
}

weir_status weir__fail(weir_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(status, 0, format, args);
  va_end(args);
  return status;
}

weir_status weir__fail_result(weir_status status, int driver_result, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fail(status, driver_result, format, args);
  va_end(args);
  return status;
}

weir_status weir__fail_as(const char *who, weir_status status) {
  char text[WEIR__TEXT_SIZE], *room = status ? find_room() : NULL;
  const char *why = room && last.text == room ? strchr(room, ':') : NULL;
  if (why && (size_t)snprintf(text, sizeof text, "%s%s", who, why) < sizeof text)
    memcpy(room, text, strlen(text) + 1);
  return status;
}
