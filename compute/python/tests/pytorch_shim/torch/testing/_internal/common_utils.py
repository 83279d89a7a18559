"""The base class of PyTorch's tests, their decorators and settings."""

import contextlib
import functools
import gc
import importlib.util
import itertools
import os
import platform
import statistics
import sys
import tempfile
import unittest
from collections.abc import Mapping, Sequence
from numbers import Number

import torch

IS_ARM64 = platform.machine() in ("arm64", "aarch64")
IS_LINUX, IS_WINDOWS = sys.platform == "linux", sys.platform == "win32"
IS_JETSON = IS_FBCODE = IS_SANDCASTLE = IS_REMOTE_GPU = TEST_WITH_ROCM = NO_MULTIPROCESSING_SPAWN = False
EXPANDABLE_SEGMENTS = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
TEST_CUDA = torch.cuda.is_available()
TEST_CUDA_GRAPH = TEST_CUDA
TEST_NUMPY = importlib.util.find_spec("numpy") is not None

# Relative and absolute tolerance of each type of elements, as torch.testing.assert_close has them.
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex128: (1e-7, 1e-7),
}


def _unchanged(item):
    return item


def _unchanged_with(*_):
    return _unchanged


gcIfJetson = markDynamoStrictTest = _unchanged
skipCUDAMemoryLeakCheckIf = skipCUDANonDefaultStreamIf = serialTest = _unchanged_with


def skipIfRocm(test=None, *, msg=None):
    return test if test else _unchanged


def slowTest(test):
    return unittest.skipUnless(os.environ.get("PYTORCH_TEST_WITH_SLOW") == "1", "test is slow")(test)


def load_tests(loader, tests, pattern):
    return tests


def run_tests():
    unittest.main()


@functools.cache
def get_cycles_per_ms():
    def measure():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(1_000_000)
        end.record()
        end.synchronize()
        return 1_000_000 / begin.elapsed_time(end)

    return statistics.mean(sorted(measure() for _ in range(10))[2:-2])


@contextlib.contextmanager
def freeze_rng_state():
    host, device = torch.get_rng_state(), torch.cuda.get_rng_state()
    try:
        yield
    finally:
        torch.cuda.set_rng_state(device)
        torch.set_rng_state(host)


# ---- Tests with parameters ----


class subtest:
    def __init__(self, values, name=None, decorators=()):
        self.values, self.name, self.decorators = values, name, decorators


def _text(value):
    return str(value).rpartition(".")[2] if isinstance(value, torch.dtype) else str(value)


class parametrize:
    """Gives a test one case for each of several values."""

    def __init__(self, names, values, name_fn=None):
        self.names, self.values, self.name_fn = [name.strip() for name in names.split(",")], values, name_fn

    def __call__(self, test):
        mine = [self.case(value) for value in self.values]
        others = getattr(test, "cases", [("", {}, [])])
        test.cases = [
            (name + other, {**arguments, **more}, [*decorators, *extra])
            for (name, arguments, decorators), (other, more, extra) in itertools.product(mine, others)
        ]
        return test

    def case(self, value):
        given = value if isinstance(value, subtest) else subtest(value)
        values = given.values if len(self.names) > 1 else (given.values,)
        if given.name:
            name = given.name
        elif self.name_fn:
            name = self.name_fn(*values)
        else:
            name = "_".join(f"{key}_{_text(item)}" for key, item in zip(self.names, values))
        return f"_{name}", dict(zip(self.names, values)), list(given.decorators)


def instantiate_parametrized_tests(kind, *first):
    """Replaces each test with parameters by its cases. `first` are arguments of every test."""
    for attribute in [name for name in dir(kind) if name.startswith("test")]:
        test = getattr(kind, attribute)
        if not hasattr(test, "cases") and not first:
            continue
        delattr(kind, attribute)
        for suffix, arguments, decorators in getattr(test, "cases", [("", {}, [])]):

            def case(self, test=test, arguments=arguments):
                return test(self, *first, **arguments)

            case = functools.wraps(test)(case)
            for decorate in decorators:
                case = decorate(case)
            setattr(kind, "_".join([attribute, *first]) + suffix, case)


# ---- The base class ----


@contextlib.contextmanager
def TemporaryFileName(*arguments, **keywords):
    with tempfile.NamedTemporaryFile(*arguments, **keywords) as file:
        yield file.name


class NoTest:
    pass


def _is_array(item):
    return isinstance(item, torch.Tensor)


