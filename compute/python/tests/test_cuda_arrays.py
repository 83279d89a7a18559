"""Tests of PyTorch's test_cuda.py that need typed arrays: types, copies, arithmetic, reductions, saving.

Each test has the name and the assertions of the original. The software device gets smaller sizes where the original has
millions of elements.
"""

from __future__ import annotations

import gc
import io
import pickle
from itertools import product

import pytest
from conftest import is_soft, run_python

import weir

numpy = pytest.importorskip("numpy")

def cycles(milliseconds):
    return int(milliseconds * weir.get_device_properties().clock_rate)


def equal(a, b):
    """Whether two arrays have the same shape and elements, wherever they are."""
    return a.shape == b.shape and bool((a.cpu() == b.cpu()).all())


def randn(*shape, **options):
    return weir.randn(*shape, **{"device": "cuda", **options})


# ---- Types ----


def test_type_conversions():
    x = randn(5, 5, device="cpu")
    cpu = weir.cpu
    assert isinstance(x.float(), cpu.FloatTensor)
    assert isinstance(x.cuda().double(), weir.DoubleTensor)
    assert isinstance(x.cuda().float(), weir.FloatTensor)
    assert isinstance(x.cuda().float().cpu(), cpu.FloatTensor)
    assert isinstance(x.cuda().float().cpu().int(), cpu.IntTensor)
    assert not isinstance(x.float(), weir.FloatTensor) and not isinstance(x.cuda().double(), weir.FloatTensor)

    y = x.storage()
    assert isinstance(y.float(), cpu.FloatStorage)
    assert isinstance(y.cuda().double(), weir.DoubleStorage)
    assert isinstance(y.cuda().float(), weir.FloatStorage)
    assert isinstance(y.cuda().float().cpu(), cpu.FloatStorage)
    assert isinstance(y.cuda().float().cpu().int(), cpu.IntStorage)


def test_to_numpy():
    with pytest.raises(TypeError, match="can't convert cuda:0 device type"):
        weir.zeros(1, device="cuda").numpy()


# ---- Saving ----


def save_and_load(objects):
    file = io.BytesIO()
    weir.save(objects, file)
    file.seek(0)
    return weir.load(file)


def test_serialization_array_with_storage():
    x = randn(5, 5)
    y = weir.zeros(2, 5, dtype=weir.int32, device="cuda")
    q = [x, y, x, y.storage()]
    q_copy = save_and_load(q)
    assert equal(q_copy[0], x) and equal(q_copy[1], y) and equal(q_copy[2], x)
    assert q_copy[3].tolist() == [0] * 10
    q_copy[0].fill_(5)
    assert equal(q_copy[0], q_copy[2])
    assert isinstance(q_copy[0], weir.FloatTensor)
    assert isinstance(q_copy[1], weir.IntTensor)
    assert isinstance(q_copy[2], weir.FloatTensor)
    assert isinstance(q_copy[3], weir.IntStorage)
    q_copy[1].fill_(10)
    assert q_copy[3].tolist() == weir.IntStorage(10).fill_(10).tolist() == [10] * 10


def test_serialization_array_with_empty():
    x = [randn(4, 4), weir.FloatTensor()]
    for original, copy in zip(x, save_and_load(x)):
        assert equal(copy, original)
        assert type(copy) is type(original) and copy.dtype == original.dtype
        assert copy.get_device() == original.get_device()


def test_pickle():
    x = randn(3, 4)
    copy = pickle.loads(pickle.dumps(x))
    assert equal(copy, x) and copy.get_device() == x.get_device()


def test_specify_improper_device_name():
    file = io.BytesIO()
    weir.save([randn(10, 10, device="cpu")], file)
    file.seek(0)
    with pytest.raises(RuntimeError, match="Invalid device string"):
        weir.load(file, "cuda0")


# ---- Copies ----


