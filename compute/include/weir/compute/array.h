/*
 * Typed arrays: memory with a type, a shape and strides, and operations on it. Part of libweir_compute.
 *
 *     weir_array a = {0}, b = {0}, sum = {0};
 *     int64_t shape[] = {2, 3};
 *     weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, shape, stream, &a);
 *     weir_array_arange(&a, weir_scalar_int(0), weir_scalar_int(1), stream);
 *     weir_array_transpose(&a, 0, 1, &b);                            a view: no element is copied
 *     weir_array_reduce(WEIR_REDUCE_SUM, &a, NULL, 0, 0, stream, &sum);     *sum is allocated
 *     weir_array_release(&sum);
 *     weir_array_release(&b);
 *     weir_array_release(&a);
 *
 * A weir_array is a value: a description of elements in a storage. The storage is memory with a reference count, which
 * several arrays can share. Each array that a call returns holds a reference, and weir_array_release drops it.
 *
 * Operations on device memory are enqueued on a stream of that device and can be captured in a graph. Operations on
 * host memory, pinned or not, are done when the call returns, and ignore the stream. The same kernels are used for
 * both. Types, shapes and errors are PyTorch's; there is no autograd.
 *
 * Memory of an array may be freed and reused as soon as its last reference is released, in the order of the stream
 * that it was allocated on. Work on any other stream needs weir_array_record_stream.
 *
 * All calls may be made from any thread, and different arrays may share a storage, but one weir_array must not be
 * changed while another thread uses it. A forked child can use host memory only.
 */
#ifndef WEIR_ARRAY_H
#define WEIR_ARRAY_H

#include <stddef.h>
#include <stdint.h>

#include "weir/compute/dtype.h"
#include "weir/compute/random.h"
#include "weir/host.h"
#include "weir/ipc.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Places ---- */

typedef enum weir_place_kind {
  WEIR_PLACE_HOST,   /* pageable memory of the host */
  WEIR_PLACE_PINNED, /* memory of the host that devices can access */
  WEIR_PLACE_DEVICE
} weir_place_kind;

typedef struct weir_place {
  weir_place_kind kind;
  int device; /* 0 unless the kind is WEIR_PLACE_DEVICE */
} weir_place;

/* Pageable memory of the host. */
static inline weir_place weir_place_host(void) {
  weir_place place = {WEIR_PLACE_HOST, 0};
  return place;
}
/* Pinned memory of the host. */
static inline weir_place weir_place_pinned(void) {
  weir_place place = {WEIR_PLACE_PINNED, 0};
  return place;
}
/* Memory of a device. */
static inline weir_place weir_place_device(int device) {
  weir_place place = {WEIR_PLACE_DEVICE, device};
  return place;
}

/* ---- Storages ---- */

typedef struct weir_storage weir_storage;

/* Called once, when the last reference to borrowed memory is released; on any thread. */
typedef void (*weir_storage_free_fn)(void *context);

/* Allocates memory, which is not initialized. Device memory comes from the allocator of weir/compute/compute.h, for use
 * on the stream, which must be a stream of that device; device -1 is the stream's. Pinned memory comes from the
 * allocator of weir_array_use_host_allocator. The stream is ignored for host memory. 0 bytes are allowed. */
weir_status weir_storage_create(weir_place place, uint64_t bytes, weir_stream stream, weir_storage **storage);

/* A storage over memory that belongs to the caller, until `deleter`, which may be NULL, is called with the context. If
 * this call fails, the deleter is not called. The place is not checked. */
weir_status weir_storage_borrow(void *pointer, uint64_t bytes, weir_place place, weir_storage_free_fn deleter,
                                void *context, weir_storage **storage);

/* Take and drop a reference; NULL is allowed. The memory is freed with the last one. */
void weir_storage_retain(weir_storage *storage);
void weir_storage_release(weir_storage *storage);

/* `finalizer` is called once, with the context, when the last reference is released and before the memory is freed; on
 * any thread. A storage has one; NULL removes it. */
weir_status weir_storage_set_finalizer(weir_storage *storage, weir_storage_free_fn finalizer, void *context);

