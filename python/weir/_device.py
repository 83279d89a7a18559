"""Devices: their number, the current one, their properties and their utilization."""

from __future__ import annotations

import os

from weir import _weir
from weir._lazy import _lazy_init
from weir._utils import _get_device_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import Any, Literal

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
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_sync_debug_mode",
    "has_half",
    "has_magma",
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

# Whether float16 exists, and whether MAGMA, a library for linear algebra, is used.
has_half: bool = True
has_magma: bool = False


def is_available() -> bool:
    """Whether a device is available. Never fails, and does not start the driver."""
    return _weir._is_available()


def device_count() -> int:
    """Returns the number of devices; 0 if there are none.

    Does not start Weir. Until Weir has started, the number follows changes of CUDA_VISIBLE_DEVICES; after that it is
    fixed. A process that was forked after the start gets the number of its parent.
    """
    return _weir._device_count()


def current_device() -> int:
    """Returns the index of the calling thread's current device."""
    return _weir._current_device()


def set_device(device: Any) -> None:
    """Sets the current device of the calling thread. A negative index is ignored. Prefer `with weir.device(...)`."""
    index = _get_device_index(device)
    if index >= 0:
        _weir._set_device(index)


class device:
    """A context manager that changes the current device. None and negative indices change nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _maybe_exchange_device(self.prev_idx)


class _DeviceGuard:
    """Like `device`, for an index that is known to be one. A negative index changes nothing."""

    def __init__(self, index: int) -> None:
        self.idx = index
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.idx = _maybe_exchange_device(self.prev_idx)
        return False


class device_of(device):
    """A context manager that makes the device of an object current. An object in host memory changes nothing.

    Args:
        obj: a Buffer, a Stream, an Event, or any object with a `device` attribute or a DLPack device.
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
            return int(index) if kind == 2 else -1  # kDLCUDA
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
    """Returns the properties of a device: name, total_memory, major, minor, multi_processor_count and more."""
    return _weir._get_device_properties(_valid(device))


def get_device_name(device: Any = None) -> str:
    """Returns the name of a device."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Returns the compute capability of a device, such as (9, 0)."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether a device can access the memory of a peer. The peer needs an index: None and "cuda" are rejected."""
    index, peer = _valid(device), _get_device_index(peer_device)
    return _weir._can_access_peer(index, _valid(peer, "Invalid peer device id"))


def synchronize(device: Any = None) -> None:
    """Waits for all work on a device."""
    _weir._synchronize(None if device is None else _get_device_index(device, optional=True))


def _warn(text: str) -> None:
    import warnings

    warnings.warn(text, stacklevel=3)


# ---- Utilization, temperature, power ----


def _measure(call: Any, device: Any) -> int:
    value: int = call(None if device is None else _get_device_index(device, optional=True))
    return value


def utilization(device: Any = None) -> int:
    """Returns the percentage of time, over the last sample period (a second or less), in which kernels ran.

    The value comes from NVIDIA's management library (NVML). Raises NotImplementedError if it is not available. The
    software device returns 100 if it is busy at the moment, or else 0.
    """
    return _measure(_weir._utilization, device)


def memory_usage(device: Any = None) -> int:
    """Returns the percentage of the last sample period in which memory was read or written. See utilization()."""
    return _measure(_weir._memory_usage, device)


def temperature(device: Any = None) -> int:
    """Returns degrees Celsius. Raises NotImplementedError if not available, as on the software device."""
    return _measure(_weir._temperature, device)


def power_draw(device: Any = None) -> int:
    """Returns milliwatts. Raises NotImplementedError if not available, as on the software device."""
    return _measure(_weir._power_draw, device)


def clock_rate(device: Any = None) -> int:
    """Returns the current clock rate of the multiprocessors in MHz; on the software device, the configured one."""
    return _measure(_weir._clock_rate, device)


def device_memory_used(device: Any = None) -> int:
    """Returns the bytes of a device's memory that are in use by all processes."""
    free, total = _weir._memory_info(None if device is None else _get_device_index(device, optional=True))
    return total - free


# ---- Visible devices ----


def _parse_visible_devices() -> list[int] | list[str]:
    """Parses CUDA_VISIBLE_DEVICES into indices or UUID prefixes. Returns all indices if it is not set."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(64))
    for prefix in ("GPU-", "MIG-"):
        if text.startswith(prefix):
            return _until_bad(text.split(","), lambda name: name if name.startswith(prefix) else None)
    return _until_bad(text.split(","), _leading_number)


def _leading_number(text: str) -> int | None:
    """Parses like strtoul: "1gpu" is 1. Returns None if there is no number, or a negative one."""
    text = text.strip()
    sign = text[:1] if text[:1] in ("+", "-") else ""
    digits = text[len(sign) :]
    digits = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    return int(digits) if digits and (sign != "-" or int(digits) == 0) else None


def _until_bad(parts: list[str], convert: Any) -> list[Any]:
    """Converts the parts up to the first invalid one. Returns an empty list if a value occurs twice."""
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
    """Maps UUID prefixes to device indices, up to the first prefix that matches no device or more than one."""

    def number_of(candidate: str) -> int | None:
        matches = [number for number, uuid in enumerate(uuids) if uuid.startswith(candidate)]
        return matches[0] if len(matches) == 1 else None

    return _until_bad(candidates, number_of)


# ---- Devices as NVML sees them: all of the machine, without CUDA_VISIBLE_DEVICES ----


def _nvml() -> Any:
    """Loads and starts NVIDIA's management library. OSError if it is not installed; None, with a warning, if it fails."""
    from ctypes import CDLL

    library = CDLL(os.environ.get("WEIR_NVML_LIBRARY") or "libnvidia-ml.so.1")
    if library.nvmlInit_v2() != 0:
        _warn("Can't initialize NVML")
        return None
    return library


