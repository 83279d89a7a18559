"""Pluggable allocators. A process has one allocator, so each test runs in a process of its own."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from conftest import is_soft, run_python

COMPILER = shutil.which("cc") or shutil.which("gcc")

# These functions return host memory, since no test accesses it through the device.
SOURCE = """
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { uint64_t first, second; } pool_id;
static char said[4096];
const char *what_was_said(void) { return said; }
void forget(void) { said[0] = 0; }
#define SAY(...) snprintf(said + strlen(said), sizeof said - strlen(said), __VA_ARGS__)
static size_t room = SIZE_MAX;
void set_room(size_t bytes) { room = bytes; }
void *my_alloc(size_t bytes, int device, void *stream) {
  SAY("alloc %zu %d;", bytes, device);
  return bytes > room ? NULL : aligned_alloc(512, (bytes + 511) / 512 * 512);
}
void my_free(void *pointer, size_t bytes, int device, void *stream) {
  SAY("free %zu %d;", bytes, device);
  free(pointer);
}
void my_init(int count) { SAY("init %d;", count); }
void my_reset(void) { SAY("reset;"); }
void my_fraction(double fraction, int device) { SAY("fraction %.2f %d;", fraction, device); }
void *my_base(void *pointer, size_t *bytes) { SAY("base;"); *bytes = 4096; return pointer; }
void my_record(void *pointer, void *stream) { SAY("record %d;", stream != NULL); }
void my_begin(int device, pool_id id, int (*filter)(void *, void *), void *context) {
  SAY("begin %d %d,%d;", device, (int)id.first, (int)id.second);
}
void my_end(int device, pool_id id) { SAY("end %d %d,%d;", device, (int)id.first, (int)id.second); }
void my_release(int device, pool_id id) { SAY("release %d %d,%d;", device, (int)id.first, (int)id.second); }
"""

PRELUDE = """
import ctypes, weir
from weir import _weir
library = ctypes.CDLL(PATH)
library.what_was_said.restype = ctypes.c_char_p
def said():
    text = library.what_was_said().decode()
    library.forget()
    return [part for part in text.split(";") if part]
def address(name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not COMPILER:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("allocator")
    (folder / "mine.c").write_text(SOURCE)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / "mine.so", folder / "mine.c"], check=True)
    return str(folder / "mine.so")


def run(library, code):
    return run_python(f"PATH = {library!r}\n{PRELUDE}\n{code}")


def test_plain_functions(library):
    run(library, """
mine = weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free")
weir.change_current_allocator(mine)
assert weir.memory._get_current_allocator().allocator() is mine.allocator()
assert not weir.is_initialized()
buffer = weir.buffer(1000)
assert weir.get_allocator_backend() == "pluggable" == mine.allocator().name()
assert said() == ["alloc 1000 0"], said()
assert weir.memory_allocated() > 0
pointer = buffer.pointer
del buffer
assert said() == ["free 1000 0"]
assert weir.memory_allocated() == 0
weir.buffer(0)
assert said() == []
""")


def test_statistics_history_and_snapshots(library):
    run(library, """
weir.change_current_allocator(weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free"))
weir.memory._record_memory_history(stacks="python")
seen = []
weir.attach_memory_tracker(lambda *entry: seen.append(entry[0]))
def allocates():
    return weir.buffer(5000)
buffer = allocates()
stats = weir.memory_stats()
assert stats["allocation.all.current"] == 1 and stats["requested_bytes.all.current"] == 5000, stats
assert weir.max_memory_allocated() >= 5000
snapshot = weir.memory._snapshot()
(block,) = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
assert block["address"] == buffer.pointer and block["frames"][0]["name"] == "allocates", block
del buffer
actions = [e["action"] for e in weir.memory._snapshot()["device_traces"][0]]
assert "alloc" in actions and "free_requested" in actions and "free_completed" in actions, actions
assert "alloc" in seen and "free_completed" in seen, seen
assert "memory summary" in weir.memory_summary()
weir.reset_peak_memory_stats()
weir.reset_accumulated_memory_stats()
""")