/* The address, the size and the place of the memory, and whether it is borrowed (weir_storage_borrow). */
void *weir_storage_data(const weir_storage *storage);
uint64_t weir_storage_bytes(const weir_storage *storage);
weir_place weir_storage_place(const weir_storage *storage);
int weir_storage_is_borrowed(const weir_storage *storage);
/* References at this moment. */
int weir_storage_references(const weir_storage *storage);

/* Says that another stream uses the memory: after the last release it is not reused before that stream has done the
 * work that it has then. Does nothing for pageable host memory. Borrowed memory is its owner's affair: the call does
 * nothing. */
weir_status weir_storage_record_stream(weir_storage *storage, weir_stream stream);

/* Says whether the storage frees its memory, for instance after a checkpoint of its pool was restored (weir/pool.h).
 * Without ownership it keeps the address, which is then borrowed. With it the last release frees the memory, which must
 * be allocated from the allocator of weir/compute/compute.h; a deleter is called now. WEIR_ERROR_BAD_STATE for memory
 * of the host or of another process. */
weir_status weir_storage_set_owned(weir_storage *storage, int is_owned);

/* Changes the size, as torch.UntypedStorage.resize_: new memory is allocated on the stream, and the common bytes are
 * copied. Arrays keep the old address, so the storage must have no other reference than those that the caller will
 * update. WEIR_ERROR_BAD_STATE for borrowed memory. 0 frees the memory. */
weir_status weir_storage_resize(weir_storage *storage, uint64_t bytes, weir_stream stream);

/* Sends the memory to another process, as weir_ipc_send (weir/ipc.h), for which it lives as long as it needs it; this
 * one may release the storage at any time. The receiver's stream waits for the work that `stream` has now, and the
 * stream that the memory was allocated for, with which `stream` is joined. WEIR_ERROR_NOT_SUPPORTED for host memory,
 * borrowed memory and storages of 0 bytes, WEIR_ERROR_BAD_STATE for memory that was received, and during a capture. */
weir_status weir_storage_send(weir_storage *storage, weir_stream stream, const weir_ipc_send_options *options,
                              weir_ipc_handle *handle);

/* Receives a storage of `size` bytes, as weir_ipc_receive, for use on a stream of a device. Memory that this process
 * has already, from an earlier message or because it sent it, gives the same storage with another reference. The last
 * release waits for the stream, for the current stream, and for the streams of weir_storage_record_stream. */
weir_status weir_storage_receive(const void *bytes, size_t length, uint64_t size, weir_stream stream,
                                 weir_storage **storage);
/* Whether the memory was received. */
int weir_storage_is_received(const weir_storage *storage);

/* Takes pinned memory from this allocator (weir/host.h), which must be on the runtime's driver and outlive its use.
 * NULL, the default, is an allocator that exists only while an array has some of its memory, and so does not keep
 * memory for reuse: graphs that use pinned arrays must not be launched after the last one was released, unless the
 * program gives an allocator of its own. */
weir_status weir_array_use_host_allocator(weir_host_allocator *host);

/* ---- Arrays ---- */

enum { WEIR_ARRAY_MAX_DIMS = 16 };

/* {0} is no array: calls that have a result allocate it. Element (i, j, ...) is at data + (i * strides[0] + j *
 * strides[1] + ...) * size of the type. */
typedef struct weir_array {
  void *data; /* the first element */
  weir_storage *storage;
  weir_dtype dtype;
  weir_place place; /* of the storage */
  int ndim;
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int64_t strides[WEIR_ARRAY_MAX_DIMS]; /* in elements, not negative */
} weir_array;

/* An uninitialized contiguous array, in a storage of its own. */
weir_status weir_array_empty(weir_place place, weir_dtype dtype, int ndim, const int64_t *shape, weir_stream stream,
                             weir_array *array);

/* An uninitialized array of the same shape, place and type; strides are those of a contiguous array. */
weir_status weir_array_empty_like(const weir_array *like, weir_stream stream, weir_array *array);

/* An array in a storage, of which it takes a reference. offset and strides count elements; strides NULL means
 * contiguous. WEIR_ERROR_INVALID_ARGUMENT if an element would lie outside of the storage. */
weir_status weir_array_in_storage(weir_storage *storage, weir_dtype dtype, int64_t offset, int ndim,
                                  const int64_t *shape, const int64_t *strides, weir_array *array);

