"""Devices: how many, which is current, what they are, how busy."""

from __future__ import annotations

import os

from weir import _weir
from weir._lazy import _lazy_init
from weir._utils import _get_device_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any

__all__ = [
    "CudaError",
    "can_device_access_peer",
    "check_error",
    "clock_rate",
    "cudaStatus",
    "cudart",
    "current_device",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_sync_debug_mode",
    "is_available",
    "memory_usage",
    "power_draw",
    "set_device",
    "set_sync_debug_mode",
    "synchronize",
    "temperature",
    "utilization",
]

_exchange_device = _weir._exchange_device
_maybe_exchange_device = _weir._maybe_exchange_device
_CudaDeviceProperties = _weir._CudaDeviceProperties


def is_available() -> bool:
    """Whether there is a device to work with. Never fails, and starts nothing."""
    return _weir._is_available()


def device_count() -> int:
    """How many devices there are: 0 where there is none.

    Starts nothing. Before the start it follows changes of CUDA_VISIBLE_DEVICES, after it the number stays. In a process that was
    forked after the start it is the parent's number.
    """
    return _weir._device_count()


def current_device() -> int:
    """The number of the calling thread's current device."""
    return _weir._current_device()


def set_device(device: Any) -> None:
    """Makes a device the calling thread's current one. A negative number does nothing. `with weir.device(...)` is better."""
    index = _get_device_index(device)
    if index >= 0:
        _weir._set_device(index)


class device:
    """Makes a device the current one within a `with` block. None and negative numbers change nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _maybe_exchange_device(self.prev_idx)


class device_of(device):
    """Makes the device of an object the current one within a `with` block; for an object of the host, nothing changes.

    obj: a Buffer, a Stream, an Event, or what has a `device` or a DLPack device.
    """

    def __init__(self, obj: Any) -> None:
        super().__init__(_device_of(obj))


def _device_of(obj: Any) -> int:
    if getattr(obj, "is_cuda", True):
        place = getattr(obj, "device", None)
        if place is not None and getattr(place, "type", "cuda") == "cuda":
            return _get_device_index(place, optional=True)
        ask = getattr(obj, "__dlpack_device__", None)
        if place is None and ask is not None:
            kind, index = ask()
            return index if kind == 2 else -1  # kDLCUDA
        if place is None and not hasattr(obj, "device"):
            raise TypeError(f"expected an object with a device, got {type(obj).__name__}")
    return -1


def _valid(device: Any, words: str = "Invalid device id") -> int:
    _lazy_init()
    index = _get_device_index(device, optional=True)
    if not 0 <= index < device_count():
        raise AssertionError(words)
    return index


def get_device_properties(device: Any = None) -> _weir._CudaDeviceProperties:
    """What a device is: name, total_memory, major, minor, multi_processor_count and more."""
    return _weir._get_device_properties(_valid(device))


def get_device_name(device: Any = None) -> str:
    """What a device is called."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability of a device, as (9, 0)."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether a device could touch memory of another, which has to be named: None and "cuda" are refused."""
    index, peer = _valid(device), _get_device_index(peer_device)
    return _weir._can_access_peer(index, _valid(peer, "Invalid peer device id"))


def synchronize(device: Any = None) -> None:
    """Waits for all work of a device."""
    _weir._synchronize(None if device is None else _get_device_index(device, optional=True))


def get_arch_list() -> list[str]:
    """The architectures that Weir has device code for. It has little, as text for all since sm_50."""
    return ["compute_50"] if is_available() else []


def get_gencode_flags() -> str:
    """The same as flags for nvcc."""
    pairs = (arch.split("_") for arch in get_arch_list())
    return " ".join(f"-gencode compute=compute_{number},code={kind}_{number}" for kind, number in pairs)


# ---- How busy, how warm ----


def _measure(call: Any, device: Any) -> int:
    return call(None if device is None else _get_device_index(device, optional=True))


def utilization(device: Any = None) -> int:
    """Percent of the last sample period, a second or less, in which kernels ran.

    NVIDIA's management library is asked. NotImplementedError where it cannot tell. The software device says 100 or 0:
    whether it is at work at this moment.
    """
    return _measure(_weir._utilization, device)


def memory_usage(device: Any = None) -> int:
    """Percent of the last sample period in which memory was read or written. See utilization()."""
    return _measure(_weir._memory_usage, device)


def temperature(device: Any = None) -> int:
    """Degrees Celsius. NotImplementedError where that cannot be told: the software device has none."""
    return _measure(_weir._temperature, device)


def power_draw(device: Any = None) -> int:
    """Milliwatts. NotImplementedError where that cannot be told: the software device has none."""
    return _measure(_weir._power_draw, device)


def clock_rate(device: Any = None) -> int:
    """Megahertz of the processors at this moment; of the software device, what it was set to."""
    return _measure(_weir._clock_rate, device)


def device_memory_used(device: Any = None) -> int:
    """Bytes of a device that are in use, by every process."""
    free, total = _weir._memory_info(None if device is None else _get_device_index(device, optional=True))
    return total - free


# ---- Which devices are visible ----


def _parse_visible_devices() -> list[int] | list[str]:
    """What CUDA_VISIBLE_DEVICES says: numbers, or beginnings of names. All numbers when it is not set."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(64))
    for prefix in ("GPU-", "MIG-"):
        if text.startswith(prefix):
            return _until_bad(text.split(","), lambda name: name if name.startswith(prefix) else None)
    return _until_bad(text.split(","), _leading_number)


def _leading_number(text: str) -> int | None:
    """As C's strtoul: "1gpu" is 1. None where there is no number, or one below 0."""
    text = text.strip()
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = text[len(sign) :]
    digits = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    return int(digits) if digits and (sign != "-" or int(digits) == 0) else None


def _until_bad(parts: list[str], convert: Any) -> list[Any]:
    """Up to the first that cannot be converted; nothing at all where one is there twice."""
    found: list[Any] = []
    for part in parts:
        value = convert(part)
        if value in found:
            return []
        if value is None:
            break
        found.append(value)
    return found


def _transform_uuid_to_ordinals(candidates: list[str], uuids: list[str]) -> list[int]:
    """The numbers of devices by beginnings of their names, up to the first that names none, or more than one."""

    def number_of(candidate: str) -> int | None:
        matches = [number for number, uuid in enumerate(uuids) if uuid.startswith(candidate)]
        return matches[0] if len(matches) == 1 else None

    return _until_bad(candidates, number_of)


# ---- Sync debug mode ----

_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """What happens when a call makes the host wait for a stream: "default" (0) nothing, "warn" (1), "error" (2)."""
    _lazy_init()
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_DEBUG_MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _SYNC_DEBUG_MODES.index(debug_mode)
    if debug_mode not in (0, 1, 2):
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    _weir._set_sync_debug_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """The mode as a number: 0, 1 or 2."""
    _lazy_init()
    return _weir._get_sync_debug_mode()


# ---- The CUDA runtime's own ----


def cudart() -> ModuleType:
    """Calls of the CUDA runtime, under its names: cudaHostRegister, cudaMemGetInfo, cudaProfilerStart and others."""
    _lazy_init()
    from weir import _cudart

    return _cudart


class cudaStatus:
    """Codes of the CUDA runtime."""

    SUCCESS: int = 0
    ERROR_NOT_READY: int = 34


class CudaError(RuntimeError):
    """A call of the CUDA runtime returned a code that is not success."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{_weir._error_string(int(code))} ({int(code)})")


def check_error(res: int) -> None:
    """Raises a CudaError unless the code is 0."""
    if res != cudaStatus.SUCCESS:
        raise CudaError(res)
