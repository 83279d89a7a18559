"""Devices: their number, the current one, their properties and their utilization."""

from __future__ import annotations

import ctypes
import pickle
import threading
from types import SimpleNamespace

import pytest
from conftest import is_soft

import weir
from weir._utils import _get_device_index

NO_NUMBER = [1.5, b"0", [], {}, object(), True]


def test_count_and_available():
    assert weir.is_available() is True
    assert weir.device_count() >= 1
    if is_soft:
        assert weir.device_count() == 2


def test_cuda_get_device_name():
    name = weir.get_device_name(weir.current_device())
    assert name and name == weir.get_device_name(None) == weir.get_device_name() == weir.get_device_name("cuda:0")


def test_cuda_get_device_capability():
    capability = weir.get_device_capability(weir.current_device())
    assert capability == weir.get_device_capability(None) == weir.get_device_capability()
    assert len(capability) == 2 and capability >= (3, 0)


def test_properties():
    found = weir.get_device_properties()
    assert found.name == weir.get_device_name()
    assert (found.major, found.minor) == weir.get_device_capability()
    assert found.total_memory > 0 and found.multi_processor_count > 0 and found.warp_size == 32
    assert found.max_threads_per_block > 0 and found.max_threads_per_multi_processor > 0
    assert found.regs_per_multiprocessor > 0 and found.L2_cache_size > 0
    assert found.shared_memory_per_block_optin >= found.shared_memory_per_block > 0
    assert found.shared_memory_per_multiprocessor > 0 and found.clock_rate > 0
    for flag in ("is_integrated", "is_multi_gpu_board", "virtual_memory", "memory_pools"):
        assert getattr(found, flag) in (True, False)
    assert found.gcnArchName == found.name
    assert found.pci_domain_id >= 0 and found.pci_bus_id >= 0 and found.pci_device_id >= 0
    text = repr(found)
    assert text.startswith(f"_CudaDeviceProperties(name='{found.name}', major={found.major}, minor={found.minor}, ")
    assert f"total_memory={found.total_memory // 2**20}MB" in text and f"uuid={found.uuid}" in text
    with pytest.raises(AttributeError):
        found.name = "another"
    with pytest.raises(TypeError):
        type(found)()


def test_uuid():
    found = weir.get_device_properties(0).uuid
    assert type(found.bytes) is list and len(found.bytes) == 16 and all(0 <= byte <= 255 for byte in found.bytes)
    digits = bytes(found.bytes).hex()
    assert str(found) == "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    again = weir.get_device_properties("cuda:0").uuid
    assert found == again and hash(found) == hash(again) and found != str(found)
    assert str(found) in repr(found)
    with pytest.raises(TypeError):
        type(found)()


def test_uuids_differ(two_devices):
    first, second = weir.get_device_properties(0), weir.get_device_properties(1)
    assert first.uuid != second.uuid and first != second and first != 0 and len({first, second, first}) == 2
    assert first == weir.get_device_properties() == weir.get_device_properties(None)


def test_get_device_index():
    with pytest.raises(RuntimeError, match="Invalid device string"):
        _get_device_index("cuda0", optional=True)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        _get_device_index(SimpleNamespace(type="cpu", index=None), optional=True)
    with pytest.raises(ValueError, match="Expected a cuda device"):
        _get_device_index("cpu")
    with pytest.raises(ValueError, match="Expected a device with a specified index"):
        _get_device_index(None)
    with pytest.raises(ValueError, match="Expected a device with a specified index"):
        _get_device_index("cuda")
    assert _get_device_index(None, optional=True) == weir.current_device()
    assert _get_device_index("cuda", optional=True) == weir.current_device()
    assert _get_device_index(-1) == -1
    assert _get_device_index(5) == 5
    assert _get_device_index("cuda:7") == 7
    assert _get_device_index(weir.Device(3)) == 3
    assert _get_device_index(SimpleNamespace(type="cuda", index=4)) == 4
    assert _get_device_index(weir.device(1)) == 1
    assert _get_device_index("cpu", allow_cpu=True) == -1
    assert _get_device_index(SimpleNamespace(type="cpu", index=None), allow_cpu=True) == -1


