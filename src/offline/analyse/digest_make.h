/*
 * Makes the digests of a recording (offline/read/digest.h), one for each device that has a history. The recording is
 * read once, and memory is taken for what is in use at a time and for what it has of stacks, not for its length.
 *
 * The steps are those that pattern/steps.h finds in the first WEIR__DIGEST_PREFIX entries; behind these they go on as
 * they were found: at the same marks, or else after as many allocations.
 */
#pragma once

#include "offline/read/digest.h"
#include "offline/read/recording.h"

enum { WEIR__DIGEST_PREFIX = 1 << 17, WEIR__DIGEST_GROUPS = 64, WEIR__DIGEST_INTERVALS = 64 };

typedef struct weir__digest_options {
  int64_t rank;     /* -1 for what the recording or the name of its file says */
  const char *role; /* NULL for none */
  int spool;        /* as weir__recording_stream_open takes it */
} weir__digest_options;

typedef struct weir__digests {
  weir__digest *items;
  size_t count;
} weir__digests;

weir_status weir__digest_make(const char *path, const weir__digest_options *options, weir__digests *digests);
void weir__digests_clear(weir__digests *digests);

/* Leaves the `most` largest items of each list of holders, and twice as many stacks; the others count as lost. */
void weir__digest_trim(weir__digest *digest, size_t most);
