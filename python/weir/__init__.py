"""Weir: a GPU memory and device runtime with the interface of torch.cuda.

Importing the package initializes no device: the first call that needs a device starts the driver. Without a GPU, Weir
uses a software device (set WEIR_DRIVER=soft to select it explicitly).

    import weir

    buffer = weir.empty(1 << 20)
    with weir.stream(weir.Stream()):
        buffer.fill_(0)
    weir.synchronize()
    print(weir.memory_summary())

The commands of the program `weir` are functions, which need no device: explain, summary, whatif, tune, diff, leaks,
lint, replay, view, plot and export. help(weir.tools) has more.

    print(weir.explain("snapshot.pickle"))
"""

from __future__ import annotations

try:
    from weir import _weir
except ImportError:
    from weir._missing import explanation

    text = explanation(__path__[0])
    if text is None:
        raise
    raise ImportError(text, name="weir._weir") from None

from weir import _array, _device, _lazy, _legacy, _settings, _traceback, graphs, memory, nvtx, profiler, random, streams
from weir._array import *
from weir._array import _assert_async
from weir._device import *
from weir._device import (
    _check_bf16_tensor_supported,
    _check_capability,
    _check_cubins,
    _CudaDeviceProperties,
    _device_count_nvml,
    _DeviceGuard,
    _exchange_device,
    _extract_arch_version,
    _get_nvml_device_index,
    _get_pynvml_handler,
    _is_compiled,
    _maybe_exchange_device,
    _nvml_based_avail,
    _parse_visible_devices,
    _raw_device_count_nvml,
    _raw_device_uuid_nvml,
    _transform_uuid_to_ordinals,
)
from weir._lazy import *
from weir._settings import *
from weir._storage import TypedStorage, UntypedStorage
from weir._traceback import *
from weir._weir import (
    AcceleratorError,
    Device,
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
from weir.graphs import *
from weir.memory import *
from weir.random import *
from weir.random import _get_device, _get_generator, _get_rng_state_offset, _set_rng_state_offset
from weir.streams import *
from weir.streams import _set_stream_by_id

__version__: str = _weir.__version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    import builtins
    from typing import Any

    from weir import (
        _C as _C,
        amp as amp,
        backends as backends,
        comm as comm,
        cpu as cpu,
        jiterator as jiterator,
        kernel as kernel,
        nccl as nccl,
        serialization as serialization,
        tools as tools,
        tunable as tunable,
    )
    from weir.amp import GradScaler, autocast
    from weir.serialization import load as load, save as save
    from weir.tools import (
        diff as diff,
        explain as explain,
        export as export,
        leaks as leaks,
        lint as lint,
        plot as plot,
        replay as replay,
        summary as summary,
        tune as tune,
        view as view,
        whatif as whatif,
    )

    # The classes of _legacy.py, which are made when they are first used.
    DoubleTensor: Any
    FloatTensor: Any
    HalfTensor: Any
    BFloat16Tensor: Any
    LongTensor: Any
    IntTensor: Any
    ShortTensor: Any
    CharTensor: Any
    ByteTensor: Any
    BoolTensor: Any
    DoubleStorage: Any
    FloatStorage: Any
    HalfStorage: Any
    BFloat16Storage: Any
    LongStorage: Any
    IntStorage: Any
    ShortStorage: Any
    CharStorage: Any
    ByteStorage: Any
    BoolStorage: Any
    ComplexDoubleStorage: Any
    ComplexFloatStorage: Any

# The commands of the program. They are not in __all__, since their names are common words: `from weir import *`, which
# serves programs that use the names of torch.cuda, would replace a program's own diff, plot or view.
_TOOLS = ("diff", "explain", "export", "leaks", "lint", "plot", "replay", "summary", "tune", "view", "whatif")

# The types of elements. They are not in __all__, since some have names of Python's types.
uint8, int8, int16, int32, int64 = _weir.uint8, _weir.int8, _weir.int16, _weir.int32, _weir.int64
float16, bfloat16, float32, float64 = _weir.float16, _weir.bfloat16, _weir.float32, _weir.float64
complex64, complex128, bool = _weir.complex64, _weir.complex128, _weir.bool_
half, float, double, cfloat, cdouble = float16, float32, float64, complex64, complex128
short, int, long = int16, int32, int64

# The default generator of each device. Empty until the start.
default_generators: tuple[Generator, ...] = ()

__all__ = [
    "AcceleratorError",
    "DeferredCudaCallError",
    "Device",
    "Generator",
    "GradScaler",
    "TypedStorage",
    "UntypedStorage",
    "autocast",
    "autocast_decrement_nesting",
    "autocast_increment_nesting",
    "clear_autocast_cache",
    "default_generators",
    "dtype",
    "get_autocast_dtype",
    "init",
    "is_autocast_cache_enabled",
    "is_autocast_enabled",
    "is_initialized",
    "promote_types",
    "set_autocast_cache_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
    *_array.__all__,
    *_legacy.NAMES,
    *_device.__all__,
    *_settings.__all__,
    *_traceback.__all__,
    *graphs.__all__,
    *memory.__all__,
    *random.__all__,
    *streams.__all__,
]


_SAVING = ("load", "save")
_AMP = ("GradScaler", "autocast")
_MODULES = ("_C", "amp", "backends", "comm", "cpu", "jiterator", "kernel", "nccl", "serialization", "tools", "tunable")


if not TYPE_CHECKING:  # else every misspelled name would be valid; the block above declares those that there are

    def __getattr__(name: str) -> Any:
        """Names that are made when they are first used: the classes such as FloatTensor, save, load and modules."""
        if name in _SAVING:
            from weir import serialization

            value = getattr(serialization, name)
        elif name in _AMP:
            from weir import amp

            value = getattr(amp, name)
        elif name in _TOOLS:
            from weir import tools

            value = getattr(tools, name)
        elif name in _MODULES:
            from importlib import import_module

            value = import_module(f"weir.{name}")
        elif name in _legacy.NAMES:
            made = _legacy.classes("weir", "cuda")
            globals().update(made)
            return made[name]
        else:
            raise AttributeError(f"module 'weir' has no attribute '{name}'")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """All names, also those that __getattr__ makes; without what the source text alone needs."""
    made = {*_AMP, *_MODULES, *_SAVING, *_TOOLS, *_legacy.NAMES}
    return sorted((globals().keys() | made) - {"TYPE_CHECKING", "annotations"})


def _sleep(cycles: builtins.int) -> None:
    """Keeps the current stream busy for a number of cycles of the device clock."""
    current_stream()._spin(cycles)
