/*
 * The layout of DLPack's tensors, and what buffers and arrays share of their exchange (dlpack.c).
 */
#ifndef PYWEIR_DLPACK_H
#define PYWEIR_DLPACK_H

#include "pyweir.h"

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

/* Destroys a capsule that was not consumed. A consumed one has another name, and its tensor belongs to the consumer. */
void pyweir_dlpack_destroy_capsule(PyObject *capsule);

/* Whether the consumer understands versioned tensors. -1 with an exception set. */
int pyweir_dlpack_wants_version(PyObject *max_version);

/* An explicitly requested device must be the one that has the memory. */
int pyweir_dlpack_check_device(int type, int number, PyObject *requested);

/* The argument `stream` of __dlpack__ for memory on a CUDA device: *is_ordered is false if the consumer synchronizes, and
 * *raw is the stream that waits. For other memory only None and -1 are allowed. */
int pyweir_dlpack_parse_stream(PyObject *stream, int type, bool *is_ordered, weir_cu_stream *raw);

/* The capsule of an object: the object itself, or what its __dlpack__ returns. A new reference. */
PyObject *pyweir_dlpack_capsule(PyObject *object);

/* The tensor in a capsule that was not consumed yet, or NULL with an exception set. */
const tensor *pyweir_dlpack_tensor(PyObject *capsule, bool *is_readonly);

/* Takes the tensor out of its capsule. The caller has to call pyweir_dlpack_release with *managed. */
int pyweir_dlpack_consume(PyObject *capsule, void **managed, bool *is_versioned);
void pyweir_dlpack_release(void *managed, bool is_versioned);

#endif
