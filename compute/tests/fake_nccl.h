/*
 * The state of the stand-in for libnccl, which a test finds by the symbol fake_nccl.
 */
#pragma once

#include <stddef.h>

typedef struct fake_nccl_state {
  int calls;              /* so far */
  int fail_at, fail_with; /* the number of the call that fails, and its result */
  int pending;            /* how often work is reported as in progress; -1 for ever */
  int async_error;
  int live, depth; /* communicators; open groups */
  int type, op;    /* of the last collective */
  size_t count;
  char last[64];                    /* the last call */
  void (*during)(const char *name); /* called in each collective and end of a group, unless NULL */
  void (*resized)(int change);      /* called for each communicator that is created (1) or ends (-1), unless NULL */
} fake_nccl_state;

extern fake_nccl_state fake_nccl;
