"""Guard mode under weir.cupy, with stand-ins for CuPy and for NVIDIA's driver: bugs, each with a silent twin.

Each run is a new process, because guard mode is chosen when the allocator is created. WEIR_CUDA_LIBRARY names the
stand-in for the driver (adapters/preload/tests/fake_cuda.c).
"""

import json
import os
import subprocess
import sys

import pytest

try:
    import fake_cupy
except ImportError:
    fake_cupy = None

PROGRAM = """
import contextlib, ctypes, sys, types
sys.path.insert(0, {here!r})
from test_fake_cupy import make_cupy
classes = None
if {in_c}:
    import fake_cupy as classes
cupy = sys.modules["cupy"] = make_cupy(classes)
for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.stream"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["cupy_backends.cuda"].stream = classes
import weir, weir.cupy
weir.cupy.install()
assert ({in_c} and not weir.cupy.why_not_c()) or not {in_c}, weir.cupy.why_not_c()

def write(address, count):
    weir.synchronize()
    ctypes.memset(address, 7, count)

def allocate(size):
    return cupy.cuda.get_allocator()(size)

def past_end(bug):
    array = allocate(1000)
    write(array.mem.ptr, 1004 if bug else 1000)

def after_free(bug):
    array = allocate(5000)
    address = array.mem.ptr
    if not bug:
        write(address + 40, 8)
    del array
    if bug:
        write(address + 40, 8)

def freed_twice(bug):
    array = allocate(700)
    address = array.mem.ptr
    del array
    if bug:
        with contextlib.suppress(Exception):
            weir.caching_allocator_delete(address)

for run in (past_end, after_free, freed_twice):
    run({bug})
weir.synchronize()
"""
EXPECTED = {
    "past_end": ("out_of_bounds", 1000, 1000),
    "after_free": ("use_after_free", 5000, 40),
    "freed_twice": ("double_free", 700, 0),
}


def findings(bug, in_c, folder):
    report = folder / "report.json"
    program = PROGRAM.format(here=os.path.dirname(os.path.abspath(__file__)), in_c=in_c, bug=bug)
    env = {**os.environ, "WEIR_GUARD": "light"}
    subprocess.run([sys.executable, "-c", program], env={**env, "WEIR_GUARD_REPORT": str(report)}, check=True)
    return [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


@pytest.mark.skipif("WEIR_CUDA_LIBRARY" not in os.environ, reason="needs the stand-in for NVIDIA's driver")
@pytest.mark.parametrize("in_c", [False, True] if fake_cupy else [False])
def test_bugs_are_named_and_their_twins_are_silent(in_c, tmp_path):
    assert findings(False, in_c, tmp_path) == []
    found = findings(True, in_c, tmp_path)
    for name, expected in EXPECTED.items():
        mine = [f for f in found if any(frame["name"] == name for frame in f["alloc_stack"])]
        assert [(f["kind"], f["requested"], f["offset"]) for f in mine] == [expected], (name, found)
        assert mine[0]["free_stack"]
    assert len(found) == len(EXPECTED)
