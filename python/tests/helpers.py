"""Settings, functions and fixtures that the tests share; conftest.py hands them to pytest.

The tests run on the software device with two devices, or with WEIR_TEST_DRIVER=cuda on NVIDIA's driver. A process has
one runtime, so tests of the start, the environment or a fork run their code in a new process: `run_python(code)`.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap

import pytest

os.environ["WEIR_DRIVER"] = os.environ.get("WEIR_TEST_DRIVER", "soft")
os.environ.setdefault("WEIR_SOFT_DEVICES", "2")
os.environ.setdefault("WEIR_SOFT_MEMORY", "1GiB")
for name in ("COLUMNS", "CUDA_VISIBLE_DEVICES", "WEIR_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
    os.environ.pop(name, None)

# A sanitizer keeps freed memory for a while, and is slow.
is_sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")
# Selects the long form of tests that repeat something many times; `make test-all` sets it.
is_long = os.environ.get("WEIR_TEST_LONG") == "1"
is_soft = os.environ["WEIR_DRIVER"] == "soft"


def run_python(code: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new Python with warnings as errors. Fails the test if the code fails, unless check is False."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:history has no native stacks", "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if check and result.returncode != 0:
        pytest.fail(f"exit code {result.returncode}:\n{result.stdout}{result.stderr}")
    return result


def pytest_collection_finish() -> None:
    """Objects of pytest and of the modules are not searched by the collections of each test."""
    gc.collect()
    gc.freeze()


def resident_bytes() -> int:
    """Returns the resident memory of the process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def need_compiler() -> None:
    """Skips the tests of a module if source cannot be compiled for the device."""
    from weir import kernel

    try:
        kernel.compile('extern "C" __global__ void nothing() {}')
    except RuntimeError as error:
        if is_soft or "nvrtc" not in str(error).lower():
            raise
        pytest.skip(f"needs NVRTC: {error}", allow_module_level=True)


@pytest.fixture
def two_devices() -> None:
    import weir

    if weir.device_count() < 2:
        pytest.skip("needs two devices")


@pytest.fixture(autouse=True)
def clean_state():
    """Each test starts on device 0 and the default stream, and leaves no debug mode set."""
    import weir

    yield
    if weir.is_initialized():
        weir.set_sync_debug_mode(0)
        for device in reversed(range(weir.device_count())):
            weir.set_stream(weir.default_stream(device))
