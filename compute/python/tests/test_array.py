"""weir.Array: attributes, views, conversions, arithmetic and exchange, on the host and on a device."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import math
import pickle
import random
import threading

import pytest
from conftest import is_long, is_sanitized, is_soft, resident_bytes, run_python

import weir

try:
    import numpy
except ImportError:
    numpy = None

needs_numpy = pytest.mark.skipif(numpy is None, reason="needs NumPy")
places = pytest.mark.parametrize("device", ["cpu", "cuda"])

DTYPES = [
    weir.uint8,
    weir.int8,
    weir.int16,
    weir.int32,
    weir.int64,
    weir.float16,
    weir.bfloat16,
    weir.float32,
    weir.float64,
    weir.complex64,
    weir.complex128,
    weir.bool,
]


# ---- Types and devices ----


def test_dtypes():
    assert repr(weir.float32) == "weir.float32" and weir.float32.name == "float32"
    assert weir.float is weir.float32 and weir.long is weir.int64 and weir.half is weir.float16
    assert [kind.itemsize for kind in DTYPES] == [1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16, 1]
    assert weir.float16.is_floating_point and not weir.int8.is_floating_point and weir.complex64.is_complex
    assert weir.int8.is_signed and not weir.uint8.is_signed and not weir.bool.is_signed
    for kind in DTYPES:
        assert pickle.loads(pickle.dumps(kind)) is kind and copy.deepcopy(kind) is kind
        assert weir.zeros(2, dtype=kind.name).dtype is kind and weir.zeros(2, dtype=f"torch.{kind.name}").dtype is kind
    assert weir.zeros(1, dtype=float).dtype is weir.float64 and weir.zeros(1, dtype=int).dtype is weir.int64
    with pytest.raises(TypeError, match="expected a dtype"):
        weir.zeros(1, dtype="float31")
    assert weir.promote_types(weir.int8, weir.float16) is weir.float16


def test_devices():
    assert weir.zeros(1).device == weir.Device("cpu") and str(weir.zeros(1).device) == "cpu"
    assert weir.Device("cpu").index is None and weir.Device("cpu").type == "cpu"
    assert repr(weir.Device("cpu")) == "device(type='cpu')"
    assert pickle.loads(pickle.dumps(weir.Device("cpu"))) == weir.Device("cpu")
    x = weir.zeros(1, device="cuda")
    assert x.device == weir.Device("cuda:0") and x.is_cuda and x.get_device() == 0
    for device in (0, "cuda:0", weir.Device("cuda:0"), weir.device(0)):
        assert weir.zeros(1, device=device).device == x.device
    with pytest.raises(ValueError, match="Expected a cuda device"):
        weir.set_device(weir.Device("cpu"))
    with pytest.raises(RuntimeError, match="Invalid device string: 'cuda0'"):
        weir.zeros(1, device="cuda0")


def test_two_devices(two_devices):
    x = weir.arange(6, device="cuda:1")
    assert x.get_device() == 1 and x.sum().device.index == 1
    y = x.to("cuda:0")
    assert y.tolist() == x.tolist() and y.device.index == 0
    with weir.device(1):
        assert weir.zeros(1, device="cuda").get_device() == 1
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + y


def test_empty():
    """The sizes, the dtype and the device mean what they mean in torch.empty."""
    x = weir.empty(10)
    assert isinstance(x, weir.Array) and x.shape == (10,) and x.dtype is weir.float32 and x.device.type == "cpu"
    assert weir.empty(10, device="cuda").nbytes == 40
    assert weir.empty(10, pin_memory=True).is_pinned()
    assert weir.empty((2, 3)).shape == (2, 3) and weir.empty(2, 3).shape == (2, 3) and weir.empty(()).shape == ()
    assert weir.empty(4, dtype=weir.int8, device="cuda").dtype is weir.int8


# ---- Attributes and views ----


@places
def test_attributes(device):
    x = weir.arange(24, dtype=weir.float32, device=device).view(2, 3, 4)
    assert x.shape == (2, 3, 4) == x.size() and isinstance(x.shape, weir.Size)
    assert repr(x.shape) == "weir.Size([2, 3, 4])" and x.shape.numel() == 24
    assert x.size(-1) == 4 and x.stride() == (12, 4, 1) and x.stride(0) == 12 and x.dim() == x.ndim == 3
    assert x.numel() == 24 and x.element_size() == x.itemsize == 4 and x.nbytes == 96 and len(x) == 2
    assert x.is_contiguous() and not x.transpose(0, 2).is_contiguous()
    view = x[1, 1:]
    assert view.storage_offset() == 16 and view.data_ptr() == x.data_ptr() + 64 and view.shape == (2, 4)
    assert view.untyped_storage() is x.untyped_storage()
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be in range of \[-3, 2\], but got 3\)"):
        x.size(3)


@places
def test_views(device):
    x = weir.arange(24, device=device).view(2, 3, 4)
    assert x.permute(2, 0, 1).shape == (4, 2, 3) and x.T.shape == (4, 3, 2) and x.mT.shape == (2, 4, 3)
    assert x.transpose(0, -1).tolist() == [[[x[k, j, i].item() for k in range(2)] for j in range(3)] for i in range(4)]
    assert x.reshape(6, -1).shape == (6, 4) and x.flatten().shape == (24,) and x.flatten(1).shape == (2, 12)
    assert x.T.reshape(-1).tolist() == [x[k, j, i].item() for i in range(4) for j in range(3) for k in range(2)]
    assert x.unsqueeze(1).shape == (2, 1, 3, 4) and x.unsqueeze(-1).squeeze().shape == (2, 3, 4)
    assert x[:1].squeeze(0).shape == (3, 4) and x.squeeze(1).shape == (2, 3, 4)
    assert x[:, :1].expand(2, 5, -1).stride() == (12, 0, 1)
    assert x.narrow(2, 1, 2).tolist() == x[:, :, 1:3].tolist() and x.select(1, -1).tolist() == x[:, -1].tolist()
    assert x.as_strided((3,), (2,), 1).tolist() == [1, 3, 5]
    assert x[0].t().tolist() == [list(row) for row in zip(*x[0].tolist())]
    assert x.to(weir.int32).view(weir.int8).shape == (2, 3, 16)
    assert x.contiguous() is x and x.T.contiguous().is_contiguous()
    with pytest.raises(RuntimeError, match=r"shape '\[5\]' is invalid for input of size 24"):
        x.view(5)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.T.view(-1)
    with pytest.raises(RuntimeError, match=r"t\(\) expects a tensor with <= 2 dimensions, but self is 3D"):
        x.t()
    with pytest.raises(IndexError, match="Dimension out of range"):
        x.transpose(0, 3)


@places
def test_indexing(device):
    x = weir.arange(60, device=device).view(3, 4, 5)
    nested = x.tolist()
    assert x[1, 2, 3].item() == nested[1][2][3] == x[-2][-2][-2].item()
    assert x[1].tolist() == nested[1] and x[..., 0].tolist() == [[row[0] for row in page] for page in nested]
    assert x[:, None].shape == (3, 1, 4, 5) and x[None].shape == (1, 3, 4, 5) and x[...].shape == x.shape
    assert x[::2, 1:3, 4].tolist() == [[row[4] for row in page[1:3]] for page in nested[::2]]
    assert x[1:100].shape == (2, 4, 5) and x[5:].shape == (0, 4, 5)
    rows = weir.tensor([2, 0, 2])
    assert x[rows].tolist() == [nested[2], nested[0], nested[2]] == x[[2, 0, 2]].tolist() == x[rows.to(device)].tolist()
    assert x[:, rows, 1].tolist() == [[page[i][1] for i in (2, 0, 2)] for page in nested]
    assert x[weir.tensor([[0], [1]])].shape == (2, 1, 4, 5)
    assert x[x[:, 0, 0] > 0].tolist() == nested[1:] and x[x % 2 == 0].tolist() == list(range(0, 60, 2))
    assert [page.tolist() for page in x] == nested
    for key, error, text in [
        (3, IndexError, "index 3 is out of bounds for dimension 0 with size 3"),
        ((0, 0, 0, 0), IndexError, "too many indices for tensor of dimension 3"),
        (slice(None, None, -1), ValueError, "step must be greater than zero"),
        ("a", IndexError, "only integers, slices"),
        (1.0, IndexError, "only integers, slices"),
        ((..., ...), IndexError, "single ellipsis"),
    ]:
        with pytest.raises(error, match=text):
            x[key]
    with pytest.raises(IndexError, match="invalid index of a 0-dim tensor"):
        x[0, 0, 0][0]


@places
def test_assignment(device):
    x = weir.zeros(3, 4, dtype=weir.int64, device=device)
    x[0] = 35488
    x[:, 1] = 1
    x[-1, -1] = True
    x[1, 2:] = weir.tensor([7, 8])
    x[2, :2] = [5, 6]
    assert x.tolist() == [[35488, 1, 35488, 35488], [0, 1, 7, 8], [5, 6, 0, 1]]
    x[:] = weir.arange(4).half()
    assert x.tolist() == [[0, 1, 2, 3]] * 3
    with pytest.raises(TypeError):
        del x[0]
    with pytest.raises(TypeError, match="can't assign a object"):
        x[0] = object()
    with pytest.raises(RuntimeError, match=r"The size of tensor a \(4\) must match the size of tensor b \(3\)"):
        x[0] = weir.zeros(3)


# ---- Values ----


@places
def test_values(device):
    assert weir.tensor([[1, 2], [3, 4]], device=device).tolist() == [[1, 2], [3, 4]]
    kinds = [(True, weir.bool), (3, weir.int64), (1.5, weir.float32), (1j, weir.complex64)]
    for value, kind in kinds:
        x = weir.tensor([value], device=device)
        assert x.dtype is kind and x.item() == value and type(x.item()) is type(value)
        assert weir.full((2,), value, device=device).dtype is kind
    assert weir.tensor([], device=device).dtype is weir.float32 and weir.tensor([[], []]).shape == (2, 0)
    assert weir.tensor([True, 2, 2.5], device=device).tolist() == [1.0, 2.0, 2.5]
    assert weir.tensor([weir.tensor(3), 4], device=device).tolist() == [3, 4]
    assert weir.tensor([2**63 - 1, -(2**63)], device=device).tolist() == [2**63 - 1, -(2**63)]
    x = weir.tensor([2.5], device=device)
    assert float(x) == 2.5 and int(x) == 2 and bool(x) and complex(x) == 2.5 and f"{x[0]:.2f}" == "2.50"
    assert [10, 20, 30][weir.tensor(1, device=device)] == 20
    assert list(weir.tensor([1], device=device)) == [1]
    assert 3 in weir.arange(4, device=device) and 5 not in weir.arange(4, device=device)
    for data, error, text in [
        ([[1], [2, 3]], ValueError, r"expected sequence of length 1 at dim 1 \(got 2\)"),
        ([[1], 2], TypeError, "not a sequence"),
        ("abc", TypeError, "invalid data type 'str'"),
        ([None], TypeError, "invalid data type 'NoneType'"),
        ([2**64], RuntimeError, "Overflow when unpacking long"),
    ]:
        with pytest.raises(error, match=text):
            weir.tensor(data, device=device)


@places
def test_ambiguous_values(device):
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with no values is ambiguous"):
        bool(weir.tensor([], device=device))
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"):
        bool(weir.zeros(2, device=device))
    with pytest.raises(RuntimeError, match="a Tensor with 2 elements cannot be converted to Scalar"):
        weir.zeros(2, device=device).item()
    with pytest.raises(TypeError, match="only integer tensors of a single element can be converted to an index"):
        range(weir.tensor(1.5, device=device))
    with pytest.raises(TypeError, match="len.. of a 0-d tensor"):
        len(weir.tensor(1, device=device))
    with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
        iter(weir.tensor(1, device=device))


def test_text():
    assert repr(weir.arange(3)) == "array([0, 1, 2])"
    assert repr(weir.tensor([1.0, 2.5])) == "array([1.0000, 2.5000])"
    assert repr(weir.ones(2, 2, device="cuda")) == "array([[1., 1.],\n       [1., 1.]], device='cuda:0')"
    assert repr(weir.tensor(True)) == "array(True)" and repr(weir.zeros(0)) == "array([])"
    assert repr(weir.zeros(2, dtype=weir.int8)) == "array([0, 0], dtype=weir.int8)"
    assert repr(weir.zeros(0, 3, dtype=weir.int8)) == "array([], size=(0, 3), dtype=weir.int8)"
    assert repr(weir.tensor([1 + 2j, -3j])) == "array([1.+2.j, -0.-3.j])"
    assert repr(weir.tensor([math.nan, math.inf, 1.0])) == "array([nan, inf,  1.])"
    assert repr(weir.arange(2000)) == "array([   0,    1,    2, ..., 1997, 1998, 1999])"
    assert repr(weir.zeros(100, 100)).count("...") == 7
    assert "1.0000e-10" in repr(weir.tensor([1e-10, 0.5]))


# ---- Creation ----


@places
def test_factories(device):
    assert weir.zeros(2, 3, device=device).tolist() == [[0.0] * 3] * 2
    assert weir.ones((2,), dtype=weir.bool, device=device).tolist() == [True, True]
    assert weir.arange(1, 10, 3, device=device).tolist() == [1, 4, 7]
    assert weir.arange(5, 0, -2, device=device).tolist() == [5, 3, 1]
    assert weir.arange(0, 1, 0.25, device=device).tolist() == [0, 0.25, 0.5, 0.75]
    assert weir.arange(3.0, device=device).dtype is weir.float32
    x = weir.ones(2, 3, dtype=weir.float16, device=device)
    for made, value in [(weir.zeros_like(x), 0), (weir.ones_like(x), 1), (weir.full_like(x, 5), 5)]:
        assert made.dtype is x.dtype and made.device == x.device and made.tolist() == [[value] * 3] * 2
    assert weir.empty_like(x, dtype=weir.int8, device="cpu").device.type == "cpu"
    assert x.new_zeros(2).dtype is x.dtype and x.new_full((1,), 3).item() == 3 and x.new_ones((2, 2)).device == x.device
    assert x.new([[1, 2]]).tolist() == [[1, 2]] and x.new(2, 3).shape == (2, 3) and x.new(1).device == x.device
    assert x.new([1], device="cpu").device.type == "cpu" and x.new([1]).dtype is x.dtype and not x.is_sparse
    assert weir.Array(2, 3).shape == (2, 3) and weir.Array([1, 2]).tolist() == [1.0, 2.0]
    with pytest.raises(RuntimeError, match="Trying to create tensor with negative dimension -1"):
        weir.zeros(-1, device=device)
    with pytest.raises(RuntimeError, match="step must be nonzero"):
        weir.arange(0, 1, 0)
    with pytest.raises(RuntimeError, match="upper bound and lower bound inconsistent with step sign"):
        weir.arange(0, 1, -1)
    with pytest.raises(TypeError, match="'size' must be tuple of ints"):
        weir.zeros("a", device=device)


@places
def test_random(device):
    weir.compute._compute._seed_host(3)
    weir.manual_seed(3)
    x = weir.rand(1000, device=device)
    assert 0 <= x.amin().item() < 0.1 and 0.9 < x.amax().item() < 1
    assert abs(weir.randn(4000, device=device).mean().item()) < 0.1
    assert sorted(weir.randperm(100, device=device).tolist()) == list(range(100))
    x = weir.randint(-3, 4, (500,), device=device)
    assert x.dtype is weir.int64 and set(x.tolist()) == set(range(-3, 4))
    assert weir.randint(2, (5,), device=device, dtype=weir.int8).dtype is weir.int8
    x = weir.zeros(1000, device=device).bernoulli_(0.25)
    assert 150 < x.sum().item() < 350
    p = weir.tensor([0.0, 1.0], device=device).expand(50, 2)
    assert weir.bernoulli(p).tolist() == [[0.0, 1.0]] * 50
    x = weir.zeros(4, 6, dtype=weir.float64, device=device)
    x.t().uniform_(2, 3)
    assert 2 <= x.amin().item() <= x.amax().item() < 3
    assert weir.zeros(9, dtype=weir.uint8, device=device).random_().amax().item() > 0
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        weir.zeros(2, dtype=weir.int32, device=device).normal_()
    with pytest.raises(RuntimeError, match="random_ expects 'from' to be less than 'to', but got from=5 >= to=2"):
        weir.zeros(2, device=device).random_(5, 2)


def test_generators():
    first, second = weir.Generator(), weir.Generator()
    first.manual_seed(5), second.manual_seed(5)
    assert weir.equal(weir.rand(9, device="cuda", generator=first), weir.rand(9, device="cuda", generator=second))
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        weir.rand(2, generator=first)


# ---- Conversions and copies ----


@pytest.mark.parametrize("kind", DTYPES, ids=lambda kind: kind.name)
def test_conversions(kind):
    """Every type to every other, within a place and between places."""
    values = [0, 1, 2, 3, 100]
    expected = [bool(v) for v in values] if kind is weir.bool else values
    for start, end in [("cpu", "cpu"), ("cpu", "cuda"), ("cuda", "cuda"), ("cuda", "cpu")]:
        x = weir.tensor(values, dtype=kind, device=start)
        assert x.tolist() == expected
        for other in DTYPES:
            y = x.to(device=end, dtype=other)
            assert y.dtype is other and y.device.type == end
            assert y.tolist() == ([bool(v) for v in values] if other is weir.bool else expected)
            assert weir.zeros(5, dtype=other, device=end).copy_(x).tolist() == y.tolist()


def test_to():
    x = weir.arange(3.0)
    assert x.to("cpu") is x and x.to(weir.float32) is x and x.float() is x and x.cpu() is x
    assert x.to("cpu", copy=True) is not x and x.to(weir.float32, False, True) is not x
    y = x.to("cuda", weir.float16)
    assert y.is_cuda and y.dtype is weir.float16 and y.cuda() is y and y.to(0) is y
    assert x.to(y).dtype is weir.float16 and x.to(y).is_cuda and x.type_as(y).is_cuda
    assert [x.double().dtype, x.int().dtype, x.long().dtype, x.bool().dtype, x.half().dtype] == [
        weir.float64, weir.int32, weir.int64, weir.bool, weir.float16,
    ]  # fmt: skip
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        x.to(devices="cuda")


def test_pinned():
    x = weir.arange(6).view(2, 3)
    pinned = x.t().pin_memory()
    assert pinned.is_pinned() and not x.is_pinned() and weir.equal(pinned, x.t()) and pinned.pin_memory() is pinned
    assert weir.zeros(3, pin_memory=True).is_pinned() and weir.tensor([1], pin_memory=True).is_pinned()
    device = pinned.to("cuda", non_blocking=True)
    back = device.to("cpu", non_blocking=True)
    assert back.is_pinned() and not device.to("cpu").is_pinned() and not pinned.clone().is_pinned()
    weir.synchronize()
    assert back.tolist() == x.t().tolist()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        device.pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        weir.zeros(2, device="cuda", pin_memory=True)


def test_non_blocking_copies_are_in_order():
    source = weir.zeros(1000, pin_memory=True)
    target = weir.empty(1000, dtype=weir.int64, device="cuda")
    stream = weir.Stream()
    with weir.stream(stream):
        weir._sleep(20_000_000)
        target.copy_(source, non_blocking=True)
        source.fill_(1)  # the copy has not read it yet
    stream.synchronize()
    assert target.sum().item() == 1000


def test_copies_broadcast():
    x = weir.zeros(2, 3, device="cuda")
    x.copy_(weir.tensor([1, 2, 3]))
    assert x.tolist() == [[1, 2, 3]] * 2
    x.t().copy_(weir.arange(6).view(3, 2))
    assert x.tolist() == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(TypeError, match="expected an Array"):
        x.copy_([1])


# ---- Arithmetic ----


@places
def test_arithmetic(device):
    x = weir.tensor([4, 9, -7], device=device)
    y = weir.tensor([[1.5], [-2]], device=device)
    a, b = x.tolist(), [row[0] for row in y.tolist()]
    for operation in ("__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__"):
        expected = [[getattr(float(p), operation)(q) for p in a] for q in b]
        assert weir.allclose(getattr(x, operation)(y).cpu(), weir.tensor(expected)), operation
    assert (x + 1).dtype is weir.int64 and (x + 1.5).dtype is weir.float32 and (x / 2).dtype is weir.float32
    assert (2 - x).tolist() == [-2, -7, 9] and (2 / weir.tensor([4.0])).tolist() == [0.5]
    assert (x // 2).tolist() == [2, 4, -4] and (x % 4).tolist() == [0, 1, 1] and (x**2).tolist() == [16, 81, 49]
    assert (-x).tolist() == [-4, -9, 7] and abs(x).tolist() == [4, 9, 7] and (~x).tolist() == [-5, -10, 6]
    assert (x & 5).tolist() == [4, 1, 1] and (x | 1).tolist() == [5, 9, -7] and (x ^ x).tolist() == [0, 0, 0]
    assert (x == 9).tolist() == [False, True, False] and (x < 5).tolist() == [True, False, True]
    assert (x != y).shape == (2, 3) and (x >= 4).dtype is weir.bool and not (x == None)  # noqa: E711
    assert (weir.tensor([1, 255], dtype=weir.uint8, device=device) + 1).tolist() == [2, 0]
    assert (weir.tensor([1 + 1j], device=device) * 1j).tolist() == [-1 + 1j]
    assert x.add(x, alpha=2).tolist() == [12, 27, -21] and x.sub(1, alpha=3).tolist() == [1, 6, -10]
    assert divmod(x, 4)[0].tolist() == [1, 2, -2]
    with pytest.raises(TypeError):
        x + "a"
    with pytest.raises(TypeError, match="'other' must be an Array or a number, not str"):
        x.add("a")


@places
def test_in_place(device):
    x = weir.ones(3, device=device)
    pointer = x.data_ptr()
    x += 1
    x *= weir.tensor([1.0, 2.0, 3.0], device=device)
    x -= 0.5
    x /= 2
    x.add_(1).mul_(4).neg_().abs_()
    assert x.tolist() == [7, 11, 15] and x.data_ptr() == pointer
    assert x.clamp_(8, 12).tolist() == [8, 11, 12] and x.sqrt_().data_ptr() == pointer
    i = weir.ones(3, dtype=weir.int64, device=device)
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        i += 1.5
    with pytest.raises(RuntimeError, match="output with shape"):
        x.add_(weir.zeros(2, 3, device=device))


@places
def test_shapes_must_match(device):
    before = weir.memory_allocated()
    with pytest.raises(
        RuntimeError,
        match=r"The size of tensor a \(3\) must match the size of tensor b \(2\) at non-singleton dimension 0",
    ):
        weir.zeros(3, device=device) + weir.zeros(2, device=device)
    assert weir.memory_allocated() == before


def test_places_must_match():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        weir.zeros(2) + weir.zeros(2, device="cuda")
    assert (weir.ones(2, device="cuda") * weir.tensor(3.0)).tolist() == [3, 3]
    assert (weir.tensor(3.0) - weir.ones(2, device="cuda")).tolist() == [2, 2]


@places
def test_functions_of_elements(device):
    values = [0.25, 0.5, 1.0, 2.0]
    x = weir.tensor(values, dtype=weir.float64, device=device)
    for name in ("exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "sin", "cos", "tan", "tanh", "erf"):
        expected = [getattr(math, name)(v) for v in values]
        assert getattr(x, name)().tolist() == pytest.approx(expected, rel=1e-14)
    assert x.sigmoid().tolist() == pytest.approx([1 / (1 + math.exp(-v)) for v in values])
    y = weir.tensor([-1.5, 0.5, 2.5], device=device)
    assert y.round().tolist() == [-2, 0, 2] and y.floor().tolist() == [-2, 0, 2] and y.ceil().tolist() == [-1, 1, 3]
    assert y.relu().tolist() == [0, 0.5, 2.5] and y.sign().tolist() == [-1, 1, 1] and y.trunc().tolist() == [-1, 0, 2]
    z = weir.tensor([math.nan, math.inf, 1.0], device=device)
    assert z.isnan().tolist() == [True, False, False] and z.isfinite().tolist() == [False, False, True]
    c = weir.tensor([3 + 4j], device=device)
    assert c.abs().item() == 5 and c.real.item() == 3 and c.imag.item() == 4 and c.conj().item() == 3 - 4j
    assert weir.where(y > 0, y, 0).tolist() == [0, 0.5, 2.5]
    assert weir.where(y > 0, y, weir.tensor([9.0], device=device)).tolist() == [9, 0.5, 2.5]
    assert y.clamp(min=0, max=1).tolist() == [0, 0.5, 1] and y.maximum(1).tolist() == [1, 1, 2.5]


@places
def test_reductions(device):
    x = weir.arange(24, device=device).view(2, 3, 4)
    assert x.sum().item() == 276 and x.sum().dtype is weir.int64 and x.sum(dtype=weir.float32).item() == 276.0
    assert x.sum(0).tolist() == (x[0] + x[1]).tolist() and x.sum((0, 2)).tolist() == [60, 92, 124]
    assert x.sum(-1, keepdim=True).shape == (2, 3, 1) and x.sum(dim=(0, 1, 2)).item() == 276
    assert x.float().mean().item() == 11.5 and x.mean(1, dtype=weir.float64).shape == (2, 4)
    assert x.amax().item() == x.max().item() == 23 and x.amin((0, 1)).tolist() == [0, 1, 2, 3]
    assert x.argmax().item() == 23 and x.argmin(2).tolist() == [[0] * 3] * 2
    values, indices = x.max(dim=1)
    assert values.tolist() == [[8, 9, 10, 11], [20, 21, 22, 23]] and indices.tolist() == [[2] * 4] * 2
    assert x.min(1).values.tolist() == [[0, 1, 2, 3], [12, 13, 14, 15]] and x.min(1).indices.dtype is weir.int64
    assert (x >= 0).all().item() is True and (x > 23).any().item() is False and (x > 11).any(0).shape == (3, 4)
    assert weir.tensor([2, 3, 4], device=device).prod().item() == 24 and x.count_nonzero().item() == 23
    assert weir.zeros(0, device=device).sum().item() == 0
    assert weir.ones(65504, dtype=weir.float16, device=device).sum().item() == 65504
    assert weir.tensor([3.0, 4.0], device=device).norm().item() == 5
    assert weir.ones(4, device=device).norm(p=1).item() == 4
    tiny = (weir.arange(25, device=device).float() / 1e8).half()
    assert tiny.norm().item() > 0 and tiny.norm(p=0, dtype=weir.float32).dtype is weir.float32
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be in range of \[-3, 2\], but got 3\)"):
        x.sum(3)
    with pytest.raises(RuntimeError, match="dim 0 appears multiple times in the list of dims"):
        x.sum((0, -3))


@places
@pytest.mark.parametrize("kind", [weir.uint8, weir.int8, weir.int32, weir.int64, weir.float16, weir.float32, weir.float64])
def test_comparisons_of_neighbours(device, kind):
    """Contiguous elements, others, and those at odd places; with elements, and with numbers that the type may not have."""
    import operator

    values = [(7 * i) % 11 for i in range(5003)]
    x, y = (weir.tensor(v, device=device).to(kind) for v in (values, values[::-1]))
    for op in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        assert op(x, y).tolist() == [op(a, b) for a, b in zip(values, values[::-1])]
        assert op(x[1:70], y[2:71]).tolist() == [op(a, b) for a, b in zip(values[1:70], values[::-1][2:71])]
        assert op(x[::2], 5).tolist() == [op(a, 5) for a in values[::2]]
        for number in (5, 300, -1, 2.5):
            expected = [op(a, int(number) if number == 2.5 and not x.is_floating_point() else number) for a in values]
            if number == 2.5 or kind not in (weir.uint8, weir.int8):
                if number != 2.5 or x.is_floating_point():
                    assert op(x, number).tolist() == expected
    for place in (0, 1, 4095, 4096, 5002):
        one = weir.zeros(5003, dtype=kind, device=device)
        one[place] = 3
        assert one.any() and not one.all() and (one == 0).any() and not (one[: place + 1] != 0).all() or place == 0
        assert one[place : place + 1].all() and not one[:place].any() and not one[place + 1 :].any()
        assert (one == 0).sum().item() == 5002 and one.view(1, -1).any(1).tolist() == [True]
    if kind.is_floating_point:
        nan = weir.full((100,), math.nan, device=device).to(kind)
        assert not (nan == nan).any() and (nan != nan).all() and nan.all() and not (nan <= 1).any()


@places
def test_matrix_products(device):
    def product(a, b):
        return [[sum(p * q for p, q in zip(row, column)) for column in zip(*b)] for row in a]

    a = weir.arange(6, dtype=weir.float32, device=device).view(2, 3)
    b = weir.arange(12, dtype=weir.float32, device=device).view(3, 4)
    expected = product(a.tolist(), b.tolist())
    assert (a @ b).tolist() == expected == a.mm(b).tolist() == weir.matmul(a, b).tolist()
    assert (b.t() @ a.t()).tolist() == [list(row) for row in zip(*expected)]
    assert (a @ b[:, 0]).tolist() == [row[0] for row in expected]
    assert a.mv(b[:, 1]).tolist() == [row[1] for row in expected]
    assert a[0].dot(a[1]).item() == 14 and (a[0] @ b).tolist() == expected[0]
    batch = weir.stack([a, a + 1])
    assert (batch @ b).tolist() == [expected, product((a + 1).tolist(), b.tolist())]
    assert batch.bmm(b.expand(2, 3, 4)).tolist() == (batch @ b).tolist()
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x3\)"):
        a @ a
    with pytest.raises(RuntimeError, match="batch1 and batch2 must be 3D tensors"):
        a.bmm(b)


@places
def test_joining(device):
    x = weir.arange(6, device=device).view(2, 3)
    assert weir.cat([x, x + 6]).tolist() == weir.arange(12).view(4, 3).tolist()
    assert weir.cat([x, x.float()], dim=1).dtype is weir.float32 and weir.stack([x, x], -1).shape == (2, 3, 2)
    assert weir.equal(x, x.clone()) and not weir.equal(x, x[:1]) and weir.allclose(x.float(), x + 1e-9)


def test_asynchronous_assertions():
    for value in (1, 1.5, True, 1j, -1):
        weir._assert_async(weir.tensor(value, device="cuda"))
    weir.synchronize()
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value, but got zero"):
        weir._assert_async(weir.tensor(0))
    with pytest.raises(RuntimeError, match="Boolean value of Tensor with no values is ambiguous"):
        weir._assert_async(weir.tensor([], device="cuda"))


# ---- Saving ----


@places
def test_pickle_and_save(device):
    x = weir.arange(6.0, device=device).view(2, 3)
    y = weir.rand(4, device=device)
    for restore in (lambda obj: pickle.loads(pickle.dumps(obj)), copy.deepcopy, saved):
        a, b, c, view, storage = restore([x, y, x, x.t()[1:], y.storage()])
        assert a is c and a.tolist() == x.tolist() and a.device == x.device and a.dtype is x.dtype
        assert view.tolist() == x.t()[1:].tolist() and view.stride() == (1, 3)
        a.fill_(5)
        assert view.tolist() == [[5, 5]] * 2
        b.fill_(10)
        assert storage.tolist() == [10] * 4


def saved(obj, **options):
    file = io.BytesIO()
    weir.save(obj, file)
    file.seek(0)
    return weir.load(file, **options)


def test_load(tmp_path):
    x = weir.arange(3.0, device="cuda")
    weir.save({"x": x, "n": 3}, tmp_path / "file")
    assert weir.load(tmp_path / "file")["x"].is_cuda
    for location in ("cpu", {"cuda:0": "cpu"}, lambda storage, place: storage if place == "cuda:0" else None):
        loaded = weir.load(tmp_path / "file", map_location=location)
        assert loaded["x"].device.type == "cpu" and loaded["x"].tolist() == [0, 1, 2] and loaded["n"] == 3
    with pytest.raises(RuntimeError, match="Invalid device string: 'cuda0'"):
        weir.load(tmp_path / "file", "cuda0")
    with pytest.raises(pickle.UnpicklingError, match="refers to test_array.Refused"):
        saved([Refused()])
    assert isinstance(saved([Refused()], weights_only=False)[0], Refused)
    with pytest.raises(RuntimeError, match="was not written by weir.save"):
        weir.load(io.BytesIO(b"something else"))
    empty = saved([weir.zeros(0, dtype=weir.int16, device="cuda")])[0]
    assert empty.dtype is weir.int16 and empty.get_device() == 0


def test_load_of_a_device_that_does_not_exist():
    file = io.BytesIO()
    weir.save(weir.ones(2, device="cuda"), file)
    elsewhere = file.getvalue().replace(b"cuda:0", b"cuda:9")
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on CUDA device 9 but weir.device_count"):
        weir.load(io.BytesIO(elsewhere))
    assert weir.load(io.BytesIO(elsewhere), {"cuda:9": "cuda:0"}).tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="CUDA device 9"):
        weir.load(io.BytesIO(file.getvalue()), "cuda:9")


class Refused:
    pass


# ---- Other libraries ----


@needs_numpy
def test_numpy():
    for kind in DTYPES:
        if kind is not weir.bfloat16:
            x = weir.arange(6).view(2, 3).to(kind).t()
            assert x.numpy().dtype.name == kind.name and x.numpy().tolist() == x.tolist()
            back = weir.from_numpy(x.numpy())
            assert back.dtype is kind and back.stride() == x.stride() and back.data_ptr() == x.data_ptr()
    x = weir.zeros(3)
    x.numpy()[1] = 7
    assert x.tolist() == [0, 7, 0] and numpy.asarray(x).sum() == 7 and numpy.float32(2) * 3 == 6
    assert weir.tensor(numpy.eye(2)).dtype is weir.float64 and weir.asarray(numpy.arange(3)).tolist() == [0, 1, 2]
    assert (x + numpy.float32(1)).tolist() == [1, 8, 1] and weir.tensor([numpy.int64(3)]).item() == 3
    frozen = numpy.arange(3.0)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        weir.from_numpy(frozen).zero_()
    assert (weir.from_numpy(frozen) + 1).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="negative"):
        weir.from_numpy(numpy.arange(3)[::-1])
    with pytest.raises(TypeError, match="expected np.ndarray"):
        weir.from_numpy([1])
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu"):
        weir.zeros(1, device="cuda").numpy()
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu"):
        numpy.asarray(weir.zeros(1, device="cuda"))
    with pytest.raises(TypeError, match="unsupported ScalarType BFloat16"):
        weir.zeros(1, dtype=weir.bfloat16).numpy()


@needs_numpy
def test_dlpack_with_numpy():
    x = weir.arange(6.0).view(2, 3).t()
    assert numpy.from_dlpack(x).tolist() == x.tolist()
    assert weir.asarray(memoryview(x)).tolist() == x.tolist()


@places
def test_dlpack(device):
    for kind in DTYPES:
        x = weir.arange(6, device=device).view(2, 3).to(kind).t()
        y = weir.compute._compute._array_from_dlpack(x)
        assert y.dtype is kind and y.shape == (3, 2) and y.stride() == (1, 3) and y.data_ptr() == x.data_ptr()
        if not is_soft or device == "cpu":
            assert y.device == x.device
        assert y.tolist() == x.tolist()
    capsule = x.__dlpack__(max_version=(1, 0))
    del x
    y = weir.compute._compute._array_from_dlpack(capsule)
    with pytest.raises(BufferError, match="already consumed"):
        weir.compute._compute._array_from_dlpack(capsule)
    copied = weir.compute._compute._array_from_dlpack(y.__dlpack__(copy=True))
    assert copied.data_ptr() != y.data_ptr() and copied.tolist() == y.tolist()
    assert bytes(weir.from_dlpack(weir.zeros(4, dtype=weir.int8))) == bytes(4)  # as a Buffer
    with pytest.raises(BufferError, match="stream must be"):
        y.__dlpack__(stream=-3)


def test_buffers():
    buffer = weir.buffer(16).fill_(1)
    x = weir.asarray(buffer)
    assert x.is_cuda and x.dtype is weir.uint8 and x.data_ptr() == buffer.data_ptr()
    assert x.view(weir.int64).tolist() == [0x0101010101010101] * 2
    with pytest.raises((RuntimeError, ValueError, BufferError)):
        buffer.free()
    del x
    buffer.free()
    pinned = weir.asarray(weir.host_empty(8))
    assert pinned.is_pinned() and weir.asarray(bytearray(b"ab")).tolist() == [97, 98]


class CudaArray:
    """What another library's array offers."""

    def __init__(self, array, **changes):
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": tuple(array.shape),
            "typestr": "<f4",
            "data": (array.data_ptr(), False),
            "strides": tuple(4 * stride for stride in array.stride()),
            "version": 3,
            "stream": weir.current_stream().cuda_stream or 1,
            **changes,
        }