@pytest.mark.parametrize(
    "text",
    ["", "cuda0", "cuda:", "cuda:-1", "cuda:01", "cuda:1a", "cuda: 1", ":1", "1", "CUDA:0", "cuda:99999", "cuda:1:2"],
)
def test_specify_improper_device_name(text):
    with pytest.raises(RuntimeError, match="Invalid device string"):
        weir.Device(text)
    with pytest.raises(RuntimeError, match="Invalid device string"):
        weir.synchronize(text)


@pytest.mark.parametrize("wrong", NO_NUMBER)
def test_wrong_types(wrong):
    for call in (
        weir.set_device,
        weir.device,
        weir.Device,
        weir.get_device_name,
        weir.get_device_capability,
        weir.get_device_properties,
        weir.synchronize,
        weir.mem_get_info,
        weir.current_stream,
        weir.default_stream,
        weir.utilization,
        weir.memory_usage,
        weir.temperature,
        weir.power_draw,
        weir.clock_rate,
        weir.device_memory_used,
        weir.Stream,
        lambda device: weir.can_device_access_peer(device, 0),
        lambda device: weir.can_device_access_peer(0, device),
        lambda device: weir.get_stream_from_external(0, device),
        lambda device: weir.ExternalStream(0, device),
        lambda device: weir.Event.from_ipc_handle(device, bytes(64)),
    ):
        with pytest.raises(TypeError):
            call(wrong)


def test_no_such_device():
    count = weir.device_count()
    for index in (count, count + 100, 2**31 - 1):
        for call in (weir.set_device, weir.synchronize, weir.current_stream, weir.Stream, weir.mem_get_info):
            with pytest.raises(weir.AcceleratorError, match=str(index)) as caught:
                call(index)
            assert caught.value.error_code == 101
        for call in (weir.get_device_name, weir.get_device_capability, weir.get_device_properties):
            with pytest.raises(AssertionError, match="Invalid device id"):
                call(index)
        with pytest.raises(weir.AcceleratorError):
            weir.device(index).__enter__()
    with pytest.raises(AssertionError, match="Invalid device id"):
        weir.get_device_name(-1)
    with pytest.raises((ValueError, OverflowError)):
        weir.synchronize(2**31)
    with pytest.raises((ValueError, OverflowError)):
        weir.synchronize(2**100)
    with pytest.raises(ValueError, match="expected 0 or greater"):
        weir.synchronize(-1)
    assert weir.current_device() == 0


def test_current_device(two_devices):
    assert weir.current_device() == 0
    weir.set_device(1)
    assert weir.current_device() == 1
    weir.set_device("cuda:0")
    assert weir.current_device() == 0
    weir.set_device(weir.Device(1))
    assert weir.current_device() == 1
    weir.set_device(-1)
    assert weir.current_device() == 1
    with pytest.raises(ValueError):
        weir.set_device("cuda")


def test_each_thread_has_its_own(two_devices):
    weir.set_device(1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(weir.current_device()))
    thread.start()
    thread.join()
    assert seen == [0] and weir.current_device() == 1


def test_device_context(two_devices):
    with weir.device(1):
        assert weir.current_device() == 1
        with weir.device(None):
            assert weir.current_device() == 1
        with weir.device(-1):
            assert weir.current_device() == 1
        with weir.device("cuda:0"):
            assert weir.current_device() == 0
        assert weir.current_device() == 1
    assert weir.current_device() == 0
    with pytest.raises(KeyError):
        with weir.device(1):
            raise KeyError
    assert weir.current_device() == 0
    # One of them may be reused.
    context = weir.device(1)
    for _ in range(2):
        with context:
            assert weir.current_device() == 1
        assert weir.current_device() == 0


def test_device_of(two_devices):
    for thing in (weir.Stream(1), weir.buffer(16, device=1), SimpleNamespace(__dlpack_device__=lambda: (2, 1))):
        with weir.device_of(thing):
            assert weir.current_device() == 1
    for thing in (
        SimpleNamespace(is_cuda=False),
        SimpleNamespace(device=SimpleNamespace(type="cpu", index=None)),
        SimpleNamespace(__dlpack_device__=lambda: (1, 0)),
        weir.Event(),
    ):
        with weir.device_of(thing):
            assert weir.current_device() == 0
    with pytest.raises(TypeError, match="with a device"):
        weir.device_of(object())


