"""Tags of weir_torch on the software device, with a stand-in for torch: test_tags.py ADAPTERS LIBRARY"""
import ctypes
import os
import sys
import types

os.environ["WEIR_DRIVER"] = "soft"
sys.path.insert(0, os.path.join(sys.argv[1], "torch"))
library = ctypes.CDLL(sys.argv[2])
handles, MIB = [], 1 << 20
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})
torch.cuda = types.SimpleNamespace(
    init=lambda: None,
    current_blas_handle=lambda: handles.append(1),
    _utils=types.SimpleNamespace(_get_device_index=lambda device, optional: device or 0),
)

driver, allocator = ctypes.c_void_p(), ctypes.c_void_p()
assert library.weir_init() == 0 and library.weir_get_driver(ctypes.byref(driver)) == 0
assert library.weir_allocator_create(driver, None, ctypes.byref(allocator)) == 0

import weir_torch  # noqa: E402


def expect(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"expected {kind.__name__}: {text}")


weir_torch.is_installed = lambda: False
expect(RuntimeError, "tags need PyTorch to allocate from Weir", lambda: weir_torch.tag("weights"))
weir_torch.is_installed, weir_torch.allocator, weir_torch._weir = lambda: True, lambda: allocator.value, lambda: library


def get(size):
    pointer = ctypes.c_void_p()
    status = library.weir_allocator_alloc(allocator, 0, ctypes.c_uint64(size), None, ctypes.byref(pointer))
    if status:
        raise RuntimeError(status)
    return pointer


with weir_torch.tag("weights") as weights:
    layer = get(3 * MIB)
assert handles == [1], "cuBLAS was asked for its memory before the scope"
with weir_torch.tag("cache"):
    cache = get(8 * MIB)
ctypes.memset(layer, 7, 3 * MIB)
info = weights.info()
assert info["state"] == "awake" and info["allocated_bytes"] == 3 * MIB and info["pools"] == 1, info
weights.prepare()
weir_torch.sleep("weights")
weir_torch.sleep("cache", keep=False)
assert repr(weights) == "<weir_torch.Tag 'weights' on device 0, asleep>"
info = weights.info()
assert (info["kept_bytes"], info["reserved_bytes"], info["pinned_bytes"]) == (3 * MIB, 0, 4 * MIB), info
expect(RuntimeError, "the tag 'weights' is asleep", lambda: weir_torch.sleep("weights"))
with weights:
    expect(RuntimeError, "", lambda: get(MIB))
library.weir_allocator_set_limit(allocator, 0, ctypes.c_uint64(4 * MIB))
expect(torch.OutOfMemoryError, "the tag 'cache' needs 8.00 MiB to wake", lambda: weir_torch.wake("weights", "cache"))
assert weights.info()["state"] == "awake", "the first of them was woken"
library.weir_allocator_set_limit(allocator, 0, ctypes.c_uint64(2**64 - 1))
weir_torch.wake("cache")
assert ctypes.string_at(layer, 3 * MIB) == b"\x07" * (3 * MIB)
for pointer in layer, cache:
    assert library.weir_allocator_free(allocator, pointer) == 0
library.weir_allocator_destroy(allocator)
