"""Small names of torch.cuda: devices as NVML sees them, locks, stacks on request."""

from __future__ import annotations

import os
import re
import threading

import pytest
from conftest import is_soft, run_python

import weir


# ---- Devices ----


def test_device_guard(two_devices):
    with weir._DeviceGuard(1):
        assert weir.current_device() == 1
    assert weir.current_device() == 0
    with weir._DeviceGuard(-1):
        assert weir.current_device() == 0
    with pytest.raises(ZeroDivisionError):
        with weir._DeviceGuard(1):
            1 / 0
    assert weir.current_device() == 0


def test_counts_of_nvml(monkeypatch):
    monkeypatch.setenv("WEIR_NVML_LIBRARY", "/nonexistent/libnvidia-ml.so")
    with pytest.raises(OSError):
        weir._raw_device_count_nvml()
    with pytest.raises(OSError):
        weir._raw_device_uuid_nvml()
    with pytest.raises(RuntimeError, match="cuda driver can't be loaded, is cuda enabled?"):
        weir._get_pynvml_handler()
    assert weir._device_count_nvml() == -1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1234")
    assert weir._device_count_nvml() == -1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert weir._device_count_nvml() == 0


def fake_nvml(count, uuids):
    """A library with NVML's functions. The counts are results of the calls: None fails."""

    class Library:
        def nvmlInit_v2(self):
            return 0 if count is not None else 999

        def nvmlDeviceGetCount_v2(self, out):
            out._obj.value = count
            return 0

        def nvmlDeviceGetHandleByIndex_v2(self, index, out):
            out._obj.value = index + 1
            return 0

        def nvmlDeviceGetUUID(self, handle, text, size):
            text.value = uuids[handle.value - 1].encode()
            return 0

    return Library()


@pytest.mark.parametrize(
    "visible, found",
    [(None, 2), ("0", 1), ("1,0", 2), ("0,2,1", 1), ("1,1", 0), ("GPU-ab", 1), ("GPU-a", 0), ("MIG-1", -1), ("-1", 0)],
)
def test_count_of_visible_devices(monkeypatch, visible, found):
    uuids = ["GPU-ab12", "GPU-ac34"]
    monkeypatch.setattr("ctypes.CDLL", lambda name: fake_nvml(2, uuids))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert weir._raw_device_count_nvml() == 2 and weir._raw_device_uuid_nvml() == uuids
    assert weir._device_count_nvml() == found


def test_nvml_that_fails(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: fake_nvml(None, []))
    with pytest.warns(UserWarning, match="Can't initialize NVML"):
        assert weir._raw_device_count_nvml() == -1
    with pytest.warns(UserWarning, match="Can't initialize NVML"):
        assert weir._raw_device_uuid_nvml() is None


def test_nvml_device_index(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: fake_nvml(2, ["GPU-ab12", "GPU-ac34"]))
    assert weir._get_nvml_device_index(0) == 0 and weir._get_pynvml_handler(0) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert weir._get_nvml_device_index(0) == 3 and weir._get_nvml_device_index("cuda:1") == 1
    with pytest.raises(RuntimeError, match=r"device 2 is not visible \(CUDA_VISIBLE_DEVICES=\[3, 1\]\)"):
        weir._get_nvml_device_index(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ac")
    assert weir._get_nvml_device_index(0) == 1


@pytest.mark.skipif(is_soft, reason="needs NVIDIA's driver")
def test_nvml_get_handler():
    assert weir._get_pynvml_handler()
    assert weir._raw_device_count_nvml() >= weir.device_count()
    assert all(uuid.startswith("GPU-") for uuid in weir._raw_device_uuid_nvml())
    assert weir._device_count_nvml() == weir.device_count()
    assert f"GPU-{weir.get_device_properties(0).uuid}" == weir._raw_device_uuid_nvml()[weir._get_nvml_device_index(0)]


# ---- Memory ----


def test_host_allocator():
    address = weir.memory._host_allocator()
    assert isinstance(address, int) and address != 0
    kept = weir.host_empty(100)
    assert weir.memory._host_allocator() == address
    del kept


def test_free_mutex():
    order = []

    def other():
        with weir.memory._free_mutex():
            order.append("other")

    with weir.memory._free_mutex():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.05)
        order.append("this")
        buffer = weir.buffer(512)
        del buffer  # allocation and free work while it is held
    thread.join()
    assert order == ["this", "other"]


