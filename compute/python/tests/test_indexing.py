"""Elements at lists, arrays of indices and masks, read and assigned, against a model of plain lists."""

from __future__ import annotations

from itertools import product

import pytest
from conftest import run_python

import weir

places = pytest.mark.parametrize("device", ["cpu", "cuda"])
SHAPE = (3, 4, 5)


class Model:
    """Elements by their place, as a dict."""

    def __init__(self, array):
        self.values = dict(zip(product(*map(range, array.shape)), array.flatten().tolist()))

    def tolist(self):
        return list(self.values.values())


def make(device):
    x = weir.arange(60, device=device).view(SHAPE)
    return x, Model(x)


# A key, and the places that it selects, in the order of the result.
KEYS = [
    ([2, 0, 2], [(i, j, k) for i in (2, 0, 2) for j in range(4) for k in range(5)], (3, 4, 5)),
    ([-1], [(2, j, k) for j in range(4) for k in range(5)], (1, 4, 5)),
    (([0, 2], [1, 3]), [(i, j, k) for i, j in ((0, 1), (2, 3)) for k in range(5)], (2, 5)),
    (([[0], [2]], [1, 3]), [(i, j, k) for i in (0, 2) for j in (1, 3) for k in range(5)], (2, 2, 5)),
    ((slice(None), [3, 1], 2), [(i, j, 2) for i in range(3) for j in (3, 1)], (3, 2)),
    (([0, 2], slice(1, 3), [4, 0]), [(i, j, k) for i, k in ((0, 4), (2, 0)) for j in (1, 2)], (2, 2)),
    ((..., [4, 0]), [(i, j, k) for i in range(3) for j in range(4) for k in (4, 0)], (3, 4, 2)),
    ((1, None, [0, 3]), [(1, j, k) for j in (0, 3) for k in range(5)], (1, 2, 5)),
    (range(1, 3), [(i, j, k) for i in (1, 2) for j in range(4) for k in range(5)], (2, 4, 5)),
    ([], [], (0, 4, 5)),
    ([True, False, True], [(i, j, k) for i in (0, 2) for j in range(4) for k in range(5)], (2, 4, 5)),
    ((slice(None), [True, False, False, True], 0), [(i, j, 0) for i in range(3) for j in (0, 3)], (3, 2)),
]


@places
@pytest.mark.parametrize("key, selected, shape", KEYS, ids=[str(i) for i in range(len(KEYS))])
def test_get_and_set(device, key, selected, shape):
    x, model = make(device)
    got = x[key]
    assert got.shape == shape and got.flatten().tolist() == [model.values[place] for place in selected]
    x[key] = -1
    model.values.update(dict.fromkeys(selected, -1))
    assert x.flatten().tolist() == model.tolist()
    values = weir.arange(len(selected), device=device).view(shape) + 100
    x[key] = values.float()  # is converted
    model.values.update(zip(selected, values.flatten().tolist()))
    if len(set(selected)) == len(selected):
        assert x.flatten().tolist() == model.tolist()


@places
def test_arrays_and_masks(device):
    x, model = make(device)
    rows = weir.tensor([2, 0], device=device)
    assert x[rows].tolist() == x[rows.cpu()].tolist() == x[rows.to(dtype=weir.uint8)].tolist() == x[[2, 0]].tolist()
    assert x[rows[0]].tolist() == x[2].tolist()  # an array without dimensions is an int
    mask = x % 2 == 0
    assert x[mask].tolist() == list(range(0, 60, 2))
    x[mask] = 7
    assert x.flatten().tolist() == [i if i % 2 else 7 for i in range(60)]
    x[mask] = weir.arange(30, device=device)
    assert x.flatten().tolist() == [i if i % 2 else i // 2 for i in range(60)]
    x[weir.tensor([True, False, True], device=device)] = weir.zeros(4, 1, device=device)
    assert x[0].sum().item() == x[2].sum().item() == 0 != x[1].sum().item()
    x[[0, 1]] += 1
    assert x[0].flatten().tolist() == [1] * 20
    y = weir.zeros(3, 4, device=device).t()  # not contiguous
    y[[0, 3], [1, 2]] = weir.tensor([[5.0, 6.0]])
    assert y.tolist() == [[0, 5, 0], [0, 0, 0], [0, 0, 0], [0, 0, 6]]
    y[[0, 0]] = y[[3, 3]]
    assert y[0].tolist() == [0, 0, 6]
    y[...] = 0
    y[[1, 2]] = [1, 2, 3]
    assert y.tolist() == [[0] * 3, [1, 2, 3], [1, 2, 3], [0] * 3]


@places
def test_index_put(device):
    x = weir.zeros(4, device=device)
    which = weir.tensor([1, 3, 1, 1], device=device)
    assert x.index_put_((which,), weir.ones(4, device=device), accumulate=True) is x and x.tolist() == [0, 3, 0, 1]
    x.index_put_((which[:2],), weir.tensor(5.0, device=device))
    assert x.tolist() == [0, 5, 0, 5]
    y = weir.zeros(2, 3, device=device)
    y.index_put_((None, weir.tensor([2], device=device)), weir.tensor([[1.0], [2.0]], device=device))
    assert y.tolist() == [[0, 0, 1], [0, 0, 2]]
    weir.use_deterministic_algorithms(True)
    try:
        x[which] = weir.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    finally:
        weir.use_deterministic_algorithms(False)
    assert x.tolist() == [0, 4, 0, 2]
    with pytest.raises(RuntimeError, match="Index put requires the source and destination dtypes match, got Float"):
        x.index_put_((which,), weir.ones(4, dtype=weir.float64, device=device))


@places
def test_errors(device):
    x, _ = make(device)
    with pytest.raises(IndexError, match=r"could not be broadcast together with shapes \[2\], \[3\]"):
        x[[0, 1], [0, 1, 2]]
    with pytest.raises(RuntimeError, match=r"value tensor of shape \[3\] cannot be broadcast to indexing result of sh"):
        x[[0, 1]] = weir.zeros(3)
    with pytest.raises(IndexError, match="too many indices for tensor of dimension 3"):
        x[[0], [0], [0], [0]]
    with pytest.raises(IndexError, match="tensors used as indices must be long, int, byte or bool tensors"):
        x[[0.5]]
    with pytest.raises(IndexError, match=r"shape of the mask \[2\] at index 0 does not match .*\[3, 4, 5\] at index 0"):
        x[[True, False]]
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        weir.zeros(1, device=device).expand(3)[[0, 1]] = 1
    if device == "cpu":
        with pytest.raises(IndexError, match="index -4 is out of bounds for dimension 0 with size 3"):
            x[[0, -4]] = 1


def test_out_of_range_on_a_device():
    run_python("""
        import weir
        x = weir.zeros(3, device="cuda")
        try:
            x[[3]] = 1  # its later launches may fail already
            weir.synchronize()
        except RuntimeError as error:
            assert "device-side assert" in str(error), error
        else:
            raise SystemExit("no error")
    """)


def test_capture():
    x, which = weir.zeros(4, device="cuda"), weir.tensor([1, 3], device="cuda")
    x[which] = x[which] + 1  # loads the kernels
    graph = weir.CUDAGraph()
    with weir.graph(graph):
        x.index_put_((which,), x[which] + 1)
    graph.replay()
    graph.replay()
    assert x.tolist() == [0, 3, 0, 3]