def test_cuda_array_interface():
    x = weir.arange(6.0, device="cuda").view(2, 3).t()
    y = weir.asarray(CudaArray(x))
    assert y.data_ptr() == x.data_ptr() and y.tolist() == x.tolist() and y.stride() == x.stride()
    assert weir.asarray(CudaArray(x.contiguous(), strides=None)).tolist() == x.tolist()
    assert weir.asarray(CudaArray(x, stream=weir.Stream().cuda_stream)).tolist() == x.tolist()
    for changes in ({"typestr": "<U4"}, {"strides": (-4, 4)}, {"mask": x}):
        with pytest.raises(TypeError):
            weir.asarray(CudaArray(x, **changes))
    if is_soft:
        assert not hasattr(x, "__cuda_array_interface__")
    else:
        interface = x.__cuda_array_interface__
        assert interface["shape"] == (3, 2) and interface["typestr"] == "<f4" and interface["strides"] == (4, 12)
    assert not hasattr(x.cpu(), "__cuda_array_interface__")


# ---- Streams, graphs and memory ----


def test_streams_and_graphs():
    x = weir.zeros(4, device="cuda")
    graph = weir.CUDAGraph()
    with weir.graph(graph):
        y = x * 2 + 1
        x += 1
    graph.replay()
    graph.replay()
    assert x.tolist() == [2] * 4 and y.tolist() == [3] * 4
    side = weir.Stream()
    side.wait_stream(weir.current_stream())
    with weir.stream(side):
        z = x.sum()
    x.record_stream(side)
    x[1:].record_stream(side)
    side.synchronize()
    assert z.item() == 8
    with pytest.raises(TypeError, match="expected a stream"):
        x.record_stream(None)


