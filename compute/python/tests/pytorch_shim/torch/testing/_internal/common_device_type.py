"""Tests that are made for each type of device: here for "cuda"."""

from torch.testing._internal.common_utils import instantiate_parametrized_tests


def onlyCUDA(test):
    return test


onlyNativeDeviceTypes = onlyCUDA


def instantiate_device_type_tests(kind, scope):
    """Replaces a class by one whose tests get the device, and have its name."""
    del scope[kind.__name__]
    kind.__name__ = kind.__qualname__ = kind.__name__ + "CUDA"
    instantiate_parametrized_tests(kind, "cuda")
    scope[kind.__name__] = kind
