"""Tests of PyTorch's test_cuda.py about operations that Weir does not have, as kernels that are compiled here.

What they assert is the same: results on devices against results on the host, large indices, assertions on the device,
and the order of work of threads that have streams of their own. The software device gets smaller sizes.
"""

from __future__ import annotations

import threading

import pytest
from conftest import is_soft, run_python

import weir

numpy = pytest.importorskip("numpy")
pytest.importorskip("weir.kernel", reason="built without kernels")
if not is_soft:
    pytest.importorskip("nvidia.cuda_nvrtc", reason="needs NVRTC")
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


def zeros(nbytes):
    return weir.empty(nbytes).zero_()


def randomly(method, count, dtype, *args):
    """A buffer of random numbers of the default generator, and the same on the host."""
    buffer = weir.empty(count * numpy.dtype(dtype).itemsize)
    method(buffer, *args, dtype=numpy.dtype(dtype).name)
    return buffer, to_host(buffer, dtype)


# ---- Indices ----


def test_gather_bool(run):
    t = to_device(numpy.array([[False, True], [True, True]]))
    index = to_device(numpy.array([[0, 0], [1, 0]], dtype=numpy.int64))
    out = weir.empty(4)
    run("gather", 4, out, t, index, 2, 2, 2)
    assert to_host(out, numpy.bool_).tolist() == [False, False, True, True]


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


# ---- Random choice ----


def test_multinomial_ext(run):
    # Two corner cases of older versions: places with probability 0 must not be chosen.
    freqs = numpy.zeros(208, dtype=numpy.float32)
    freqs[[3, 7, 31, 100, 206]] = [0.03, 0.2, 1e-7, 0.5, 0.27]
    weir.manual_seed(11042)
    uniform, _ = randomly(weir.random.uniform_, 1000, numpy.float32)
    sample = weir.empty(1000 * 8)
    run("multinomial", 1000, sample, to_device(freqs), uniform, 1, 208, 1000)
    chosen = to_host(sample, numpy.int64)
    assert freqs[chosen].min() != 0 and len(set(chosen.tolist())) >= 4

    p = numpy.zeros((3421, 2), dtype=numpy.float32)
    p[:, 1] = 1
    weir.manual_seed(5214)
    uniform, _ = randomly(weir.random.uniform_, 3421, numpy.float32)
    r = weir.empty(3421 * 8)
    run("multinomial", 3421, r, to_device(p), uniform, 3421, 2, 1)
    assert to_host(r, numpy.int64).min() != 0

    # A corner case of many places with small probabilities.
    count = 20_000 if is_soft else 1_000_000
    weir.manual_seed(33)
    _, normal = randomly(weir.random.normal_, count, numpy.float32)
    probs = numpy.maximum(normal, 0) * numpy.float32(3e-5)
    cumulative = to_device(numpy.cumsum(probs, dtype=numpy.float64))
    uniform, _ = randomly(weir.random.uniform_, count, numpy.float32)
    samples = weir.empty(count * 8)
    run("search", count, samples, cumulative, uniform, count, count)
    assert probs[to_host(samples, numpy.int64)].min() > 0


MULTINOMIAL = """
probs = to_device(numpy.array([{probs}], dtype=numpy.float32))
uniform = weir.random.uniform_(weir.empty(2 * 4))
try:
    run("multinomial")(1, 32, [weir.empty(2 * 8), probs, uniform, 1, 3, 2])
    weir.synchronize()
except RuntimeError as error:
    print("error", error)
"""


@pytest.mark.parametrize("probs", ["1, -1, 1", "1, numpy.inf, 1", "1, -numpy.inf, 1", "1, 1, numpy.nan"])
def test_multinomial_invalid_probs_cuda(probs):
    result = in_another_process(MULTINOMIAL.format(probs=probs))
    assert "device-side assert triggered" in result.stdout, result


# ---- Counts ----


def test_bincount_ext(run):
    n = 5_000 if is_soft else 100_000
    w, w_host = randomly(weir.random.normal_, n, numpy.float64)

    def check(buffer, host, kind, bins):
        counts, sums = zeros(bins * 8), zeros(bins * 8)
        run(f"bincount<{kind}>", n, counts, buffer, n, bins)
        run(f"bincount_weighted<{kind}>", n, sums, buffer, w, n)
        assert numpy.array_equal(to_host(counts, numpy.int64), numpy.bincount(host, minlength=bins))
        assert numpy.allclose(to_host(sums, numpy.float64), numpy.bincount(host, w_host, minlength=bins))

    t, t_host = randomly(weir.random.random_, n, numpy.int8, 0, 50)
    check(t, t_host, "signed char", 50)
    counts = zeros(50 * 8)
    run("bincount_shared", n, counts, t, n, 50, shared_mem=50 * 4)
    assert numpy.array_equal(to_host(counts, numpy.int64), numpy.bincount(t_host, minlength=50))

    # More than the shared memory of any device holds.
    t, t_host = randomly(weir.random.random_, n, numpy.int64, 0, 50_000)
    check(t, t_host, "long long", 50_000)

    # 35488 * 65536 does not fit in 32 bits.
    t = numpy.zeros(10, dtype=numpy.int32)
    t[0] = 35488
    counts = zeros(65536 * 8)
    run("bincount<int>", 10, counts, to_device(t), 10, 65536)
    assert to_host(counts, numpy.int64).sum() == 10


# ---- Loops over more elements than an int can count ----


LOOP = """
count, tail = {count}, {tail} or {count}
x, y = weir.empty(count * 2), weir.empty(count * 2)
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
    mean, invstd = weir.empty(12), weir.empty(12)
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
            out = weir.empty((side - 1) ** 2 * 4)
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
            out = weir.empty(size * size * 4)
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
