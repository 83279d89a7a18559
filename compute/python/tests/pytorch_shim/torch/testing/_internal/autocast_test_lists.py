"""The operations that autocast treats in a way of its own; PyTorch's list, from the source tree that is tested."""

import importlib.util
import os

import torch


def _original():
    path = os.path.join(os.environ["WEIR_TEST_PYTORCH"], "torch", "testing", "_internal", "autocast_test_lists.py")
    spec = importlib.util.spec_from_file_location("pytorch_autocast_test_lists", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class AutocastTestLists:
    """Reads PyTorch's list when it is first used: few tests need it, and it calls much that Weir does not have."""

    def __init__(self, device):
        self._device = device
        self._array = torch.randn((8, 8), device=device)  # PyTorch's lists have arrays on the device from the start

    def __getattr__(self, name):
        return getattr(_original().AutocastTestLists(self._device), name)


def __getattr__(name):  # TestAutocast, since 2.6
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_original(), name)
