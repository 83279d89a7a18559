"""weir.nn: functions that need no gradients, and parameters."""

from __future__ import annotations

import math

import pytest

import weir
from weir import _C, nn
from weir.nn import functional as F


@pytest.fixture(autouse=True)
def seeded():
    weir.manual_seed(7)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_dropout(device, p):
    x = weir.full((20000,), 3.0, device=device)
    y = F.dropout(x, p)
    kept = y != 0
    assert abs(kept.float().mean().item() - (1 - p)) < 0.02
    expected = 3 / (1 - p) if p < 1 else 0
    assert weir.allclose(y, weir.where(kept, weir.full_like(x, expected), weir.zeros_like(x)))
    assert (x == 3).all().item(), "the input is unchanged"
    assert F.dropout(x, p, training=False) is x
    assert F.dropout(x, p, inplace=True) is x and abs((x != 0).float().mean().item() - (1 - p)) < 0.02


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_dropout_refuses_what_is_no_probability(p):
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        F.dropout(weir.ones(3), p)


def test_a_graph_draws_a_new_mask_at_each_replay():
    weir.manual_seed(5)
    x = weir.ones(1000, device="cuda")
    expected = [F.dropout(x, 0.5).tolist() for _ in range(3)]
    weir.manual_seed(5)
    graph, stream = weir.CUDAGraph(), weir.Stream()
    with weir.stream(stream):
        graph.capture_begin()
        y = F.dropout(x, 0.5)
        graph.capture_end()
    found = []
    for _ in range(3):
        graph.replay()
        found.append(y.tolist())
    assert found == expected and expected[0] != expected[1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_rrelu(device):
    x = weir.randn(10000, device=device)
    y = F.rrelu(x, 0.25, 0.5, training=True)
    positive = x > 0
    slope = (y / x).tolist()
    assert all(s == 1 if p else 0.25 <= s + 1e-6 and s < 0.5 + 1e-6 for s, p in zip(slope, positive.tolist()))
    assert len({round(s, 3) for s in slope}) > 100, "the slopes are random"
    assert weir.allclose(F.rrelu(x, 0.25, 0.5), weir.where(positive, x, x * 0.375))
    with pytest.raises(RuntimeError, match="Lower bound should be"):
        F.rrelu(x, 0.5, 0.25)
    assert F.rrelu(x, 0.5, 0.5, inplace=True) is x and x.min().item() < 0


def test_linear():
    layer = nn.Linear(3, 2)
    assert tuple(layer.weight.shape) == (2, 3) and tuple(layer.bias.shape) == (2,)
    assert layer.weight.abs().max().item() <= 1 / math.sqrt(3)
    x = weir.randn(4, 5, 3)
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    rows = [[sum(a * b for a, b in zip(row, w)) + c for w, c in zip(weight, bias)] for row in x.reshape(20, 3).tolist()]
    assert weir.allclose(layer(x), weir.tensor(rows).reshape(4, 5, 2), rtol=1e-5, atol=1e-6)
    assert layer.cuda() is layer and layer.weight.is_cuda and isinstance(layer.bias, nn.Parameter)
    assert weir.allclose(layer(x.cuda()).cpu(), weir.tensor(rows).reshape(4, 5, 2), rtol=1e-4, atol=1e-5)
    assert nn.Linear(3, 2, bias=False).bias is None and repr(layer) == "Linear(in_features=3, out_features=2, bias=True)"


def test_linear_under_autocast_casts_its_weight_once():
    layer, x = nn.Linear(64, 64, device="cuda"), weir.randn(8, 64, device="cuda")
    with weir.autocast("cuda"), weir.no_grad():
        assert layer(x).dtype is weir.float16
        used = weir.memory_allocated()
        for _ in range(3):
            layer(x)
        assert weir.memory_allocated() == used
    assert weir.memory_allocated() < used, "the casts end with the region"


def test_binary_cross_entropy():
    p, t = [0.0, 0.2, 0.7, 1.0], [0.0, 1.0, 0.5, 0.0]
    expected = [0, -math.log(0.2), -(math.log(0.7) + math.log(0.3)) / 2, 100]
    x, y = weir.tensor(p, device="cuda"), weir.tensor(t, device="cuda")
    assert F.binary_cross_entropy(x, y, reduction="none").tolist() == pytest.approx(expected)
    assert F.binary_cross_entropy(x, y).item() == pytest.approx(sum(expected) / 4)
    assert F.binary_cross_entropy(x, y, weir.tensor([1.0, 2, 3, 0], device="cuda"), "sum").item() == pytest.approx(
        2 * expected[1] + 3 * expected[2])
    assert _C._nn.binary_cross_entropy(x, y, None, nn._reduction.get_enum("sum")).item() == pytest.approx(sum(expected))
    with pytest.raises(ValueError, match="not a valid value for reduction"):
        F.binary_cross_entropy(x, y, reduction="max")
    with pytest.raises(ValueError, match="Using a target size"):
        F.binary_cross_entropy(x, y[:2])
    with weir.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, y)


@pytest.mark.parametrize("kernel, stride, padding", [(1, None, 0), (2, None, 0), ((2, 3), 1, 0), (3, (2, 1), 1)])
def test_avg_pool2d(kernel, stride, padding):
    x = weir.randn(2, 3, 7, 8).narrow(2, 1, 6)
    kh, kw = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    sh, sw = (kh, kw) if stride is None else stride if isinstance(stride, tuple) else (stride, stride)

    def at(plane, row, column):
        inside = 0 <= row < len(plane) and 0 <= column < len(plane[0])
        return plane[row][column] if inside else 0.0

    def pooled(plane):
        rows, columns = (6 + 2 * padding - kh) // sh + 1, (8 + 2 * padding - kw) // sw + 1
        return [[sum(at(plane, r * sh + i - padding, c * sw + k - padding) for i in range(kh) for k in range(kw))
                 / (kh * kw) for c in range(columns)] for r in range(rows)]

    expected = weir.tensor([[pooled(plane) for plane in image] for image in x.tolist()])
    assert weir.allclose(F.avg_pool2d(x, kernel, stride, padding), expected, atol=1e-6)
    assert weir.allclose(F.avg_pool2d(x.cuda(), kernel, stride, padding).cpu(), expected, atol=1e-6)
    assert weir.allclose(F.avg_pool2d(x[0], kernel, stride, padding), expected[0], atol=1e-6)


@pytest.mark.parametrize("arguments", [(0,), (2, 0), (2, 2, 2), (2, 2, -1), (9,)])
def test_avg_pool2d_refuses(arguments):
    with pytest.raises(RuntimeError):
        F.avg_pool2d(weir.ones(1, 4, 4), *arguments)
    with pytest.raises(RuntimeError, match="3D or 4D"):
        F.avg_pool2d(weir.ones(4, 4), 2)


def test_a_parameter_in_a_file(tmp_path):
    saved = [nn.Parameter(weir.randn(10, 10, device="cuda"))]
    weir.save(saved, tmp_path / "file", _use_new_zipfile_serialization=False)
    (found,) = weir.load(tmp_path / "file")
    assert isinstance(found, nn.Parameter) and weir.equal(found.data, saved[0].data)
    with pytest.raises(RuntimeError, match="Invalid device string"):
        weir.load(tmp_path / "file", "cuda0")


def test_no_grad_is_a_region_and_a_decorator():
    @weir.no_grad()
    def double(x):
        return x + x

    with weir.no_grad():
        assert double(weir.ones(2)).tolist() == [2, 2]
    with pytest.raises(ZeroDivisionError), weir.no_grad():
        1 / 0  # noqa: B018
