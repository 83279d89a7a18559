/*
 * What the operations on arrays pass to their kernels. Plain C, for both sides.
 */
#ifndef WEIR_ARRAY_ARGS_H
#define WEIR_ARRAY_ARGS_H

enum {
  WEIR__MAX_DIMS = 16,
  WEIR__BLOCK = 256,        /* threads of an elementwise kernel */
  WEIR__REDUCE_BLOCK = 256, /* the most threads that reduce one output */
  WEIR__REDUCE_BATCH = 16,  /* elements that such a thread loads at once */
  WEIR__MATMUL_COLUMNS = 8, /* columns of the result that a thread computes */
  WEIR__MATMUL_SLAB = 192   /* rows of it, in tiles */
};

/* Operations of the elementwise kernels: binary ones have the numbers of weir_binary_op, unary ones those of weir_unary_op
 * plus WEIR__UNARY. */
enum {
  WEIR__UNARY = 100,
  WEIR__WHERE = 200, /* in[0] ? in[1] : in[2] */
  WEIR__ARANGE,      /* in[0] + index * in[1] */
  WEIR__ADD_SCALED   /* in[0] + in[2] * in[1] */
};

/* How numbers are represented during a computation, in place of one kernel for each type. */
enum { WEIR__CLASS_INT, WEIR__CLASS_FLOAT, WEIR__CLASS_DOUBLE, WEIR__CLASS_COMPLEX, WEIR__CLASSES };

/* Elements that a thread of an elementwise kernel has at a time, for each class. */
enum { WEIR__GROUP_INT = 4, WEIR__GROUP_FLOAT = 4, WEIR__GROUP_DOUBLE = 2, WEIR__GROUP_COMPLEX = 1 };

/* The same number in all representations. */
typedef struct weir__number {
  long long integer;
  double real, imag;
} weir__number;

typedef struct weir__operand {
  void *data;                        /* NULL for a number */
  int dtype;                         /* weir_dtype */
  int is_packed;                     /* each group is aligned, and contiguous */
  long long strides[WEIR__MAX_DIMS]; /* in bytes, innermost dimension first */
  weir__number number;
} weir__operand;

/* x / size = ((x * factor >> 32) + x) >> shift, for x below 2^31. */
typedef struct weir__divider {
  unsigned factor, shift;
} weir__divider;

/* An elementwise operation. Dimensions that are contiguous in all operands have been merged. */
typedef struct weir__map_args {
  unsigned long long count;
  unsigned long long shape[WEIR__MAX_DIMS]; /* innermost first */
  weir__divider dividers[WEIR__MAX_DIMS];   /* for the shape, if is_small */
  int is_small;                             /* 31 bits are sufficient for the indices and offsets of all elements */
  int is_grouped;                           /* a group is a part of the innermost dimension */
  int ndim, op;
  int common; /* the type to which elements are converted first */
  int in_count;
  weir__operand out, in[3];
} weir__map_args;

/* Which element of an input belongs to element i of the output. */
typedef enum weir__vector_layout {
  WEIR__EACH,  /* i */
  WEIR__ROW,   /* i % columns: a row for all rows */
  WEIR__COLUMN /* i / columns: one element for each row */
} weir__vector_layout;

/* The same on operands of one type that are contiguous and aligned to 16 bytes. */
typedef struct weir__vector_args {
  unsigned long long count; /* elements; below 2^31 if a layout is not WEIR__EACH */
  void *out;
  const void *in[2]; /* NULL for a number */
  weir__number number[2];
  int layout[2];
  weir__divider by_columns;
  unsigned columns; /* a multiple of the elements in 16 bytes */
  int op, dtype;
} weir__vector_args;

enum {
  WEIR__COMBINE_ADD,
  WEIR__COMBINE_MUL,
  WEIR__COMBINE_MIN,
  WEIR__COMBINE_MAX,
  WEIR__COMBINE_AND, /* of complex numbers, as the next one: of others it is the smallest of 0 and 1 */
  WEIR__COMBINE_OR
};
enum { WEIR__BEFORE_NOTHING, WEIR__BEFORE_NONZERO, WEIR__BEFORE_SQUARE };

/* A reduction, or a part of one: the reduced elements of an output are divided into segments of `segment` elements, each
 * of which has a result. */