def test_copy_non_blocking():
    def check(a, b):
        event = weir.Event()
        a.copy_(b, non_blocking=True)
        event.record()
        event.synchronize()
        assert equal(a, b)

    size = 1_000_000 if is_soft else 10_000_000
    x = weir.ones(size, dtype=weir.uint8, device="cpu").cuda()
    y = weir.zeros(size, dtype=weir.uint8, device="cpu").pin_memory()
    check(x, y)

    x = weir.zeros(size, dtype=weir.uint8, device="cpu").pin_memory()
    y = weir.ones(size, dtype=weir.uint8, device="cpu").cuda()
    check(x, y)

    x_base = weir.zeros(size, dtype=weir.uint8, device="cpu").pin_memory()
    x = x_base[1:]
    assert x.is_pinned() and x_base.is_pinned()
    assert x_base.data_ptr() != x.data_ptr()
    assert x_base.storage().data_ptr() == x.storage().data_ptr()
    y = weir.ones(size - 1, dtype=weir.uint8, device="cpu").cuda()
    check(x, y)


def test_copy_non_blocking_type_conversion():
    a = weir.ones(1, device="cuda")
    b = weir.zeros(1, device="cpu", pin_memory=True)
    c = weir.zeros(1, device="cuda", dtype=weir.int64)
    weir._sleep(cycles(100))
    b.copy_(a, non_blocking=True)
    c.copy_(b, non_blocking=True)
    assert a.item() == c.item() == 1


@pytest.mark.parametrize("dst, non_blocking", list(product(("cuda", "cpu"), (True, False))))
def test_to_non_blocking(dst, non_blocking):
    stream = weir.current_stream()
    a = randn(1_000_000, device="cuda" if dst == "cpu" else "cpu", pin_memory=dst == "cuda")
    weir.synchronize()
    # If the copy is non-blocking, the stream is almost certainly still busy afterwards.
    weir._sleep(cycles(100))
    b = a.to(device=dst, non_blocking=non_blocking)
    assert stream.query() is (not non_blocking)
    stream.synchronize()
    assert equal(a, b)
    assert b.is_pinned() is (non_blocking and dst == "cpu")


def test_to_cpu_blocking_by_default():
    src = randn(1_000_000)
    weir.synchronize()
    weir._sleep(cycles(100))
    dst = src.to(device="cpu")
    assert weir.current_stream().query() is True
    assert equal(src, dst)
    assert not dst.is_pinned()


def test_noncontiguous_pinned_memory():
    x = weir.arange(0, 10, device="cpu").view((2, 5))
    assert equal(x.t(), x.t().pin_memory())


def test_cudart_register():
    t = weir.ones(20, device="cpu")
    assert not t.is_pinned()
    cudart = weir.cudart()
    assert cudart.cudaHostRegister(t.data_ptr(), t.numel() * t.element_size(), 0) == 0
    assert t.is_pinned()
    assert cudart.cudaHostUnregister(t.data_ptr()) == 0
    assert not t.is_pinned()


# ---- Streams ----


def test_streams():
    default_stream = weir.current_stream()
    user_stream = weir.Stream()
    assert default_stream != user_stream
    assert default_stream.cuda_stream == 0 and user_stream.cuda_stream != 0
    with weir.stream(user_stream):
        assert weir.current_stream() == user_stream
    assert user_stream.query()
    tensor1 = weir.cpu.ByteTensor([1, 2, 3, 4, 255]).pin_memory()
    tensor2 = tensor1.cuda(non_blocking=True) + 1
    default_stream.synchronize()
    assert default_stream.query()
    assert tensor2.dtype == weir.uint8 and tensor2.tolist() == [2, 3, 4, 5, 0]


def test_generic_stream_event():
    stream = weir.Stream()
    cuda_stream = weir.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    event1, event2 = weir.Event(enable_timing=True), weir.Event(enable_timing=True)
    a, b = randn(1000, device="cpu"), randn(1000, device="cpu")
    with weir.stream(cuda_stream):
        a_cuda = a.to("cuda", non_blocking=True)
        b_cuda = b.to("cuda", non_blocking=True)
        assert stream.stream_id == weir.current_stream().stream_id
    event1.record(stream)
    event1.synchronize()
    assert event1.query()
    c_cuda = a_cuda + b_cuda
    event2.record()
    event2.synchronize()
    assert event2.query()
    assert equal(c_cuda.cpu(), a + b)
    assert event1.elapsed_time(event2) > 0


