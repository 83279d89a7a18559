/*
 * The state of the stand-in for libcublasLt, which a test finds by the symbol fake_cublaslt.
 */
#pragma once

#include <stddef.h>

typedef struct fake_cublaslt_state {
  int calls;              /* so far */
  int fail_at, fail_with; /* the number of the call that fails, and its result */
  int live;               /* descriptions, layouts and preferences */
  int proposed;           /* the number of algorithms that the heuristics propose */
  int refused;            /* the rank, from 0 on, of one that they propose but mark as unusable; -1 for none */
  int heuristics;         /* calls of the heuristics, and of products that succeeded, so far */
  int products;
  int misuses;                         /* calls with an object of another kind, a wrong size, or a missing attribute */
  void (*ran)(void *stream, int rank); /* called with every product, unless NULL */
  char failed[64];                     /* the call that failed */
} fake_cublaslt_state;

extern fake_cublaslt_state fake_cublaslt;
