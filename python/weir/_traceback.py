"""Stacks that are captured on request, without a recording."""

from __future__ import annotations

from weir import _weir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["CapturedTraceback", "gather_traceback", "symbolize_tracebacks"]


class CapturedTraceback:
    """The stack of a thread at one moment. Its frames get their names in symbolize_tracebacks()."""

    __slots__ = ("_native", "_python", "_stack")

    def __init__(self, python: bool, native: bool) -> None:
        self._python, self._native = python, native
        self._stack = _weir._capture_stack(python, native)


def gather_traceback(python: bool = True, script: bool = True, cpp: bool = True) -> CapturedTraceback:
    """Captures the stack of the calling thread, which takes some microseconds.

    Args:
        python: whether it includes the frames of Python.
        script: accepted for programs that pass it. There is no other language.
        cpp: whether it includes native frames.
    """
    return CapturedTraceback(bool(python), bool(cpp))


def symbolize_tracebacks(tracebacks: Iterable[CapturedTraceback]) -> list[list[dict[str, Any]]]:
    """Returns the frames of each stack, innermost first: dicts with name, filename and line."""
    stacks = list(tracebacks)
    for traceback in stacks:
        if not isinstance(traceback, CapturedTraceback):
            raise TypeError(f"expected a list of CapturedTraceback, got {type(traceback).__name__}")
    return [_weir._resolve_stack(t._stack, t._python, t._native) for t in stacks]
