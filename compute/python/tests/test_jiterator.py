"""weir.jiterator, with the scenarios of PyTorch's test_jiterator.py."""

from __future__ import annotations

import cmath
import gc
from itertools import product

import pytest
from conftest import is_long, run_python

import weir
from weir.jiterator import _create_jit_fn, _create_multi_output_jit_fn

INTEGERS = [weir.uint8, weir.int8, weir.int16, weir.int32, weir.int64]
KINDS = [*INTEGERS, weir.float16, weir.bfloat16, weir.float32, weir.float64]
CODE = "template <typename T> T my_fused_kernel(T x, T y, T alpha, T beta) { return alpha * x + beta * y; }"
fused = _create_jit_fn(CODE, alpha=1, beta=1)


def numbers(kind, count=9):
    return weir.arange(1, count + 1, device="cuda").to(dtype=kind)


# Each pair of types is compiled, so the default form takes a few of them.
PAIRS = [pair for i, pair in enumerate(product(KINDS, KINDS)) if is_long or i in (7, 38, 52)]


@pytest.mark.parametrize("kinds", PAIRS, ids=lambda pair: f"{pair[0].name}-{pair[1].name}")
def test_types(kinds):
    a, b = numbers(kinds[0]).view(3, 3), numbers(kinds[1]).view(3, 3)
    result, expected = fused(a, b), a + b
    assert result.dtype is expected.dtype and result.tolist() == expected.tolist()
    a, b = a.t(), b[:, :1].as_strided((3, 1), (1, 3))
    result, expected = fused(a, b), a + b
    assert result.dtype is expected.dtype and result.shape == (3, 3) and result.tolist() == expected.tolist()


@pytest.mark.parametrize("kind", ["float32", "float16", "int64"] if is_long else ["float32"])
def test_extra_args(kind):
    a, b = numbers(kind, 3), numbers(kind, 3)
    for scalars in ({}, {"alpha": -1}, {"beta": 3}, {"alpha": 2, "beta": -4}):
        alpha, beta = scalars.get("alpha", 1), scalars.get("beta", 1)
        assert fused(a, b, **scalars).tolist() == (alpha * a + beta * b).tolist()
    assert fused(a.float(), b.float(), alpha=0.5).tolist() == [1.5, 3.0, 4.5]
    assert fused(a, b).tolist() == (a + b).tolist()  # defaults are kept


@pytest.mark.parametrize("kind", [weir.complex64, weir.complex128] if is_long else [weir.complex64])
def test_complex(kind):
    x = weir.asarray([1 + 2j, -3j, 0.5], device="cuda").to(dtype=kind)
    y = numbers(weir.float32, 3)
    result = fused(x, y, alpha=2 - 1j, beta=0.5)
    assert result.dtype is kind
    assert result.tolist() == [(2 - 1j) * a + 0.5 * b for a, b in zip(x.tolist(), y.tolist())]
    polar = _create_multi_output_jit_fn(
        "template <typename T> void polar_form(T z, bool turn, T &size, T &angle) {"
        "  size = abs(z); angle = turn ? T(arg(z)) : T(0, z.imag()); }",
        2,
        turn=True,
    )
    sizes, angles = polar(x)
    for z, size, angle in zip(x.tolist(), sizes.tolist(), angles.tolist()):
        assert abs(size - abs(z)) < 1e-6 and abs(angle - cmath.phase(z)) < 1e-6
    assert polar(x, turn=False)[1].tolist() == [2j, -3j, 0]


@pytest.mark.parametrize("is_train", [True, False])
def test_bool_extra_args(is_train):
    code = "template <typename T> T conditional(T x, T mask, bool is_train) { return is_train ? x * mask : x; }"
    conditional = _create_jit_fn(code, is_train=False)
    a, b = numbers(weir.float32), numbers(weir.float32)
    assert conditional(a, b, is_train=is_train).tolist() == (a * b if is_train else a).tolist()


def test_multiple_functors():
    code = """
    template <typename T> T fn(T x, T mask) { return x * mask; }
    template <typename T> T main_fn(T x, T mask, T y) { return fn(x, mask) + y; }
    """
    entry = _create_jit_fn(code)
    a = numbers(weir.float32)
    assert entry.kernel_name == "main_fn" and entry(a, a + 1, a + 2).tolist() == (a * (a + 1) + a + 2).tolist()


