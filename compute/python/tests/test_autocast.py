"""Autocast: the tests of PyTorch's test_cuda.py by name, for the operations that arrays have, and the state of threads.

Operations that PyTorch has and weir.Array has not, such as layers and losses, are functions with a policy here.
"""

from __future__ import annotations

import gc
import threading

import pytest
from conftest import is_soft, run_python
from memory_tools import cleaned  # noqa: F401

import weir
from weir.amp import Parameter, autocast, cast_policy

N = 8


@pytest.fixture(autouse=True)
def no_region():
    """A test begins and ends outside of all regions."""
    yield
    for device in ("cuda", "cpu"):
        assert not weir.is_autocast_enabled(device)
    assert (weir.get_autocast_dtype("cuda"), weir.get_autocast_dtype("cpu")) == (weir.float16, weir.bfloat16)
    assert weir.is_autocast_cache_enabled()
    assert weir.autocast_increment_nesting() == 1 and weir.autocast_decrement_nesting() == 0


def randn(*shape, dtype=weir.float32, device="cuda"):
    return weir.randn(*shape, device=device).to(dtype)


def vector16(low=None, high=None):
    array = randn(N, dtype=weir.float16)
    return array if low is None else array.clamp(low, high)


def matrix(dtype=weir.float32):
    return randn(N, N, dtype=dtype)


def cast(value, dtype):
    if isinstance(value, weir.Array):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast(item, dtype) for item in value)
    return value


def same(first, second):
    if isinstance(first, weir.Array):
        return first.dtype is second.dtype and weir.equal(first, second)
    return first == second


def run_outofplace(op, args, run_as, *, out=None, keywords=None, device="cuda", dtype=weir.float16):
    """Runs an operation in a region, as a function and as a method where it is one, and compares the result with that
    of casts by hand. `op` is a name or a function."""
    keywords = keywords or {}
    out = run_as if out is None else out
    forms = []
    if callable(op):
        forms.append(op)
    else:
        if hasattr(weir, op) and not op.startswith("__"):
            forms.append(getattr(weir, op))
        if hasattr(weir.Array, op):
            forms.append(getattr(weir.Array, op))
    assert forms, op
    assert not weir.is_autocast_enabled(device)
    with autocast(device, dtype=dtype):
        assert weir.is_autocast_enabled(device)
        for form in forms:
            output = form(*args, **keywords)
            if isinstance(output, weir.Array):
                assert output.dtype is out, (op, output.dtype)
            with autocast(device, enabled=False):
                assert not weir.is_autocast_enabled(device)
                control = form(*cast(args, run_as), **keywords)
            if op in ("sum", "prod"):  # the order of additions depends on the type of the input
                assert weir.allclose(output, control, rtol=1e-5, atol=1e-6), op
                control = form(*args, **keywords, dtype=run_as)
            assert same(output, control), op
        assert weir.is_autocast_enabled(device)


def lower_precision():
    """Operations that run in the type of the region, with their arguments."""
    return [
        ("matmul", (matrix(), matrix())),
        ("mm", (matrix(), matrix())),
        ("mv", (matrix(), randn(N))),
        ("bmm", (randn(3, N, N), randn(3, N, N))),
        ("matmul", (randn(3, N, N), matrix())),
        ("matmul", (matrix(weir.float16), matrix())),
        ("matmul", (matrix(weir.bfloat16), matrix())),
        ("matmul", (randn(N), randn(N))),
    ]


def test_autocast_torch_fp16():
    for op, args in lower_precision():
        run_outofplace(op, args, weir.float16)


def test_autocast_torch_bf16():
    for op, args in lower_precision():
        run_outofplace(op, args, weir.bfloat16, dtype=weir.bfloat16)