/* An array over memory of the caller, as weir_storage_borrow. strides NULL means contiguous. */
weir_status weir_array_from_memory(void *data, weir_place place, weir_dtype dtype, int ndim, const int64_t *shape,
                                   const int64_t *strides, weir_storage_free_fn deleter, void *context,
                                   weir_array *array);

/* Drops the reference and makes the array {0}. {0} is allowed. */
void weir_array_release(weir_array *array);

/* Another array with the same elements, and a reference of its own. */
weir_status weir_array_share(const weir_array *array, weir_array *other);

int64_t weir_array_count(const weir_array *array);     /* elements */
int64_t weir_array_offset(const weir_array *array);    /* elements from the start of the storage to the first one */
int weir_array_is_contiguous(const weir_array *array); /* in row-major order */
/* Calls weir_storage_record_stream for the storage of the array. */
weir_status weir_array_record_stream(const weir_array *array, weir_stream stream);

/* ---- Views ----
 *
 * They share the storage, copy no element and make no driver call. Negative dimensions and indices count from the end.
 * `view` may be the array itself, which is then replaced. */

/* One size may be -1, and follows from the others. WEIR_ERROR_INVALID_ARGUMENT if no strides give that shape: copy with
 * weir_array_reshape. */
weir_status weir_array_view(const weir_array *array, int ndim, const int64_t *shape, weir_array *view);

/* The bytes as elements of another type. If the sizes differ, the last dimension is scaled. */
weir_status weir_array_view_dtype(const weir_array *array, weir_dtype dtype, weir_array *view);

/* Exchanges two dimensions. */
weir_status weir_array_transpose(const weir_array *array, int dim0, int dim1, weir_array *view);
/* Puts the dimensions into another order: dims has the old number of each new dimension. */
weir_status weir_array_permute(const weir_array *array, const int *dims, weir_array *view);

/* Elements start, start + step, ... below stop of a dimension. Bounds outside of it are moved into it. */
weir_status weir_array_slice(const weir_array *array, int dim, int64_t start, int64_t stop, int64_t step,
                             weir_array *view);

/* The elements at an index of a dimension, which is removed. */
weir_status weir_array_select(const weir_array *array, int dim, int64_t index, weir_array *view);

/* Repeats dimensions of size 1, and adds dimensions in front, without copying. -1 keeps a size. */
weir_status weir_array_expand(const weir_array *array, int ndim, const int64_t *shape, weir_array *view);

/* Removes a dimension if its size is 1. weir_array_squeeze_all removes all such. */
weir_status weir_array_squeeze(const weir_array *array, int dim, weir_array *view);
weir_status weir_array_squeeze_all(const weir_array *array, weir_array *view);
weir_status weir_array_unsqueeze(const weir_array *array, int dim, weir_array *view);
weir_status weir_array_as_strided(const weir_array *array, int64_t offset, int ndim, const int64_t *shape,
                                  const int64_t *strides, weir_array *view);

/* A view if possible, otherwise a copy. */
weir_status weir_array_reshape(const weir_array *array, int ndim, const int64_t *shape, weir_stream stream,
                               weir_array *result);
/* The array itself if it is contiguous, otherwise a copy. */
weir_status weir_array_contiguous(const weir_array *array, weir_stream stream, weir_array *result);

/* ---- Numbers ---- */

typedef enum weir_scalar_kind {
  WEIR_SCALAR_BOOL,
  WEIR_SCALAR_INT,
  WEIR_SCALAR_FLOAT,
  WEIR_SCALAR_COMPLEX
} weir_scalar_kind;

/* A number of the program, as a Python number is to PyTorch. */
typedef struct weir_scalar {
  weir_scalar_kind kind;
  int64_t integer;   /* bool and int */
  double real, imag; /* float and complex */
} weir_scalar;

/* Numbers of each kind. */
static inline weir_scalar weir_scalar_bool(int value) {
  weir_scalar scalar = {WEIR_SCALAR_BOOL, value != 0, 0, 0};
  return scalar;
}
static inline weir_scalar weir_scalar_int(int64_t value) {
  weir_scalar scalar = {WEIR_SCALAR_INT, value, 0, 0};
  return scalar;
}
static inline weir_scalar weir_scalar_float(double value) {
  weir_scalar scalar = {WEIR_SCALAR_FLOAT, 0, value, 0};
  return scalar;
}
static inline weir_scalar weir_scalar_complex(double real, double imag) {
  weir_scalar scalar = {WEIR_SCALAR_COMPLEX, 0, real, imag};
  return scalar;
}

