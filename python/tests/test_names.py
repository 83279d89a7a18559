"""Small names of torch.cuda and torch._C: what is supported, warnings at the start, locks, stacks on request."""

from __future__ import annotations

import os
import re
import tarfile
import threading
import warnings
from pathlib import Path

import pytest
from conftest import is_soft, run_python

import weir
from weir import _C, _device

ROOT = Path(__file__).resolve().parents[2]


def test_has():
    assert weir.has_half is True and weir.has_magma is False
    assert weir._is_compiled() is True and _C._has_cuda is True
    assert weir._nvml_based_avail() is False


def test_bf16_and_tf32():
    native = weir.get_device_capability()[0] >= 8
    assert weir.is_bf16_supported() is True
    assert weir.is_bf16_supported(including_emulation=False) is native
    assert weir.is_tf32_supported() is native
    assert weir._check_bf16_tensor_supported(0) is True


@pytest.mark.skipif(not is_soft, reason="the software device has any capability")
def test_bf16_of_older_devices():
    code = """
        import weir
        assert weir.is_bf16_supported() is True
        assert weir.is_bf16_supported(including_emulation=False) is False and weir.is_tf32_supported() is False
        """
    run_python(code, WEIR_SOFT_CAPABILITY="7.5")
    code = "import warnings; warnings.simplefilter('ignore'); import weir; assert not weir.is_bf16_supported()"
    run_python(code, WEIR_SOFT_CAPABILITY="7.0")


# ---- Architectures ----


def test_arch_list_is_that_of_the_ptx():
    with tarfile.open(ROOT / "compute" / "ptx.tar.xz") as archive:
        texts = [archive.extractfile(member).read().decode() for member in archive]
    targets = {re.search(r"^\.target sm_(\d+)", text, re.MULTILINE)[1] for text in texts}
    assert weir.get_arch_list() == [f"compute_{number}" for number in sorted(targets)]
    assert _C._cuda_getArchFlags() == " ".join(weir.get_arch_list())
    assert weir.get_gencode_flags() == "-gencode compute=compute_75,code=compute_75"


@pytest.mark.parametrize("text, number", [("sm_90", 90), ("sm_90a", 90), ("compute_75", 75), ("sm_100f", 100)])
def test_extract_arch_version(text, number):
    assert weir._extract_arch_version(text) == number


@pytest.mark.skipif(not is_soft, reason="the software device has any capability")
def test_an_old_device_gets_a_warning():
    code = """
        import warnings, weir
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            weir.init()
        texts = [str(w.message) for w in caught]
        assert len(texts) == weir.device_count() == 2, texts
        for device, text in enumerate(texts):
            assert f"Found GPU{device} {weir.get_device_name(device)} which is of cuda capability 6.1." in text, text
            assert "The minimum cuda capability supported by Weir's kernels is 7.5" in text, text
        """
    run_python(code, WEIR_SOFT_CAPABILITY="6.1")


def test_supported_devices_get_no_warning():
    run_python("import weir; weir.init()")  # warnings are errors


@pytest.mark.parametrize(
    "archs, capability, warns",
    [
        (["sm_90"], (9, 0), False),
        (["sm_80", "sm_90"], (8, 6), False),
        (["sm_90"], (8, 0), True),
        (["sm_80"], (9, 0), True),
        (["sm_86"], (8, 0), True),
        (["sm_70", "compute_70"], (12, 0), False),
        (["compute_90"], (8, 0), False),  # _check_capability warns
        ([], (8, 0), False),
    ],
)
def test_check_cubins(monkeypatch, archs, capability, warns):
    monkeypatch.setattr(_device, "get_arch_list", lambda: archs)
    monkeypatch.setattr(_device, "get_device_capability", lambda device=None: capability)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weir._check_cubins()
    assert len(caught) == (weir.device_count() if warns else 0)
    for warning in caught:
        text = str(warning.message)
        assert f"with CUDA capability sm_{capability[0]}{capability[1]} is not compatible with the current" in text
        assert f"supports CUDA capabilities {' '.join(archs)}." in text


