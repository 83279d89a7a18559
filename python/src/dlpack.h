/*
 * The layout of DLPack's tensors.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { DEVICE_CPU = 1, DEVICE_CUDA = 2, DEVICE_CUDA_HOST = 3 };
enum { TYPE_SIGNED = 0, TYPE_UNSIGNED = 1, TYPE_FLOAT = 2, TYPE_BFLOAT = 4, TYPE_COMPLEX = 5, TYPE_BOOL = 6 };
enum { FLAG_READ_ONLY = 1, FLAG_IS_COPIED = 2 };

typedef struct tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t dimensions;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  int64_t *shape, *strides; /* strides count elements; NULL if the elements are contiguous */
  uint64_t byte_offset;
} tensor;

typedef struct managed_tensor {
  tensor of;
  void *context;
  void (*deleter)(struct managed_tensor *);
} managed_tensor;

typedef struct versioned_tensor {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct versioned_tensor *);
  uint64_t flags;
  tensor of;
} versioned_tensor;

/* Names of capsules that were not consumed. */
#define DLPACK_PLAIN "dltensor"
#define DLPACK_VERSIONED "dltensor_versioned"