/* The value of an array with one element: waits for the stream. The kind follows from the type. */
weir_status weir_array_item(const weir_array *array, weir_stream stream, weir_scalar *scalar);

/* The type of the result of an operation on arrays and, if it is not NULL, a number, as torch.result_type: arrays with
 * dimensions count before arrays without, and these before numbers; a later one only counts if it is of a higher kind
 * (bool, integer, float, complex). A float number and integer arrays give float32. */
weir_status weir_array_result_type(const weir_array *const *arrays, int count, const weir_scalar *scalar,
                                   weir_dtype *dtype);

/* ---- Copies ---- */

/* Copies all elements, converting the type, between any two places; src is broadcast to the shape of dst. Types are
 * converted on a device: elements of the host cross in their type, and elements of a device in the new one.
 *
 * The stream is one of the destination's device, or of the source's if the destination is on the host. Between two
 * devices the copy runs on the current stream of the source's device, or `stream` if it is that device's, and both
 * streams wait for each other, as in PyTorch.
 *
 * If one side is on the host, the call waits for the copy, unless non_blocking is set and that side is pinned: then it
 * is done in the stream's order, and pinned memory of Weir is kept until then. A host destination that is not
 * contiguous always waits. During a capture a wait is an error, except that copies with pageable memory do not wait if
 * non_blocking is set. */
weir_status weir_array_copy(weir_array *dst, const weir_array *src, weir_stream stream, int non_blocking);

/* A contiguous copy in a place, with a type: the methods to(), cpu(), cuda(), half() and others of torch.Tensor are
 * made of this. Always copies. *result must be {0}. */
weir_status weir_array_to(const weir_array *array, weir_place place, weir_dtype dtype, weir_stream stream,
                          int non_blocking, weir_array *result);

/* ---- Operations ----
 *
 * If *out is {0}, it is allocated on the stream with the shape and type of the result. Otherwise the elements are
 * written to it: it must have the shape of the result, and a type to which the result's can be converted in PyTorch
 * (not a float to an integer, nor a complex number to a real one, nor a number to bool). `out` may be an input.
 *
 * Arrays of an operation are in one place, where host and pinned memory count as one. Arrays with no dimension that are
 * on the host can be combined with any, and count as numbers of their type; those that are pinned or pageable are read
 * during the call. */

/* Sets all elements to a number, which is converted to the type of the array. */
weir_status weir_array_fill(weir_array *array, weir_scalar value, weir_stream stream);

/* start, start + step, ... in row-major order. */
weir_status weir_array_arange(weir_array *array, weir_scalar start, weir_scalar step, weir_stream stream);

/* number, name, text (PyTorch's name). Numbers never change. */
#define WEIR_BINARY_MAP(X)                                                                                             \
  X(0, ADD, "add")                                                                                                     \
  X(1, SUB, "sub")                                                                                                     \
  X(2, MUL, "mul")                                                                                                     \
  X(3, DIV, "div") /* true division: integers give float32 */                                                          \
  X(4, FLOOR_DIV, "floor_divide")                                                                                      \
  X(5, REMAINDER, "remainder") /* with the sign of the divisor */                                                      \
  X(6, POW, "pow")                                                                                                     \
  X(7, MAXIMUM, "maximum") /* NaN if either is */                                                                      \
  X(8, MINIMUM, "minimum")                                                                                             \
  X(9, BITWISE_AND, "bitwise_and") /* integers and bool */                                                             \
  X(10, BITWISE_OR, "bitwise_or")                                                                                      \
  X(11, BITWISE_XOR, "bitwise_xor")                                                                                    \
  X(12, EQ, "eq") /* from here on the result is bool */                                                                \
  X(13, NE, "ne")                                                                                                      \
  X(14, LT, "lt")                                                                                                      \
  X(15, LE, "le")                                                                                                      \
  X(16, GT, "gt")                                                                                                      \
  X(17, GE, "ge")                                                                                                      \
  X(18, LOGICAL_AND, "logical_and")                                                                                    \
  X(19, LOGICAL_OR, "logical_or")                                                                                      \
  X(20, LOGICAL_XOR, "logical_xor")

