/*
 * What grows from step to step as JSON: the object of `weir leaks --json` for one device.
 */
#pragma once

#include "inspect/json.h"
#include "offline/analyse/leaks.h"

/* `file` may be NULL. */
void weir__leaks_json(weir__sink *sink, const char *key, const weir__recording *recording, const char *file,
                      const weir__leaks *leaks);