typedef struct weir__reduce_args {
  unsigned long long outputs, reduced, segment;
  unsigned long long out_shape[WEIR__MAX_DIMS], reduced_shape[WEIR__MAX_DIMS]; /* innermost first */
  long long out_in_strides[WEIR__MAX_DIMS];  /* of the input along the dimensions of the output, in bytes */
  long long out_strides[WEIR__MAX_DIMS];     /* of the output, in bytes */
  long long reduced_strides[WEIR__MAX_DIMS]; /* of the input along the reduced dimensions, in bytes */
  long long *out_index;                      /* of the smallest or largest element; NULL unless it is wanted */
  const long long *in_index;                 /* indices of the elements; NULL if they are 0 to reduced - 1 */
  const void *in;
  void *out; /* may be NULL if out_index is not */
  double divisor;
  int in_dtype, out_dtype, common, out_ndim, reduced_ndim, combine, before;
  long long segment_bytes; /* in `out`, from one segment to the next */
  int index_is_strided;    /* out_index has out_strides; otherwise it is contiguous, with `outputs` for each segment */
  unsigned lanes;          /* threads that reduce an output; a power of two */
  int has_batches;         /* there is one reduced dimension, and the class has all values of in_dtype as they are */
  int is_aligned;          /* the elements of each output and segment are contiguous from a multiple of 16 bytes on */
  unsigned run;            /* neighbouring elements that a lane takes: those in 16 bytes if they are contiguous, or 1 */
  unsigned threads;        /* of a block; where there is only one, it does the work of so many */
} weir__reduce_args;

/* out[i, j] = sum over k of a[i, k] * b[k, j], for each of a number of matrices. Strides are in elements. */
typedef struct weir__matmul_args {
  unsigned long long m, n, k, batch;
  const void *a, *b;
  void *out; /* contiguous */
  long long a_row, a_column, a_batch, b_row, b_column, b_batch;
  int dtype, unused;
} weir__matmul_args;

typedef struct weir__select_args {
  unsigned long long outer, size, picked, inner; /* `size` is that of the dimension, `picked` the number of indices */
  const void *in, *indices;
  void *out;
  int element_bytes, index_is_64_bits;
} weir__select_args;

/* out[i, j, ...] = in[i, indices[i, j, ...], ...], where the index replaces that of dimension `dim`. */
typedef struct weir__gather_args {
  unsigned long long count, size, parts;    /* elements of `indices`; the size of `dim`; parts of an element */
  unsigned long long shape[WEIR__MAX_DIMS]; /* of `indices` */
  long long strides[WEIR__MAX_DIMS];        /* of `in`, in elements */
  const void *in;
  const long long *indices;
  void *out;
  int ndim, dim, part_bytes, unused;
} weir__gather_args;

/* Offsets of elements in bytes, from an index for each of some dimensions. Negative indices count from the end. */
typedef struct weir__offsets_args {
  unsigned long long count;
  const long long *indices[WEIR__MAX_DIMS];
  long long sizes[WEIR__MAX_DIMS], strides[WEIR__MAX_DIMS];
  long long *out;
  int ndim, unused;
} weir__offsets_args;

/* Elements of an array at offsets, read to or written from `values`. An element is known by its position in the
 * dimensions without indices (rest) and by the number of its offset. Sizes are innermost first, strides in bytes. */
typedef struct weir__at_args {
  unsigned long long positions, picked; /* elements of the dimensions without indices; offsets */
  unsigned long long rest_shape[WEIR__MAX_DIMS], index_shape[WEIR__MAX_DIMS];
  long long array_strides[WEIR__MAX_DIMS];                               /* of the array, in the rest */
  long long rest_strides[WEIR__MAX_DIMS], index_strides[WEIR__MAX_DIMS]; /* of the values */
  const long long *offsets;
  char *array, *values;
  int rest_ndim, index_ndim, dtype, element_bytes, accumulates;
  unsigned lanes; /* threads that share a position, in the ordered form */
} weir__at_args;

typedef struct weir__bincount_args {
  unsigned long long count;
  const long long *in;
  const void *weights; /* of the type of the result; NULL for ones */
  void *out;           /* long long, float or double */
  int out_dtype, unused;
} weir__bincount_args;

enum { WEIR__SCAN_BLOCK = 256, WEIR__SCAN_ITEMS = 4 };

/* Sums of all elements up to each, for rows of contiguous doubles. */
typedef struct weir__scan_args {
  unsigned long long rows, columns;
  const double *in;
  double *out;
} weir__scan_args;

/* Categories whose cumulative probability is the first above a uniform number. */
typedef struct weir__pick_args {
  unsigned long long rows, columns, samples;
  const double *probabilities, *cumulative, *uniform; /* [rows][columns], the same, [rows][samples] */
  long long *out;
} weir__pick_args;

#endif