def test_free_mutex_in_a_forked_child():
    code = """
        import os, weir
        with weir.memory._free_mutex():
            child = os.fork()
            if child == 0:
                with weir.memory._free_mutex():
                    os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    run_python(code)


def test_ipc_collect():
    assert weir.ipc_collect() is None
    run_python("import weir; weir.ipc_collect(); assert weir.is_initialized()")


# ---- Stacks on request ----


def test_direct_traceback():
    c = weir.gather_traceback(True, True, True)
    (frames,) = weir.symbolize_tracebacks([c])
    assert frames[0]["name"] == "gather_traceback" or frames[0]["name"] == "__init__"
    names = [(f["name"], os.path.basename(f["filename"])) for f in frames]
    assert ("test_direct_traceback", "test_names.py") in names
    (python,) = weir.symbolize_tracebacks([weir.gather_traceback(cpp=False)])
    assert all(f["filename"].endswith((".py", ">")) for f in python)
    assert len(python) < len(frames) or not _has_native()


def _has_native() -> bool:
    return bool(weir.symbolize_tracebacks([weir.gather_traceback(python=False)])[0])


@pytest.mark.skipif(not _has_native(), reason="needs libunwind")
def test_native_traceback():
    first, second = weir.gather_traceback(python=False), weir.gather_traceback(False, False, False)
    native, nothing = weir.symbolize_tracebacks([first, second])
    assert nothing == []
    assert native[-1]["name"] == "_start" and "unwind" not in native[0]["name"]
    assert all(set(f) == {"name", "filename", "line"} for f in native)
    assert not any(f["filename"].endswith(".py") for f in native)


def test_tracebacks_need_no_start():
    code = """
        import weir
        def asks():
            return weir.gather_traceback(cpp=False)
        names = [frame["name"] for frame in weir.symbolize_tracebacks([asks()])[0]]
        assert "asks" in names and not weir.is_initialized(), names
        """
    run_python(code)


def test_wrong_tracebacks():
    with pytest.raises(TypeError, match="expected a list of CapturedTraceback, got int"):
        weir.symbolize_tracebacks([3])


# ---- Errors ----


def failing_calls():
    graph, event = weir.CUDAGraph(), weir.Event()
    return {
        "device": lambda: weir.set_device(99),
        "stream": lambda: weir.Stream(device=99),
        "elapsed time": lambda: weir.Event().elapsed_time(event),
        "buffer": lambda: weir.buffer(1 << 50),
        "delete": lambda: weir.caching_allocator_delete(12345),
        "replay": graph.replay,
        "capture": graph.capture_begin,
        "end of a capture": graph.capture_end,
        "dump": lambda: graph.debug_dump("graph.dot"),
        "handle": event.ipc_handle,
        "settings": lambda: weir.memory._set_allocator_settings("nonsense:1"),
        "statistics": lambda: weir.memory_stats(99),
        "host memory": lambda: weir.host_empty(1 << 60),
        "external stream": lambda: weir.ExternalStream(3).synchronize(),
    }


@pytest.mark.parametrize("name", failing_calls())
def test_errors_have_names_of_python(name):
    with pytest.raises((RuntimeError, ValueError, NotImplementedError, MemoryError)) as caught:
        failing_calls()[name]()
    assert not re.search(r"\bweir_\w+|\bWEIR_E", str(caught.value))


@pytest.mark.parametrize(
    "name, suggested", [("memory_alocated", "memory_allocated"), ("explian", "explain"), ("_slep", "_sleep"), ("Stram", "Stream")]
)
def test_a_misspelt_name_gets_a_suggestion(name, suggested):
    with pytest.raises(AttributeError, match=f"module 'weir' has no attribute '{name}'. Did you mean: '{suggested}'\\?"):
        getattr(weir, name)


def test_a_name_like_none_gets_no_suggestion():
    with pytest.raises(AttributeError, match="module 'weir' has no attribute 'nonsense'$"):
        weir.nonsense
    assert not hasattr(weir, "__nonsense__")