def test_record_stream():
    t = weir.cpu.FloatTensor([1, 2, 3, 4]).pin_memory()
    result = weir.FloatTensor(t.size())
    stream = weir.Stream()
    ptr = [None]

    def perform_copy():
        with weir.stream(stream):
            tmp = t.cuda(non_blocking=True)
            ptr[0] = tmp.data_ptr()
        weir.current_stream().wait_stream(stream)
        tmp.record_stream(weir.current_stream())
        weir._sleep(cycles(50))  # delay the copy
        result.copy_(tmp)

    perform_copy()
    with weir.stream(stream):
        tmp2 = weir.FloatTensor(t.size())
        tmp2.zero_()
        assert tmp2.data_ptr() != ptr[0], "allocation re-used too soon"
    assert result.tolist() == [1, 2, 3, 4]
    weir.current_stream().synchronize()
    with weir.stream(stream):
        tmp3 = weir.FloatTensor(t.size())
        assert tmp3.data_ptr() == ptr[0], "allocation not re-used"


def test_record_stream_on_shifted_view():
    stream_alloc = weir.Stream()
    with weir.stream(stream_alloc):
        base = weir.FloatTensor(10, 10)
    view = base[5:]
    assert view.storage_offset() > 0
    stream_record = weir.Stream()
    with weir.stream(stream_record):
        weir._sleep(cycles(50))
    view.record_stream(stream_record)
    data_ptr = base.data_ptr()
    del base, view
    stream_alloc.synchronize()
    with weir.stream(stream_alloc):
        try_realloc = weir.FloatTensor(10, 10)
    assert try_realloc.data_ptr() != data_ptr


def test_caching_pinned_memory():
    t = weir.cpu.FloatTensor([1]).pin_memory()
    ptr = t.data_ptr()
    del t
    t = weir.cpu.FloatTensor([1]).pin_memory()
    assert t.data_ptr() == ptr, "allocation not reused"
    gpu_tensor = weir.FloatTensor([0])
    weir._sleep(cycles(200))  # delay the copy
    gpu_tensor.copy_(t, non_blocking=True)
    del t
    t = weir.cpu.FloatTensor([1]).pin_memory()
    assert t.data_ptr() != ptr, "allocation re-used too soon"
    assert list(gpu_tensor) == [1]


# ---- Arithmetic ----


def test_arithmetic_large_tensor():
    """Disabled in PyTorch for lack of memory: 2**30 elements. The software device has 2**20."""
    count = 2**20 if is_soft else 2**30
    x = weir.zeros(count, device="cuda", dtype=weir.float32)
    x.fill_(1)
    assert x.sum() == count
    x += 1
    assert x.sum() == 2 * count
    x.fill_(1)
    x -= 0.5
    assert x.sum() == count / 2
    x.fill_(1)
    x *= 2
    assert x.sum() == 2 * count
    x.fill_(1)
    x /= 2
    assert x.sum() == count / 2


def test_out_of_memory():
    tensor = weir.zeros(1024, device="cuda")
    with pytest.raises(RuntimeError, match="Tried to allocate 800000000.00 GiB"):
        weir.zeros(1024 * 1024 * 1024 * 800000000, dtype=weir.int8, device="cuda")
    with pytest.raises(RuntimeError, match="Tried to allocate more than 1EB memory"):
        weir.zeros(1024 * 1024 * 1024 * 8000000000, dtype=weir.int8, device="cuda")
    tensor.fill_(1)
    assert (tensor == 1).all()


def test_caching_allocator_record_stream_oom():
    """Memory that waits for a stream is freed by a request that would otherwise run out of memory."""
    weir.empty_cache()
    count = 256 * 1024 if is_soft else 40 * 1024 * 1024
    weir.set_per_process_memory_limit(weir.memory_reserved() + 16 * count * 4)
    stream = weir.Stream()
    with weir.stream(stream):
        y = weir.zeros(count, device="cuda")
    for _ in range(100):
        x = weir.zeros(count, device="cuda")
        with weir.stream(stream):
            y += x
        x.record_stream(stream)
        del x
    del y
    weir.set_per_process_memory_limit(None)
    weir.empty_cache()


