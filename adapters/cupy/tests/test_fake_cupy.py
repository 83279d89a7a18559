"""weir.cupy without CuPy: a fake module has the few names that it uses, on Weir's software device.

Each test runs with the allocator in Python and, if the extension fake_cupy was built (fake_cupy.c), with that in C.
"""

import contextlib
import gc
import os
import sys
import threading
import types

import pytest

os.environ.setdefault("WEIR_DRIVER", "soft")
os.environ.setdefault("WEIR_SOFT_MEMORY", "256MiB")

import weir

import weir.cupy as weir_cupy

try:
    import fake_cupy
except ImportError:
    fake_cupy = None

MIB = 1 << 20


class OutOfMemoryError(MemoryError):
    def __init__(self, size, total, limit=0):
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")


class CUDARuntimeError(RuntimeError):
    pass


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


class Stream:
    """A stream that CuPy creates: it is destroyed with its object, unless it is one of the driver's default streams."""

    destroyed = []

    def __init__(self, ptr):
        self.ptr = ptr

    def __del__(self):
        if self.ptr > 2:
            self.destroyed.append(self.ptr)


class ExternalStream:
    def __init__(self, ptr):
        self.ptr = ptr


PER_THREAD = Stream(2)


class Array:
    def __init__(self, cupy, size):
        self.data = cupy.cuda.get_allocator()(size)


def make_cupy(classes):
    """`classes` has CuPy's classes and exported functions; None for those that the C allocator refuses."""
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

    cupy.context_error = None
    cupy.contexts = 0

    def memory_info():
        cupy.contexts += 1
        if cupy.context_error:
            raise cupy.context_error
        if classes:
            classes.set_context()
        return 128 * MIB, 256 * MIB

    cupy.cuda = types.SimpleNamespace(
        PythonFunctionAllocator=PythonFunctionAllocator,
        memory=types.SimpleNamespace(
            OutOfMemoryError=OutOfMemoryError,
            PythonFunctionAllocatorMemory=PythonFunctionAllocatorMemory,
            BaseMemory=classes.BaseMemory if classes else PythonFunctionAllocatorMemory,
            MemoryPointer=classes.MemoryPointer if classes else MemoryPointer,
        ),
        device=classes,
        Stream=Stream,
        ExternalStream=ExternalStream,
        stream=Stream(0),
        get_current_stream=lambda: cupy.cuda.stream,
        get_allocator=lambda: getattr(state, "allocator", None) or chosen[0],
        set_allocator=lambda allocator: chosen.__setitem__(0, allocator),
        using_allocator=using_allocator,
        Device=lambda device: contextlib.nullcontext(),
        runtime=types.SimpleNamespace(
            deviceSynchronize=synchronize, memGetInfo=memory_info, CUDARuntimeError=CUDARuntimeError
        ),
    )
    return cupy


def add_backends(monkeypatch, stream_module):
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.stream"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["cupy_backends.cuda"], "stream", stream_module, raising=False)


@pytest.fixture(params=["python", "c"] if fake_cupy else ["python"])
def cupy(monkeypatch, request):
    in_c = request.param == "c"
    module = make_cupy(fake_cupy if in_c else None)
    monkeypatch.setitem(sys.modules, "cupy", module)
    add_backends(monkeypatch, fake_cupy if in_c else None)
    if in_c:
        fake_cupy.set_stream_source(lambda: module.cuda.stream.ptr)
    monkeypatch.setattr(weir_cupy, "_function", None)
    monkeypatch.setattr(weir_cupy, "_why_not_c", None)
    monkeypatch.setattr(weir_cupy._weir, "_driver_name", lambda: "cuda")
    monkeypatch.setattr(weir_cupy, "_allocator", None)
    monkeypatch.setattr(weir_cupy, "_previous", None)
    weir.init()
    weir_cupy._streams.clear()
    gc.collect()  # streams of earlier tests may be in cycles
    Stream.destroyed.clear()
    yield module
    weir.synchronize()
    assert weir_cupy._threads == {}


def in_thread(function):
    """Returns the function's result and the id of the thread that called it, which has ended."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results.pop(), thread.ident


def test_each_thread_gets_a_context(cupy):
    """CuPy's pool would get memory from the CUDA runtime, which then has a context in the thread."""

    def allocate():
        before, contexts = fake_cupy and fake_cupy.device_queries(), cupy.contexts
        for _ in range(3):
            Array(cupy, MIB)
        assert cupy.contexts == contexts + 1
        if weir_cupy.why_not_c() is None:
            assert [now - then for now, then in zip(fake_cupy.device_queries(), before)] == [3, 1]
        return True

    weir_cupy.install()
    assert in_thread(allocate)[0] and in_thread(allocate)[0]
    weir_cupy.uninstall()


