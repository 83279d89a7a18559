"""Weir: a GPU memory and device runtime with the interface of torch.cuda.

Importing the package initializes no device: the first call that needs a device starts the driver. Without a GPU, Weir
uses a software device (set WEIR_DRIVER=soft to select it explicitly).

    import weir

    buffer = weir.buffer(1 << 20)
    with weir.stream(weir.Stream()):
        buffer.fill_(0)
    weir.synchronize()
    print(weir.memory_summary())

The commands of the program `weir` are functions, which need no device: explain, summary, whatif, tune, diff, leaks,
lint, replay, view, plot and export. help(weir.tools) has more.

    print(weir.explain("snapshot.pickle"))
"""

from __future__ import annotations

import os

try:
    from weir import _weir
except ImportError:
    from weir._missing import explanation

    text = explanation(__path__[0])
    if text is None:
        raise
    raise ImportError(text, name="weir._weir") from None

from weir import _device, _lazy, _traceback, graphs, memory, profiler, streams, tags
from weir._device import *
from weir._device import (
    _CudaDeviceProperties,
    _device_count_nvml,
    _DeviceGuard,
    _exchange_device,
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
from weir._traceback import *
from weir._weir import AcceleratorError, Device
from weir.graphs import *
from weir.memory import *
from weir.streams import *
from weir.streams import _set_stream_by_id
from weir.tags import *

TYPE_CHECKING = False
if TYPE_CHECKING:
    import builtins
    from typing import Any

    from weir import accelerator as accelerator
    from weir import ranks as ranks
    from weir import tools as tools
    from weir._names import *
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

try:
    from weir import _names
except ImportError:  # Weir was built without compute
    _names = None  # type: ignore[assignment]

__version__: str = _weir.__version__

# The commands of the program. They are not in __all__, since their names are common words: `from weir import *`, which
# serves programs that use the names of torch.cuda, would replace a program's own diff, plot or view.
_TOOLS = ("diff", "explain", "export", "leaks", "lint", "plot", "replay", "summary", "tune", "view", "whatif")

# Names that are made when they are first used, and the modules that they are in. Those of compute are a generated list.
_LATER = {**dict.fromkeys(_TOOLS, "tools"), **(_names.NAMES if _names else {})}
_MODULES = ("accelerator", "ranks", "tools", *(_names.MODULES if _names else ()))

__all__ = [
    "AcceleratorError",
    "DeferredCudaCallError",
    "Device",
    "init",
    "is_initialized",
    *_device.__all__,
    *_traceback.__all__,
    *graphs.__all__,
    *memory.__all__,
    *streams.__all__,
    *tags.__all__,
    *(_names.PUBLIC if _names else ()),
]


if not TYPE_CHECKING:  # else every misspelled name would be valid

    def __getattr__(name: str) -> Any:
        """Makes a name of _LATER or _MODULES at its first use."""
        from importlib import import_module

        if name in _LATER:
            value = getattr(import_module(f"weir.{_LATER[name]}"), name)
        elif name in _MODULES:
            value = import_module(f"weir.{name}")
        else:
            raise AttributeError(f"module 'weir' has no attribute '{name}'{_suggestion(name)}")
        # The import of the module may have set it.
        return globals().setdefault(name, value)


def _suggestion(name: str) -> str:
    """What an error says of a name that is close to one that exists."""
    if name.startswith("__"):  # the language asks for these
        return ""
    from difflib import get_close_matches

    known = [other for other in __dir__() if name.startswith("_") or not other.startswith("_")]
    close = get_close_matches(name, known, 1, 0.7)
    return f". Did you mean: '{close[0]}'?" if close else ""


def __dir__() -> list[str]:
    """All names, also those that __getattr__ makes; without what the source text alone needs."""
    return sorted((globals().keys() | {*_LATER, *_MODULES}) - {"TYPE_CHECKING", "annotations", "os"})


def _sleep(cycles: builtins.int) -> None:
    """Keeps the current stream busy for a number of cycles of the device clock."""
    current_stream()._spin(cycles)


def _load_for_tool() -> None:
    """A tool that was started with the program is told of the memory by compute."""
    if _names and _names.LOADED_FOR in os.environ:
        import weir.compute


_lazy._at_start(_load_for_tool)