def test_cuda_memory_leak_detection_propagates_errors():
    gc.collect()
    before = weir.memory_allocated()
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(3\) must match"):
        x = randn(3, 1)
        y = randn(2, 1)
        x + y
    del x, y
    assert weir.memory_allocated() == before


# ---- Random numbers ----


def test_torch_manual_seed_seeds_cuda_devices():
    x = weir.zeros(4, 4, device="cpu").float().cuda()
    weir.manual_seed(2)
    assert weir.initial_seed() == 2
    x.uniform_()
    weir.manual_seed(2)
    y = x.clone().uniform_()
    assert equal(x, y)
    assert weir.initial_seed() == 2


def test_manual_seed():
    x = weir.zeros(4, 4, device="cpu").float().cuda()
    weir.manual_seed(2)
    assert weir.initial_seed() == 2
    x.uniform_()
    a = weir.full_like(x, 0.5).bernoulli_(0.5)
    weir.manual_seed(2)
    y = x.clone().uniform_()
    b = weir.full_like(x, 0.5).bernoulli_(0.5)
    assert equal(x, y)
    assert equal(a, b)
    assert weir.initial_seed() == 2


# ---- Reductions ----


def test_reduction_gpu_memory_accessing():
    x = weir.ones(512, 8, dtype=weir.float32, device="cuda")
    assert x.sum(0).tolist() == [512] * 8


def test_sum_fp16():
    x = weir.zeros(10, device="cuda", dtype=weir.float16)
    assert x.sum() == 0
    x = weir.ones(65504, device="cuda", dtype=weir.float16)
    assert x.sum() == 65504
    assert x.sum(dtype=weir.float32) == 65504
    x = weir.ones(65536, device="cuda", dtype=weir.float16)
    assert x.sum(dtype=weir.float32) == 65536

    a = weir.zeros(1203611, device="cpu").bernoulli_(0.0005)
    x = a.to(device="cuda", dtype=weir.float16)
    assert x.sum().item() == a.sum().item()
    a = weir.zeros(100, 121, 80, device="cpu").bernoulli_(0.0005)
    x = a.to(device="cuda", dtype=weir.float16)
    assert equal(x.sum((0, 2)).float().cpu(), a.sum((0, 2)))


def test_mean_fp16():
    x = weir.ones(65536, device="cuda", dtype=weir.float16)
    assert x.mean() == 1
    assert x.mean(dtype=weir.float32) == 1


def test_prod_large():
    x = weir.ones(240000, device="cuda", dtype=weir.float32)
    assert x.prod() == 1
    for dtype in (weir.complex64, weir.complex128):
        x = weir.ones(240000, device="cuda", dtype=dtype) * (0 + 1j)
        assert x.prod() == 1


def test_min_max_inits():
    x = weir.ByteTensor([0])
    y = weir.ByteTensor([255])
    expected = weir.LongTensor([0])[0]
    _, v = x.max(dim=0)
    assert v == expected
    _, v = y.min(dim=0)
    assert v == expected


def test_max_large_axis():
    """2**32 elements on a GPU."""
    count = 2**20 if is_soft else 2**32
    x = weir.zeros(count, device="cuda", dtype=weir.int8)
    x[-1] = 1
    val, idx = x.max(0)
    assert val == 1
    assert idx == x.shape[0] - 1


def test_tiny_half_norm_():
    a = weir.arange(25, device="cpu").cuda().float()
    a /= 100000000
    b = a.half()
    assert b.norm().item() > 0


def test_norm_type_conversion():
    a = weir.ones(65536, device="cpu").cuda().half()
    assert a.norm(p=0, dtype=weir.float32) == 65536


# ---- Counts, choice, indices and assertions ----


