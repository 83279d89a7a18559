/*
 * A stand-in for libcublasLt: products of float matrices in memory that the host can access. Each call can be made to
 * fail. With FAKE_CUBLASLT_OLD, cublasLtMatmul is missing.
 */
#include "tests/fake_cublaslt.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

fake_cublaslt_state fake_cublaslt = {.fail_at = -1, .proposed = 8, .refused = -1};

/* cuBLASLt's numbers. */
enum {
  INVALID_VALUE = 7,
  NOT_SUPPORTED = 15,
  TRANSPOSES_A = 3,
  TRANSPOSES_B = 4,
  BATCH_COUNT = 5,
  BATCH_STRIDE = 6,
  MAX_WORKSPACE = 1,
  REDUCTIONS = 3,
  ALIGNMENT_A = 5,
  ALIGNMENT_D = 8
};

static int begin(const char *name) {
  if (fake_cublaslt.calls++ != fake_cublaslt.fail_at)
    return 0;
  snprintf(fake_cublaslt.failed, sizeof fake_cublaslt.failed, "%s", name);
  return fake_cublaslt.fail_with;
}
#define BEGIN()                                                                                                        \
  int failed = begin(__func__);                                                                                        \
  if (failed)                                                                                                          \
  return failed

static int misuse(void) {
  fake_cublaslt.misuses++;
  return INVALID_VALUE;
}

typedef enum kind { DESCRIPTION = 1, LAYOUT, PREFERENCE } kind;

typedef struct object {
  kind kind;
  int32_t transposes[2];
  uint64_t rows, columns;
  int64_t leading, stride;
  int32_t batch;
  uint64_t workspace_bytes;
  unsigned alignments; /* a bit for each that is set */
} object;

static int is_a(const object *o, kind wanted) { return o && o->kind == wanted; }

/* A call that fails writes its output, too: what it writes must not be used. */
static int create(const char *name, kind kind, void **made) {
  int failed = begin(name);
  object *o = failed ? NULL : calloc(1, sizeof *o);
  *made = failed ? (void *)(uintptr_t)0xbad : o;
  if (!o)
    return failed;
  *o = (object){.kind = kind, .batch = 1};
  fake_cublaslt.live++;
  return 0;
}

/* What fails here is gone all the same. */
static int destroy(const char *name, kind kind, void *object) {
  int failed = begin(name);
  if (!is_a(object, kind))
    return misuse();
  free(object);
  fake_cublaslt.live--;
  return failed;
}

static int copy_value(void *into, size_t expected, const void *value, size_t bytes) {
  if (bytes != expected)
    return misuse();
  for (size_t i = 0; i < bytes; i++)
    ((char *)into)[i] = ((const char *)value)[i];
  return 0;
}

int cublasLtMatmulDescCreate(void **description, int compute, int scale) {
  (void)compute, (void)scale;
  return create(__func__, DESCRIPTION, description);
}

int cublasLtMatmulDescDestroy(void *description) { return destroy(__func__, DESCRIPTION, description); }

int cublasLtMatmulDescSetAttribute(void *description, int attribute, const void *value, size_t bytes) {
  object *o = description;
  BEGIN();
  if (!is_a(o, DESCRIPTION) || (attribute != TRANSPOSES_A && attribute != TRANSPOSES_B))
    return misuse();
  return copy_value(&o->transposes[attribute - TRANSPOSES_A], sizeof o->transposes[0], value, bytes);
}

int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  int failed = create(__func__, LAYOUT, layout);
  if (failed)
    return failed;
  object *o = *layout;
  o->rows = rows;
  o->columns = columns;
  o->leading = leading;
  return type == 0 ? 0 : misuse();
}

int cublasLtMatrixLayoutDestroy(void *layout) { return destroy(__func__, LAYOUT, layout); }

int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes) {
  object *o = layout;
  BEGIN();
  if (!is_a(o, LAYOUT) || (attribute != BATCH_COUNT && attribute != BATCH_STRIDE))
    return misuse();
  return attribute == BATCH_COUNT ? copy_value(&o->batch, sizeof o->batch, value, bytes)
                                  : copy_value(&o->stride, sizeof o->stride, value, bytes);
}