def test_no_memory_is_left():
    gc.collect()
    weir.synchronize()
    before = weir.memory_allocated()
    x = weir.rand(100, 100, device="cuda")
    y = (x + 1).t()[3:].contiguous().half().sum(0)
    storage, view = x.storage(), weir.asarray(x.view(-1))
    assert weir.memory_allocated() > before
    with pytest.raises(RuntimeError):
        x + y.cpu()
    with pytest.raises(RuntimeError):
        x.view(7)
    capsule = x.__dlpack__()
    del x, y, storage, view, capsule
    gc.collect()
    assert weir.memory_allocated() == before


def test_out_of_memory():
    before = weir.memory_allocated()
    with pytest.raises(weir.OutOfMemoryError):
        weir.zeros(1 << 45, dtype=weir.int8, device="cuda")
    assert weir.memory_allocated() == before


def test_host_arrays_start_nothing():
    run_python("""
        import weir
        x = weir.arange(6).view(2, 3)
        assert (x @ x.t()).tolist() == [[5, 14], [14, 50]] and (x + 1.5).sum().item() == 24
        assert not weir.is_initialized()
    """)


def test_threads():
    """Threads that use the same arrays on streams of their own."""
    x = weir.arange(1000, device="cuda").float()
    weir.synchronize()
    failures = []

    def work(number):
        with weir.stream(weir.Stream()):
            for i in range(50):
                y = (x + number)[i:] * 2
                if y[0].item() != 2 * (number + i):
                    failures.append((number, i))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_fork():
    """A child can use arrays on the host, and drops those of a device without harm."""
    result = run_python("""
        import os, weir
        host, device = weir.arange(3), weir.arange(3, device="cuda")
        child = os.fork()
        if child == 0:
            assert (host + 1).tolist() == [1, 2, 3]
            try:
                device + 1
            except RuntimeError as error:
                print("fork" in str(error), flush=True)
            del host, device
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(device.tolist())
    """)
    assert result.stdout.split("\n")[:2] == ["True", "[0, 1, 2]"]


