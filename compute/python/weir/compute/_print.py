"""The text of an array: its values, and what they do not show."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from weir.compute._array import Array

THRESHOLD = 1000  # elements of an array that is shown whole
EDGE = 3  # elements at either end of a dimension that is not
WIDTH = 80
DEFAULTS = ("float32", "int64", "bool", "complex64")


def text_of(array: Array) -> str:
    """What repr() returns."""
    kind = array.dtype.name
    if array.numel() > THRESHOLD:
        values, is_cut = _edges(array), True
    else:
        values, is_cut = array.tolist(), False
    format = _format(_flat(values), kind)
    body = _body(values, array.shape, 0, format, len("array("), is_cut)
    notes = []
    if array.is_cuda:
        notes.append(f"device='{array.device}'")
    if array.numel() == 0 and array.ndim != 1:
        notes.append(f"size={tuple(array.shape)}")
    if kind not in DEFAULTS or (array.numel() == 0 and kind != "float32"):
        notes.append(f"dtype={array.dtype}")
    return f"array({', '.join([body, *notes])})"


def _edges(array: Array) -> Any:
    """The values at the ends of each dimension, with None for those that are left out."""
    if not array.ndim:
        return array.item()
    if len(array) <= 2 * EDGE:
        return [_edges(part) for part in array] if array.ndim > 1 else array.tolist()
    if array.ndim == 1:
        return [*array[:EDGE].tolist(), None, *array[-EDGE:].tolist()]
    return [*(_edges(array[i]) for i in range(EDGE)), None, *(_edges(array[i]) for i in range(-EDGE, 0))]


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, list):
        return [] if values is None else [values]
    return [value for part in values for value in _flat(part)]


def _format(values: list[Any], kind: str) -> Callable[[Any], str]:
    """How the elements are written: all with the same width."""
    if kind.startswith("complex"):
        part = _number([x for value in values for x in (value.real, value.imag)])
        return lambda value: f"{part(value.real)}{'+' if not part(value.imag).startswith('-') else ''}{part(value.imag)}j"
    write: Callable[[Any], str] = str
    if "float" in kind:
        write = _number(values)
    width = max((len(write(value)) for value in values), default=0)
    return lambda value: write(value).rjust(width)


def _number(values: list[float]) -> Callable[[float], str]:
    finite = [abs(value) for value in values if value - value == 0]
    if all(value == int(value) for value in finite):
        if max(finite, default=0) < 1e8:
            return lambda value: f"{value:.0f}." if value - value == 0 else str(value)
        return lambda value: f"{value:.4e}"
    small = min((value for value in finite if value), default=1)
    if max(finite) >= 1e8 or small < 1e-4 or max(finite) / small > 1000 and small < 1e-3:
        return lambda value: f"{value:.4e}"
    return lambda value: f"{value:.4f}"


def _body(values: Any, shape: Any, dim: int, format: Callable[[Any], str], indent: int, is_cut: bool) -> str:
    if not isinstance(values, list):
        return format(values).strip() if dim == 0 else format(values)
    if dim == len(shape) - 1:
        texts = ["..." if value is None else format(value) for value in values]
        lines, line = [], ""
        for text in texts:
            if line and indent + 1 + len(line) + len(text) + 2 > WIDTH:
                lines.append(line)
                line = ""
            line += (", " if line else "") + text
        lines.append(line)
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    parts = ["..." if part is None else _body(part, shape, dim + 1, format, indent + 1, is_cut) for part in values]
    between = "," + "\n" * (len(shape) - dim - 1) + " " * (indent + 1)
    return "[" + between.join(parts) + "]"