def test_exchange(two_devices):
    assert weir._exchange_device(1) == 0
    assert weir._maybe_exchange_device(0) == 1
    assert weir._exchange_device(-1) == -1
    assert weir._maybe_exchange_device(-5) == -1
    assert weir.current_device() == 0
    for wrong in (None, "cuda:1", 1.0):
        with pytest.raises(TypeError):
            weir._exchange_device(wrong)
    with pytest.raises(OverflowError):
        weir._exchange_device(2**40)


def test_peers(two_devices):
    assert weir.can_device_access_peer(0, 1) in (True, False)
    if is_soft:
        assert weir.can_device_access_peer(0, 1) is True
    assert weir.can_device_access_peer(0, 0) is False
    with pytest.raises(AssertionError, match="Invalid device id"):
        weir.can_device_access_peer(99, 0)
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        weir.can_device_access_peer(0, 99)
    assert weir.can_device_access_peer(None, 1) == weir.can_device_access_peer("cuda", "cuda:1")
    for unnamed in (None, "cuda"):
        with pytest.raises(ValueError, match="Expected a device with a specified index"):
            weir.can_device_access_peer(0, unnamed)


def test_device_value():
    device = weir.Device("cuda:1")
    assert (device.type, device.index, str(device)) == ("cuda", 1, "cuda:1")
    assert repr(device) == "device(type='cuda', index=1)"
    assert device == weir.Device(1) == weir.Device("cuda", 1) == weir.Device(device)
    assert device != weir.Device(0) and device != 1 and device != "cuda:1"
    assert len({device, weir.Device(1), weir.Device(0)}) == 2
    assert pickle.loads(pickle.dumps(device)) == device
    current, host = weir.Device("cuda"), weir.Device("cpu")
    assert (current.type, current.index, str(current), repr(current)) == ("cuda", None, "cuda", "device(type='cuda')")
    assert current == weir.Device(None) == weir.Device(current) == pickle.loads(pickle.dumps(current))
    assert len({current, host, weir.Device(0)}) == 3 and pickle.loads(pickle.dumps(host)) == host
    last = weir.device_count() - 1
    with weir.device(last):
        assert weir.current_stream(current).device == weir.Device(last)
        assert weir.buffer(8, device=current).device == last
    with pytest.raises(TypeError):
        device < weir.Device(0)
    with pytest.raises(AttributeError):
        device.index = 2
    for wrong in (lambda: weir.Device("xpu"), lambda: weir.Device(-1), lambda: weir.Device("cpu", 0)):
        with pytest.raises(ValueError):
            wrong()
    for wrong in (lambda: weir.Device(), lambda: weir.Device("cuda", "1"), lambda: weir.Device("cuda", True)):
        with pytest.raises(TypeError):
            wrong()


def test_mem_get_info():
    free, total = weir.mem_get_info()
    assert 0 < free <= total
    assert weir.mem_get_info(0)[1] == weir.mem_get_info("cuda:0")[1] == total
    assert weir.cudart().cudaMemGetInfo(0)[1] == total
    held = weir.buffer(64 << 20)
    assert weir.device_memory_used() >= 64 << 20
    assert weir.mem_get_info()[0] <= total - (64 << 20)
    del held


# ---- Metrics ----


@pytest.mark.skipif(not is_soft, reason="about the software device")
def test_metrics_of_the_software_device():
    weir.synchronize()
    assert weir.clock_rate() == weir.get_device_properties().clock_rate // 1000
    assert weir.utilization() == 0 and weir.memory_usage() == 0
    weir._sleep(10**9)
    assert weir.utilization() == 100 and weir.memory_usage() == 0
    assert weir.utilization("cuda:1") == 0
    weir.synchronize()
    assert weir.utilization() == 0
    # Metrics that it lacks raise an exception.
    with pytest.raises(NotImplementedError, match="software device has no temperature"):
        weir.temperature()
    with pytest.raises(NotImplementedError, match="software device draws no power"):
        weir.power_draw()


@pytest.mark.skipif(is_soft, reason="about NVIDIA's management library")
def test_metrics_of_nvidia():
    assert 0 <= weir.utilization() <= 100
    assert 0 <= weir.memory_usage() <= 100
    assert 0 < weir.temperature() <= 150
    assert weir.power_draw() > 0
    assert weir.clock_rate() > 0


