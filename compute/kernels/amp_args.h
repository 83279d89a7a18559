/*
 * What gradient scaling passes to its kernels. Plain C, for both sides.
 */
#ifndef WEIR_AMP_ARGS_H
#define WEIR_AMP_ARGS_H

enum {
  WEIR__AMP_ARRAYS = 192, /* of one launch; the parameters of a kernel have at most 4 KiB */
  WEIR__AMP_CHUNK = 16384 /* elements that a block does at a time */
};

/* Dense arrays of any float types. Array i has the chunks ends[i - 1] to ends[i] - 1. */
typedef struct weir__amp_args {
  float *found_inf;
  const float *inv_scale;
  unsigned chunks, count;
  void *data[WEIR__AMP_ARRAYS];
  unsigned long long elements[WEIR__AMP_ARRAYS];
  unsigned ends[WEIR__AMP_ARRAYS];
  unsigned char dtypes[WEIR__AMP_ARRAYS]; /* weir_dtype */
} weir__amp_args;

/* One array with holes. */
typedef struct weir__amp_strided_args {
  float *found_inf;
  const float *inv_scale;
  void *data;
  unsigned long long count;
  int ndim, dtype;
  unsigned long long shape[16]; /* innermost first */
  long long strides[16];        /* in elements */
} weir__amp_strided_args;

typedef struct weir__amp_update_args {
  float *scale;
  int *growth_tracker;
  float *found_inf;
  float *inv_scale; /* NULL, or where the reciprocal goes; found_inf then becomes 0 */
  double growth_factor, backoff_factor;
  int growth_interval;
} weir__amp_update_args;

/* The elements of a scaler. */
typedef struct weir__amp_set_args {
  float *scale;
  int *growth_tracker;
  float *found_inf;
  float *inv_scale;
  float new_scale;
  int new_tracker;
} weir__amp_set_args;

#endif
