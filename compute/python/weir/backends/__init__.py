"""Settings of libraries, with the names of torch.backends: precision of matrix products, and flags kept for cuDNN.

    weir.backends.cuda.matmul.allow_tf32 = True
    weir.backends.cuda.matmul.fp32_precision = "tf32"           the same
    weir.set_float32_matmul_precision("high")                   the same

fp32_precision is "ieee", "tf32", "bf16" or "none". "none" inherits: an operation from its backend, and a backend from
`weir.backends.fp32_precision`.
"""

from __future__ import annotations

import sys
from types import ModuleType

from weir.compute._settings import _get_fp32_precision, _precisions, _set_fp32_precision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

_frozen = False


def disable_global_flags() -> None:
    """From now on, flags can only be changed by the context managers `flags(...)`."""
    global _frozen
    _frozen = True


def flags_frozen() -> bool:
    """Whether disable_global_flags() was called."""
    return _frozen


class ContextProp:
    """A flag of a module, with functions that get and set it."""

    def __init__(self, getter: Callable[[], Any], setter: Callable[[Any], object]) -> None:
        self.getter, self.setter = getter, setter

    def __get__(self, obj: object, objtype: type | None = None) -> Any:
        return self.getter()

    def __set__(self, obj: ModuleType, val: Any) -> None:
        if _frozen:
            raise RuntimeError(
                f"not allowed to set {obj.__name__} flags after disable_global_flags; please use flags() context "
                "manager instead"
            )
        self.setter(val)


class _Flags:
    """A context manager that sets flags, and restores them. It works after disable_global_flags()."""

    def __init__(self, set_flags: Callable[..., tuple[Any, ...]], *values: Any) -> None:
        self._set, self._values = set_flags, values

    def __enter__(self) -> None:
        self._before = self._set(*self._values)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._set(*self._before)


# ---- The precision of float32 ----

class _FP32Precision:
    """An operation of a backend, with one attribute: fp32_precision."""

    def __init__(self, backend: str, op: str) -> None:
        object.__setattr__(self, "backend", backend)
        object.__setattr__(self, "op", op)

    def __getattr__(self, name: str) -> Any:
        if name == "fp32_precision":
            return _get_fp32_precision(self.backend, self.op)
        raise AttributeError("Unknown attribute " + name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "fp32_precision":
            raise AttributeError("Unknown attribute " + name)
        _set_fp32_precision(self.backend, self.op, value)


def _precision_of(backend: str, op: str) -> ContextProp:
    return ContextProp(
        lambda: _get_fp32_precision(backend, op), lambda precision: _set_fp32_precision(backend, op, precision)
    )


def set_flags(_fp32_precision: str | None = "none") -> tuple[str]:
    """Sets the precision that backends inherit, and returns the previous one."""
    before = (_precisions[("generic", "all")],)
    if _fp32_precision is not None:
        _set_fp32_precision("generic", "all", _fp32_precision)
    return before


def flags(fp32_precision: str = "none") -> _Flags:
    """Returns a context manager that sets the precision that backends inherit."""
    return _Flags(set_flags, fp32_precision)


class _Backends(ModuleType):
    fp32_precision = _precision_of("generic", "all")


sys.modules[__name__].__class__ = _Backends

from weir.backends import cuda, cudnn
