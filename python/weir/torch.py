"""Weir as PyTorch's allocator: call `import weir.torch; weir.torch.install()` before anything uses the device.

The adapter is a separate package, weir_torch, because it is built for one version of PyTorch (by
adapters/torch/build.py). This module provides the same functions under the name weir.torch.
"""

try:
    from weir_torch import allocator, install, is_installed, library_folder, pluggable_allocator, settings
except ModuleNotFoundError as error:
    if error.name != "weir_torch":
        raise
    raise ModuleNotFoundError(
        "weir.torch needs the adapter weir_torch, which is built for the installed version of PyTorch: run"
        " `python3 adapters/torch/build.py` in Weir's source folder, and add the folder that it prints to PYTHONPATH",
        name="weir_torch",
    ) from None

__all__ = ["allocator", "install", "is_installed", "library_folder", "pluggable_allocator", "settings"]
