/* Gradient scaling: division by the scale with a check for infinities and NaN, and the update of the scale. */
#include "amp_args.h"
#include "elements.h"

template <class T> struct computed_as { typedef float type; };
template <> struct computed_as<double> { typedef double type; };

/* False for infinities and NaN, whose difference is NaN. */
template <class C> __device__ static inline bool is_finite(C value) { return value - value == 0; }

/* The element times the factor; *is_bad if it is not finite. */
template <class T> __device__ static inline T scaled(T element, float factor, bool *is_bad) {
  typedef typename computed_as<T>::type C;
  C value = C(element);
  if (!is_finite(value))
    *is_bad = true;
  return T(value * factor);
}

template <class T> struct __align__(16) packet {
  enum { size = 16 / sizeof(T) };
  T elements[size];
};

/* The block multiplies `count` elements. Packets are loaded four at a time, so that several loads are under way. */
template <class T> __device__ static bool unscale(T *data, unsigned count, float factor) {
  enum { batch = 4, size = packet<T>::size };
  bool is_bad = false, is_written = factor != 1;
  unsigned step = blockDim.x, done = 0;
  if (reinterpret_cast<unsigned long long>(data) % 16 == 0) {
    packet<T> *packets = reinterpret_cast<packet<T> *>(data);
    unsigned packet_count = count / size;
    for (unsigned i = threadIdx.x; i < packet_count; i += batch * step) {
      packet<T> loaded[batch];
      for (unsigned k = 0; k < batch; k++)
        if (i + k * step < packet_count)
          loaded[k] = packets[i + k * step];
      for (unsigned k = 0; k < batch; k++) {
        if (i + k * step >= packet_count)
          break;
        for (unsigned e = 0; e < size; e++)
          loaded[k].elements[e] = scaled(loaded[k].elements[e], factor, &is_bad);
        if (is_written)
          packets[i + k * step] = loaded[k];
      }
    }
    done = packet_count * size;
  }
  for (unsigned i = done + threadIdx.x; i < count; i += step) {
    T value = scaled(data[i], factor, &is_bad);
    if (is_written)
      data[i] = value;
  }
  return is_bad;
}

template <class T>
__device__ static inline bool unscale_chunk(void *data, unsigned long long elements, unsigned chunk, float factor) {
  unsigned long long first = u64(chunk) * WEIR__AMP_CHUNK, rest = elements - first;
  return unscale(static_cast<T *>(data) + first, rest < WEIR__AMP_CHUNK ? unsigned(rest) : WEIR__AMP_CHUNK, factor);
}

extern "C" __global__ void weir_unscale_arrays(const weir__amp_args args) {
  float factor = *args.inv_scale;
  bool is_bad = false;
  for (unsigned chunk = blockIdx.x; chunk < args.chunks; chunk += gridDim.x) {
    /* The first array that ends behind the chunk. */
    unsigned low = 0, high = args.count - 1;
    while (low < high) {
      unsigned middle = (low + high) / 2;
      if (args.ends[middle] > chunk)
        high = middle;
      else
        low = middle + 1;
    }
    unsigned in_array = chunk - (low ? args.ends[low - 1] : 0);
    void *data = args.data[low];
    unsigned long long elements = args.elements[low];
    switch (args.dtypes[low]) {
    case FLOAT16:
      is_bad |= unscale_chunk<weir_half>(data, elements, in_array, factor);
      break;
    case BFLOAT16:
      is_bad |= unscale_chunk<weir_bfloat16>(data, elements, in_array, factor);
      break;
    case FLOAT32:
      is_bad |= unscale_chunk<float>(data, elements, in_array, factor);
      break;
    default:
      is_bad |= unscale_chunk<double>(data, elements, in_array, factor);
    }
  }
  /* All threads write the same. */
  if (is_bad)
    *args.found_inf = 1;
}
WEIR_KERNEL(weir_unscale_arrays)

template <class T> __device__ static inline bool unscale_one(void *at, float factor) {
  bool is_bad = false;
  T *element = static_cast<T *>(at), value = scaled(*element, factor, &is_bad);
  if (factor != 1)
    *element = value;
  return is_bad;
}

extern "C" __global__ void weir_unscale_strided(const weir__amp_strided_args args) {
  float factor = *args.inv_scale;
  bool is_bad = false;
  unsigned long long step = u64(gridDim.x) * blockDim.x;
  int size = args.dtype == FLOAT64 ? 8 : args.dtype == FLOAT32 ? 4 : 2;
  for (unsigned long long i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count; i += step) {
    unsigned long long rest = i;
    long long offset = 0;
    for (int d = 0; d < args.ndim; d++) {
      offset += (long long)(rest % args.shape[d]) * args.strides[d];
      rest /= args.shape[d];
    }
    void *at = static_cast<char *>(args.data) + offset * size;
    switch (args.dtype) {
    case FLOAT16:
      is_bad |= unscale_one<weir_half>(at, factor);
      break;
    case BFLOAT16:
      is_bad |= unscale_one<weir_bfloat16>(at, factor);
      break;
    case FLOAT32:
      is_bad |= unscale_one<float>(at, factor);
      break;
    default:
      is_bad |= unscale_one<double>(at, factor);
    }
  }
  if (is_bad)
    *args.found_inf = 1;
}
WEIR_KERNEL(weir_unscale_strided)

/* The reciprocal is computed in double and rounded once, as torch.amp.GradScaler does. */
__device__ static inline float reciprocal_of(float scale) { return float(1 / double(scale)); }

/* One thread. */
extern "C" __global__ void weir_update_scale(const weir__amp_update_args args) {
  float scale = *args.scale;
  if (*args.found_inf != 0) {
    scale = float(double(scale) * args.backoff_factor);
    *args.growth_tracker = 0;
  } else {
    int successful = *args.growth_tracker + 1;
    if (successful == args.growth_interval) {
      float grown = float(double(scale) * args.growth_factor);
      if (is_finite(grown))
        scale = grown;
      successful = 0;
    }
    *args.growth_tracker = successful;
  }
  *args.scale = scale;
  if (args.inv_scale) {
    *args.inv_scale = reciprocal_of(scale);
    *args.found_inf = 0;
  }
}
WEIR_KERNEL(weir_update_scale)

/* One thread. */
extern "C" __global__ void weir_set_scale(const weir__amp_set_args args) {
  *args.scale = args.new_scale;
  *args.inv_scale = reciprocal_of(args.new_scale);
  *args.growth_tracker = args.new_tracker;
  *args.found_inf = 0;
}
WEIR_KERNEL(weir_set_scale)