def test_no_context_is_no_failure(cupy):
    def allocate():
        return [Array(cupy, MIB).data.mem.ptr for _ in range(2)]

    weir_cupy.install()
    cupy.context_error = CUDARuntimeError("operation not permitted")
    assert all(in_thread(allocate)[0]) and cupy.contexts == 1
    cupy.context_error = KeyboardInterrupt()

    def interrupted():
        with pytest.raises(KeyboardInterrupt):
            Array(cupy, MIB)
        cupy.context_error = None
        return Array(cupy, MIB).data.mem.ptr

    before = weir.memory_allocated()
    assert in_thread(interrupted)[0] and cupy.contexts == 3
    assert weir.memory_allocated() == before
    weir_cupy.uninstall()


needs_c = pytest.mark.skipif(fake_cupy is None, reason="fake_cupy was not built")


def test_which_allocator(cupy, request):
    assert (weir_cupy.why_not_c() is None) == ("[c]" in request.node.name)
    with weir_cupy.using():
        memory = Array(cupy, 3 * MIB).data
    if weir_cupy.why_not_c() is None:
        assert type(memory) is fake_cupy.MemoryPointer and memory.is_whole()
        assert type(memory.mem).__name__ == "Memory" and isinstance(memory.mem, fake_cupy.BaseMemory)
        assert memory.ptr == memory.mem.ptr and memory.device_id == 0 and memory.mem.size == 3 * MIB
        with pytest.raises(TypeError, match="cannot create"):
            type(memory.mem)()
    else:
        assert isinstance(memory.mem, PythonFunctionAllocatorMemory)


@needs_c
def test_other_classes_are_refused(monkeypatch):
    class Larger(fake_cupy.BaseMemory):
        __slots__ = ("more",)

    class LargerPointer(fake_cupy.MemoryPointer):
        __slots__ = ("more",)

    good = [fake_cupy.BaseMemory, fake_cupy.MemoryPointer, fake_cupy, fake_cupy, print, print, print, print, print]

    def refused(**changed):
        arguments = [changed.get(f"at{i}", value) for i, value in enumerate(good)]
        result = weir_cupy._weir._cupy_allocator(*arguments)
        return result if isinstance(result, str) else None

    assert refused() is None
    assert "BaseMemory has another layout" in refused(at0=Larger)
    assert "BaseMemory has other fields" in refused(at0=fake_cupy.SwappedMemory)
    assert "MemoryPointer has another layout" in refused(at1=LargerPointer)
    assert "MemoryPointer has another layout" in refused(at1=fake_cupy.BaseMemory)
    assert "get_device_id" in refused(at2=types.SimpleNamespace(__pyx_capi__={}))
    assert "get_stream_ptr" in refused(at3=types.SimpleNamespace(__pyx_capi__={"get_stream_ptr": object()}))
    only_old = {"get_current_stream_ptr": fake_cupy.__pyx_capi__["get_current_stream_ptr"]}
    assert refused(at3=types.SimpleNamespace(__pyx_capi__=only_old)) is None
    wrong = {"get_stream_ptr": fake_cupy.__pyx_capi__["get_current_stream_ptr"]}
    assert "get_stream_ptr" in refused(at3=types.SimpleNamespace(__pyx_capi__=wrong))


def test_a_stream_that_fails(cupy):
    if weir_cupy.why_not_c() is not None:
        pytest.skip("the allocator in C only")
    fake_cupy.set_stream_source(lambda: 1 // 0)
    before = weir.memory_allocated()
    with weir_cupy.using(), pytest.raises(ZeroDivisionError):
        Array(cupy, MIB)
    assert weir.memory_allocated() == before


@pytest.mark.parametrize("size, error", [("1", TypeError), (-1, ValueError), (1.5, TypeError)])
def test_sizes_that_are_none(cupy, size, error):
    if weir_cupy.why_not_c() is not None:
        pytest.skip("CuPy checks the size")
    with weir_cupy.using(), pytest.raises(error):
        Array(cupy, size)


def test_a_tracker_and_threads(cupy):
    """A tracker takes the GIL inside of an allocation, while another thread allocates with the GIL held."""
    seen, failed = [], []

    def work():
        try:
            for _ in range(100):
                Array(cupy, 4096)
        except Exception as error:
            failed.append(error)

    weir_cupy.install()
    weir._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        weir.memory._record_memory_history(max_entries=100)
        with pytest.raises(OutOfMemoryError):
            Array(cupy, 1 << 30)
        weir.memory._record_memory_history(None)
    for thread in threads:
        thread.join()
    weir_cupy.uninstall()
    assert not failed and len(seen) >= 10


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match="needs CuPy.*pip install"):
        weir_cupy.install()


def test_on_the_software_device(cupy, monkeypatch):
    monkeypatch.setattr(weir_cupy._weir, "_driver_name", lambda: "soft")
    with pytest.raises(RuntimeError, match="started with 'soft'"):
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
        cupy.cuda.stream = Stream(one.cuda_stream)
        array = Array(cupy, 3 * MIB)
        first = array.data.mem.ptr
        one._spin(2_000_000_000)
        del array
        cupy.cuda.stream = Stream(two.cuda_stream)
        other = Array(cupy, 3 * MIB)
        assert other.data.mem.ptr != first
        cupy.cuda.stream = Stream(one.cuda_stream)
        again = Array(cupy, 3 * MIB)
        assert not one.query()
        assert again.data.mem.ptr == first