def test_optional_functions(library):
    run(library, """
mine = weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free")
a = mine.allocator()
a.set_init_fn(address("my_init"))
a.set_reset_fn(address("my_reset"))
a.set_memory_fraction_fn(address("my_fraction"))
a.set_base_alloc_fn(address("my_base"))
a.set_record_stream_fn(address("my_record"))
a.set_begin_allocate_to_pool(address("my_begin"))
a.set_end_allocate_to_pool_fn(address("my_end"))
a.set_release_pool(address("my_release"))
weir.change_current_allocator(mine)
buffer = weir.buffer(1000)
assert said() == [f"init {weir.device_count()}", "alloc 1000 0"]
weir.set_per_process_memory_fraction(0.5)
assert said() == ["fraction 0.50 0"]
assert _weir._base_allocation(buffer.pointer) == (buffer.pointer, 4096)
assert said() == ["base"]
buffer.record_stream(weir.Stream())
assert said() == ["record 1"]
weir.empty_cache()
assert said() == ["reset"]
del buffer
assert said() == ["free 1000 0"]
pool = weir.graph_pool_handle()
_weir._cuda_beginAllocateCurrentThreadToPool(0, pool)
_weir._cuda_endAllocateToPool(0, pool)
_weir._cuda_releasePool(0, pool)
assert said() == [f"begin 0 {pool[0]},{pool[1]}", f"end 0 {pool[0]},{pool[1]}", f"release 0 {pool[0]},{pool[1]}"]
try:
    a.set_reset_fn(address("my_reset"))
except RuntimeError as error:
    assert "in use" in str(error)
else:
    raise AssertionError("it is in use")
""")


def test_out_of_memory(library):
    run(library, """
mine = weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free")
mine.allocator().set_reset_fn(address("my_reset"))
weir.change_current_allocator(mine)
library.set_room(ctypes.c_size_t(100000))
buffer = weir.buffer(1000)
told = []
weir.attach_oom_observer(lambda *what: told.append(what))
try:
    weir.buffer(200000)
except weir.OutOfMemoryError as error:
    assert "out of memory" in str(error), error
else:
    raise AssertionError("there is no room for that")
assert len(told) == 1 and "reset" in said()
assert weir.memory_stats()["num_ooms"] == 1
del buffer
""")


def test_refused_once_initialised(library):
    run(library, """
mine = weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free")
weir.buffer(8)
try:
    weir.change_current_allocator(mine)
except RuntimeError as error:
    assert "Can't swap an already initialized allocator" in str(error)
else:
    raise AssertionError("it is too late")
assert weir.get_allocator_backend() == "native" and said() == []
""")


def test_chosen_twice_and_taken_back(library):
    run(library, """
first = weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free")
weir.change_current_allocator(first)
native = weir.memory._CUDAAllocator(_weir._cuda_getAllocator())
second = weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free")
weir.change_current_allocator(second)
del first, native
weir.buffer(77)
assert said() == ["alloc 77 0", "free 77 0"]
""")


def test_the_object_may_go(library):
    run(library, """
import gc
weir.change_current_allocator(weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free"))
gc.collect()
buffer = weir.buffer(77)
del buffer
assert said() == ["alloc 77 0", "free 77 0"]
""")


def test_threads(library):
    run(library, """
import threading
weir.change_current_allocator(weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free"))
def work():
    for i in range(200):
        weir.buffer(100 + i)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
assert weir.memory_allocated() == 0 and weir.memory_stats()["allocation.all.allocated"] == 800
""")


@pytest.mark.skipif(not is_soft, reason="the driver may have no memory left for pools")
def test_backend_of_the_settings():
    run_python(
        """
        import weir
        a = weir.buffer(1 << 20)
        assert weir.get_allocator_backend() == "cudaMallocAsync"
        a.fill_(3)
        assert a.tobytes() == b"\\3" * (1 << 20)
        del a
        weir.empty_cache()
        """,
        WEIR_ALLOC_CONF="backend:cudaMallocAsync",
    )


def test_wrong_functions(library):
    run(library, """
def refuses(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError("it did not refuse")
refuses(OSError, lambda: weir.CUDAPluggableAllocator("/no/such/file.so", "a", "b"))
refuses(AttributeError, lambda: weir.CUDAPluggableAllocator(PATH, "no_such_function", "my_free"))
refuses(TypeError, lambda: _weir._cuda_customAllocator("a", "b"))
refuses(ValueError, lambda: _weir._cuda_customAllocator(0, 1))
refuses(TypeError, lambda: _weir._cuda_changeCurrentAllocator(3))
refuses(AttributeError, lambda: weir.change_current_allocator(3))
refuses(RuntimeError, lambda: _weir._cuda_getAllocator().set_init_fn(1))
refuses(TypeError, lambda: weir.CUDAPluggableAllocator(PATH, "my_alloc", "my_free").allocator().set_init_fn("x"))
refuses(TypeError, lambda: type(_weir._cuda_getAllocator())())
""")
