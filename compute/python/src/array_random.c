/*
 * Random numbers in arrays. On a device they are those of weir/compute/random.h. On the host they come from a generator
 * of this file (xoshiro256++), which is seeded by the operating system.
 */
#include "array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "weir/compute/random.h"

typedef enum distribution { UNIFORM, NORMAL, BERNOULLI, POISSON, RANDINT, INTEGERS, PERMUTATION } distribution;

typedef struct numbers {
  double first, second;
  int64_t low, high;
} numbers;

/* ---- On the host ---- */

static uint64_t state[4]; /* all 0 until it is seeded; guarded by the GIL, which callers keep */

static uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

static uint64_t next(void) {
  uint64_t result = rotate(state[0] + state[3], 23) + state[0], t = state[1] << 17;
  state[2] ^= state[0];
  state[3] ^= state[1];
  state[1] ^= state[2];
  state[0] ^= state[3];
  state[2] ^= t;
  state[3] = rotate(state[3], 45);
  return result;
}

/* Splitmix64, as the authors of the generator recommend. */
static void seed_host(uint64_t seed) {
  for (int i = 0; i < 4; i++) {
    seed += 0x9e3779b97f4a7c15u;
    uint64_t z = seed;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    state[i] = z ^ z >> 31;
  }
}

static void need_seed(void) {
  uint64_t seed = 0x853c49e6748fea9bu;
  if (state[0] | state[1] | state[2] | state[3])
    return;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
    seed ^= (uint64_t)(uintptr_t)&seed;
  seed_host(seed);
}

static double next_unit(void) { return (double)(next() >> 11) * 0x1p-53; } /* [0, 1) */

/* In [0, range); 0 means all 64 bits. Numbers of the incomplete last range are drawn again. */
static int64_t next_below(uint64_t range) {
  uint64_t number = next(), end = range ? UINT64_MAX - UINT64_MAX % range : 0;
  while (range && number >= end)
    number = next();
  return (int64_t)(range ? number % range : number);
}

/* The range of random_() without bounds. */
static uint64_t largest(weir_dtype dtype) {
  switch (dtype) {
  case WEIR_BOOL:
    return 1;
  case WEIR_UINT8:
    return UINT8_MAX;
  case WEIR_INT8:
    return INT8_MAX;
  case WEIR_INT16:
    return INT16_MAX;
  case WEIR_INT32:
    return INT32_MAX;
  case WEIR_FLOAT16:
    return 1 << 11;
  case WEIR_BFLOAT16:
    return 1 << 8;
  case WEIR_FLOAT32:
    return 1 << 24;
  case WEIR_FLOAT64:
    return (uint64_t)1 << 53;
  default:
    return INT64_MAX;
  }
}

/* Arrivals at a rate of 1 until the given time; from 10 on by rejection, as in kernels/random.cu. */
static double next_poisson(double rate) {
  double n = 0, left = 1, end = exp(-rate);
  if (rate < 10) {
    while ((left *= 1 - next_unit()) > end)
      n++;
    return n;
  }
  double b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b;
  for (;;) {
    double u = next_unit() - 0.5, v = 1 - next_unit(), edge = 0.5 - fabs(u);
    n = floor((2 * a / edge + b) * u + rate + 0.43);
    if (edge >= 0.07 && v <= 0.9277 - 3.6224 / (b - 2))
      return n;
    double height = log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (edge * edge) + b));
    if (n >= 0 && (edge >= 0.013 || v <= edge) && height <= n * log(rate) - rate - lgamma(n + 1))
      return n;
  }
}

/* Into a contiguous array of float64 or int64, which has the rates of a Poisson distribution. */
static void fill_host(distribution kind, const weir_array *wide, const numbers *n, weir_dtype dtype) {
  double *floats = wide->data;
  int64_t *integers = wide->data, count = weir_array_count(wide);
  for (int64_t i = 0; i < count; i++)
    switch (kind) {
    case UNIFORM:
      floats[i] = n->first + (n->second - n->first) * next_unit();
      break;
    case NORMAL:
      floats[i] = n->first + n->second * sqrt(-2 * log(1 - next_unit())) * cos(6.283185307179586 * next_unit());
      break;
    case BERNOULLI:
      floats[i] = next_unit() < n->first;
      break;
    case POISSON:
      floats[i] = next_poisson(floats[i]);
      break;
    case RANDINT:
      integers[i] = (int64_t)((uint64_t)n->low + (uint64_t)next_below((uint64_t)n->high - (uint64_t)n->low));
      break;
    case INTEGERS:
      integers[i] = next_below(largest(dtype) + 1);
      break;
    case PERMUTATION: {
      int64_t j = next_below((uint64_t)i + 1);
      integers[i] = integers[j];
      integers[j] = i;
      break;
    }
    }
}

static weir_status fill_on_host(distribution kind, weir_array *a, const numbers *n) {
  weir_array wide = {0};
  bool is_float = kind <= POISSON;
  weir_status status = weir_array_empty(weir_place_host(), is_float ? WEIR_FLOAT64 : WEIR_INT64, a->ndim, a->shape,
                                        (weir_stream){0}, &wide);
  if (status != WEIR_OK)
    return status;
  need_seed();
  if (kind == POISSON)
    status = weir_array_copy(&wide, a, (weir_stream){0}, 0);
  if (status == WEIR_OK)
    fill_host(kind, &wide, n, a->dtype);
  if (status == WEIR_OK)
    status = weir_array_copy(a, &wide, (weir_stream){0}, 0);
  weir_array_release(&wide);
  return status;
}

/* ---- On a device ---- */

