/*
 * Out-of-memory messages as JSON: the object of `weir explain --message --json`.
 */
#ifndef WEIR_OFFLINE_RENDER_MESSAGE_JSON_H
#define WEIR_OFFLINE_RENDER_MESSAGE_JSON_H

#include "inspect/json.h"
#include "offline/read/message.h"

/* Writes the members of an object that is open. `name` is that of the file. */
void weir__messages_json(weir__sink *sink, const char *name, const weir__messages *messages);

#endif