@pytest.mark.skipif(is_sanitized, reason="a sanitizer keeps freed memory")
def test_no_host_memory_is_left():
    """Objects of Python are released, also on the paths of errors."""

    def work():
        x = weir.tensor([[1, 2], [3, 4]], device="cuda")
        y = (x.float() @ x.float()).t()[1:] + 1
        y[0] = 3
        x.max(dim=0), x.shape, x.dtype, x.device, x.tolist(), x.storage(), repr(y), x.__dlpack__()
        memoryview(y.cpu()), weir.asarray(y.cpu()), pickle.loads(pickle.dumps(y)), list(y)
        for wrong in (lambda: x[5], lambda: x + "a", lambda: x.view(3), lambda: weir.tensor([[1], [2, 3]])):
            with contextlib.suppress(Exception):
                wrong()

    for _ in range(50):
        work()
    gc.collect()
    before = resident_bytes(), len(gc.get_objects())
    for _ in range(400):
        work()
    gc.collect()
    assert len(gc.get_objects()) < before[1] + 50
    assert resident_bytes() < before[0] + (1 << 20)


# ---- Random operations against NumPy ----


def random_array(rng, kind, shape, device):
    numbers = numpy.array([rng.randint(-9, 9) for _ in range(math.prod(shape))], dtype=kind).reshape(shape)
    return numbers, weir.tensor(numbers, device=device)


