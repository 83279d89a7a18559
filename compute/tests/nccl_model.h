/*
 * Collectives on small integers, which all types represent exactly, and their results by a plain model.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "support/random.h"
#include "weir/compute/nccl.h"

typedef enum collective { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, COLLECTIVES } collective;

typedef struct operation {
  collective kind;
  weir_dtype dtype;
  weir_nccl_op op;
  size_t count;
  int root, ranks;
  uint64_t seed;
} operation;

static const weir_dtype all_dtypes[] = {
#define X(number, name, text, bytes) WEIR_##name,
    WEIR_DTYPE_MAP(X)
#undef X
};
enum { DTYPES = sizeof all_dtypes / sizeof *all_dtypes };

static inline bool is_reduction(collective kind) {
  return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
}

static inline bool has_reduction(weir_dtype dtype, weir_nccl_op op) {
  if (dtype == WEIR_COMPLEX64 || dtype == WEIR_COMPLEX128)
    return op == WEIR_NCCL_SUM || op == WEIR_NCCL_AVG;
  return dtype != WEIR_INT16 && (dtype != WEIR_BOOL || op != WEIR_NCCL_AVG);
}

static inline operation random_operation(uint64_t *state, int ranks, size_t largest) {
  operation o = {.ranks = ranks};
  do {
    o.kind = (collective)(next_random(state) % COLLECTIVES);
    o.dtype = all_dtypes[next_random(state) % DTYPES];
    o.op = (weir_nccl_op)(next_random(state) % 5);
  } while (is_reduction(o.kind) && !has_reduction(o.dtype, o.op));
  uint64_t bound = next_random(state) % 4 ? 40 : largest;
  o.count = next_random(state) % (bound + 1);
  o.root = (int)(next_random(state) % (uint64_t)ranks);
  o.seed = next_random(state);
  return o;
}

static inline size_t send_count(const operation *o) {
  return o->kind == REDUCE_SCATTER ? o->count * (size_t)o->ranks : o->count;
}
static inline size_t recv_count(const operation *o) {
  return o->kind == ALL_GATHER ? o->count * (size_t)o->ranks : o->count;
}
static inline bool has_result(const operation *o, int rank) { return o->kind != REDUCE || o->root == rank; }

/* Element i of what a rank sends. */
static inline int value_of(const operation *o, int rank, size_t i) {
  uint64_t state = o->seed + (uint64_t)rank * 1000003 + i;
  uint64_t number = next_random(&state);
  if (o->dtype == WEIR_BOOL)
    return (int)(number % 2);
  return o->dtype == WEIR_UINT8 ? (int)(number % 4) : (int)(number % 7) - 3;
}

static inline void store_element(weir_dtype dtype, void *at, size_t i, int value) {
  static const uint16_t halves[] = {0, 0x3c00, 0x4000, 0x4200}, bfloats[] = {0, 0x3f80, 0x4000, 0x4040};
  int magnitude = value < 0 ? -value : value;
  uint16_t sign = value < 0 ? 0x8000 : 0;
  switch (dtype) {
  case WEIR_UINT8:
  case WEIR_BOOL:
    ((uint8_t *)at)[i] = (uint8_t)value;
    break;
  case WEIR_INT8:
    ((int8_t *)at)[i] = (int8_t)value;
    break;
  case WEIR_INT16:
    ((int16_t *)at)[i] = (int16_t)value;
    break;
  case WEIR_INT32:
    ((int32_t *)at)[i] = value;
    break;
  case WEIR_INT64:
    ((int64_t *)at)[i] = value;
    break;
  case WEIR_FLOAT16:
    ((uint16_t *)at)[i] = (uint16_t)(sign | halves[magnitude]);
    break;
  case WEIR_BFLOAT16:
    ((uint16_t *)at)[i] = (uint16_t)(sign | bfloats[magnitude]);
    break;
  case WEIR_FLOAT32:
    ((float *)at)[i] = (float)value;
    break;
  case WEIR_FLOAT64:
    ((double *)at)[i] = value;
    break;
  case WEIR_COMPLEX64:
    ((float *)at)[2 * i] = (float)value;
    ((float *)at)[2 * i + 1] = (float)-value;
    break;
  case WEIR_COMPLEX128:
    ((double *)at)[2 * i] = value;
    ((double *)at)[2 * i + 1] = -value;
    break;
  }
}

