"""Functions that are methods of arrays too, and have names of Python's own: `from weir import *` does not bind them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import builtins
    from typing import Any

    from weir.compute._array import Array


def all(input: Array, dim: Any = None, keepdim: builtins.bool = False) -> Array:
    """Whether all elements are nonzero, or those along dimensions."""
    return input.all(dim, keepdim)


def norm(input: Array, p: Any = 2, dim: Any = None, keepdim: builtins.bool = False, dtype: Any = None) -> Array:
    """Returns the p-norm of all elements or along dimensions."""
    return input.norm(p, dim, keepdim, dtype)


def pow(input: Array, exponent: Any) -> Array:
    """Raises to a power."""
    return input.pow(exponent)


def sum(input: Array, dim: Any = None, keepdim: builtins.bool = False, *, dtype: Any = None) -> Array:
    """Adds all elements, or those along dimensions. dtype is the type of the result."""
    return input.sum(dim, keepdim, dtype=dtype)