def test_metrics_of_no_device():
    for call in (weir.utilization, weir.memory_usage, weir.temperature, weir.power_draw, weir.clock_rate):
        with pytest.raises(weir.AcceleratorError):
            call(99)


# ---- Sync debug mode ----


def test_sync_debug_mode():
    stream = weir.Stream()
    assert weir.get_sync_debug_mode() == 0
    for mode, number in (("warn", 1), (2, 2), ("default", 0), (1, 1), ("error", 2)):
        weir.set_sync_debug_mode(mode)
        assert weir.get_sync_debug_mode() == number
    with pytest.raises(RuntimeError, match="called a synchronizing"):
        stream.synchronize()
    weir.set_sync_debug_mode("warn")
    with pytest.warns(UserWarning, match="called a synchronizing"):
        stream.synchronize()
    # If warnings are errors, it raises, and the mode stays.
    with pytest.raises(UserWarning, match="called a synchronizing"):
        stream.synchronize()
    assert weir.get_sync_debug_mode() == 1
    weir.set_sync_debug_mode("default")
    stream.synchronize()
    for wrong in ("", "Warn", -1, 3, 1.5, None):
        with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
            weir.set_sync_debug_mode(wrong)


# ---- The CUDA runtime ----


def test_check_error():
    weir.check_error(0)
    with pytest.raises(weir.CudaError, match="out of memory") as caught:
        weir.check_error(2)
    assert str(caught.value) == "out of memory (2)" and isinstance(caught.value, RuntimeError)
    weir.check_error(weir.cudart().cudaError.success)
    with pytest.raises(weir.CudaError, match=r"\(424242\)"):
        weir.check_error(424242)
    with pytest.raises((TypeError, ValueError)):
        weir.check_error("two")
    assert (weir.cudaStatus.SUCCESS, weir.cudaStatus.ERROR_NOT_READY) == (0, 34)


def test_cudart_register():
    cudart = weir.cudart()
    memory = ctypes.create_string_buffer(1 << 16)
    address = (ctypes.addressof(memory) + 4095) & ~4095
    assert not weir._weir._is_pinned(address)
    assert cudart.cudaHostRegister(address, 4096, 0) == 0
    assert weir._weir._is_pinned(address)
    assert cudart.cudaHostRegister(address, 4096, 0) == cudart.cudaError.host_memory_already_registered
    assert cudart.cudaHostUnregister(address) == cudart.cudaError.success
    assert not weir._weir._is_pinned(address)
    assert cudart.cudaHostUnregister(address) == cudart.cudaError.host_memory_not_registered
    assert cudart.cudaHostRegister(0, 4096, 0) == cudart.cudaError.invalid_value
    for wrong in ((), (address,), ("a", 1, 0), (address, "b", 0), (address, 1.5, 0)):
        with pytest.raises(TypeError):
            cudart.cudaHostRegister(*wrong)
    with pytest.raises(ValueError):
        cudart.cudaHostRegister(address, -1, 0)
    with pytest.raises(TypeError):
        cudart.cudaHostUnregister(None)


def test_cudart_rest():
    cudart = weir.cudart()
    assert cudart.cudaGetErrorString(cudart.cudaError.out_of_memory) == "out of memory"
    assert cudart.cudaGetErrorString(700) == "an illegal memory access was encountered"
    assert cudart.cudaProfilerStart() == 0 and cudart.cudaProfilerStop() == 0
    assert cudart.cudaStreamCreate(0) == cudart.cudaError.invalid_value
    assert isinstance(cudart.cudaProfilerStart(), cudart.cudaError)
    with pytest.raises(weir.AcceleratorError):
        cudart.cudaMemGetInfo(99)


def test_synchronize_lets_other_threads_go_on():
    # The GIL is released during the wait; otherwise the other thread could not unblock the stream.
    stream = weir.Stream()
    weir.synchronize()
    event = weir.Event()
    counted = []
    over = threading.Event()

    def count():
        while not over.is_set():
            counted.append(1)

    thread = threading.Thread(target=count)
    thread.start()
    stream._spin(2 * 10**8)
    event.record(stream)
    before = len(counted)
    weir.synchronize()
    during = len(counted) - before
    over.set()
    thread.join()
    assert event.query()
    assert during > 100, during