static inline double load_element(weir_dtype dtype, const void *at, size_t i) {
  uint16_t bits;
  float wide;
  uint32_t word;
  switch (dtype) {
  case WEIR_UINT8:
  case WEIR_BOOL:
    return ((const uint8_t *)at)[i];
  case WEIR_INT8:
    return ((const int8_t *)at)[i];
  case WEIR_INT16:
    return ((const int16_t *)at)[i];
  case WEIR_INT32:
    return ((const int32_t *)at)[i];
  case WEIR_INT64:
    return (double)((const int64_t *)at)[i];
  case WEIR_FLOAT16:
    bits = ((const uint16_t *)at)[i];
    return (bits & 0x8000 ? -1 : 1) *
           (bits >> 10 & 31 ? ldexp(1024 + (bits & 1023), (bits >> 10 & 31) - 25) : ldexp(bits & 1023, -24));
  case WEIR_BFLOAT16:
    word = (uint32_t)((const uint16_t *)at)[i] << 16;
    memcpy(&wide, &word, sizeof wide);
    return wide;
  case WEIR_FLOAT32:
    return ((const float *)at)[i];
  case WEIR_FLOAT64:
    return ((const double *)at)[i];
  case WEIR_COMPLEX64: /* NaN unless the imaginary part is as expected */
    return fabsf(((const float *)at)[2 * i] + ((const float *)at)[2 * i + 1]) < 1e-5f ? ((const float *)at)[2 * i]
                                                                                      : NAN;
  case WEIR_COMPLEX128:
    return ((const double *)at)[2 * i] == -((const double *)at)[2 * i + 1] ? ((const double *)at)[2 * i] : NAN;
  }
  return NAN;
}

static inline void fill_send(const operation *o, int rank, void *at) {
  for (size_t i = 0; i < send_count(o); i++)
    store_element(o->dtype, at, i, value_of(o, rank, i));
}

/* Element i of a reduction. */
static inline double reduced(const operation *o, size_t i) {
  double result = value_of(o, 0, i);
  for (int rank = 1; rank < o->ranks; rank++) {
    double value = value_of(o, rank, i);
    switch (o->op) {
    case WEIR_NCCL_SUM:
    case WEIR_NCCL_AVG:
      result += value;
      break;
    case WEIR_NCCL_PROD:
      result *= value;
      break;
    case WEIR_NCCL_MIN:
      result = value < result ? value : result;
      break;
    case WEIR_NCCL_MAX:
      result = value > result ? value : result;
      break;
    }
  }
  if (o->dtype == WEIR_BOOL)
    return result != 0;
  if (o->op == WEIR_NCCL_AVG)
    result /= o->ranks;
  bool is_integer = o->dtype == WEIR_UINT8 || o->dtype == WEIR_INT8 || o->dtype == WEIR_INT32 || o->dtype == WEIR_INT64;
  return is_integer ? trunc(result) : result;
}

static inline double expected(const operation *o, int rank, size_t i) {
  switch (o->kind) {
  case BROADCAST:
    return value_of(o, o->root, i);
  case ALL_GATHER:
    return value_of(o, (int)(i / o->count), i % o->count);
  case REDUCE_SCATTER:
    return reduced(o, (size_t)rank * o->count + i);
  default:
    return reduced(o, i);
  }
}

/* The index of the first wrong element of a result; -1 if there is none. */
static inline long first_wrong(const operation *o, int rank, const void *at) {
  double tolerance = o->op == WEIR_NCCL_AVG ? 0.01 : 0;
  for (size_t i = 0; has_result(o, rank) && i < recv_count(o); i++)
    if (!(fabs(load_element(o->dtype, at, i) - expected(o, rank, i)) <= tolerance))
      return (long)i;
  return -1;
}

static inline weir_status enqueue(const operation *o, const void *send, void *recv, weir_nccl_comm *comm,
                                  weir_stream stream) {
  switch (o->kind) {
  case ALL_REDUCE:
    return weir_nccl_all_reduce(send, recv, o->count, o->dtype, o->op, comm, stream);
  case REDUCE:
    return weir_nccl_reduce(send, recv, o->count, o->dtype, o->op, o->root, comm, stream);
  case BROADCAST:
    return weir_nccl_broadcast(send, recv, o->count, o->dtype, o->root, comm, stream);
  case ALL_GATHER:
    return weir_nccl_all_gather(send, recv, o->count, o->dtype, comm, stream);
  default:
    return weir_nccl_reduce_scatter(send, recv, o->count, o->dtype, o->op, comm, stream);
  }
}
