"""Settings of the process that torch has at its top: the precision of matrix products, deterministic algorithms."""

from __future__ import annotations

import contextlib

from weir.compute import _compute

__all__ = [
    "are_deterministic_algorithms_enabled",
    "current_blas_handle",
    "get_deterministic_debug_mode",
    "get_float32_matmul_precision",
    "is_deterministic_algorithms_warn_only_enabled",
    "no_grad",
    "set_deterministic_debug_mode",
    "set_float32_matmul_precision",
    "use_deterministic_algorithms",
]


def current_blas_handle() -> int:
    """Returns the cublasHandle_t of the calling thread, set to the current stream, as an address.

    cuBLAS is loaded on first use. On the software device the address identifies the thread and the device.
    """
    return _compute._cuda_getCurrentBlasHandle()


def get_float32_matmul_precision() -> str:
    """Returns the precision of float32 in matrix products: "highest", "high" or "medium"."""
    return _compute._get_float32_matmul_precision()


def set_float32_matmul_precision(precision: str) -> None:
    """Sets the precision of float32 in matrix products.

    Args:
        precision: "highest" is float32 itself. "high" and "medium" are TF32, which has 10 bits of mantissa, where the
            device has it. Another text is ignored with a warning.
    """
    global _matmul_is_set
    _compute._set_float32_matmul_precision(precision)
    _matmul_is_set = True


def _set_allow_tf32(value: bool) -> None:
    global _matmul_is_set
    _compute._set_cublas_allow_tf32(value)
    _matmul_is_set = True


# ---- The precision of float32 by backend and operation: weir.backends ----

_PRECISIONS = ("none", "ieee", "tf32", "bf16")
# What was set. The products' own precision is the flag in the library.
_precisions = {("generic", "all"): "none", ("cuda", "all"): "none", ("cuda", "conv"): "tf32", ("cuda", "rnn"): "tf32"}
_matmul_is_set = False  # whether the products have a precision of their own


def _matmul_precision() -> str:
    return "tf32" if _compute._get_cublas_allow_tf32() else "ieee" if _matmul_is_set else "none"


def _inherited(backend: str) -> str:
    found = _precisions[(backend, "all")]
    return found if found != "none" else _precisions[("generic", "all")]


def _get_fp32_precision(backend: str, op: str) -> str:
    if (backend, op) == ("cuda", "matmul"):
        found = _matmul_precision()
    elif (backend, op) in _precisions:
        found = _precisions[(backend, op)]
    else:
        raise RuntimeError(f"Invalid (backend, op) pair: ({backend}, {op})")
    if found == "none":
        found = _inherited(backend)
    return "none" if backend == "cuda" and found == "bf16" else found  # the devices have no such products


def _set_fp32_precision(backend: str, op: str, precision: str) -> str:
    global _matmul_is_set
    if precision not in _PRECISIONS:
        raise RuntimeError(f"Unknown precision: {precision}")
    if backend == "cuda" and precision == "bf16":
        raise RuntimeError("backend 'cuda' does not support precision 'bf16'")
    if (backend, op) == ("cuda", "matmul"):
        _matmul_is_set = precision != "none"
        _compute._set_cublas_allow_tf32((precision if _matmul_is_set else _inherited("cuda")) == "tf32")
    elif (backend, op) in _precisions:
        _precisions[(backend, op)] = precision
        if op == "all" and not _matmul_is_set:
            _compute._set_cublas_allow_tf32(_inherited("cuda") == "tf32")
    else:
        raise RuntimeError(f"Invalid (backend, op) pair: ({backend}, {op})")
    return precision


# ---- Deterministic algorithms ----


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Says whether operations must give the same result each time.

    Operations that cannot raise RuntimeError in this mode, or issue a warning with `warn_only`: `bincount` with weights,
    and matrix products on a GPU unless CUBLAS_WORKSPACE_CONFIG is ":4096:8" or ":16:8", with which cuBLAS is reproducible
    across streams. Of several values that are assigned to one element, the last one remains.
    """
    _compute._set_deterministic_algorithms(mode, warn_only=warn_only)


def are_deterministic_algorithms_enabled() -> bool:
    """Whether use_deterministic_algorithms(True) is set."""
    return _compute._get_deterministic_algorithms()


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether use_deterministic_algorithms(True, warn_only=True) is set."""
    return _compute._get_deterministic_algorithms_warn_only()


_DEBUG_MODES = ("default", "warn", "error")


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """Sets the same as "default" or 0, "warn" or 1, and "error" or 2."""
    if not isinstance(debug_mode, (int, str)):
        raise TypeError(f"debug_mode must be str or int, but got {type(debug_mode)}")
    if isinstance(debug_mode, str):
        if debug_mode not in _DEBUG_MODES:
            raise RuntimeError(
                f"invalid value of debug_mode, expected one of `default`, `warn`, `error`, but got {debug_mode}"
            )
        debug_mode = _DEBUG_MODES.index(debug_mode)
    if debug_mode not in (0, 1, 2):
        raise RuntimeError(f"invalid value of debug_mode, expected 0, 1, or 2, but got {debug_mode}")
    _compute._set_deterministic_algorithms(debug_mode > 0, warn_only=debug_mode == 1)


def get_deterministic_debug_mode() -> int:
    """Returns the mode of set_deterministic_debug_mode() as a number."""
    if not _compute._get_deterministic_algorithms():
        return 0
    return 1 if _compute._get_deterministic_algorithms_warn_only() else 2


class no_grad(contextlib.ContextDecorator):
    """A region, or a function, without gradients. Weir computes none: this is for programs that say so."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass
