/*
 * The state of the stand-in for libcublas, which a test finds by the symbol fake_cublas.
 */
#pragma once

#include <stddef.h>

typedef struct fake_cublas_state {
  int calls;              /* so far */
  int fail_at, fail_with; /* the number of the call that fails, and its result */
  int live;               /* handles */
  void *workspace;        /* the last one, and the last mode */
  size_t workspace_bytes;
  int math_mode;
  char last[64];             /* the last call */
  void *stream;              /* the last one that was set */
  void (*ran)(void *stream); /* called with every product, unless NULL */
} fake_cublas_state;

extern fake_cublas_state fake_cublas;