@pytest.mark.skipif(not is_soft, reason="the software device has any capability")
def test_bf16_is_not_supported():
    code = """
        import warnings; warnings.simplefilter("ignore")
        import weir
        try:
            weir.amp.autocast("cuda", dtype=weir.bfloat16)
        except RuntimeError as error:
            assert str(error) == "Current CUDA Device does not support bfloat16. Please switch dtype to float16."
        else:
            raise SystemExit("not refused")
        assert not weir.amp.autocast("cuda", dtype=weir.bfloat16, enabled=False)._enabled
        """
    run_python(code, WEIR_SOFT_CAPABILITY="7.0")


def test_autocast_torch_fp32():
    positive = vector16(0.1, 100)
    cases = [
        ("exp", (vector16(),)),
        ("expm1", (vector16(),)),
        ("log", (positive,)),
        ("log10", (positive,)),
        ("log2", (positive,)),
        ("log1p", (vector16(-0.9, 100),)),
        ("reciprocal", (vector16(),)),
        ("rsqrt", (positive,)),
        ("tan", (vector16(-1.5, 1.5),)),
        ("pow", (positive, vector16())),
        ("pow", (positive, 1.7)),
        ("norm", (vector16(),)),
        ("norm", (vector16(),), {"dim": 0}),
        ("norm", (vector16(),), {"p": 1}),
        ("norm", (vector16(),), {"p": 3, "dim": 0}),
        ("prod", (vector16(),)),
        ("prod", (vector16(), 0)),
        ("sum", (vector16(),)),
        ("sum", (matrix(weir.float16), 1)),
    ]
    for op, args, *keywords in cases:
        run_outofplace(op, args, weir.float32, keywords=keywords[0] if keywords else None)
        bf16 = tuple(arg.to(weir.bfloat16) if isinstance(arg, weir.Array) else arg for arg in args)
        run_outofplace(op, bf16, weir.float32, keywords=keywords[0] if keywords else None)
    with autocast("cuda"):
        # An explicit dtype is kept.
        assert vector16().sum(dtype=weir.float16).dtype is weir.float16
        assert vector16().norm(dtype=weir.float16).dtype is weir.float16
        # The range is that of float32.
        large = weir.full((4,), 300.0, dtype=weir.float16, device="cuda")
        assert weir.equal(large.pow(2), weir.full((4,), 90000.0, device="cuda"))
        # Other operations are as they were.
        for op in ("mean", "sqrt", "sin", "tanh", "abs", "amax"):
            assert getattr(positive, op)().dtype is weir.float16, op
        # So are operations in place.
        assert positive.clone().exp_().dtype is weir.float16
        assert positive.clone().pow_(2).dtype is weir.float16


def test_autocast_torch_need_autocast_promote():
    run_outofplace("dot", (vector16(), randn(N)), weir.float32)
    run_outofplace("dot", (randn(N), vector16()), weir.float32)
    run_outofplace("dot", (vector16(), vector16()), weir.float16)
    addcmul = cast_policy("promote")(lambda a, b, c: a + b * c)
    run_outofplace(addcmul, (randn(N), vector16(), vector16()), weir.float32)
    run_outofplace(addcmul, (vector16(), vector16(), vector16()), weir.float16)
    with autocast("cuda"):
        for function in (weir.Array.dot, addcmul):
            args = [vector16(), randn(N, dtype=weir.bfloat16), vector16()][: 2 if function is weir.Array.dot else 3]
            with pytest.raises(RuntimeError, match="Unexpected floating ScalarType in at::autocast::prioritize"):
                function(*args)
    with pytest.raises(RuntimeError):
        vector16().dot(randn(N))


PROMOTES = [("add", weir.float32), ("div", weir.float32), ("mul", weir.float32)]
COMPARES = [(name, weir.bool) for name in ("eq", "ge", "gt", "le", "lt", "ne")]


def test_autocast_torch_expect_builtin_promote():
    for op, out in COMPARES + PROMOTES:
        run_outofplace(op, (randn(N), vector16()), weir.float32, out=out)
    for op in ("cat", "stack"):
        run_outofplace(op, ([vector16(), randn(N)],), weir.float32)
    run_outofplace("equal", (randn(N), vector16()), weir.float32)
    run_outofplace("where", (randn(N) > 0, randn(N), vector16()), weir.float32)


