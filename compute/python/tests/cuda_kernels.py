"""Kernels of test_cuda_kernels.py, in a module that is quick to import in another process."""

from __future__ import annotations

import numpy

import weir
from weir import kernel

SOURCE = r"""
typedef long long int64_t_;

#define EACH(i, n)                                                                                                     \
  for (int64_t_ i = (int64_t_)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t_)gridDim.x * blockDim.x)

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

NAMES = [f"assert_async<{t}>" for t in ("long long", "float", "bool")]


def to_device(array):
    array = numpy.ascontiguousarray(array)
    return weir.buffer(array.nbytes).copy_(array)


def to_host(buffer, dtype):
    return numpy.frombuffer(buffer.tobytes(), dtype)


def compiled():
    """Compiles the kernels, and returns the function that gets one by name."""
    return kernel.compile(SOURCE, names=NAMES).get_function
