/*
 * The comparison of ranks as JSON: the members of an object that is open.
 */
#pragma once

#include "inspect/json.h"
#include "offline/analyse/ranks.h"

void weir__ranks_json(weir__sink *sink, const weir__ranks *ranks);