@pytest.mark.parametrize("count", [1, 5, 8] if is_long else [8])
def test_various_num_inputs(count):
    parameters = ", ".join(f"T i{i}" for i in range(count))
    total = " + ".join(f"i{i}" for i in range(count))
    add = _create_jit_fn(f"template <typename T> T my_kernel({parameters}) {{ return {total}; }}")
    inputs = [numbers(weir.float32) * i for i in range(count)]
    assert add(*inputs).tolist() == (numbers(weir.float32) * sum(range(count))).tolist()


@pytest.mark.parametrize("count", [1, 4, 8] if is_long else [1, 4])
def test_various_num_outputs(count):
    parameters = ", ".join(f"T& out{i}" for i in range(count))
    body = "".join(f"out{i} = input + {i}; " for i in range(count))
    code = f"template <typename T> void my_kernel(T input, {parameters}) {{ {body} }}"
    function = _create_multi_output_jit_fn(code, count)
    x = numbers(weir.float32)
    result = function(x)
    outputs = [result] if count == 1 else result
    assert function.num_outputs == len(outputs) == count
    assert [output.tolist() for output in outputs] == [(x + i).tolist() for i in range(count)]


@pytest.mark.parametrize(
    "code",
    [
        "template <typename T> T my _kernel(T x) { return x; }",
        "template <typename T> Tmy_kernel(T x) { return x; }",
        "int f(int x) { return x; }",
        "",
    ],
)
def test_invalid_function_name(code):
    with pytest.raises(Exception, match="Couldn't parse code, please check correctness"):
        _create_jit_fn(code)


def test_broadcasting():
    a = weir.arange(6, dtype=weir.float32, device="cuda").view(2, 1, 3)
    b = weir.arange(4, dtype=weir.float32, device="cuda").view(4, 1)
    assert fused(a, b).tolist() == (a + b).tolist() and fused(a, b.sum()).tolist() == (a + 6).tolist()
    assert fused(a[:, :, ::2], b).shape == (2, 4, 2) and fused(a[:0], b).shape == (0, 4, 3)
    assert fused(a.permute(2, 1, 0), b).tolist() == (a.permute(2, 1, 0) + b).tolist()


def test_errors():
    x = numbers(weir.float32)
    with pytest.raises(AssertionError, match="jiterator only supports up to 8 tensor inputs, got 9"):
        fused(*[x] * 9)
    with pytest.raises(KeyError, match="gamma is not declared in function definition"):
        fused(x, x, gamma=1)
    with pytest.raises(RuntimeError, match="must be on a device, but found at least one on cpu"):
        fused(x, x.cpu())
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(9\) must match the size of tensor b \(2\)"):
        fused(x, x[:2])
    with pytest.raises(TypeError, match="expected an Array"):
        fused(x, 1)
    with pytest.raises(TypeError, match="expected a number"):
        fused(x, x, alpha="a")
    with pytest.raises(RuntimeError, match="scalar 'alpha' is complex, but the computation is in 'float'"):
        fused(x, x, alpha=1j)
    with pytest.raises(RuntimeError, match="does not compile"):
        fused(x)
    with pytest.raises(RuntimeError, match="1 to 8"):
        _create_multi_output_jit_fn(CODE, 9)
    with pytest.raises(ValueError, match="up to 8 keyword arguments, got 9"):
        _create_jit_fn(CODE, **{f"s{i}": 1 for i in range(9)})


def test_two_devices(two_devices):
    x = weir.ones(3, device="cuda:1")
    assert fused(x, x).device.index == 1
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        fused(x, x.to("cuda:0"))


def test_streams_graphs_and_memory():
    x = numbers(weir.float32)
    fused(x, x)  # compiles
    gc.collect()
    before = weir.memory_allocated()
    side = weir.Stream()
    side.wait_stream(weir.current_stream())
    with weir.stream(side):
        y = fused(x, x)
    side.synchronize()
    assert y.tolist() == (x + x).tolist()
    graph = weir.CUDAGraph()
    with weir.graph(graph):
        z = fused(x, x, beta=2)
    x.zero_().add_(1)
    graph.replay()
    assert z.tolist() == [3] * 9
    del y, z, graph
    gc.collect()
    assert weir.memory_allocated() == before


def test_creation_starts_nothing():
    run_python(f"""
        import weir
        from weir.jiterator import _create_jit_fn
        _create_jit_fn({CODE!r}, alpha=1, beta=1)
        assert not weir.is_initialized()
    """)
