"""Buffers, and their use by other libraries."""

from __future__ import annotations

import ctypes
import gc
import pickle
import weakref

import pytest
import weir
from conftest import is_soft
from memory_tools import KIB, MIB, cleaned, filled, sleep_cycles  # noqa: F401

numpy = None
try:
    import numpy
except ImportError:
    pass
needs_numpy = pytest.mark.skipif(numpy is None, reason="NumPy is not installed")
needs_soft = pytest.mark.skipif(not is_soft, reason="the host cannot read the memory of a GPU")
needs_cuda = pytest.mark.skipif(is_soft, reason="needs a CUDA device")


def test_attributes():
    buffer = weir.buffer(1000)
    assert isinstance(buffer, weir.Buffer)
    assert buffer.nbytes == buffer.size == len(buffer) == 1000
    assert buffer.pointer == buffer.data_ptr() != 0
    assert buffer.device == weir.current_device()
    assert buffer.stream == weir.current_stream()
    assert (buffer.is_host, buffer.is_pinned, buffer.readonly, buffer.owns_memory) == (False, False, False, True)
    assert repr(buffer) == f"<weir.Buffer of 1000 bytes at {buffer.pointer:#x} on device 0>"
    with pytest.raises(AttributeError):
        buffer.pointer = 3
    with pytest.raises(AttributeError):
        buffer.other = 3


def test_device_and_stream(two_devices):
    stream = weir.Stream(device=1)
    assert weir.buffer(8, device=1).device == 1
    assert weir.buffer(8, device="cuda:1").stream == weir.current_stream(1)
    on_stream = weir.buffer(8, stream=stream)
    assert on_stream.stream == stream and on_stream.device == 1
    assert weir.buffer(8, device=1, stream=stream).stream == stream
    with weir.device(1):
        assert weir.buffer(8).device == 1
    with weir.stream(stream):
        here = weir.buffer(8)
        assert here.device == 1 and here.stream == stream
    with pytest.raises(ValueError):
        weir.buffer(8, device=0, stream=stream)


def test_free_on_del():
    before = weir.memory_allocated()
    buffer = weir.buffer(4 * KIB)
    other = buffer
    del buffer
    assert weir.memory_allocated() == before + 4 * KIB
    del other
    assert weir.memory_allocated() == before


def test_free_by_hand():
    before = weir.memory_allocated()
    buffer = weir.buffer(4 * KIB)
    buffer.free()
    assert weir.memory_allocated() == before
    assert buffer.pointer == 0 and not buffer.owns_memory and "freed" in repr(buffer)
    other = weir.buffer(4 * KIB)
    for use in [buffer.tobytes, buffer.zero_, buffer.__dlpack__, lambda: buffer[1:2], lambda: other.copy_(buffer)]:
        with pytest.raises(ValueError, match="the buffer was freed"):
            use()
    with pytest.raises(BufferError if is_soft else (BufferError, TypeError)):
        memoryview(buffer)
    buffer.free()


def test_weak_references_and_cycles():
    buffer = weir.buffer(512)
    gone = []
    reference = weakref.ref(buffer, gone.append)
    assert reference() is buffer
    del buffer
    assert reference() is None and len(gone) == 1
    assert not gc.is_tracked(weir.buffer(8))


def test_it_cannot_be_made_or_pickled():
    with pytest.raises(TypeError):
        weir.Buffer()
    with pytest.raises(TypeError):
        pickle.dumps(weir.buffer(8))
    with pytest.raises(TypeError):
        type("Mine", (weir.Buffer,), {})


def test_fill():
    buffer = weir.buffer(16)
    assert buffer.fill_(7) is buffer
    assert buffer.tobytes() == b"\7" * 16
    assert buffer.fill_(0x01020304, width=4).tobytes() == bytes([4, 3, 2, 1]) * 4
    assert buffer.zero_().tobytes() == bytes(16)
    for value, width in [(256, 1), (-1, 1), (1 << 32, 4), (10**30, 1)]:
        with pytest.raises(ValueError, match="value must be between 0 and"):
            buffer.fill_(value, width=width)
    with pytest.raises(ValueError, match="width must be 1, or 4"):
        buffer.fill_(1, width=2)
    with pytest.raises(ValueError, match="multiple of 4"):
        weir.buffer(6).fill_(1, width=4)


def test_copy_between_buffers():
    source = filled(4 * KIB, 5)
    target = weir.buffer(4 * KIB)
    assert target.copy_(source) is target
    assert target.tobytes() == b"\5" * (4 * KIB)
    with pytest.raises(ValueError, match="the source has 10 bytes, but the buffer has 4096"):
        target.copy_(weir.buffer(10))


def test_copy_between_devices(two_devices):
    source = filled(MIB, 77)
    there = weir.buffer(MIB, device=1).copy_(source)
    back = weir.buffer(MIB).copy_(there)
    assert there.tobytes() == back.tobytes() == b"M" * MIB


