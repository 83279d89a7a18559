"""Kernels: compiled at run time, launched, captured; and functions of the host on a stream."""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import threading
import weakref

import pytest
from conftest import is_soft, need_compiler

import weir

kernel = pytest.importorskip("weir.kernel", reason="built without kernels")

SOURCE = """
extern "C" __global__ void scale(float *p, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] *= by;
}
extern "C" __global__ void store(long long *out, signed char a, unsigned short b, int c, unsigned long long d, double e,
                                 bool f) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = (long long)d; out[4] = (long long)(e * 1000); out[5] = f;
}
template <class T> __global__ void twice(T *p) { p[threadIdx.x] *= 2; }
extern "C" __global__ void nothing() {}
extern "C" __global__ void shared(int *out) {
  extern __shared__ int held[];
  held[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def module():
    need_compiler()
    return kernel.compile(SOURCE, names=["twice<int>"])


def floats(*values):
    buffer = weir.buffer(4 * len(values))
    buffer.copy_(struct.pack(f"{len(values)}f", *values))
    return buffer


def read(buffer, code):
    weir.synchronize()
    return list(struct.unpack(code, buffer.tobytes()))


def test_launch(module):
    scale = module.get_function("scale")
    memory = floats(1, 2, 3, 4)
    scale(grid=1, block=32, args=[memory, 2.5, 3])
    assert read(memory, "4f") == [2.5, 5, 7.5, 4]
    scale((2, 1), (2, 1, 1), (memory, 2.0, 4), 0, weir.current_stream())
    assert read(memory, "4f") == [5, 10, 15, 8]
    assert scale.name == "scale"
    assert module.device == weir.Device("cuda", 0)
    assert isinstance(module.log, str)


def test_streams(module):
    scale = module.get_function("scale")
    memory = floats(1)
    stream = weir.Stream()
    with weir.stream(stream):
        scale(1, 1, [memory, 3.0, 1])
    stream.synchronize()
    scale(1, 1, [memory, 3.0, 1], stream=stream)
    stream.synchronize()
    assert read(memory, "f") == [9]


def test_argument_types(module):
    store = module.get_function("store")
    out = weir.buffer(48)
    store(1, 1, [out, -5, 65535, -(1 << 31), (1 << 63) - 1, 1.5, True])
    assert read(out, "6q") == [-5, 65535, -(1 << 31), (1 << 63) - 1, 1500, 1]
    store(1, 1, [out.data_ptr(), ctypes.c_int8(7), b"\x01\x00", 4294967295, ctypes.c_uint64(9), 0.25, False])
    assert read(out, "6q") == [7, 1, -1, 9, 250, 0]


def test_arguments_are_checked(module):
    store = module.get_function("store")
    good = [None, 0, 0, 0, 0, 0.0, 0]
    cases = {1: 200 * 2, 2: 65536, 3: 1 << 32, 4: 1 << 64}
    for index, value in cases.items():
        arguments = list(good)
        arguments[index] = value
        with pytest.raises(OverflowError, match=f"argument {index} is"):
            store(1, 1, arguments)
    with pytest.raises(TypeError, match=r"store takes 7 arguments \(got 2\)"):
        store(1, 1, [None, 1])
    with pytest.raises(TypeError, match="argument 3 is a str"):
        store(1, 1, [None, 0, 0, "1", 0, 0.0, 0])
    with pytest.raises(ValueError, match=r"parameter 3 of store has 4 bytes \(got 8\)"):
        store(1, 1, [None, 0, 0, ctypes.c_int64(1), 0, 0.0, 0])
    nothing = module.get_function("nothing")
    nothing(1, 1)
    nothing(1, 1, [])
    for grid in (0, (), (1, 1, 1, 1), (1, -1), 1 << 40):
        with pytest.raises(ValueError, match="grid"):
            nothing(grid, 1)
    with pytest.raises(ValueError, match="a block has 2048 threads"):
        nothing(1, (1024, 2))
    if weir.device_count() > 1:
        with pytest.raises(ValueError, match="the stream belongs to device cuda:1"):
            nothing(1, 1, stream=weir.default_stream(1))


def test_templates_and_unknown_names(module):
    memory = weir.buffer(16)
    memory.copy_(struct.pack("4i", 1, 2, 3, 4))
    module.get_function("twice<int>")(1, 4, [memory])
    assert read(memory, "4i") == [2, 4, 6, 8]
    with pytest.raises(ValueError, match="no kernel named twice<float>"):
        module.get_function("twice<float>")


def test_shared_memory_and_occupancy(module):
    shared = module.get_function("shared")
    out = weir.buffer(64 * 4)
    shared(1, 64, [out], shared_mem=256)
    assert read(out, "64i") == list(range(63, -1, -1))
    with pytest.raises(ValueError, match="set_max_dynamic_shared"):
        shared(1, 64, [out], shared_mem=60000)
    shared.set_shared_memory_config(60000)
    shared(1, 64, [out], shared_mem=60000)
    assert shared.attributes["max_dynamic_shared_bytes"] == 60000
    assert shared.attributes["param_count"] == 1
    assert shared.max_active_blocks(1024) == weir.get_device_properties().max_threads_per_multi_processor // 1024
    grid, block = module.get_function("nothing").suggest_block()
    assert block == 1024
    assert grid >= 1


def test_capture(module):
    memory = floats(1)
    scale = module.get_function("scale")
    calls = []
    graph = weir.CUDAGraph()
    with weir.graph(graph):
        scale(1, 1, [memory, 2.0, 1])
        weir.current_stream().launch_host(calls.append, "replayed")
    for _ in range(3):
        graph.replay()
    assert read(memory, "f") == [8]
    assert calls == ["replayed"] * 3


def test_errors_of_the_source():
    with pytest.raises(ValueError, match="nowhere"):
        kernel.compile("int x = nowhere;", cache=False)
    with pytest.raises(ValueError, match="target"):
        kernel.compile("", target="other")
    with pytest.raises(TypeError, match="names must be a sequence"):
        kernel.compile("", names="scale")
    with pytest.raises(ValueError, match="neither PTX"):
        kernel.load(b"garbage")


def test_compile_kernel_like_pytorch():
    source = "__global__ void add_one(float *p, int n) { int i = threadIdx.x; if (i < n) p[i] += ONE; }"
    add_one = kernel._compile_kernel(source, "add_one", nvcc_options=["-DONE=1"])
    memory = floats(1, 2)
    add_one(grid=(1, 1, 1), block=(32, 1, 1), args=(memory, 2))
    assert read(memory, "2f") == [2, 3]
    with pytest.raises(ValueError, match="empty"):
        kernel._compile_kernel("", "add_one")


def test_kernel_keeps_its_module(module):
    made = kernel.compile(SOURCE, names=["twice<int>"])
    assert made.is_cached
    nothing = made.get_function("nothing")
    del made
    gc.collect()
    nothing(1, 1)
    weir.synchronize()


def test_launch_host():
    stream = weir.Stream()
    seen = []

    def note(a, *, b):
        seen.append((a, b, threading.get_ident()))

    stream.launch_host(note, 1, b=2)
    stream.synchronize()
    assert seen[0][:2] == (1, 2)
    assert not is_soft or seen[0][2] != threading.get_ident()

    class Function:
        def __call__(self):
            raise KeyError("in a host function")

    function = Function()
    gone = weakref.ref(function)
    errors = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda info: errors.append(type(info.exc_value))
    try:
        stream.launch_host(function)
        stream.synchronize()
    finally:
        sys.unraisablehook = hook
    assert errors == [KeyError]
    del function
    gc.collect()
    assert gone() is None
    with pytest.raises(TypeError, match="expected a function"):
        stream.launch_host(1)
    with pytest.raises(TypeError, match="takes a function"):
        stream.launch_host()
