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

from weir import _device, _lazy, graphs, memory, nvtx, profiler, random, streams
from weir._device import *
from weir._device import _CudaDeviceProperties, _exchange_device, _maybe_exchange_device, _parse_visible_devices
from weir._lazy import *
from weir._weir import AcceleratorError, Device, Generator
from weir.graphs import *
from weir.memory import *
from weir.random import *
from weir.streams import *

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
    *graphs.__all__,
    *memory.__all__,
    *random.__all__,
    *streams.__all__,
]


def _sleep(cycles: int) -> None:
    """Keeps the current stream busy for a number of cycles of the device clock."""
    current_stream()._spin(cycles)