def test_copy_with_python():
    buffer = weir.buffer(8)
    buffer.copy_(b"abcdefgh")
    assert buffer.tobytes() == b"abcdefgh"
    buffer.copy_(memoryview(bytearray(b"12345678")))
    out = bytearray(8)
    buffer.copy_to(out)
    assert out == b"12345678"
    with pytest.raises(ValueError, match="the source has 3 bytes, but the buffer has 8"):
        buffer.copy_(b"abc")
    with pytest.raises(ValueError, match="the destination has 2 bytes"):
        buffer.copy_to(bytearray(2))
    with pytest.raises((TypeError, BufferError)):
        buffer.copy_to(b"12345678")
    with pytest.raises(TypeError):
        buffer.copy_(12)
    with pytest.raises(TypeError, match="destination.copy_"):
        buffer.copy_to(weir.buffer(8))


def test_copy_non_blocking():
    host = weir.host_empty(4 * KIB).fill_(9)
    device = weir.buffer(4 * KIB)
    stream = weir.Stream()
    with weir.stream(stream):
        weir._sleep(sleep_cycles(30))
        device.copy_(host, non_blocking=True)
        assert not stream.query()
    back = weir.host_empty(4 * KIB).fill_(0)
    with weir.stream(stream):
        back.copy_(device, non_blocking=True)
    stream.synchronize()
    assert back.tobytes() == b"\t" * (4 * KIB)


def test_to_cpu_blocking_by_default():
    device = filled(64 * KIB, 1)
    host = weir.host_empty(64 * KIB).fill_(0)
    weir._sleep(sleep_cycles(20))
    device.fill_(2)
    host.copy_(device)
    assert weir.current_stream().query()
    assert host.tobytes() == b"\2" * (64 * KIB)


def test_views():
    buffer = weir.buffer(1024).copy_(bytes(range(256)) * 4)
    view = buffer[256:512]
    assert len(view) == 256 and view.pointer == buffer.pointer + 256 and not view.owns_memory
    assert view.tobytes() == bytes(range(256))
    inner = view[16:32]
    inner.fill_(0)
    assert buffer.tobytes()[272:288] == bytes(16)
    assert buffer[-4:].tobytes() == bytes([252, 253, 254, 255])
    assert len(buffer[2000:]) == 0
    with pytest.raises(BufferError, match="in use by 2 views"):
        buffer.free()
    before = weir.memory_allocated()
    del buffer, view
    assert weir.memory_allocated() == before
    assert inner.tobytes() == bytes(16)
    del inner
    assert weir.memory_allocated() < before
    with pytest.raises(TypeError, match="a slice"):
        weir.buffer(8)[0]
    with pytest.raises(ValueError, match="contiguous"):
        weir.buffer(8)[::2]


# ---- The buffer protocol ----


@needs_soft
def test_buffer_protocol():
    buffer = filled(64, 3)
    with memoryview(buffer) as view:
        assert (view.nbytes, view.readonly, view.format, view.contiguous) == (64, False, "B", True)
        assert bytes(view) == b"\3" * 64
        view[0] = 9
        with pytest.raises(BufferError, match="in use by 1"):
            buffer.free()
    assert buffer.tobytes()[0] == 9
    buffer.free()


@needs_soft
def test_buffer_protocol_keeps_the_memory():
    before = weir.memory_allocated()
    view = memoryview(filled(512, 4))
    gc.collect()
    assert weir.memory_allocated() == before + 512 and view[511] == 4
    view.release()
    assert weir.memory_allocated() == before


@needs_soft
def test_buffer_protocol_waits_for_the_device():
    buffer = filled(512, 1)
    weir._sleep(sleep_cycles(30))
    buffer.fill_(2)
    assert memoryview(buffer)[0] == 2


@needs_soft
@needs_numpy
def test_numpy_sees_the_memory():
    buffer = weir.buffer(4096).zero_()
    array = numpy.frombuffer(buffer, dtype=numpy.float32)
    array[:] = numpy.arange(1024)
    assert array.ctypes.data == buffer.pointer
    assert numpy.frombuffer(buffer.tobytes(), dtype=numpy.float32)[1023] == 1023


@needs_cuda
def test_no_buffer_protocol_on_a_gpu():
    with pytest.raises(BufferError, match="the host cannot access the memory of this device"):
        memoryview(weir.buffer(64))


# ---- DLPack ----


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype = ctypes.c_void_p
get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def test_dlpack_device():
    kind, number = weir.buffer(8).__dlpack_device__()
    assert (kind, number) == ((1, 0) if is_soft else (2, 0))
    assert weir.host_empty(8).__dlpack_device__() == ((1, 0) if is_soft else (3, 0))


def test_dlpack_capsule():
    buffer = filled(100, 6)
    capsule = buffer.__dlpack__()
    tensor = DLTensor.from_address(get_pointer(capsule, b"dltensor"))
    assert tensor.data == buffer.pointer
    assert (tensor.device_type, tensor.device_id) == buffer.__dlpack_device__()
    assert (tensor.ndim, tensor.shape[0], tensor.code, tensor.bits, tensor.lanes) == (1, 100, 1, 8, 1)
    with pytest.raises(BufferError):
        buffer.free()
    before = weir.memory_allocated()
    pointer = buffer.pointer
    del buffer
    assert weir.memory_allocated() == before and pointer
    del capsule
    assert weir.memory_allocated() == before - 512


