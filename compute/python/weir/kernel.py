"""Kernels: device code that is compiled at run time or loaded, and its launches.

    from weir import kernel

    source = '''
    extern "C" __global__ void scale(float *p, float by, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) p[i] *= by;
    }'''
    scale = kernel.compile(source).get_function("scale")
    scale(grid=4, block=256, args=[buffer, 2.0, 1000])

Source is compiled by NVRTC on a GPU and by the system's C++ compiler on the software device.
"""

from __future__ import annotations

import sys
from os import path as _path

from weir.compute import _compute

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

from weir.compute._compute import Kernel
from weir.compute._compute import _Module as Module

__all__ = ["Kernel", "Module", "compile", "load"]

_TARGETS = {"auto": 0, "ptx": 1, "binary": 2}
_has_folders = False


def _add_folders() -> None:
    """Lets Weir find the libraries of the nvidia packages of this Python."""
    global _has_folders
    if not _has_folders:
        _has_folders = True
        for folder in sys.path:
            if folder and _path.isdir(_path.join(folder, "nvidia")):
                _compute._add_library_folder(folder)


def compile(
    source: str,
    *,
    names: Sequence[str] = (),
    options: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    device: Any = None,
    file_name: str = "kernel.cu",
    target: str = "auto",
    cache: bool = True,
) -> Module:
    """Compiles CUDA C++ and returns the module.

    Args:
        names: C++ names of kernels that are templates or have no C linkage, as "scale<float>".
        options: options of the compiler, as "--use_fast_math" or "-DN=4".
        headers: the texts of headers that the source includes, by name.
        device: the device that the code is for; None for the current one.
        file_name: the name of the source in messages.
        target: "ptx", "binary", or "auto" for a binary where possible.
        cache: whether the cache on disk is used.
    """
    if target not in _TARGETS:
        raise ValueError(f'target is {target!r}; expected "auto", "ptx" or "binary"')
    for what, value in (("names", names), ("options", options)):
        if isinstance(value, str):
            raise TypeError(f"{what} must be a sequence of strings, not a string")
    _add_folders()
    headers = headers or {}
    texts = list(headers.values())
    return _compute._compile(
        source, device, list(names), list(options), list(headers), texts, file_name, _TARGETS[target], cache
    )


def load(image: str | bytes, device: Any = None) -> Module:
    """Loads PTX, a cubin or a fatbin. The software device runs only PTX for whose kernels functions are registered."""
    return _compute._load_module(image, device)


def _compile_kernel(
    kernel_source: str,
    kernel_name: str,
    compute_capability: str | None = None,
    cuda_include_dirs: Sequence[str] | None = None,
    nvcc_options: Sequence[str] | None = None,
) -> Kernel:
    """Compiles one kernel for the current device, as torch.cuda._compile_kernel does.

    C linkage is added where the source has none. The device decides the architecture: `compute_capability` is ignored.
    """
    del compute_capability
    if not kernel_source:
        raise ValueError("kernel_source is empty")
    options = [f"-I{folder}" for folder in cuda_include_dirs or ()] + list(nvcc_options or ())
    if 'extern "C"' not in kernel_source:
        kernel_source = f'extern "C" {{\n#line 1\n{kernel_source}\n}}'
    return compile(kernel_source, options=options).get_function(kernel_name)
