"""What libweir_compute adds to the package: arrays, random numbers, kernels, matrix products, mixed precision, collectives.

Its names, and the modules weir.amp, weir.random and others, are names of the package `weir`, which loads them when they are
first used.
"""

from __future__ import annotations

import os

import weir
from weir import _lazy, _weir
from weir.compute import _compute
from weir.compute._architectures import *
from weir.compute._architectures import (
    _check_bf16_tensor_supported,
    _check_capability,
    _check_cubins,
    _extract_arch_version,
)
from weir.compute._array import *
from weir.compute._compute import (
    Generator,
    _amp_foreach_non_finite_check_and_unscale_,
    _amp_update_scale_,
    autocast_decrement_nesting,
    autocast_increment_nesting,
    clear_autocast_cache,
    dtype,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
    promote_types,
    set_autocast_cache_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from weir.compute._functions import all as all, norm as norm, pow as pow, sum as sum
from weir.compute._legacy import *
from weir.compute._operations import *
from weir.compute._operations import _assert_async
from weir.compute._settings import *
from weir.compute._storage import TypedStorage, UntypedStorage

__all__ = [
    "Generator",
    "TypedStorage",
    "UntypedStorage",
    "autocast_decrement_nesting",
    "autocast_increment_nesting",
    "clear_autocast_cache",
    "default_generators",
    "dtype",
    "get_autocast_dtype",
    "is_autocast_cache_enabled",
    "is_autocast_enabled",
    "promote_types",
    "set_autocast_cache_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
]

# The types of elements. They are not in __all__, since some have names of Python's types.
uint8, int8, int16, int32, int64 = _compute.uint8, _compute.int8, _compute.int16, _compute.int32, _compute.int64
float16, bfloat16, float32, float64 = _compute.float16, _compute.bfloat16, _compute.float32, _compute.float64
complex64, complex128, bool = _compute.complex64, _compute.complex128, _compute.bool_
half, float, double, cfloat, cdouble = float16, float32, float64, complex64, complex128
short, int, long = int16, int32, int64

# The default generator of each device. Empty until the start.
default_generators: tuple[Generator, ...] = ()


def _start() -> None:
    global default_generators
    _compute._use_allocator()
    default_generators = tuple(_compute._default_generator(device) for device in range(weir.device_count()))
    weir.default_generators = default_generators
    _check_capability()
    _check_cubins()


def _check_capture() -> None:
    if is_autocast_enabled("cuda") and is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. Please set `cache_enabled=False`."
        )


_lazy._at_start(_start)
# Recorded stacks begin with the caller of a function on arrays, as if it were one of C.
_weir._leave_out_folder(os.path.join(__path__[0], ""))
weir.graphs._checks_of_captures.append(_check_capture)