# What a program writes for layers and losses that weir.Array does not have.
@cast_policy("lower_precision_fp")
def linear(input, weight, bias):
    return input @ weight.T + bias


@cast_policy("fp32")
def mse_loss(input, target):
    return (input - target).square().mean()


@cast_policy("fp32")
def softplus(input):
    return input.exp().log1p()


@cast_policy("fp32")
def softmax(input, dim):
    powers = (input - input.amax(dim, True)).exp()
    return powers / powers.sum(dim, True)


@cast_policy("lower_precision_fp")
def multi_dot(arrays):
    result = arrays[0]
    for array in arrays[1:]:
        result = result.mm(array)
    return result


BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "Many models use a sigmoid layer right before the binary cross entropy layer."
)


@cast_policy("banned", message=BANNED)
def binary_cross_entropy(input, target):
    return -(target * input.log() + (1 - target) * (1 - input).log()).mean()


@cast_policy("banned")
def no_message(input):
    return input


def test_autocast_nn_fp16():
    run_outofplace(linear, (matrix(), matrix(), matrix()), weir.float16)


def test_autocast_nn_bf16():
    run_outofplace(linear, (matrix(), matrix(), matrix()), weir.bfloat16, dtype=weir.bfloat16)


def test_autocast_nn_fp32():
    run_outofplace(softplus, (vector16(),), weir.float32)
    run_outofplace(mse_loss, (matrix(weir.float16), matrix(weir.float16)), weir.float32)
    run_outofplace(softmax, (matrix(weir.float16), 1), weir.float32)


def test_autocast_linalg_fp16():
    run_outofplace(multi_dot, ((matrix(), matrix(), matrix()),), weir.float16)


def test_autocast_methods_fp16():
    run_outofplace("__matmul__", (matrix(), matrix()), weir.float16)
    with autocast("cuda"):
        assert (matrix() @ matrix()).dtype is weir.float16


def test_autocast_methods_fp32():
    run_outofplace("__pow__", (weir.rand(N, device="cuda").half(), 1.5), weir.float32)
    run_outofplace("__rpow__", (weir.rand(N, device="cuda").half(), 1.5), weir.float32)
    run_outofplace("__rtruediv__", (vector16(0.1, 10), 1.5), weir.float32)
    run_outofplace("__rtruediv__", (vector16(0.1, 10).to(weir.bfloat16), 2), weir.float32)
    with autocast("cuda"):
        x = vector16(0.1, 10)
        assert (x**2).dtype is weir.float32 and (2**x).dtype is weir.float32
        # A number divided by an array is a reciprocal; other quotients are promoted.
        small = weir.full((4,), 6e-6, dtype=weir.float16, device="cuda")
        assert weir.equal(1 / small, small.reciprocal()) and 160000 < (1 / small)[0].item() < 180000
        assert (x / 2).dtype is (x / x).dtype is x.div(2).dtype is weir.float16
        assert (1 / x.double()).dtype is weir.float64 and (1 / x.cpu()).dtype is weir.float16
        with pytest.raises(TypeError):
            "a" / x
        x **= 2
        assert x.dtype is weir.float16
        x /= 2
        assert x.dtype is weir.float16
    assert (1 / x).dtype is weir.float16


def test_autocast_methods_expect_builtin_promote():
    for op, out in COMPARES + [("add", weir.float32), ("truediv", weir.float32), ("mul", weir.float32)]:
        run_outofplace(f"__{op}__", (randn(N), vector16()), weir.float32, out=out)


def test_autocast_banned():
    args = (weir.rand(N, N, device="cuda"), weir.rand(N, N, device="cuda"))
    with autocast("cuda"):
        with pytest.raises(RuntimeError, match="are unsafe to autocast"):
            binary_cross_entropy(*args)
        with autocast("cuda", enabled=False):
            assert binary_cross_entropy(*args).dtype is weir.float32
        assert binary_cross_entropy(*(arg.cpu() for arg in args)).dtype is weir.float32
        with pytest.raises(RuntimeError, match="no_message is unsafe to autocast."):
            no_message(args[0])
    assert binary_cross_entropy(*args).dtype is weir.float32