def test_dlpack_versioned_capsule():
    buffer = filled(100, 6)
    capsule = buffer.__dlpack__(max_version=(1, 1))
    managed = Versioned.from_address(get_pointer(capsule, b"dltensor_versioned"))
    assert (managed.major, managed.flags, managed.tensor.data) == (1, 0, buffer.pointer)
    assert "dltensor_versioned" not in repr(buffer.__dlpack__(max_version=(0, 8)))
    copied = buffer.__dlpack__(max_version=(1, 0), copy=True)
    managed = Versioned.from_address(get_pointer(copied, b"dltensor_versioned"))
    assert managed.flags == 2 and managed.tensor.data != buffer.pointer
    again = weir.from_dlpack(copied)
    assert again.tobytes() == buffer.tobytes() if not again.is_host else bytes(memoryview(again)) == buffer.tobytes()


def test_dlpack_round_trip():
    buffer = filled(128, 8)
    other = weir.from_dlpack(buffer)
    assert other.pointer == buffer.pointer and len(other) == 128 and not other.owns_memory
    before = weir.memory_allocated()
    del buffer
    assert weir.memory_allocated() == before
    assert other.tobytes() == b"\10" * 128
    other.fill_(1)
    del other
    assert weir.memory_allocated() == before - 512


def test_dlpack_arguments():
    buffer = weir.buffer(8)
    with pytest.raises(TypeError, match="max_version"):
        buffer.__dlpack__(max_version=1)
    with pytest.raises(TypeError, match="unexpected argument 'streams'"):
        buffer.__dlpack__(streams=1)
    with pytest.raises(TypeError, match="None or an int"):
        buffer.__dlpack__(stream="1")
    with pytest.raises(BufferError, match="is not supported"):
        buffer.__dlpack__(dl_device=(9, 0))
    buffer.__dlpack__(dl_device=buffer.__dlpack_device__())
    buffer.__dlpack__(stream=-1)
    if is_soft:
        with pytest.raises(BufferError, match="stream must be None or -1"):
            buffer.__dlpack__(stream=1)
    else:
        with pytest.raises(BufferError):
            buffer.__dlpack__(stream=0)
        for stream in [1, 2, weir.Stream().cuda_stream]:
            buffer.__dlpack__(stream=stream)


def test_dlpack_once():
    capsule = weir.buffer(8).__dlpack__()
    weir.from_dlpack(capsule)
    with pytest.raises(BufferError, match="already consumed"):
        weir.from_dlpack(capsule)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    with pytest.raises(BufferError, match="not a DLPack capsule"):
        weir.from_dlpack(new(1, b"something", None))
    with pytest.raises(TypeError, match="an object with __dlpack__"):
        weir.from_dlpack(12)

    class Wrong:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return 3

    with pytest.raises(TypeError, match="did not return a capsule"):
        weir.from_dlpack(Wrong())


@needs_numpy
def test_dlpack_from_numpy():
    array = numpy.arange(16, dtype=numpy.int32)
    buffer = weir.from_dlpack(array)
    assert buffer.pointer == array.ctypes.data and len(buffer) == 64 and buffer.is_host and buffer.device == -1
    assert bytes(memoryview(buffer)) == array.tobytes()
    device = weir.buffer(64).copy_(buffer)
    assert device.tobytes() == array.tobytes()
    if not buffer.readonly:
        buffer.fill_(0)
        assert not array.any()
    with pytest.raises(BufferError, match="not contiguous"):
        weir.from_dlpack(array[::2])


@needs_numpy
@needs_soft
def test_numpy_from_dlpack():
    buffer = filled(256, 11)
    array = numpy.from_dlpack(buffer)
    assert array.dtype == numpy.uint8 and array.shape == (256,) and array.ctypes.data == buffer.pointer
    assert (array == 11).all()
    before = weir.memory_allocated()
    del buffer
    assert weir.memory_allocated() == before and (array == 11).all()
    del array
    assert weir.memory_allocated() == before - 512


def test_cuda_array_interface():
    buffer = weir.buffer(100)
    if is_soft:
        assert not hasattr(buffer, "__cuda_array_interface__")
        with pytest.raises(AttributeError, match="a software device"):
            buffer.__cuda_array_interface__
        return
    stream = weir.Stream()
    assert buffer.__cuda_array_interface__ == {
        "shape": (100,),
        "typestr": "|u1",
        "data": (buffer.pointer, False),
        "strides": None,
        "stream": 1,
        "version": 3,
    }
    with weir.stream(stream):
        assert buffer.__cuda_array_interface__["stream"] == stream.cuda_stream
    assert not hasattr(weir.host_empty(8), "__cuda_array_interface__")
