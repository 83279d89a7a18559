/*
 * Out-of-memory messages as JSON: the object of `weir explain --message --json`.
 */
#pragma once

#include "inspect/json.h"
#include "offline/read/message.h"

/* Writes the members of an object that is open. `name` is that of the file. */
void weir__messages_json(weir__sink *sink, const char *name, const weir__messages *messages);
