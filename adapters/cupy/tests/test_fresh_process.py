"""weir.cupy in a new process, on one core, with stand-ins for CuPy and NVIDIA's driver: how CuPy's arrays are allocated
after the first one.

WEIR_CUDA_LIBRARY names the stand-in for the driver (adapters/preload/tests/fake_cuda.c), which counts its calls.
"""

import ctypes
import os
import sys
import threading
import types

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
driver = ctypes.CDLL(os.environ["WEIR_CUDA_LIBRARY"])
driver.fake_cuda_calls.argtypes, driver.fake_cuda_calls.restype = [ctypes.c_char_p], ctypes.c_ulong

import fake_cupy

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_fake_cupy import make_cupy

cupy = sys.modules["cupy"] = make_cupy(fake_cupy)
for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.stream"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["cupy_backends.cuda"].stream = fake_cupy

import weir.cupy

SIZES = (512, 4096, 3 << 20)
PAIRS = 1000


def counts():
    return (driver.fake_cuda_calls(None), *weir.cupy._weir._cupy_slow_calls(), fake_cupy.device_queries()[1])


def allocate(pairs):
    alloc = cupy.cuda.get_allocator()
    for size in SIZES:
        for _ in range(pairs):
            alloc(size)
        kept = [alloc(size)]
        for _ in range(pairs):
            kept.append(alloc(size))
            del kept[0]


def check():
    allocate(2)
    before = counts()
    allocate(PAIRS)
    names = ("driver calls", "slow allocations", "slow frees", "queries of the device without a context")
    for name, now, then in zip(names, counts(), before):
        if now != then:
            failures.append(f"{now - then} {name} for {2 * PAIRS * len(SIZES)} pairs")


failures = []
weir.cupy.install()
assert weir.cupy.why_not_c() is None, weir.cupy.why_not_c()
check()
thread = threading.Thread(target=check)
thread.start()
thread.join()
print("\n".join(failures))
sys.exit(1 if failures else 0)