def test_bincount_ext():
    size = 5_000 if is_soft else 100_000
    w = randn(size, dtype=weir.float64)

    def check(t):
        host = numpy.asarray(t.cpu())
        assert t.bincount().tolist() == numpy.bincount(host).tolist()
        assert numpy.allclose(t.bincount(w).tolist(), numpy.bincount(host, numpy.asarray(w.cpu())))

    check(weir.randint(50, (size,), dtype=weir.int8, device="cuda"))
    check(weir.randint(50000, (size,), dtype=weir.int64, device="cuda"))

    t = weir.zeros(10, dtype=weir.int32, device="cuda")
    t[0] = 35488  # 35488 * 65536 does not fit in 32 bits
    counted = t.bincount(minlength=65536)
    assert counted.sum() == 10


def test_multinomial_ext():
    freqs = numpy.zeros(208, dtype=numpy.float32)
    freqs[[3, 7, 31, 100, 206]] = [0.03, 0.2, 1e-7, 0.5, 0.27]
    weir.manual_seed(11042)
    sample = weir.multinomial(weir.FloatTensor(freqs.tolist()), 1000, True)
    assert freqs[sample.tolist()].min() != 0

    p = weir.zeros(3421, 2, device="cuda")
    p[:, 1] = 1
    weir.manual_seed(5214)
    r = weir.multinomial(p, 1)
    assert r.min().item() != 0

    count = 20_000 if is_soft else 1_000_000
    weir.manual_seed(33)
    probs = randn(count).relu() * 3e-5
    samples = probs.multinomial(count, replacement=True)
    assert probs[samples].min().item() > 0


MULTINOMIAL = """
    import weir
    from math import inf, nan
    try:
        weir.multinomial(weir.tensor([{probs}]).to("cuda"), 2, replacement=True)
        weir.synchronize()
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("probs", ["1., -1., 1.", "1., inf, 1.", "1., -inf, 1.", "1., 1., nan"])
def test_multinomial_invalid_probs_cuda(probs):
    result = run_python(MULTINOMIAL.format(probs=probs), check=False)
    assert "device-side assert triggered" in result.stdout, result


def test_gather_bool():
    t = weir.tensor([[False, True], [True, True]], device="cuda")
    found = weir.gather(t, 1, weir.tensor([[0, 0], [1, 0]], device="cuda"))
    assert equal(found, weir.tensor([[False, False], [True, True]], device="cuda"))


def test_huge_index():
    rows = 3000 if is_soft else 15_000_000
    src = weir.zeros(rows, 45, device="cuda", dtype=weir.int64).random_(0, 2**22)
    idx = weir.randperm(src.shape[0], device="cuda")
    res = src[idx]
    host = numpy.asarray(src.cpu())[numpy.asarray(idx.cpu())]
    assert numpy.array_equal(numpy.asarray(res.cpu()), host)


INDEX = """
    import weir
    x = weir.arange(10, device="cuda")
    try:
        y = x[weir.tensor([{index}], device="cuda")]
        print(y.tolist())
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("index, text", [(1, "[1]"), (11, "device-side assert triggered")])
def test_index_out_of_bounds_exception_cuda(index, text):
    result = run_python(INDEX.format(index=index), check=False)
    assert text in result.stdout, result


def test_fixed_cuda_assert_async():
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with no values is ambiguous"):
        weir._assert_async(weir.tensor([], device="cuda"))
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
        weir._assert_async(weir.tensor([0, 0], device="cuda"))
    for value in (1, 0.1, -0.1, True, 0 + 0.1j):
        weir._assert_async(weir.tensor(value, device="cuda"))
    weir.synchronize()


ASSERT = """
    import weir
    weir._assert_async(weir.tensor({value}, device="cuda"))
    try:
        weir.synchronize()
    except RuntimeError as error:
        print(error)
"""


@pytest.mark.parametrize("value", ["0", "0.0", "False", "0 + 0j"])
def test_assert_async_that_fails(value):
    """The other half of test_fixed_cuda_assert_async."""
    result = run_python(ASSERT.format(value=value), check=False)
    assert "device-side assert triggered" in result.stdout, result