def test_compiled_version():
    version = _C._cuda_getCompiledVersion()
    header = (ROOT / "include" / "weir" / "driver_entries.h").read_text()
    assert version == max(int(n) for n in re.findall(r", (\d{4,5}), (?:REQUIRED|OPTIONAL)", header)) >= 11020


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
    assert weir.memory._host_allocator() == address == _C._cuda_cudaHostAllocator()
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
        buffer = weir.empty(512)
        del buffer  # allocation and free work while it is held
    thread.join()
    assert order == ["this", "other"]
    _C._cuda_lock_mutex()
    assert memory_lock_is_held()
    _C._cuda_unlock_mutex()
    assert not memory_lock_is_held()


def memory_lock_is_held() -> bool:
    return weir.memory._free_lock.locked()


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
    assert weir.ipc_collect() is None and _C._cuda_ipc_collect() is None
    run_python("import weir; weir.ipc_collect(); assert weir.is_initialized()")


# ---- Random numbers ----


def test_rng_state_offset():
    before = weir._get_rng_state_offset()
    weir._set_rng_state_offset(before + 8)
    assert weir._get_rng_state_offset() == before + 8 == weir._get_generator("cuda:0").get_offset()
    weir._set_rng_state_offset(before, "cuda")
    assert weir._get_device(0) == weir._get_device("cuda:0") == weir.Device("cuda", 0)
    assert weir._get_device(weir.Device("cuda", 0)) == weir.Device("cuda", 0)


# ---- torch._C ----


def test_streams_by_number():
    stream = weir.Stream()
    assert _C._cuda_getDefaultStream(0) == _C._cuda_getCurrentStream(0)
    assert _C._cuda_getCurrentRawStream(0) == 0
    _C._cuda_setStream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
    assert weir.current_stream() == stream and _C._cuda_getCurrentRawStream(0) == stream.cuda_stream
    assert _C._cuda_getCurrentStream(0) == (stream.stream_id, stream.device_index, stream.device_type)
    weir._set_stream_by_id(*_C._cuda_getDefaultStream(0))
    assert weir.current_stream() == weir.default_stream()


def test_calls_of_c():
    assert _C._cuda_init() is None and _C._cuda_isInBadFork() is False
    assert _C._cuda_getDevice() == 0 and _C._cuda_getDeviceCount() == weir.device_count()
    _C._cuda_sleep(1000)
    assert _C._cuda_synchronize() is None and weir.current_stream().query()
    assert _C._cuda_hasPrimaryContext(0) is True and _C._cuda_isCurrentStreamCapturing() is False
    assert _C.default_generators is weir.default_generators
    a, b = weir.empty(512), weir.empty(512)
    pointers = [a.data_ptr(), b.data_ptr() + 1]
    assert _C._tensors_data_ptrs_at_indices_equal([a, b], pointers, [0])
    assert not _C._tensors_data_ptrs_at_indices_equal([a, b], pointers, [0, 1])
    with pytest.raises(AttributeError, match="module 'weir._C' has no attribute 'nonsense'"):
        _C.nonsense
    with pytest.raises(AttributeError, match="module 'weir' has no attribute 'nonsense'"):
        weir.nonsense


def test_arrays_of_c():
    x, y = weir.arange(6, device="cuda"), weir.arange(6, device="cuda")
    code = "template <typename T> T add(T x, T y, T alpha) { return x + alpha * y; }"
    for alpha in (2, 3):
        out = _C._cuda_jiterator_compile_and_launch_kernel(code, "add", False, 1, (x, y), {"alpha": alpha})
        assert out.tolist() == [(1 + alpha) * i for i in range(6)]
    with pytest.raises(RuntimeError, match="tensors argument is expected to be a tuple, but got list"):
        _C._cuda_jiterator_compile_and_launch_kernel(code, "add", False, 1, [x, y], {"alpha": 1})
    with pytest.raises(RuntimeError, match="1 of input tensors tuple is not a Tensor"):
        _C._cuda_jiterator_compile_and_launch_kernel(code, "add", False, 1, (x, 3), {"alpha": 1})

    storage = x.storage()._untyped_storage
    count = _C._storage_Use_Count(storage)
    metadata = {"dtype": x.dtype, "size": (2, 2), "stride": (3, 1), "storage_offset": 1}
    view = _C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage)
    assert view.tolist() == [[1, 2], [4, 5]] and view.data_ptr() == x.data_ptr() + 8
    assert _C._storage_Use_Count(storage) == count + 1
    del view
    assert _C._storage_Use_Count(storage) == count


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
