"""A thin `torch` for tests of PyTorch's that run against Weir: `torch.NAME` and `torch.cuda.NAME` are `weir.NAME`.

What Weir has no name for is missing here as well. Only what pytorch_seed.py starts sees this package.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import sys
import types

import weir
import weir.cpu

HERE = os.path.dirname(os.path.abspath(__file__))
# torch.NAME that is no module of Weir, or another one: weir.profiler is torch.cuda.profiler.
NOT_WEIR = ("profiler", "testing", "utils")

inf, nan = math.inf, math.nan
device = weir.Device
Tensor = type(weir.empty(0))
storage = types.SimpleNamespace(TypedStorage=weir.TypedStorage, UntypedStorage=weir.UntypedStorage)
version = types.SimpleNamespace(cuda="12.4", hip=None)  # the release of CUDA whose interfaces the package follows


def _exists(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package
        return False


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `torch.cuda`, `torch.cuda.NAME` and `torch.NAME` as the modules of Weir."""

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.partition(".")
        if package != "torch" or name.split(".")[0] in NOT_WEIR:
            return None
        name = f"weir.{name.removeprefix('cuda').removeprefix('.')}".rstrip(".")
        if name != "weir" and not _exists(name):  # a part that is imported and not used
            return importlib.machinery.PathFinder.find_spec(fullname, [os.path.join(HERE, *fullname.split(".")[1:-1])])
        return importlib.util.spec_from_loader(fullname, self, origin=name)

    def create_module(self, spec):
        module = importlib.import_module(spec.origin)
        self._spec = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = self._spec  # the import system has replaced it


sys.meta_path.insert(0, _Alias())
cuda = importlib.import_module("torch.cuda")


def __getattr__(name):
    if name.endswith(("Tensor", "Storage")) and hasattr(weir.cpu, name):
        return getattr(weir.cpu, name)
    if name in NOT_WEIR or not hasattr(weir, name):
        raise AttributeError(f"module 'torch' has no attribute '{name}'", name=name)
    return getattr(weir, name)


sys.modules["torch.cuda._memory_viz"] = importlib.import_module("torch.utils._memory_viz")
cuda._HAS_PYNVML = True  # Weir reads NVML itself