class TestCase(unittest.TestCase):
    """Compares arrays and numbers as torch.testing.assert_close does, where a test calls assertEqual."""

    maxDiff = None

    def setUp(self):
        torch.manual_seed(1234)

    def assertEqual(self, x, y, msg=None, *, atol=None, rtol=None, equal_nan=True, exact_dtype=True, **_):
        problem = self._difference(x, y, atol, rtol, equal_nan, exact_dtype)
        if problem:
            text = msg(problem) if callable(msg) else f"{problem}\n{msg}" if msg else problem
            raise self.failureException(text)

    @contextlib.contextmanager
    def assertLeaksNoCudaTensors(self):
        gc.collect()
        before = torch.cuda.memory_allocated()
        yield
        gc.collect()
        self.assertEqual(torch.cuda.memory_allocated(), before, "memory of the device is still in use")

    def wrap_with_cuda_memory_check(self, test):
        """Fails if memory that the test allocates on a device stays in use, there and in the driver."""

        def used():
            gc.collect()
            return [(torch.cuda.memory_allocated(i), torch.cuda.device_memory_used(i))
                    for i in range(torch.cuda.device_count())]

        @functools.wraps(test)
        def run(*arguments, **keywords):
            torch.cuda.empty_cache()
            before = used()
            test(*arguments, **keywords)
            torch.cuda.empty_cache()
            for device, (old, new) in enumerate(zip(before, used())):
                if all(now > then for then, now in zip(old, new)):
                    raise RuntimeError(f"CUDA driver API confirmed a leak of {new[0] - old[0]} bytes on device {device}.")

        return run

    def assertEqualTypeString(self, x, y):
        self.assertEqual((x.device, x.dtype, x.type()), (y.device, y.dtype, y.type()))

    def genSparseTensor(self, *arguments):
        return torch.sparse_coo_tensor(*arguments)

    def assertNotEqual(self, x, y, msg=None, *, atol=None, rtol=None, **_):
        with self.assertRaises(AssertionError, msg=msg):
            self.assertEqual(x, y, msg, atol=atol, rtol=rtol)

    def _difference(self, x, y, atol, rtol, equal_nan, exact_dtype):
        """Returns what differs, or None."""
        if isinstance(x, (torch.UntypedStorage, torch.TypedStorage)):
            x = x.tolist()
        if isinstance(y, (torch.UntypedStorage, torch.TypedStorage)):
            y = y.tolist()
        options = (atol, rtol, equal_nan, exact_dtype)
        if _is_array(x) or _is_array(y):
            return self._difference_of_arrays(x, y, *options)
        if isinstance(x, Number) and isinstance(y, Number) and not isinstance(x, bool):
            exact = isinstance(x, int) and isinstance(y, int) and atol is None
            same_nan = equal_nan and x != x and y != y
            limit = 0 if exact else (1e-7 if atol is None else atol) + (1e-7 if rtol is None else rtol) * abs(y)
            return None if x == y or same_nan or abs(x - y) <= limit else f"{x!r} is not {y!r}"
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            if set(x) != set(y):
                return f"the keys {sorted(map(str, set(x) ^ set(y)))} are in one only"
            return next(filter(None, (self._difference(x[key], y[key], *options) for key in x)), None)
        if all(isinstance(item, Sequence) and not isinstance(item, (str, bytes)) for item in (x, y)):
            if len(x) != len(y):
                return f"{len(x)} items, {len(y)} in the other"
            return next(filter(None, (self._difference(*pair, *options) for pair in zip(x, y))), None)
        return None if x == y else f"{x!r} is not {y!r}"

    def _difference_of_arrays(self, x, y, atol, rtol, equal_nan, exact_dtype):
        if not _is_array(x):
            x, exact_dtype = torch.tensor(x, dtype=y.dtype), exact_dtype and not isinstance(x, (Number, Sequence))
        if not _is_array(y):
            y, exact_dtype = torch.tensor(y, dtype=x.dtype), exact_dtype and not isinstance(y, (Number, Sequence))
        if tuple(x.shape) != tuple(y.shape):
            return f"the shapes {tuple(x.shape)} and {tuple(y.shape)} differ"
        if x.dtype != y.dtype:
            if exact_dtype:
                return f"the types {x.dtype} and {y.dtype} differ"
            common = torch.promote_types(x.dtype, y.dtype)
            x, y = x.to(common), y.to(common)
        if x.device != y.device:
            x, y = x.to("cpu"), y.to("cpu")
        relative, absolute = TOLERANCES.get(x.dtype, (0, 0))
        rtol, atol = relative if rtol is None else rtol, absolute if atol is None else atol
        if torch.allclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan):
            return None
        return f"the values differ:\n{x}\n{y}"
