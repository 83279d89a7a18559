"""Elements of arrays at lists, arrays of indices and masks: x[[0, 2]], x[rows, columns], x[x > 0]."""

from __future__ import annotations

from weir.compute import _compute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from weir.compute._array import Array

_Array = _compute._Array
_INTEGERS = (_compute.int64, _compute.int32, _compute.int16, _compute.int8, _compute.uint8)
_ALL = slice(None)


def is_advanced(key: Any) -> bool:
    """Whether a key has something beside ints, slices, None and `...`."""
    if key.__class__ is tuple:
        return any(_is_array(part) for part in key)
    return _is_array(key)


def _is_array(part: Any) -> bool:
    if isinstance(part, _Array):
        return part.ndim > 0 or part.dtype is _compute.bool_
    return part.__class__ in (list, range) or hasattr(part, "__array_interface__") and getattr(part, "ndim", 0) > 0


def _to_array(part: Any) -> Array:
    """An array of integers or bools."""
    from weir.compute._array import asarray, tensor

    if part.__class__ in (list, range):
        part = list(part)
        part = tensor(part) if part else tensor(part, dtype=_compute.int64)
    elif not isinstance(part, _Array):
        part = asarray(part)
    if part.dtype is not _compute.bool_ and part.dtype not in _INTEGERS:
        raise IndexError("tensors used as indices must be long, int, byte or bool tensors")
    array: Array = part
    return array


def _move(index: Array, array: Array) -> Array:
    """The index on the device of the array, as int64 or int32."""
    if index.device != array.device and index.device.type != "cpu":
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor ({array.device})"
        )
    kind = index.dtype if index.dtype in (_compute.int64, _compute.int32) else _compute.int64
    return index.to(device=array.device, dtype=kind)


def _positions(array: Array, mask: Array, dim: int) -> list[Array]:
    """An array of indices for each dimension of a mask. This waits for the device."""
    from weir.compute._array import tensor

    shape = tuple(mask.shape)
    for i, size in enumerate(shape):
        if array.shape[dim + i] != size:
            raise IndexError(
                f"The shape of the mask {list(shape)} at index {i} does not match the shape of the indexed tensor "
                f"{list(array.shape)} at index {dim + i}"
            )
    places = [i for i, value in enumerate(mask.flatten().tolist()) if value]
    result = []
    for size in reversed(shape):
        result.append(tensor([i % size for i in places], dtype=_compute.int64))
        places = [i // size for i in places]
    return result[::-1]


def split(array: Array, key: Any) -> tuple[Array, tuple[Array | None, ...]]:
    """The view that the ints, slices and None of a key select, and for each of its dimensions an array of indices, or
    None for the whole dimension."""
    parts = list(key) if key.__class__ is tuple else [key]
    plain: list[Any] = []
    given = []
    for part in parts:
        if _is_array(part):
            part = _to_array(part)
            given.append((len(plain), part))
            plain += [_ALL] * (part.ndim if part.dtype is _compute.bool_ else 1)
            if part.dtype is _compute.bool_ and not part.ndim:
                raise NotImplementedError("a mask without dimensions is not supported")
        else:
            plain.append(part)
    view = _Array.__getitem__(array, tuple(plain))
    # The dimension of the view that the part at a place of the key belongs to.
    used = sum(not (part is None or part is Ellipsis) for part in plain)
    dims, dim = [], 0
    for part in plain:
        dims.append(dim)
        if part is Ellipsis:
            dim += array.ndim - used
        elif part is None or part.__class__ is slice:
            dim += 1
    indices: list[Any] = [None] * view.ndim
    for place, part in given:
        if part.dtype is _compute.bool_:
            for i, index in enumerate(_positions(view, part, dims[place])):
                indices[dims[place] + i] = _move(index, view)
        else:
            indices[dims[place]] = _move(part, view)
    return view, tuple(indices)


def get(array: Array, key: Any) -> Array:
    view, indices = split(array, key)
    return _compute._array_index(view, indices)


def put(array: Array, key: Any, value: Any) -> None:
    from weir.compute._array import tensor

    view, indices = split(array, key)
    if not isinstance(value, _Array):
        value = tensor(value, dtype=view.dtype)
    # As in an assignment to a slice, leading dimensions of size 1 do not count.
    while value.ndim and value.shape[0] == 1:
        value = value[0]
    _compute._array_index_put(view, indices, value.to(device=view.device, dtype=view.dtype), False)


def index_put(array: Array, indices: Any, values: Any, accumulate: bool) -> None:
    """Array.index_put_."""
    view, found = split(array, tuple(_ALL if index is None else index for index in indices))
    _compute._array_index_put(view, found, values, accumulate)