def random_view(rng, a, x):
    """The same view of both."""
    for _ in range(rng.randint(0, 3)):
        choice = rng.randint(0, 3)
        if choice == 0 and a.ndim > 1:
            order = rng.sample(range(a.ndim), a.ndim)
            a, x = a.transpose(order), x.permute(*order)
        elif choice == 1 and a.ndim:
            key = tuple(slice(rng.randint(0, 1), None, rng.randint(1, 2)) for _ in range(a.ndim))
            a, x = a[key], x[key]
        elif choice == 2 and a.ndim:
            a, x = a[None], x[None]
        elif choice == 3 and a.ndim > 1 and len(a):
            a, x = a[-1], x[-1]
    return a, x


@needs_numpy
@places
@pytest.mark.parametrize("seed", range(40 if is_long else 8))
def test_random_operations(device, seed):
    rng = random.Random(seed)
    for _ in range(20):
        kind = rng.choice(["int32", "int64", "float32", "float64", "int8"])
        shape = tuple(rng.randint(1, 5) for _ in range(rng.randint(0, 3)))
        a, x = random_view(rng, *random_array(rng, kind, shape, device))
        # A second operand of a shape that broadcasts.
        other = tuple(size if rng.random() < 0.7 else 1 for size in a.shape[rng.randint(0, a.ndim) :])
        b, y = random_array(rng, kind, other, device)
        assert x.tolist() == a.tolist()
        for operation in ("__add__", "__sub__", "__mul__", "__lt__", "__eq__"):
            result = getattr(x, operation)(y)
            expected = getattr(a, operation)(b)
            assert result.tolist() == expected.tolist(), (operation, kind, a.shape, b.shape)
            assert result.dtype.name == expected.dtype.name
        assert (x / 4).tolist() == (a / 4).tolist()
        dim = rng.randrange(a.ndim) if a.ndim else None
        assert x.sum(dim).tolist() == a.sum(dim, dtype="int64" if "int" in kind else kind).tolist()
        if a.size:
            assert x.amax(dim).tolist() == a.max(dim).tolist() and x.argmin(dim).tolist() == a.argmin(dim).tolist()
        z = x.clone()
        fits = numpy.broadcast_shapes(a.shape, b.shape) == a.shape
        z += y if fits else 1
        assert z.tolist() == (a + (b if fits else 1)).astype(kind).tolist()
        flat = x.reshape(-1)
        assert flat.tolist() == a.reshape(-1).tolist()


