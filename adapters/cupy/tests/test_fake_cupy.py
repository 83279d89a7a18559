"""weir.cupy without CuPy: a stand-in has the few names that it uses, over Weir's software device."""

import contextlib
import os
import sys
import threading
import types

import pytest

os.environ.setdefault("WEIR_DRIVER", "soft")
os.environ.setdefault("WEIR_SOFT_MEMORY", "256MiB")

import weir

import weir.cupy as weir_cupy

MIB = 1 << 20


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")


class PythonFunctionAllocatorMemory:
    def __init__(self, size, malloc, free, device):
        self.ptr, self.device, self._free = 0, device, free
        if size > 0:
            self.ptr = malloc(size, device)

    def __del__(self):
        if self.ptr:
            self._free(self.ptr, self.device)


class MemoryPointer:
    def __init__(self, mem):
        self.mem = mem


class PythonFunctionAllocator:
    def __init__(self, malloc, free):
        self._functions = malloc, free

    def malloc(self, size):
        return MemoryPointer(PythonFunctionAllocatorMemory(size, *self._functions, 0))


class Array:
    def __init__(self, cupy, size):
        self.data = cupy.cuda.get_allocator()(size)


def make_cupy():
    cupy = types.ModuleType("cupy")
    state = threading.local()
    chosen = ["the pool"]

    @contextlib.contextmanager
    def using_allocator(allocator):
        state.allocator, before = allocator, getattr(state, "allocator", None)
        try:
            yield
        finally:
            state.allocator = before

    cupy.synchronized = 0

    def synchronize():
        cupy.synchronized += 1

    cupy.cuda = types.SimpleNamespace(
        PythonFunctionAllocator=PythonFunctionAllocator,
        memory=types.SimpleNamespace(
            OutOfMemoryError=OutOfMemoryError, PythonFunctionAllocatorMemory=PythonFunctionAllocatorMemory
        ),
        stream=types.SimpleNamespace(ptr=0),
        get_current_stream=lambda: cupy.cuda.stream,
        get_allocator=lambda: getattr(state, "allocator", None) or chosen[0],
        set_allocator=lambda allocator: chosen.__setitem__(0, allocator),
        using_allocator=using_allocator,
        Device=lambda device: contextlib.nullcontext(),
        runtime=types.SimpleNamespace(deviceSynchronize=synchronize),
    )
    return cupy


@pytest.fixture
def cupy(monkeypatch):
    module = make_cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(weir_cupy._weir, "_driver_name", lambda: "cuda")
    monkeypatch.setattr(weir_cupy, "_allocator", None)
    monkeypatch.setattr(weir_cupy, "_previous", None)
    weir.init()
    yield module
    weir.synchronize()


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="needs CuPy.*pip install"):
        weir_cupy.install()


def test_on_the_software_device(cupy, monkeypatch):
    monkeypatch.setattr(weir_cupy._weir, "_driver_name", lambda: "soft")
    with pytest.raises(RuntimeError, match="started on 'soft'"):
        weir_cupy.install()
    assert not weir_cupy.is_installed()


def test_install_and_uninstall(cupy):
    assert not weir_cupy.is_installed()
    weir_cupy.install()
    weir_cupy.install()
    assert weir_cupy.is_installed()
    before = weir.memory_allocated()
    array = Array(cupy, MIB)
    assert weir.memory_allocated() == before + MIB
    weir_cupy.uninstall()
    weir_cupy.uninstall()
    assert cupy.cuda.get_allocator() == "the pool"
    del array
    assert weir.memory_allocated() == before


def test_using_is_of_this_thread(cupy):
    with weir_cupy.using():
        assert weir_cupy.is_installed()
        seen = []
        thread = threading.Thread(target=lambda: seen.append(weir_cupy.is_installed()))
        thread.start()
        thread.join()
        assert seen == [False]
    assert not weir_cupy.is_installed()


def test_nothing_is_nothing(cupy):
    with weir_cupy.using():
        assert Array(cupy, 0).data.mem.ptr == 0


def test_the_current_stream_counts(cupy):
    one, two = weir.Stream(), weir.Stream()
    with weir_cupy.using():
        cupy.cuda.stream.ptr = one.cuda_stream
        array = Array(cupy, 3 * MIB)
        first = array.data.mem.ptr
        one._spin(2_000_000_000)
        del array
        cupy.cuda.stream.ptr = two.cuda_stream
        other = Array(cupy, 3 * MIB)
        assert other.data.mem.ptr != first
        cupy.cuda.stream.ptr = one.cuda_stream
        again = Array(cupy, 3 * MIB)
        assert not one.query()
        assert again.data.mem.ptr == first


def test_record_stream(cupy):
    one, two = weir.Stream(), weir.Stream()
    with weir_cupy.using():
        cupy.cuda.stream.ptr = one.cuda_stream
        array = Array(cupy, 5 * MIB)
        first = array.data.mem.ptr
        two._spin(1_000_000_000)
        weir_cupy.record_stream(array, types.SimpleNamespace(ptr=two.cuda_stream))
        del array
        other = Array(cupy, 5 * MIB)
        assert other.data.mem.ptr != first
        two.synchronize()
        again = Array(cupy, 5 * MIB)
        assert again.data.mem.ptr == first


def test_record_stream_of_other_memory(cupy):
    array = types.SimpleNamespace(data=MemoryPointer(object()))
    with pytest.raises(ValueError, match="not Weir's"):
        weir_cupy.record_stream(array)


def test_out_of_memory_is_cupys(cupy):
    with weir_cupy.using():
        with pytest.raises(OutOfMemoryError, match="allocating 1,073,741,824 bytes.*by Weir") as info:
            Array(cupy, 1 << 30)
        assert isinstance(info.value.__cause__, weir.OutOfMemoryError)


def test_default_stream_of_a_thread(cupy):
    cupy.cuda.stream.ptr = 2
    with weir_cupy.using():
        before = weir.memory_allocated()
        array = Array(cupy, MIB)
        assert weir_cupy._threads == {array.data.mem.ptr: threading.get_ident()}
        del array
        assert weir_cupy._threads == {}
        assert cupy.synchronized == 0
        assert weir.memory_allocated() == before

        # In another thread nobody can mark where the first one's stream is: the device is waited for.
        kept = []
        thread = threading.Thread(target=lambda: kept.append(weir_cupy.malloc(MIB)))
        thread.start()
        thread.join()
        kept.clear()
        assert cupy.synchronized == 1
        assert weir.memory_allocated() == before


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", __file__]))