static weir_status fill_device(distribution kind, const weir_array *a, const numbers *n, weir_generator *generator,
                               weir_stream stream) {
  uint64_t count = (uint64_t)weir_array_count(a);
  switch (kind) {
  case UNIFORM:
    return weir_random_uniform(generator, a->data, count, a->dtype, n->first, n->second, stream);
  case NORMAL:
    return weir_random_normal(generator, a->data, count, a->dtype, n->first, n->second, stream);
  case BERNOULLI:
    return weir_random_bernoulli(generator, a->data, count, a->dtype, n->first, stream);
  case POISSON:
    return weir_random_poisson(generator, a->data, count, a->dtype, stream);
  case RANDINT:
    return weir_random_randint(generator, a->data, count, a->dtype, n->low, n->high, stream);
  case INTEGERS:
    return weir_random_integers(generator, a->data, count, a->dtype, stream);
  default:
    return weir_random_permutation(generator, a->data, count, a->dtype, stream);
  }
}

/* Without the GIL. */
static weir_status fill_on_device(distribution kind, weir_array *a, const numbers *n, weir_generator *generator,
                                  weir_stream stream) {
  if (weir_array_is_contiguous(a))
    return fill_device(kind, a, n, generator, stream);
  weir_array flat = {0};
  weir_status status = weir_array_empty_like(a, stream, &flat);
  if (status == WEIR_OK && kind == POISSON)
    status = weir_array_copy(&flat, a, stream, 1);
  if (status == WEIR_OK)
    status = fill_device(kind, &flat, n, generator, stream);
  if (status == WEIR_OK)
    status = weir_array_copy(a, &flat, stream, 1);
  weir_array_release(&flat);
  return status;
}

/* ---- Methods ---- */

/* What the fills of a device check, for the host. */
static int check_host(distribution kind, const weir_array *a, const numbers *n) {
  static const char *const names[] = {"uniform_", "normal_", "bernoulli_", "poisson", "random_", "random_", "randperm"};
  if (weir_dtype_is_complex(a->dtype) || (kind <= POISSON && kind != BERNOULLI && !weir_dtype_is_float(a->dtype))) {
    PyErr_Format(PyExc_NotImplementedError, "\"%s\" not implemented for '%s'", names[kind], weir_dtype_title(a->dtype));
    return -1;
  }
  if (kind == UNIFORM && n->first > n->second)
    PyErr_Format(PyExc_RuntimeError, "uniform_ expects to return a [from, to) range, but found from > to");
  else if (kind == NORMAL && n->second < 0)
    PyErr_Format(PyExc_RuntimeError, "normal expects std >= 0.0, but found a negative std");
  else if (kind == BERNOULLI && !(n->first >= 0 && n->first <= 1))
    PyErr_Format(PyExc_RuntimeError, "bernoulli_ expects p to be in [0, 1]");
  else if (kind == RANDINT && n->low >= n->high)
    PyErr_Format(PyExc_RuntimeError, "random_ expects 'from' to be less than 'to', but got from=%lld >= to=%lld",
                 (long long)n->low, (long long)n->high);
  return PyErr_Occurred() ? -1 : 0;
}

static PyObject *fill(PyObject *self, PyObject *generator_object, distribution kind, const numbers *n) {
  weir_array *a = pyweir_array_of(self);
  weir_generator *generator = NULL;
  weir_status status;
  weir_stream stream;
  if (pyweir_array_check_writable(self) != 0)
    return NULL;
  if (a->place.kind != WEIR_PLACE_DEVICE) {
    if (generator_object != Py_None)
      return PyErr_Format(PyExc_RuntimeError, "Expected a 'cpu' device type for generator but found 'cuda'");
    if (check_host(kind, a, n) != 0)
      return NULL;
    status = fill_on_host(kind, a, n);
  } else {
    if (generator_object != Py_None && !(generator = pyweir_generator_get(generator_object)))
      return NULL;
    if (pyweir_array_stream(a, &stream) != 0)
      return NULL;
    PYWEIR_CALL(status, fill_on_device(kind, a, n, generator, stream));
  }
  return pyweir_array_check(status) == 0 ? Py_NewRef(self) : NULL;
}

/* _array_random(array, name, generator, first, second): the numbers are floats, or ints or None for "random". */
static PyObject *array_random(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *array, *generator, *first, *second;
  const char *name;
  numbers n = {0};
  if (!PyArg_ParseTuple(args, "O!sOOO:_array_random", &pyweir_array_type, &array, &name, &generator, &first, &second))
    return NULL;
  if (strcmp(name, "permutation") == 0)
    return fill(array, generator, PERMUTATION, &n);
  if (strcmp(name, "random") == 0) {
    if (first == Py_None)
      return fill(array, generator, INTEGERS, &n);
    if (pyweir_parse_int64(first, &n.low) != 0 || pyweir_parse_int64(second, &n.high) != 0)
      return NULL;
    return fill(array, generator, RANDINT, &n);
  }
  n.first = PyFloat_AsDouble(first);
  if (n.first == -1 && PyErr_Occurred())
    return NULL;
  n.second = PyFloat_AsDouble(second);
  if (n.second == -1 && PyErr_Occurred())
    return NULL;
  return fill(array, generator,
              strcmp(name, "uniform") == 0   ? UNIFORM
              : strcmp(name, "normal") == 0  ? NORMAL
              : strcmp(name, "poisson") == 0 ? POISSON
                                             : BERNOULLI,
              &n);
}

static PyObject *host_seed(PyObject *module, PyObject *object) {
  (void)module;
  unsigned long long seed = PyLong_AsUnsignedLongLongMask(object);
  if (seed == (unsigned long long)-1 && PyErr_Occurred())
    return NULL;
  seed_host(seed);
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_array_random", array_random, METH_VARARGS, NULL},
    {"_seed_host", host_seed, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_array_random(PyObject *module) { return PyModule_AddFunctions(module, functions); }