def test_offset_of_a_view_of_nothing():
    x = weir.cpu.FloatTensor([10, 10])
    assert x[5:].storage_offset() == 2 and x[1:1].storage_offset() == 1 and x[5:].shape == (0,)
    assert weir.empty(0)[5:].storage_offset() == 0
    y = weir.zeros(2, 3)[2:]
    assert y.storage_offset() == 6 and y.shape == (0, 3)


def test_typed_classes_on_a_device():
    last = weir.device_count() - 1
    assert weir.FloatTensor(1, device=last).get_device() == weir.LongTensor([1], device=f"cuda:{last}").get_device() == last
    with weir.device(last):
        assert weir.FloatTensor(1, device=None).get_device() == weir.FloatTensor(1, device="cuda").get_device() == last
    with pytest.raises(RuntimeError, match="legacy constructor expects device type: cuda but device type: cpu"):
        weir.FloatTensor(1, device="cpu")
    with pytest.raises(RuntimeError, match="legacy constructor expects device type: cpu but device type: cuda"):
        weir.cpu.FloatTensor(1, device="cuda")


def test_strided_copy_in_a_thread_without_a_context():
    """The state of a default stream is asked of its own device, whichever is current."""
    last = weir.device_count() - 1
    host = weir.arange(16.0).reshape(4, 4)[:, 1:3]
    made = []
    thread = threading.Thread(target=lambda: made.append(host.to(f"cuda:{last}")))
    thread.start()
    thread.join()
    assert made[0].get_device() == last and made[0].tolist() == host.tolist()


