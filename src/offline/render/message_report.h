/*
 * The report of out-of-memory messages: what `weir explain --message` prints.
 */
#pragma once

#include "offline/read/message.h"
#include "offline/render/report.h"

/* `file` is its name. There is at least one message; all are in the rows, and the text explains the first. */
void weir__messages_report(weir__report *report, const char *file, const weir__messages *messages);