def test_record_stream(cupy):
    one, two = weir.Stream(), weir.Stream()
    with weir_cupy.using():
        cupy.cuda.stream = Stream(one.cuda_stream)
        array = Array(cupy, 5 * MIB)
        first = array.data.mem.ptr
        two._spin(1_000_000_000)
        weir_cupy.record_stream(array, Stream(two.cuda_stream))
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


def test_streams_live_on(cupy):
    one, two, three = (weir.Stream().cuda_stream for _ in range(3))
    with weir_cupy.using():
        cupy.cuda.stream = Stream(one)
        array = Array(cupy, MIB)
        cupy.cuda.stream = Stream(two)
        weir_cupy.record_stream(array)
        weir_cupy.record_stream(array, Stream(three))
        cupy.cuda.stream = Stream(0)
        assert Stream.destroyed == []
        del array
        weir.empty_cache()
    weir_cupy.uninstall()
    assert Stream.destroyed == []


def test_streams_that_others_own(cupy):
    """Their owner may destroy them, and a stream of CuPy may then get the same handle: that one is kept."""
    handle, other = weir.Stream().cuda_stream, weir.Stream().cuda_stream
    with weir_cupy.using():
        cupy.cuda.stream = ExternalStream(handle)
        array = Array(cupy, MIB)
        weir_cupy.record_stream(array, ExternalStream(other))
        assert weir_cupy._streams == {}
        cupy.cuda.stream = Stream(handle)
        del array
        array = Array(cupy, MIB)
        assert list(weir_cupy._streams) == [handle]
        cupy.cuda.stream = Stream(0)
        assert Stream.destroyed == []


def test_too_many_streams(cupy, monkeypatch):
    with weir_cupy.using():
        cupy.cuda.stream = Stream(0)
        array = Array(cupy, MIB)
        monkeypatch.setattr(weir_cupy, "_MANY_STREAMS", len(weir_cupy._streams) + 2)
        weir_cupy.record_stream(array, Stream(weir.Stream().cuda_stream))
        with pytest.warns(RuntimeWarning, match="streams of CuPy.*create a few streams once"):
            weir_cupy.record_stream(array, Stream(weir.Stream().cuda_stream))


def test_default_stream_of_a_thread(cupy):
    cupy.cuda.stream = PER_THREAD
    with weir_cupy.using():
        before = weir.memory_allocated()
        array = Array(cupy, MIB)
        assert list(weir_cupy._threads) == [array.data.mem.ptr]
        del array
        assert weir_cupy._threads == {}
        assert cupy.synchronized == 0
        assert weir.memory_allocated() == before

        # Another thread cannot record an event on the first thread's stream: the device is waited for.
        memory, _ = in_thread(lambda: weir_cupy.malloc(MIB))
        del memory
        assert cupy.synchronized == 1
        assert weir.memory_allocated() == before
        assert weir_cupy._streams == {}


def test_a_later_thread_with_the_same_number(cupy):
    cupy.cuda.stream = PER_THREAD
    with weir_cupy.using():
        kept, number = [], 0
        for _ in range(100):
            memory, number = in_thread(lambda: weir_cupy.malloc(MIB))
            kept.append(memory)
            del memory
            synchronized = cupy.synchronized
            if in_thread(kept.clear)[1] == number:
                break
        else:
            pytest.skip("no thread id was reused here")
        assert cupy.synchronized == synchronized + 1


def test_record_the_default_stream_of_a_thread(cupy):
    with weir_cupy.using():
        # Used by this thread: if the array dies here, an event can be recorded on its stream.
        array = Array(cupy, MIB)
        weir_cupy.record_stream(array, PER_THREAD)
        weir_cupy.record_stream(array, PER_THREAD)
        del array
        assert cupy.synchronized == 0

        # Used by another thread.
        array = Array(cupy, MIB)
        in_thread(lambda: weir_cupy.record_stream(array, PER_THREAD))
        del array
        assert cupy.synchronized == 1

        # Used by two threads; it dies in one of them.
        array = Array(cupy, MIB)
        weir_cupy.record_stream(array, PER_THREAD)
        in_thread(lambda: weir_cupy.record_stream(array, PER_THREAD))
        weir_cupy.record_stream(array, PER_THREAD)
        del array
        assert cupy.synchronized == 2

        # Memory of one thread's stream that another thread's stream uses too.
        cupy.cuda.stream = PER_THREAD
        array = Array(cupy, MIB)
        in_thread(lambda: weir_cupy.record_stream(array))
        del array
        assert cupy.synchronized == 3


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", __file__]))
