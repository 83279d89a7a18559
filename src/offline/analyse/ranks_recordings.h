/*
 * What digests cannot say about ranks, from the recordings where they are there.
 */
#pragma once

#include "alloc/config/settings.h"
#include "offline/analyse/ranks.h"

enum { WEIR__RANKS_WHY = 512 };

/* Looks for recordings in a folder, under the names that the digests have of them. For each of the first `most`
 * partings it finds the request that differs, and for each usual class, unless `most` is 0, it replays a member with
 * the recorded settings and, unless they are NULL, with others. Recordings that are not there are left out; *unread is
 * the number of those that cannot be read or replayed, and `why` the last reason. */
weir_status weir__ranks_look_into(weir__ranks *ranks, const char *folder, const weir__settings *settings, size_t most,
                                  size_t *unread, char why[WEIR__RANKS_WHY]);