def _raw_device_count_nvml() -> int:
    """Returns the number of NVIDIA GPUs in the machine, or -1 if NVML does not know it."""
    from ctypes import byref, c_int

    library, count = _nvml(), c_int(-1)
    if library is None:
        return -1
    if library.nvmlDeviceGetCount_v2(byref(count)) != 0:
        _warn("Can't get nvml device count")
        return -1
    return count.value


def _raw_device_uuid_nvml() -> list[str] | None:
    """Returns the UUIDs of the NVIDIA GPUs in the machine, or None if NVML does not know them."""
    from ctypes import byref, c_int, c_void_p, create_string_buffer

    library, count = _nvml(), c_int(-1)
    if library is None:
        return None
    if library.nvmlDeviceGetCount_v2(byref(count)) != 0:
        _warn("Can't get nvml device count")
        return None
    uuids = []
    for index in range(count.value):
        handle, text = c_void_p(), create_string_buffer(96)
        if library.nvmlDeviceGetHandleByIndex_v2(index, byref(handle)) != 0:
            _warn("Can't get device handle")
            return None
        if library.nvmlDeviceGetUUID(handle, text, len(text)) != 0:
            _warn("Can't get device UUID")
            return None
        uuids.append(text.value.decode("ascii"))
    return uuids


def _device_count_nvml() -> int:
    """Returns the number of visible GPUs according to NVML and CUDA_VISIBLE_DEVICES, or -1 if NVML does not know it."""
    visible: list[Any] = list(_parse_visible_devices())
    if not visible:
        return 0
    try:
        if isinstance(visible[0], str):
            uuids = None if visible[0].startswith("MIG-") else _raw_device_uuid_nvml()
            return -1 if uuids is None else len(_transform_uuid_to_ordinals(visible, uuids))
        count = _raw_device_count_nvml()
    except (OSError, AttributeError):
        return -1
    if count <= 0:
        return count
    return next((index for index, number in enumerate(visible) if number >= count), len(visible))


def _get_nvml_device_index(device: Any) -> int:
    """Returns the number that NVML has for a visible device."""
    index = _get_device_index(device, optional=True)
    visible: list[Any] = list(_parse_visible_devices())
    if visible and isinstance(visible[0], str):
        uuids = _raw_device_uuid_nvml()
        if uuids is None:
            raise RuntimeError("Can't get device UUIDs")
        visible = _transform_uuid_to_ordinals(visible, uuids)
    if not 0 <= index < len(visible):
        raise RuntimeError(f"device {index} is not visible (CUDA_VISIBLE_DEVICES={visible})")
    ordinal: int = visible[index]
    return ordinal


def _get_pynvml_handler(device: Any = None) -> int:
    """Returns NVML's handle of a device. Weir needs no package for NVML."""
    from ctypes import byref, c_void_p

    try:
        library = _nvml()
    except OSError as error:
        raise RuntimeError("cuda driver can't be loaded, is cuda enabled?") from error
    handle = c_void_p()
    if library is None or library.nvmlDeviceGetHandleByIndex_v2(_get_nvml_device_index(device), byref(handle)) != 0:
        raise RuntimeError("Can't get device handle")
    return handle.value or 0


def _is_compiled() -> bool:
    """Whether this is a build with CUDA: every build of Weir is."""
    return True


def _nvml_based_avail() -> bool:
    """Whether is_available() asks NVML: it asks the driver, which makes no context and does not start Weir."""
    return False


# ---- Sync debug mode ----

_SYNC_DEBUG_MODES = ("default", "warn", "error")


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Sets what happens if a call makes the host wait for a stream: nothing ("default" or 0), a warning ("warn" or 1),
    or an error ("error" or 2)."""
    _lazy_init()
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_DEBUG_MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _SYNC_DEBUG_MODES.index(debug_mode)
    if debug_mode not in (0, 1, 2):
        raise RuntimeError("invalid value of debug_mode, expected one of 0,1,2")
    _weir._set_sync_debug_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """Returns the synchronization debug mode as a number: 0, 1 or 2."""
    _lazy_init()
    return _weir._get_sync_debug_mode()


# ---- The CUDA runtime ----


def cudart() -> ModuleType:
    """Returns a module with CUDA runtime functions: cudaHostRegister, cudaMemGetInfo, cudaProfilerStart and others."""
    _lazy_init()
    from weir import _cudart

    return _cudart


class cudaStatus:
    """Status codes of the CUDA runtime."""

    SUCCESS: int = 0
    ERROR_NOT_READY: int = 34


class CudaError(RuntimeError):
    """A call of the CUDA runtime failed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{_weir._error_string(int(code))} ({int(code)})")


def check_error(res: int) -> None:
    """Raises CudaError unless the code is 0."""
    if res != cudaStatus.SUCCESS:
        raise CudaError(res)
