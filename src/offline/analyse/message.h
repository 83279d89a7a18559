/*
 * What follows from the figures of an out-of-memory message: the cause, what was missing, and names for these.
 */
#pragma once

#include "offline/read/message.h"

/* Computes the derived fields of each message. */
void weir__messages_derive(weir__messages *messages);

/* "exhausted" in JSON, and "not enough memory" for people. */
typedef struct weir__message_cause_name {
  const char *name, *text;
} weir__message_cause_name;

extern const weir__message_cause_name weir__message_causes[WEIR__MESSAGE_CAUSES];

/* The names in JSON. */
extern const char *const weir__message_bounds[WEIR__BOUNDS];
extern const char *const weir__message_kinds[WEIR__MESSAGE_KINDS];

/* "rank 3", "GPU 0", or "" if neither is known. Returns `text`. */
enum { WEIR__MESSAGE_SOURCE_TEXT = 48 };
const char *weir__message_source_text(const weir__message *message, char text[WEIR__MESSAGE_SOURCE_TEXT]);
