"""Kernels of test_cuda_kernels.py, in a module that is quick to import in another process."""

from __future__ import annotations

import numpy

import weir
from weir import kernel

SOURCE = r"""
typedef long long int64_t_;

#define EACH(i, n)                                                                                                     \
  for (int64_t_ i = (int64_t_)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t_)gridDim.x * blockDim.x)

// out[i][j] = in[i][index[i][j]]
extern "C" __global__ void gather(unsigned char *out, const unsigned char *in, const int64_t_ *index, int64_t_ rows,
                                  int64_t_ in_columns, int64_t_ columns) {
  EACH(i, rows * columns) out[i] = in[i / columns * in_columns + index[i]];
}

// One distribution per row; each sample is the first place at which the cumulative sum exceeds u * total.
extern "C" __global__ void multinomial(int64_t_ *out, const float *probs, const float *uniform, int64_t_ rows,
                                       int64_t_ columns, int64_t_ samples) {
  EACH(i, rows * samples) {
    const float *p = probs + i / samples * columns;
    double total = 0;
    for (int64_t_ c = 0; c < columns; c++) {
      assert(p[c] >= 0 && p[c] <= 3.4e38f);
      total += p[c];
    }
    double sum = 0, wanted = uniform[i] * total;
    int64_t_ found = -1;  // the last place with a probability, in case rounding keeps the sum below the total
    for (int64_t_ c = 0; c < columns && (found < 0 || sum <= wanted); c++) {
      sum += p[c];
      if (p[c] > 0) found = c;
    }
    out[i] = found;
  }
}

// The same for one distribution, by binary search in its cumulative sum.
extern "C" __global__ void search(int64_t_ *out, const double *cumulative, const float *uniform, int64_t_ columns,
                                  int64_t_ samples) {
  EACH(i, samples) {
    double wanted = uniform[i] * cumulative[columns - 1];
    int64_t_ low = 0, high = columns - 1;
    while (low < high) {
      int64_t_ middle = (low + high) / 2;
      if (cumulative[middle] > wanted) high = middle;
      else low = middle + 1;
    }
    while (low > 0 && cumulative[low] == cumulative[low - 1]) low--;  // never a place with probability 0
    out[i] = low;
  }
}

template <class T> __global__ void bincount(int64_t_ *counts, const T *values, int64_t_ n, int64_t_ bins) {
  EACH(i, n) {
    int64_t_ value = values[i];
    assert(value >= 0 && value < bins);
    atomicAdd((unsigned long long *)counts + value, 1ull);
  }
}

// With the counts of a block in shared memory first.
extern "C" __global__ void bincount_shared(int64_t_ *counts, const signed char *values, int64_t_ n, int bins) {
  extern __shared__ unsigned local[];
  for (int i = threadIdx.x; i < bins; i += blockDim.x) local[i] = 0;
  __syncthreads();
  EACH(i, n) atomicAdd(local + values[i], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += blockDim.x)
    atomicAdd((unsigned long long *)counts + i, (unsigned long long)local[i]);
}

template <class T> __global__ void bincount_weighted(double *sums, const T *values, const double *weights, int64_t_ n) {
  EACH(i, n) atomicAdd(sums + values[i], weights[i]);
}

// An average pool with a kernel of size 1 copies its input.
extern "C" __global__ void avg_pool_1(unsigned short *out, const unsigned short *in, int64_t_ n) {
  EACH(i, n) out[i] = in[i];
}

extern "C" __global__ void batch_norm_gather_stats(float *mean, float *invstd, const float *means, const float *invstds,
                                                   int gathered, int channels, float epsilon, float count) {
  EACH(c, channels) {
    float average = 0, squares = 0, n = 0;
    for (int j = 0; j < gathered; j++) {
      float m = means[j * channels + c], v = 1.0f / invstds[j * channels + c];
      v = (v * v - epsilon) * count;
      float delta = average - m, factor = 1.0f / (n + count);
      squares += v + delta * delta * n * count * factor;
      average = n * factor * average + count * factor * m;
      n += count;
    }
    mean[c] = average;
    invstd[c] = 1.0f / sqrtf(squares / n + epsilon);
  }
}

// A convolution with a kernel of 2 x 2 ones, without padding.
extern "C" __global__ void convolve(float *out, const float *in, int side) {
  int to = side - 1;
  EACH(i, (int64_t_)to * to) {
    const float *p = in + i / to * side + i % to;
    out[i] = p[0] + p[1] + p[side] + p[side + 1];
  }
}

// out = sparse * in, with the rows of the sparse matrix in compressed form.
extern "C" __global__ void sparse_mm(float *out, const int *starts, const int *columns, const float *values,
                                     const float *in, int size) {
  EACH(i, (int64_t_)size * size) {
    int row = (int)(i / size), column = (int)(i % size);
    float sum = 0;
    for (int k = starts[row]; k < starts[row + 1]; k++) sum += values[k] * in[(int64_t_)columns[k] * size + column];
    out[i] = sum;
  }
}

extern "C" __global__ void divide(float *p, float by, int64_t_ n) { EACH(i, n) p[i] /= by; }

template <class T> __global__ void assert_async(const T *p) { assert(*p != T(0)); }
struct complex_float { float real, imag; };
extern "C" __global__ void assert_complex(const complex_float *p) { assert(p->real != 0 || p->imag != 0); }
"""

BINCOUNTS = [f"bincount<{t}>" for t in ("signed char", "int", "long long")]
WEIGHTED = [f"bincount_weighted<{t}>" for t in ("signed char", "long long")]
ASSERTS = [f"assert_async<{t}>" for t in ("long long", "float", "bool")]
NAMES = [*BINCOUNTS, *WEIGHTED, *ASSERTS]


def to_device(array):
    array = numpy.ascontiguousarray(array)
    return weir.empty(array.nbytes).copy_(array)


def to_host(buffer, dtype):
    return numpy.frombuffer(buffer.tobytes(), dtype)


def compiled():
    """Compiles the kernels, and returns the function that gets one by name."""
    return kernel.compile(SOURCE, names=NAMES).get_function
