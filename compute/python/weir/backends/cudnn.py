"""The flags of torch.backends.cudnn. Weir has no convolutions and does not use cuDNN: the flags are kept, for programs
that set them, and change nothing."""

from __future__ import annotations

import sys
from types import ModuleType

from weir.compute._settings import _get_fp32_precision, _set_fp32_precision
from weir.backends import ContextProp, _Flags, _FP32Precision, _precision_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["flags", "is_acceptable", "is_available", "set_flags", "version"]

_values: dict[str, Any] = {"enabled": True, "benchmark": False, "benchmark_limit": 10, "deterministic": False}


def is_available() -> bool:
    """Whether cuDNN is used: it is not."""
    return False


def version() -> int | None:
    """Returns the version of cuDNN, which is None since it is not used."""
    return None


def is_acceptable(tensor: object) -> bool:
    """Whether cuDNN would be used for an array: it is not."""
    return False


def _set_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise RuntimeError(f"set_{name}_cudnn expects a bool, but got {type(value).__name__}")
    _values[name] = value


def _set_limit(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise RuntimeError(f"set_benchmark_limit_cudnn expects an int, but got {type(value).__name__}")
    _values["benchmark_limit"] = value


def _get_allow_tf32() -> bool:
    conv, rnn = (_get_fp32_precision("cuda", op) == "tf32" for op in ("conv", "rnn"))
    if conv != rnn:
        raise RuntimeError(
            "allow_tf32 is one flag for convolutions and RNNs, whose fp32_precision differ now; use fp32_precision"
        )
    return conv


def _set_allow_tf32(value: Any) -> None:
    if not isinstance(value, bool):
        raise RuntimeError(f"set_allow_tf32_cublas expects a bool, but got {type(value).__name__}")
    for op in ("conv", "rnn"):
        _set_fp32_precision("cuda", op, "tf32" if value else "none")


def set_flags(
    _enabled: bool | None = None,
    _benchmark: bool | None = None,
    _benchmark_limit: int | None = None,
    _deterministic: bool | None = None,
    _allow_tf32: bool | None = None,
    _fp32_precision: str | None = "none",
) -> tuple[Any, ...]:
    """Sets the flags that are not None, and returns the previous ones."""
    before = (
        _values["enabled"],
        _values["benchmark"],
        _values["benchmark_limit"],
        _values["deterministic"],
        _get_allow_tf32(),
        _get_fp32_precision("cuda", "all"),
    )
    for name, value in (("enabled", _enabled), ("benchmark", _benchmark), ("deterministic", _deterministic)):
        if value is not None:
            _set_bool(name, value)
    if _benchmark_limit is not None:
        _set_limit(_benchmark_limit)
    if _allow_tf32 is not None:
        _set_allow_tf32(_allow_tf32)
    if _fp32_precision is not None:
        _set_fp32_precision("cuda", "all", _fp32_precision)
    return before


def flags(
    enabled: bool | None = False,
    benchmark: bool | None = False,
    benchmark_limit: int | None = 10,
    deterministic: bool | None = False,
    allow_tf32: bool | None = True,
    fp32_precision: str | None = "none",
) -> _Flags:
    """Returns a context manager that sets the flags that are not None, and restores them."""
    return _Flags(set_flags, enabled, benchmark, benchmark_limit, deterministic, allow_tf32, fp32_precision)


class _Cudnn(ModuleType):
    enabled = ContextProp(lambda: _values["enabled"], lambda value: _set_bool("enabled", value))
    benchmark = ContextProp(lambda: _values["benchmark"], lambda value: _set_bool("benchmark", value))
    benchmark_limit = ContextProp(lambda: _values["benchmark_limit"], _set_limit)
    deterministic = ContextProp(lambda: _values["deterministic"], lambda value: _set_bool("deterministic", value))
    allow_tf32 = ContextProp(_get_allow_tf32, _set_allow_tf32)
    conv = _FP32Precision("cuda", "conv")
    rnn = _FP32Precision("cuda", "rnn")
    fp32_precision = _precision_of("cuda", "all")


sys.modules[__name__].__class__ = _Cudnn
