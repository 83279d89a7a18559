"""Weir under PyTorch: `import weir.torch; weir.torch.install()` before anything touches the device.

The adapter is a package of its own, weir_torch, because it is built for one version of PyTorch: adapters/torch/build.py makes
it. This is the same under the name that one looks for.
"""

try:
    from weir_torch import allocator, install, is_installed, library_folder, pluggable_allocator, settings
except ModuleNotFoundError as error:
    if error.name != "weir_torch":
        raise
    raise ModuleNotFoundError(
        "weir.torch needs the adapter, which is built for the PyTorch that is installed: run"
        " `python3 adapters/torch/build.py` in Weir's sources, and put the folder that it names into PYTHONPATH",
        name="weir_torch",
    ) from None

__all__ = ["allocator", "install", "is_installed", "library_folder", "pluggable_allocator", "settings"]