@pytest.mark.parametrize("kind", [weir.float64, weir.int32, weir.complex64])
def test_autocast_ignored_types(kind):
    a = weir.ones(N, N, dtype=kind, device="cuda")
    b = weir.ones(N, N, dtype=kind, device="cuda")
    c = weir.ones(N, N, dtype=weir.float16, device="cuda")
    with autocast("cuda"):
        if kind is not weir.int32:
            with pytest.raises(RuntimeError):
                weir.mm(a, c)
            assert weir.mm(a, b).dtype is kind
            assert a.norm().dtype is (weir.float64 if kind is weir.float64 else weir.float32)
        for op in (lambda x: x.pow(2.0), lambda x: x.sum(), lambda x: x.prod(), lambda x: x.exp()):
            with autocast("cuda", enabled=False):
                type_no_autocast = op(a).dtype
            assert op(a).dtype is type_no_autocast


# ---- The cache ----


def test_autocast_cache_leak(cleaned):  # noqa: F811
    weight, bias = Parameter(randn(10, 10)), Parameter(randn(10))
    data = randn(1, 10)
    out = None
    with autocast("cuda"):
        out = linear(data, weight, bias)
        first_iter_mem = weir.memory_allocated()
        for _ in range(3):
            out = linear(data, weight, bias)
        assert weir.memory_allocated() == first_iter_mem
    del out
    gc.collect()


def casts_of(weight, count=3, **region):
    """How many casts of an array `count` products need."""
    data = randn(4, 4, dtype=weir.float16)
    with autocast("cuda", **region):
        before = weir.memory_stats()["allocation.all.allocated"]
        for _ in range(count):
            data @ weight
        return weir.memory_stats()["allocation.all.allocated"] - before - count


def test_what_is_cached():
    plain, weight = randn(4, 4), Parameter(randn(4, 4))
    randn(4, 4, dtype=weir.float16) @ plain.half()  # makes the workspace of the products
    assert casts_of(plain) == 3
    assert casts_of(weight) == 1
    assert casts_of(weight, dtype=weir.bfloat16) == 1 + 3  # float16 data is cast each time
    assert casts_of(weight, cache_enabled=False) == 3
    assert casts_of(weight.T) == 3  # a view is a plain array
    assert casts_of(Parameter(randn(4, 4).double().float()), count=5) == 1


def test_cache_ends_with_the_outermost_region():
    weight = Parameter(weir.ones(2, 2, device="cuda"))
    data = weir.ones(2, 2, dtype=weir.float16, device="cuda")
    with autocast("cuda"):
        with autocast("cuda"):
            assert (data @ weight)[0, 0].item() == 2
        weight.fill_(5)
        assert (data @ weight)[0, 0].item() == 2  # the cast was kept
        weir.clear_autocast_cache()
        assert (data @ weight)[0, 0].item() == 10
        weight.fill_(7)
    with autocast("cuda"):
        assert (data @ weight)[0, 0].item() == 14


def test_cache_of_a_dead_parameter():
    data = weir.ones(2, 2, dtype=weir.float16, device="cuda")
    with autocast("cuda"):
        for value in range(50):  # later ones have the addresses of earlier ones
            weight = Parameter(weir.full((2, 2), float(value), device="cuda"))
            assert (data @ weight)[0, 0].item() == 2 * value
            del weight


def test_cache_of_streams():
    """A cast that was made on one stream is not used on another, which is not ordered after it."""
    weight = Parameter(weir.ones(64, 64, device="cuda"))
    data = weir.ones(64, 64, dtype=weir.float16, device="cuda")
    weir.synchronize()
    first, second = weir.Stream(), weir.Stream()
    with autocast("cuda"):
        with weir.stream(first):
            weir._sleep(2_000_000 if is_soft else 50_000_000)
            a = data @ weight
        with weir.stream(second):
            b = data @ weight
            assert b[3, 3].item() == 64
        first.synchronize()
        assert a[3, 3].item() == 64


def test_no_cache_in_captures():
    weight = Parameter(weir.ones(4, 4, device="cuda"))
    data = weir.ones(4, 4, dtype=weir.float16, device="cuda")
    stream, graph = weir.Stream(), weir.CUDAGraph()
    data @ data
    weir.synchronize()
    with weir.stream(stream):
        data @ data
        stream.synchronize()
        with autocast("cuda"):
            data @ weight
            graph.capture_begin()
            result = data @ weight
            graph.capture_end()
        for value in (3.0, 4.0):
            weight.fill_(value)
            graph.replay()
            assert result[0, 0].item() == 4 * value
    with autocast("cuda"), pytest.raises(RuntimeError, match="does not support the autocast caching"):
        weir.make_graphed_callables(lambda x: x @ x, (data,))
    with autocast("cuda", cache_enabled=False):
        assert weir.make_graphed_callables(lambda x: x @ x, (data,))(data).dtype is weir.float16


# ---- Regions ----


def test_nesting():
    a = matrix()
    with autocast("cuda"):
        e = a @ a
        assert e.dtype is weir.float16
        with autocast("cuda", enabled=False):
            assert (a @ e.float()).dtype is weir.float32
            with pytest.raises(RuntimeError):
                a @ e
            with autocast("cuda", dtype=weir.bfloat16):
                assert (a @ e).dtype is weir.bfloat16
                assert weir.get_autocast_dtype("cuda") is weir.bfloat16
        assert (a @ e).dtype is weir.float16
        with pytest.raises(ZeroDivisionError), autocast("cuda", enabled=False):
            raise ZeroDivisionError
        assert weir.is_autocast_enabled("cuda")
    assert (a @ a).dtype is weir.float32


def test_decorator():
    region = autocast("cuda")

    @region
    def product(a, depth=0):
        """Multiplies."""
        assert weir.is_autocast_enabled()
        return product(a, depth - 1) if depth else a @ a

    assert product.__name__ == "product" and product.__doc__ == "Multiplies."
    assert product(matrix(), depth=3).dtype is weir.float16
    assert product(matrix()).dtype is weir.float16
    # The same object in several threads.
    results, barrier = [], threading.Barrier(4)

    @region
    def wait():
        barrier.wait(60)
        results.append(weir.is_autocast_enabled())

    def work():
        wait()
        results.append(not weir.is_autocast_enabled())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


def test_threads_have_their_own_state():
    found = []

    def work():
        found.append((weir.is_autocast_enabled("cuda"), weir.get_autocast_dtype("cuda")))
        with autocast("cpu"):
            found.append(weir.is_autocast_enabled("cuda"))

    with autocast("cuda", dtype=weir.bfloat16):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not weir.is_autocast_enabled("cpu")
    assert found == [(False, weir.float16), False]


def test_cpu():
    a, v = weir.randn(N, N), weir.randn(N)
    with autocast("cpu"):
        assert not weir.is_autocast_enabled("cuda") and weir.is_autocast_enabled("cpu")
        assert a.matmul(a).dtype is a.mm(a).dtype is weir.bfloat16
        assert a.mv(v).dtype is v.dot(v).dtype is weir.float32
        assert a.half().prod().dtype is weir.float32
        for op in ("exp", "log1p", "sum", "norm", "reciprocal"):
            assert getattr(a.half(), op)().dtype is weir.float16, op
        assert (a.half() ** 2).dtype is (1 / a.half()).dtype is weir.float16
        assert (matrix() @ matrix()).dtype is weir.float32  # on a device
    run_outofplace("mm", (a, a), weir.float16, device="cpu", dtype=weir.float16)
    with autocast("cuda"):
        assert (a @ a).dtype is weir.float32
        with autocast("cpu"):
            assert (a @ a).dtype is weir.bfloat16 and (matrix() @ matrix()).dtype is weir.float16


