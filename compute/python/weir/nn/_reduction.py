"""The numbers that torch._C has for what becomes of the elements of a loss."""

from __future__ import annotations

_NUMBERS = {"none": 0, "mean": 1, "sum": 2}


def get_enum(reduction: str) -> int:
    """Returns the number of "none", "mean" or "sum"."""
    if reduction not in _NUMBERS:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return _NUMBERS[reduction]
