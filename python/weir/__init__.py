"""Weir: a GPU memory and device runtime with the interface of torch.cuda.

Importing the package initializes no device: the first call that needs a device starts the driver. Without a GPU, Weir
uses a software device (set WEIR_DRIVER=soft to select it explicitly).

    import weir

    buffer = weir.empty(1 << 20)
    with weir.stream(weir.Stream()):
        buffer.fill_(0)
    weir.synchronize()
    print(weir.memory_summary())
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

from weir import _device, _lazy, _settings, _traceback, graphs, memory, random, streams
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
from weir._traceback import *
from weir._weir import AcceleratorError, Device, Generator
from weir.graphs import *
from weir.memory import *
from weir.random import *
from weir.random import _get_device, _get_generator, _get_rng_state_offset, _set_rng_state_offset
from weir.streams import *
from weir.streams import _set_stream_by_id

__version__: str = _weir.__version__

# The default generator of each device. Empty until the start.
default_generators: tuple[Generator, ...] = ()

__all__ = [
    "AcceleratorError",
    "DeferredCudaCallError",
    "Device",
    "Generator",
    "default_generators",
    "init",
    "is_initialized",
    *_device.__all__,
    *_settings.__all__,
    *_traceback.__all__,
    *graphs.__all__,
    *memory.__all__,
    *random.__all__,
    *streams.__all__,
]


def _sleep(cycles: int) -> None:
    """Keeps the current stream busy for a number of cycles of the device clock."""
    current_stream()._spin(cycles)


def __getattr__(name: str) -> object:
    # Modules that few programs need are imported at their first use.
    if name in ("_C", "backends", "kernel"):
        from importlib import import_module

        return import_module(f"weir.{name}")
    raise AttributeError(f"module 'weir' has no attribute {name!r}")
