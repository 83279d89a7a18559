"""Tests of PyTorch's test_cuda.py about operations that Weir does not have, as kernels that are compiled here.

What they assert is the same: results of many elements, assertions that fail on the device, statistics,
and the order of work of threads that have streams of their own. The software device gets smaller sizes.
"""

from __future__ import annotations

import threading

import pytest
from conftest import is_soft, need_compiler, run_python

import weir

numpy = pytest.importorskip("numpy")
pytest.importorskip("weir.kernel", reason="built without kernels")
need_compiler()
from cuda_kernels import compiled, to_device, to_host  # noqa: E402


@pytest.fixture(scope="module")
def run():
    """run(name, n, *args) launches a kernel with a thread for each of n elements, up to a limit."""
    get_function = compiled()

    def launch(name, n, *args, **keywords):
        threads = 32 if is_soft else 256
        grid = max(1, min((n + threads - 1) // threads, 64 if is_soft else 65536))
        get_function(name)(grid, threads, args, **keywords)

    return launch


PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    import numpy, weir
    from cuda_kernels import compiled, to_device, to_host
    run = compiled()
    {code}
"""


def in_another_process(code, **environment):
    """Runs code, such as code that breaks the device, and returns what it wrote."""
    from os.path import dirname

    code = code.strip().replace("\n", "\n    ")
    return run_python(PROGRAM.format(tests=dirname(__file__), code=code), check=False, **environment)


# ---- Loops over more elements than an int can count ----


LOOP = """
count, tail = {count}, {tail} or {count}
x, y = weir.buffer(count * 2), weir.buffer(count * 2)
from_, last = (count - tail) * 2, count * 2 - 2
x[from_:].fill_(0xAB)
x[last:].fill_(0x12)
y[from_:].zero_()
grid = 64 if {tail} else 65536
run("avg_pool_1")(grid, 256, [y[from_:], x[from_:], tail])
weir.synchronize()
print(to_host(y[last - 2 :], numpy.uint16).tolist() == [0xABAB, 0x1212])
"""


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(2**30 + 1, id="test_cuda_kernel_loop_overflow"),
        pytest.param(2**31 - 1, id="test_cuda_kernel_loop_overflow_large"),
        pytest.param(2**31 + 5, id="beyond"),
    ],
)
def test_cuda_kernel_loop_overflow(count):
    """The last elements of a loop with a stride. The software device runs only the last 100,000."""
    tail = 100_000 if is_soft else 0
    result = in_another_process(LOOP.format(count=count, tail=tail), WEIR_SOFT_MEMORY="16GiB")
    assert result.stdout == "True\n", result


# ---- Statistics ----


def test_batch_norm_gather_stats(run):
    ones = to_device(numpy.ones((2, 3), dtype=numpy.float32))
    mean, invstd = weir.buffer(12), weir.buffer(12)
    run("batch_norm_gather_stats", 3, mean, invstd, ones, ones, 2, 3, 1e-5, 2.0)
    assert numpy.allclose(to_host(mean, numpy.float32), 1) and numpy.allclose(to_host(invstd, numpy.float32), 1)


# ---- Threads with streams of their own ----


def by_threads(count, start, work):
    """Runs work(thread, stream) on several threads at once, after start(thread)."""
    barrier, failures = threading.Barrier(count), []

    def worker(number):
        try:
            stream = weir.Stream()
            weir.synchronize()
            barrier.wait()
            with weir.stream(stream):
                work(number)
            weir.synchronize()
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    for number in range(count):
        start(number)
    threads = [threading.Thread(target=worker, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_cudnn_multiple_threads_same_device(run):
    """A convolution and a division after it, many times, on streams of two threads."""
    size, iterations = (64, 20) if is_soft else (2048, 1000)
    results = {}

    def start(number):
        results[number] = to_device(numpy.ones((size, size), dtype=numpy.float32))

    def work(number):
        for side in range(size, size - iterations, -1):
            out = weir.buffer((side - 1) ** 2 * 4)
            run("convolve", (side - 1) ** 2, out, results[number], side)
            run("divide", (side - 1) ** 2, out, 4.0, (side - 1) ** 2)
            results[number] = out

    for _ in range(3):
        by_threads(2, start, work)
        for number in range(2):
            assert to_host(results[number], numpy.float32).sum() == (size - iterations) ** 2


def test_cusparse_multiple_threads_same_device(run):
    """A product with a sparse matrix of ones and a division after it, many times, on streams of two threads."""
    size, iterations = (24, 10) if is_soft else (256, 500)
    starts = to_device(numpy.arange(0, size * size + 1, size, dtype=numpy.int32))
    columns = to_device(numpy.tile(numpy.arange(size, dtype=numpy.int32), size))
    values = to_device(numpy.ones(size * size, dtype=numpy.float32))
    results = {}

    def start(number):
        results[number] = to_device(numpy.ones((size, size), dtype=numpy.float32))

    def work(number):
        for _ in range(iterations):
            out = weir.buffer(size * size * 4)
            run("sparse_mm", size * size, out, starts, columns, values, results[number], size)
            run("divide", size * size, out, float(size), size * size)
            results[number] = out

    for _ in range(3):
        by_threads(2, start, work)
        for number in range(2):
            assert to_host(results[number], numpy.float32).sum() == size * size


# ---- Assertions ----


def test_assert_that_holds(run):
    run("assert_async<long long>", 1, to_device(numpy.array([1])))
    for value in (0.1, -0.1):
        run("assert_async<float>", 1, to_device(numpy.array([value], dtype=numpy.float32)))
    run("assert_async<bool>", 1, to_device(numpy.array([True])))
    run("assert_complex", 1, to_device(numpy.array([0.1j], dtype=numpy.complex64)))
    weir.synchronize()


ASSERT = """
try:
    run("{name}")(1, 1, [to_device(numpy.array([0], dtype=numpy.{dtype}))])
    weir.synchronize()
except RuntimeError as error:
    print("error", error)
try:
    weir.synchronize()
except RuntimeError as error:
    print("again", error)
"""


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("assert_async<long long>", "int64"),
        ("assert_async<float>", "float32"),
        ("assert_async<bool>", "bool_"),
        ("assert_complex", "complex64"),
    ],
)
def test_assert_that_fails(name, dtype):
    """The failing half of test_fixed_cuda_assert_async. The device stays broken."""
    result = in_another_process(ASSERT.format(name=name, dtype=dtype))
    assert result.stdout.count("device-side assert triggered") == 2, result
