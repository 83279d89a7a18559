/*
 * Retiring aliases: the least recently used ones are unmapped in batches, once the streams that used them are known to
 * have passed a point behind their last use. Nothing waits.
 */
#pragma once

#include "alloc/memory/fences.h"
#include "alloc/memory/pages.h"

/* The aliases whose fence has this batch's number. A stream has one batch at a time, so that one that is stalled does
 * not keep the others from retiring aliases. */
typedef struct weir__alias_batch {
  weir_cu_stream stream;
  bool is_used;
  bool has_passed; /* the stream, the fence behind the last use of the aliases */
} weir__alias_batch;

/* How far a stream is known to be: the first `passed` aliases that were made are used by no work of it any more. */
typedef struct weir__alias_clock weir__alias_clock;
struct weir__alias_clock {
  weir_cu_stream stream;
  uint64_t passed, asked; /* and the number that a fence stands for, until it has passed */
  bool waits;             /* for that fence */
  weir__alias_clock *next;
};

typedef struct weir__retirement {
  weir__fences fences, clock_fences;
  weir__alias_clock *clocks;
  weir__alias_batch batches[WEIR__ALIAS_FENCES]; /* batch i is fence i + 1 */
} weir__retirement;

/* Unmaps the aliases of batches whose streams have passed. No stream of this thread may be captured, as a query would
 * invalidate the capture. */
void weir__retired_unmap(weir__pages *pages, weir__retirement *retirement);

/* Begins a batch for the aliases beyond `most`, the least recently used first, unless `stream`, which is that of the
 * current request, has one. Those that another stream used join it if `has_passed` says that it has completed its
 * work. */
void weir__aliases_retire(weir__pages *pages, weir__retirement *retirement, weir_cu_stream stream, uint64_t most,
                          bool (*has_passed)(void *context, weir_cu_stream stream), void *context);

/* Asks with a fence when a stream has passed what it has been given so far, unless it is being asked. No stream of this
 * thread may be captured. */
void weir__aliases_ask(weir__pages *pages, weir__retirement *retirement, weir_cu_stream stream);

/* Looks at these fences. */
void weir__aliases_poll(weir__pages *pages, weir__retirement *retirement);

/* Whether the stream that used an alias is known to have passed its last use. */
bool weir__alias_has_passed(const weir__retirement *retirement, const weir__mapping *alias);

void weir__retirement_end(weir__pages *pages, weir__retirement *retirement);