int cublasLtMatmulPreferenceCreate(void **preference) { return create(__func__, PREFERENCE, preference); }

int cublasLtMatmulPreferenceDestroy(void *preference) { return destroy(__func__, PREFERENCE, preference); }

int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
  object *o = preference;
  uint32_t number;
  BEGIN();
  if (!is_a(o, PREFERENCE))
    return misuse();
  if (attribute == MAX_WORKSPACE)
    return copy_value(&o->workspace_bytes, sizeof o->workspace_bytes, value, bytes);
  if (attribute >= ALIGNMENT_A && attribute <= ALIGNMENT_D)
    o->alignments |= 1u << (attribute - ALIGNMENT_A);
  else if (attribute != REDUCTIONS)
    return misuse();
  return copy_value(&number, sizeof number, value, bytes);
}

typedef struct algorithm {
  uint64_t data[8]; /* the first is the rank, and the second a sign that it comes from here */
} algorithm;

typedef struct heuristic {
  algorithm algorithm;
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
} heuristic;

enum { SIGN = 0x17 };

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, void *a, void *b, void *c, void *d,
                                   void *preference, int requested, heuristic *results, int *count) {
  const object *p = preference;
  BEGIN();
  if (!handle || !is_a(description, DESCRIPTION) || !is_a(a, LAYOUT) || !is_a(b, LAYOUT) || !is_a(c, LAYOUT) ||
      !is_a(d, LAYOUT) || !is_a(p, PREFERENCE) || p->alignments != 15)
    return misuse();
  fake_cublaslt.heuristics++;
  *count = fake_cublaslt.proposed < requested ? fake_cublaslt.proposed : requested;
  for (int i = 0; i < *count; i++)
    results[i] = (heuristic){.algorithm.data = {(uint64_t)i, SIGN},
                             .workspace_bytes = p->workspace_bytes,
                             .status = i == fake_cublaslt.refused ? NOT_SUPPORTED : 0};
  return *count ? 0 : NOT_SUPPORTED;
}

#ifndef FAKE_CUBLASLT_OLD
/* In columns, as cuBLASLt has it by default. */
static void multiply(const object *description, const float *a, const object *a_layout, const float *b,
                     const object *b_layout, float *d, const object *d_layout) {
  int64_t lda = a_layout->leading, ldb = b_layout->leading;
  int64_t k = (int64_t)(description->transposes[0] ? a_layout->rows : a_layout->columns);
  for (int64_t column = 0; column < (int64_t)d_layout->columns; column++)
    for (int64_t row = 0; row < (int64_t)d_layout->rows; row++) {
      float sum = 0;
      for (int64_t i = 0; i < k; i++)
        sum += a[description->transposes[0] ? row * lda + i : i * lda + row] *
               b[description->transposes[1] ? i * ldb + column : column * ldb + i];
      d[column * d_layout->leading + row] = sum;
    }
}

int cublasLtMatmul(void *handle, void *description, const void *alpha, const void *a, void *a_layout, const void *b,
                   void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                   const algorithm *algorithm, void *workspace, size_t workspace_bytes, void *stream) {
  const object *first = a_layout, *second = b_layout, *result = d_layout;
  BEGIN();
  if (!handle || !is_a(description, DESCRIPTION) || !is_a(first, LAYOUT) || !is_a(second, LAYOUT) ||
      !is_a(c_layout, LAYOUT) || !is_a(result, LAYOUT) || c != d || algorithm->data[1] != SIGN || !alpha || !beta ||
      (workspace_bytes && !workspace) || first->batch != result->batch || second->batch != result->batch)
    return misuse();
  for (int i = 0; i < result->batch; i++)
    multiply(description, (const float *)a + i * first->stride, first, (const float *)b + i * second->stride, second,
             (float *)d + i * result->stride, result);
  fake_cublaslt.products++;
  if (fake_cublaslt.ran)
    fake_cublaslt.ran(stream, (int)algorithm->data[0]);
  return 0;
}
#endif
