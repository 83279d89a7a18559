"""The architectures of the device code, and what a device computes with."""

from __future__ import annotations

import warnings

import weir
from weir import current_device, device_count, get_device_capability, get_device_name, get_device_properties

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["get_arch_list", "get_gencode_flags", "is_bf16_supported", "is_tf32_supported"]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the current device computes with bfloat16.

    Args:
        including_emulation: whether it counts if kernels convert to float32, as Weir's do on devices before sm_80.
    """
    index = current_device()
    if get_device_properties(index).major >= 8:
        return True
    return including_emulation and _check_bf16_tensor_supported(index)


def _check_bf16_tensor_supported(device: Any) -> bool:
    """Whether bfloat16 can be stored and converted on a device: Weir's kernels do it on every device they run on."""
    return any(_runs(arch, get_device_capability(device)) for arch in get_arch_list())


def is_tf32_supported() -> bool:
    """Whether the current device has TF32, as all devices that compute with bfloat16 natively."""
    return is_bf16_supported(including_emulation=False)


# Of the PTX in compute/ptx.tar.xz.
_ARCHITECTURES = ("compute_75",)


def get_arch_list() -> list[str]:
    """Returns the architectures of Weir's device code: PTX, which also runs on all later devices."""
    return list(_ARCHITECTURES) if weir.is_available() else []


def get_gencode_flags() -> str:
    """Returns the architectures of get_arch_list() as flags for nvcc."""
    pairs = (arch.split("_") for arch in get_arch_list())
    return " ".join(f"-gencode compute=compute_{number},code={kind}_{number}" for kind, number in pairs)


def _extract_arch_version(arch_string: str) -> int:
    """Returns the number of an architecture: 90 for "sm_90", "sm_90a" and "compute_90"."""
    return int(arch_string.split("_", maxsplit=2)[1].removesuffix("a").removesuffix("f"))


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    """Whether code of an architecture runs on a device. Binaries run on later devices of the same major number."""
    number = _extract_arch_version(arch)
    code = number // 10, number % 10
    return capability >= code and (arch.startswith("compute_") or capability[0] == code[0])


def _check_capability() -> None:
    """Warns about devices that are too old for Weir's kernels. Runs at the start."""
    archs = get_arch_list()
    oldest = min((_extract_arch_version(arch) for arch in archs), default=0)
    for index in range(device_count()):
        major, minor = get_device_capability(index)
        if 10 * major + minor < oldest:
            warnings.warn(
                f"Found GPU{index} {get_device_name(index)} which is of cuda capability {major}.{minor}.\n"
                f"The minimum cuda capability supported by Weir's kernels is {oldest // 10}.{oldest % 10}. "
                "Memory, streams and graphs work, and so do kernels that are compiled at run time."
            )


def _check_cubins() -> None:
    """Warns about devices for which there are only binaries of other architectures. Runs at the start."""
    archs = get_arch_list()
    if not any(arch.startswith("sm_") for arch in archs):
        return  # PTX alone: _check_capability says what there is to say
    for index in range(device_count()):
        capability = get_device_capability(index)
        if not any(_runs(arch, capability) for arch in archs):
            name = get_device_name(index)
            warnings.warn(
                f"{name} with CUDA capability sm_{capability[0]}{capability[1]} is not compatible with the current "
                f"Weir installation.\nThe current Weir install supports CUDA capabilities {' '.join(archs)}."
            )
