"""Settings of matrix products on devices, with the names of torch.backends.cuda.

Not here, since Weir does not use the libraries: the plan cache of cuFFT, the choice of a library for linear algebra,
and the kernels of scaled dot product attention.
"""

from __future__ import annotations

from weir.compute import _compute
from weir.compute._settings import _get_fp32_precision, _set_allow_tf32, _set_fp32_precision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["cuBLASModule", "is_built", "matmul", "preferred_blas_library"]


def is_built() -> bool:
    """Whether this is a build with CUDA: every build of Weir is. weir.is_available() says whether there is a device."""
    return True


class cuBLASModule:
    """The settings of matrix products.

    allow_tf32: whether products of float32 may use TF32, which has 10 bits of mantissa.
    fp32_precision: the same as a text: "ieee", "tf32", or "none", which inherits.
    allow_fp16_reduced_precision_reduction, allow_bf16_reduced_precision_reduction: whether partial sums of 16-bit
        products may be added in 16 bits. Set to a bool, or to a pair of bools of which the second says whether a
        product may be split along the summed dimension; that one is read as ..._split_k.
    allow_fp16_accumulation: whether products of float16 are accumulated in float16.
    """

    def __getattr__(self, name: str) -> Any:
        if name == "allow_tf32":
            return _compute._get_cublas_allow_tf32()
        if name == "allow_fp16_reduced_precision_reduction":
            return _compute._get_cublas_allow_fp16_reduced_precision_reduction()[0]
        if name == "allow_fp16_reduced_precision_reduction_split_k":
            return _compute._get_cublas_allow_fp16_reduced_precision_reduction()[1]
        if name == "allow_bf16_reduced_precision_reduction":
            return _compute._get_cublas_allow_bf16_reduced_precision_reduction()[0]
        if name == "allow_bf16_reduced_precision_reduction_split_k":
            return _compute._get_cublas_allow_bf16_reduced_precision_reduction()[1]
        if name == "allow_fp16_accumulation":
            return _compute._get_cublas_allow_fp16_accumulation()
        if name == "fp32_precision":
            return _get_fp32_precision("cuda", "matmul")
        raise AttributeError("Unknown attribute " + name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "allow_tf32":
            _set_allow_tf32(value)
        elif name == "allow_fp16_reduced_precision_reduction":
            _compute._set_cublas_allow_fp16_reduced_precision_reduction(*_parse_reduction(value, name))
        elif name == "allow_bf16_reduced_precision_reduction":
            _compute._set_cublas_allow_bf16_reduced_precision_reduction(*_parse_reduction(value, name))
        elif name == "allow_fp16_accumulation":
            _compute._set_cublas_allow_fp16_accumulation(value)
        elif name == "fp32_precision":
            _set_fp32_precision("cuda", "matmul", value)
        else:
            raise AttributeError("Unknown attribute " + name)


def _parse_reduction(value: Any, name: str) -> tuple[bool, bool]:
    """Returns whether reduced precision is allowed, and whether a split is."""
    if isinstance(value, bool):
        return value, True
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} expects a bool or a tuple/list of bools, but got {type(value)!r}")
    if not value:
        raise TypeError(f"{name} expects at least one boolean argument")
    if len(value) > 2:
        raise TypeError(f"{name} expects at most two boolean arguments")
    for part, which in zip(value, ("allow_reduced_precision", "allow_splitk")):
        if not isinstance(part, bool):
            raise TypeError(f"{name} expects a bool for {which}, but got {type(part)!r}")
    return value[0], value[1] if len(value) == 2 else True


# The settings of matrix products: a cuBLASModule.
matmul = cuBLASModule()

_BLAS_LIBRARIES = ("default", "cublas", "cublaslt")


def preferred_blas_library(backend: str | None = None) -> str:
    """Returns the library of matrix products, which is "cublas". It can only be set to that, or to "default"."""
    if backend is None or backend in ("default", "cublas"):
        return "cublas"
    if not isinstance(backend, str):
        raise RuntimeError("Unknown input value type.")
    if backend not in _BLAS_LIBRARIES:
        raise RuntimeError(f"Unknown input value. Choose from: {', '.join(_BLAS_LIBRARIES)}.")
    raise RuntimeError("Weir's matrix products use cuBLAS only")