typedef enum weir_binary_op {
#define X(number, name, text) WEIR_BINARY_##name = number,
  WEIR_BINARY_MAP(X)
#undef X
} weir_binary_op;

/* a op b, element by element, with broadcasting. */
weir_status weir_array_binary(weir_binary_op op, const weir_array *a, const weir_array *b, weir_stream stream,
                              weir_array *out);

/* array op scalar; scalar op array if is_reversed. */
weir_status weir_array_binary_scalar(weir_binary_op op, const weir_array *array, weir_scalar scalar, int is_reversed,
                                     weir_stream stream, weir_array *out);

/* a + alpha * b, as torch.add(a, b, alpha=alpha) in one pass. */
weir_status weir_array_add_scaled(const weir_array *a, const weir_array *b, weir_scalar alpha, weir_stream stream,
                                  weir_array *out);

#define WEIR_UNARY_MAP(X)                                                                                              \
  X(0, POSITIVE, "positive") /* the elements as they are */                                                            \
  X(1, NEG, "neg")                                                                                                     \
  X(2, ABS, "abs") /* of complex numbers: the real magnitude */                                                        \
  X(3, SIGN, "sign")                                                                                                   \
  X(4, SQUARE, "square")                                                                                               \
  X(5, FLOOR, "floor")                                                                                                 \
  X(6, CEIL, "ceil")                                                                                                   \
  X(7, ROUND, "round") /* halves to even */                                                                            \
  X(8, TRUNC, "trunc")                                                                                                 \
  X(9, RELU, "relu")                                                                                                   \
  X(10, EXP, "exp") /* from here to reciprocal: integers give float32 */                                               \
  X(11, EXPM1, "expm1")                                                                                                \
  X(12, LOG, "log")                                                                                                    \
  X(13, LOG2, "log2")                                                                                                  \
  X(14, LOG10, "log10")                                                                                                \
  X(15, LOG1P, "log1p")                                                                                                \
  X(16, SQRT, "sqrt")                                                                                                  \
  X(17, RSQRT, "rsqrt")                                                                                                \
  X(18, SIN, "sin")                                                                                                    \
  X(19, COS, "cos")                                                                                                    \
  X(20, TAN, "tan")                                                                                                    \
  X(21, TANH, "tanh")                                                                                                  \
  X(22, SIGMOID, "sigmoid")                                                                                            \
  X(23, ERF, "erf")                                                                                                    \
  X(24, RECIPROCAL, "reciprocal")                                                                                      \
  X(25, BITWISE_NOT, "bitwise_not") /* integers and bool */                                                            \
  X(26, LOGICAL_NOT, "logical_not") /* from here on the result is bool */                                              \
  X(27, ISFINITE, "isfinite")                                                                                          \
  X(28, ISNAN, "isnan")                                                                                                \
  X(29, ISINF, "isinf")                                                                                                \
  X(30, REAL, "real") /* of complex numbers: the parts as real numbers */                                              \
  X(31, IMAG, "imag")                                                                                                  \
  X(32, CONJ, "conj")

typedef enum weir_unary_op {
#define X(number, name, text) WEIR_UNARY_##name = number,
  WEIR_UNARY_MAP(X)
#undef X
} weir_unary_op;

/* Applies an operation to each element. */
weir_status weir_array_unary(weir_unary_op op, const weir_array *a, weir_stream stream, weir_array *out);

/* condition ? a : b with broadcasting; the condition is bool or uint8. */
weir_status weir_array_where(const weir_array *condition, const weir_array *a, const weir_array *b, weir_stream stream,
                             weir_array *out);

#define WEIR_REDUCE_MAP(X)                                                                                             \
  X(0, SUM, "sum") /* of integers and bool: int64 */                                                                   \
  X(1, PROD, "prod")                                                                                                   \
  X(2, MEAN, "mean") /* floats and complex numbers */                                                                  \
  X(3, MIN, "amin")  /* NaN if there is one */                                                                         \
  X(4, MAX, "amax")                                                                                                    \
  X(5, ARGMIN, "argmin") /* int64; the first of equal elements */                                                      \
  X(6, ARGMAX, "argmax")                                                                                               \
  X(7, ALL, "all") /* bool */                                                                                          \
  X(8, ANY, "any")                                                                                                     \
  X(9, COUNT_NONZERO, "count_nonzero")    /* int64 */                                                                  \
  X(10, SUM_OF_SQUARES, "sum_of_squares") /* floats and complex numbers, which give their squared magnitudes */

typedef enum weir_reduce_op {
#define X(number, name, text) WEIR_REDUCE_##name = number,
  WEIR_REDUCE_MAP(X)
#undef X
} weir_reduce_op;

/* Over the given dimensions, or over all if dim_count is 0. ARGMIN and ARGMAX take one dimension or all, for which the
 * index is that of the flattened array. keepdim leaves dimensions of size 1. 16-bit floats are accumulated in float32,
 * integers in int64. The order of additions depends on the shape alone, so results are reproducible on a device. If
 * *out is an array, the elements are first converted to its type in SUM, PROD and MEAN (torch's dtype argument). */
weir_status weir_array_reduce(weir_reduce_op op, const weir_array *a, const int *dims, int dim_count, int keepdim,
                              weir_stream stream, weir_array *out);

/* Matrix product as torch.matmul: vectors, matrices, and batches of them with broadcasting. Both have one type. On a
 * GPU cuBLAS is used (weir/compute/blas.h has its settings), and the types are floats and complex numbers; on the
 * software device and on the host a plain kernel, on the host with integers too. */
weir_status weir_array_matmul(const weir_array *a, const weir_array *b, weir_stream stream, weir_array *out);

/* The elements at the indices, an int64 or int32 array of one dimension, along a dimension. An index out of range is a
 * device-side assertion, as in PyTorch, and on the host an error. */
weir_status weir_array_index_select(const weir_array *a, int dim, const weir_array *indices, weir_stream stream,
                                    weir_array *out);

/* The elements at several arrays of indices, as a[i, j, ...] in Python: indices[d] belongs to dimension d, and is an
 * int64 or int32 array, or NULL for all of that dimension; dimensions from `count` on are taken whole. The indices are
 * broadcast to one shape, which replaces their dimensions if these are next to each other, and else comes first.
 * Negative indices count from the end. An index out of range is a device-side assertion, and on the host an error. */
weir_status weir_array_index(const weir_array *a, const weir_array *const *indices, int count, weir_stream stream,
                             weir_array *out);

/* Writes `values`, which are broadcast and have the type of `a`, to those elements, or adds them. Of several values for
 * one element the last one remains if use of deterministic algorithms is set (weir/compute/blas.h), otherwise any. Sums
 * of several values are always added in the order of the indices. */
weir_status weir_array_index_put(const weir_array *a, const weir_array *const *indices, int count,
                                 const weir_array *values, int accumulate, weir_stream stream);

/* out[i, j, ...] = a[i, indices[i, j, ...], ...], with the index in place of that of the dimension, as torch.gather.
 * The indices are int64. */
weir_status weir_array_gather(const weir_array *a, int dim, const weir_array *indices, weir_stream stream,
                              weir_array *out);

/* How often each value occurs in a vector of integers that are not negative, or the sum of the weights of its elements;
 * as torch.bincount, int64 without weights, which may be NULL, float32 for weights of float32, otherwise float64. The
 * call waits for the stream to find the largest value. */
weir_status weir_array_bincount(const weir_array *a, const weir_array *weights, int64_t minlength, weir_stream stream,
                                weir_array *out);

/* Categories, with the probabilities that the rows of `a` have up to a factor, as torch.multinomial on a device: int64
 * of shape [samples] or [rows, samples]. Without replacement one sample can be drawn. Elements that are negative, not
 * finite or all 0 are a device-side assertion. generator NULL is the default one. The numbers are not PyTorch's. */
weir_status weir_array_multinomial(weir_generator *generator, const weir_array *a, int64_t samples, int replacement,
                                   weir_stream stream, weir_array *out);

/* A device-side assertion that the only element is not 0, as torch._assert_async. On the host it is an error. */
weir_status weir_array_assert_async(const weir_array *a, weir_stream stream);

#ifdef __cplusplus
}
#endif
#endif
