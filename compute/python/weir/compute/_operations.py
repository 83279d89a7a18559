"""Functions of arrays: products, selections, comparisons and what combines several arrays."""

from __future__ import annotations

import builtins

from weir.compute import _compute
from weir.compute._array import Array, _empty, tensor
from weir.compute._compute import _Array, dtype

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = [
    "addmm",
    "allclose",
    "batch_norm_gather_stats",
    "bmm",
    "cat",
    "equal",
    "gather",
    "matmul",
    "mm",
    "multinomial",
    "poisson",
    "result_type",
    "stack",
    "where",
]


def matmul(input: Array, other: Array) -> Array:
    """Returns the matrix product of vectors, matrices or batches of matrices."""
    return input.matmul(other)


def mm(input: Array, mat2: Array) -> Array:
    """Returns the product of two matrices."""
    return input.mm(mat2)


def bmm(input: Array, mat2: Array) -> Array:
    """Returns the products of two batches of matrices."""
    return input.bmm(mat2)


def addmm(input: Array, mat1: Array, mat2: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    """Returns beta * input + alpha * (mat1 @ mat2). With a beta of 0, `input` is not read."""
    return input.addmm(mat1, mat2, beta=beta, alpha=alpha)


def gather(input: Array, dim: int, index: Array) -> Array:
    """Returns elements whose position along a dimension is given by an array of indices."""
    return input.gather(dim, index)


def multinomial(input: Array, num_samples: int, replacement: builtins.bool = False, *, generator: Any = None) -> Array:
    """Returns random indices, with the elements of each row as probabilities up to a factor. Needs a device."""
    return input.multinomial(num_samples, replacement, generator=generator)


def where(condition: Array, input: Any, other: Any) -> Array:
    """Returns the elements of `input` where the condition is true, and of `other` elsewhere."""
    if not isinstance(input, _Array):
        array: Any = other if isinstance(other, _Array) else None
        input = tensor(input, dtype=None if array is None else result_type(array, input))
    if not isinstance(other, _Array):
        other = tensor(other, dtype=result_type(input, other) if input.ndim else None)
    device = condition.device
    return condition._where(input._to(device, None, False, False), other._to(device, None, False, False))


def result_type(first: Any, second: Any) -> dtype:
    """Returns the dtype of an operation on two arrays or numbers."""
    return _compute._array_result_type(first, second)


def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Joins arrays along a dimension."""
    if not tensors:
        raise RuntimeError("torch.cat(): expected a non-empty list of Tensors")
    first = tensors[0]
    kind = first.dtype
    for other in tensors[1:]:
        kind = _compute.promote_types(kind, other.dtype)
        if other.ndim != first.ndim:
            raise RuntimeError(
                f"Tensors must have same number of dimensions: got {first.ndim} and {other.ndim}"
            )
    dim = dim + first.ndim if dim < 0 else dim
    shape = list(first.shape)
    shape[dim] = sum(array.shape[dim] for array in tensors)
    result = _empty((shape,), kind, first.device)
    start = 0
    for array in tensors:
        result.narrow(dim, start, array.shape[dim]).copy_(array)
        start += array.shape[dim]
    return result


def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Joins arrays of one shape along a new dimension."""
    for array in tensors:
        if array.shape != tensors[0].shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 and "
                f"{list(array.shape)} at entry {list(tensors).index(array)}"
            )
    return cat([array.unsqueeze(dim) for array in tensors], dim)


def equal(input: Array, other: Array) -> builtins.bool:
    """Whether both arrays have the same shape and elements."""
    return input.equal(other)


def allclose(
    input: Array,
    other: Array,
    rtol: builtins.float = 1e-05,
    atol: builtins.float = 1e-08,
    equal_nan: builtins.bool = False,
) -> builtins.bool:
    """Whether all elements satisfy |input - other| <= atol + rtol * |other|."""
    if input.dtype is other.dtype is _compute.bool_:  # has no subtraction
        input, other = input.to(_compute.float32), other.to(_compute.float32)
    close = ((input - other).abs() <= atol + rtol * other.abs()) | (input == other)
    if equal_nan:
        close = close | (input.isnan() & other.isnan())
    return builtins.bool(close.all())


def batch_norm_gather_stats(
    input: Array,
    mean: Array,
    invstd: Array,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: builtins.float,
    eps: builtins.float,
    count: int,
) -> tuple[Array, Array]:
    """Combines statistics of several processes, whose rows are those of `mean` and `invstd`, with `count` elements each.

    Returns the mean and the inverse deviation of each feature, and moves running_mean and running_var towards them.
    `input` is ignored.
    """
    del input
    rows = mean.shape[0]
    together = mean.mean(0)
    variance = (1 / (invstd * invstd) - eps + (mean - together) * (mean - together)).mean(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(together * momentum)
    if running_var is not None:
        n = rows * count
        running_var.mul_(1 - momentum).add_(variance * (momentum * n / (n - 1)))
    return together, 1 / (variance + eps).sqrt()


def poisson(input: Array, generator: Any = None) -> Array:
    """Returns random numbers of Poisson distributions with the rates that `input` has."""
    if not input.is_cuda and not ((input >= 0) & input.isfinite()).all():
        raise RuntimeError("invalid Poisson rate, expected rate to be non-negative")
    return _compute._array_random(input.clone(), "poisson", generator, 0.0, 0.0)


def _assert_async(input: Array, message: str = "Expected Tensor with single nonzero value, but got zero") -> None:
    """Breaks the device with an assertion if the only element of `input` is 0. Does not wait for it."""
    if not input.is_cuda and input.numel() == 1 and not input:
        raise RuntimeError(message)
    input._assert_async()