def test_dtypes():
    text = (
        "In CPU autocast, but the target dtype is not supported. Disabling autocast.\n"
        "CPU Autocast only supports dtypes of weir.bfloat16, weir.float16 currently."
    )
    for kind in (weir.float32, weir.float64, weir.int32):
        with pytest.warns(UserWarning) as caught:
            region = autocast("cpu", dtype=kind)
        assert [str(one.message) for one in caught] == [text] and caught[0].filename == __file__
        with region:
            assert not weir.is_autocast_enabled("cpu")
    with pytest.warns(UserWarning, match="In CUDA autocast, but the target dtype is not supported"):
        autocast("cuda", dtype=weir.float64)
    with autocast("cuda", dtype=weir.float32):  # as in PyTorch
        assert (matrix(weir.float16) @ matrix()).dtype is weir.float32
    assert autocast("cuda", dtype="bfloat16").fast_dtype is weir.bfloat16


def test_wrong_arguments():
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`, got: `<class 'int'>`"):
        autocast(3)
    with pytest.raises(RuntimeError, match="User specified an unsupported autocast device_type 'tpu'"):
        autocast("tpu")
    assert weir.amp.is_autocast_available("cuda") and weir.amp.is_autocast_available("cpu")
    assert not weir.amp.is_autocast_available("tpu")
    for function in (weir.get_autocast_dtype, weir.is_autocast_enabled):
        with pytest.raises(RuntimeError, match="unsupported autocast device_type"):
            function("tpu")
        with pytest.raises(TypeError):
            function(3)
    for args in ((), ("cuda",), ("cuda", 1), ("cuda", True, True)):
        with pytest.raises(TypeError):
            weir.set_autocast_enabled(*args)
    with pytest.raises(TypeError):
        weir.set_autocast_cache_enabled(1)
    with pytest.raises(TypeError):
        weir.set_autocast_dtype("cuda", "half16")
    with pytest.raises(TypeError):
        weir.amp.is_autocast_available(3)
    with pytest.raises(ValueError, match="expected a policy of lower_precision_fp, fp32, promote, banned, got 'fp8'"):
        cast_policy("fp8")
    with pytest.raises(RuntimeError):
        cast_policy("fp32", "tpu")
    with pytest.raises(TypeError):
        randn(N)._dot(3)


def test_state_functions():
    weir.set_autocast_enabled(True)
    assert weir.is_autocast_enabled() and (matrix() @ matrix()).dtype is weir.float16
    weir.set_autocast_enabled("cuda", False)
    weir.set_autocast_dtype("cuda", weir.bfloat16)
    assert weir.get_autocast_dtype("cuda:0") is weir.bfloat16
    weir.set_autocast_dtype("cuda", weir.float16)
    weir.set_autocast_cache_enabled(False)
    assert not weir.is_autocast_cache_enabled() and not autocast("cuda")._cache_enabled
    weir.set_autocast_cache_enabled(True)
    assert weir.autocast is autocast


def test_cuda_autocast_deprecated_warning():
    text = (
        r"`weir.amp.autocast\(args...\)` is deprecated. Please use `weir.amp.autocast\('cuda', args...\)` instead."
    )
    with pytest.warns(FutureWarning, match=text) as caught:
        with autocast():
            assert (matrix() @ matrix()).dtype is weir.float16
    assert caught[0].filename == __file__
    for args, keywords, expected in (
        ((False,), {}, (False, weir.float16, True)),
        ((True, weir.bfloat16, False), {}, (True, weir.bfloat16, False)),
        ((), {"dtype": weir.bfloat16}, (True, weir.bfloat16, True)),
        ((), {"enabled": False, "cache_enabled": False}, (False, weir.float16, False)),
    ):
        with pytest.warns(FutureWarning, match=text):
            region = autocast(*args, **keywords)
        assert (region._enabled, region.fast_dtype, region._cache_enabled, region.device) == (*expected, "cuda")
    autocast(device_type="cuda")  # no warning