def test_stacks_begin_with_the_caller():
    weir.memory._record_memory_history()
    try:
        kept = weir.zeros(1000, device="cuda"), weir.randn(10, device="cuda").cpu().cuda()
        traces = [entry for entry in weir.memory._snapshot()["device_traces"][0] if entry["action"] == "alloc"]
    finally:
        weir.memory._record_memory_history(None)
    assert len(traces) >= 3 and len(kept) == 2
    assert {entry["frames"][0]["name"] for entry in traces} == {"test_stacks_begin_with_the_caller"}


def test_requires_grad():
    """Programs write requires_grad=False; there is no autograd for True."""
    for made in (
        weir.zeros(2, requires_grad=False),
        weir.tensor([1.0, 2.0], requires_grad=False),
        weir.randn(2, requires_grad=False),
        weir.ones_like(weir.zeros(2), requires_grad=False),
        weir.arange(2, requires_grad=False),
    ):
        assert made.shape == (2,)
    with pytest.raises(NotImplementedError, match="Weir has no autograd"):
        weir.rand(2, requires_grad=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_addmm(device):
    a, b = weir.arange(6.0, device=device).view(2, 3), weir.arange(6.0, device=device).view(3, 2)
    c = weir.ones(2, 2, device=device)
    assert weir.addmm(c, a, b).tolist() == [[11, 14], [29, 41]]
    assert weir.addmm(c, a, b, beta=3, alpha=2).tolist() == [[23, 29], [59, 83]]
    assert c.addmm(a, b, beta=0).tolist() == [[10, 13], [28, 40]]
    nan = weir.full((2, 2), float("nan"), device=device)
    assert nan.addmm(a, b, beta=0).tolist() == [[10, 13], [28, 40]]
    assert weir.addmm(weir.tensor([1.0, 2.0], device=device), a, b).tolist() == [[11, 15], [29, 42]]
    with pytest.raises(RuntimeError, match="self must be a matrix"):
        weir.addmm(c, a[0], b)


def test_normal():
    x = weir.normal(10.0, 2.0, (10000,), device="cuda")
    assert abs(x.mean().item() - 10) < 0.2 and x.shape == (10000,) and x.is_cuda
    means = weir.arange(4.0, device="cuda") * 100
    y = weir.normal(means, 0.001)
    assert y.shape == (4,) and (y - means).abs().max().item() < 0.1
    assert weir.normal(means, weir.zeros(4, device="cuda")).tolist() == means.tolist()
    with pytest.raises(TypeError, match="missing required argument 'size'"):
        weir.normal(0.0, 1.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_functions_with_names_of_python(device):
    x = weir.tensor([[3.0, 4.0], [0.0, 2.0]], device=device)
    assert weir.sum(x).item() == 9 and weir.sum(x, 0).tolist() == [3, 6]
    assert weir.sum(x, 1, True, dtype=weir.int64).tolist() == [[7], [2]]
    assert not weir.all(x) and weir.all(x, 1).tolist() == [True, False] and weir.all(x[:1])
    assert weir.pow(x, 2).tolist() == [[9, 16], [0, 4]]
    assert weir.norm(x[0]).item() == 5 and weir.norm(x, 1, 0).tolist() == [3, 6]
    run_python("from weir import *; assert sum([1, 2]) == 3 and all([]) and pow(2, 3) == 8")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_allclose_of_bools(device):
    x = weir.tensor([True, False], device=device)
    assert weir.allclose(x, x.clone()) and not weir.allclose(x, ~x)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", [weir.float16, weir.float32, weir.float64, weir.complex64])
def test_a_reduction_to_integers(device, kind):
    x = weir.tensor([[3.0, 4.0], [1.0, 2.0]], device=device).to(kind)
    assert x.sum(1, True, dtype=weir.int64).tolist() == [[7], [3]]
    assert x.sum(dtype=weir.uint8).item() == 10 and x.prod(0, dtype=weir.int32).tolist() == [3, 8]


@places
def test_batch_norm_gather_stats(device):
    """Two rows of statistics are those of all elements together."""
    weir.manual_seed(3)
    eps, count = 1e-3, 50
    x = (weir.randn(2, count, 3, device=device) * 4 + 1).double()
    mean = x.mean(1)
    variance = ((x - mean.unsqueeze(1)) ** 2).mean(1)
    running = [weir.full((3,), 2.0, dtype=weir.float64, device=device) for _ in range(2)]
    found, invstd = weir.batch_norm_gather_stats(x, mean, 1 / (variance + eps).sqrt(), *running, 0.1, eps, count)
    flat = x.reshape(2 * count, 3)
    expected = ((flat - flat.mean(0)) ** 2).mean(0)
    assert weir.allclose(found, flat.mean(0)) and weir.allclose(invstd, 1 / (expected + eps).sqrt())
    assert weir.allclose(running[0], 0.9 * 2 + 0.1 * flat.mean(0))
    assert weir.allclose(running[1], 0.9 * 2 + 0.1 * expected * (100 / 99))
    ones = weir.ones(2, 3, device=device)
    assert weir.batch_norm_gather_stats(ones, ones, ones, None, None, 0.1, 1e-5, 2)[1].tolist() == pytest.approx([1] * 3)
