"""weir.accelerator, the names of torch.accelerator."""

from __future__ import annotations

import pytest
from conftest import is_soft, run_python

import weir
from weir import accelerator


def test_devices():
    assert accelerator.is_available() and accelerator.device_count() == weir.device_count()
    kind = accelerator.current_accelerator()
    assert kind == accelerator.current_accelerator(check_available=True) == weir.Device("cuda")
    assert kind.type == "cuda" and kind.index is None
    for device in (0, "cuda:0", weir.Device("cuda:0")):
        accelerator.set_device_index(device)
        assert accelerator.current_device_index() == weir.current_device() == 0
    accelerator.set_device_index(-1)
    assert accelerator.current_device_index() == 0
    with pytest.raises(ValueError, match="cpu doesn't match the current accelerator cuda"):
        accelerator.set_device_index("cpu")
    with pytest.raises(ValueError, match="Expected a torch.device with a specified index or an integer, but got:cuda"):
        accelerator.set_device_index("cuda")


@pytest.mark.skipif(not is_soft, reason="needs two devices")
def test_two_devices():
    code = """
        import weir
        from weir import accelerator
        assert accelerator.device_count() == 2 and not weir.is_initialized()
        assert accelerator.memory_stats() == {} and accelerator.memory_allocated() == 0
        accelerator.synchronize(); accelerator.empty_cache()
        assert not weir.is_initialized()
        accelerator.set_device_index(1)
        assert accelerator.current_device_index() == 1 == accelerator.current_stream().device_index
        with accelerator.device_index(0):
            assert accelerator.current_device_index() == 0
            with accelerator.device_index(None):
                assert accelerator.current_device_index() == 0
        assert accelerator.current_device_index() == 1
        stream = weir.Stream(device=0)
        accelerator.set_stream(stream)
        assert accelerator.current_device_index() == 0 and accelerator.current_stream() == stream
        assert accelerator.current_stream(1) == weir.default_stream(1)
        block = weir.buffer(3 << 20, device=1)
        assert accelerator.memory_allocated(1) == 3 << 20 and accelerator.memory_allocated("cuda:0") == 0
        accelerator.set_device_index(1)
        assert accelerator.memory_allocated() == accelerator.memory_allocated("cuda") == 3 << 20
        free, total = accelerator.get_memory_info()
        assert (free, total) == weir.mem_get_info(1) and free < total == 1 << 30
        """
    run_python(code, WEIR_SOFT_DEVICES="2", WEIR_SOFT_MEMORY="1GiB")


def test_former_names():
    for name, call in (("current", lambda: accelerator.current_device_idx()), ("set", lambda: accelerator.set_device_idx(0))):
        with pytest.warns(FutureWarning, match=f"Use `{name}_device_index` instead."):
            call()
    assert accelerator.current_device_index() == 0


def test_memory():
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    before, reserved = accelerator.memory_allocated(), accelerator.memory_reserved()
    block = weir.buffer(64 << 20)
    assert accelerator.memory_allocated() == before + (64 << 20) and accelerator.memory_reserved() == reserved + (64 << 20)
    del block
    assert accelerator.max_memory_allocated() == before + (64 << 20) and accelerator.memory_allocated() == before
    assert accelerator.max_memory_reserved() == reserved + (64 << 20)
    assert accelerator.memory_stats() == weir.memory_stats()
    assert accelerator.memory_stats()["allocated_bytes.all.freed"] == 64 << 20
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.max_memory_reserved() == accelerator.memory_reserved() == reserved
    assert accelerator.memory_stats()["allocated_bytes.all.freed"] == 0
    with pytest.raises(ValueError, match="cpu doesn't match"):
        accelerator.memory_allocated("cpu")


def test_empty_host_cache():
    block = weir.host_empty(1 << 20)
    del block
    accelerator.empty_host_cache()
    assert weir.host_memory_stats()["allocated_bytes.current"] == 0


def test_synchronize():
    stream = weir.Stream()
    with weir.stream(stream):
        weir._sleep(20_000_000)
        event = stream.record_event()
    accelerator.synchronize()
    assert event.query() and stream.query()


def test_graph():
    x, y = weir.buffer(1024), weir.buffer(1024)
    graph, second = accelerator.Graph(), None
    with weir.stream(weir.Stream()):
        with graph:
            y.copy_(x)
        second = accelerator.Graph(pool=graph.pool())
        with second:
            y.fill_(9)
        x.fill_(5), y.fill_(0)
        graph.replay()
        weir.current_stream().synchronize()
        assert y.tobytes() == b"\5" * 1024
        second.replay()
        weir.current_stream().synchronize()
        assert y.tobytes() == b"\11" * 1024 and second.pool() == graph.pool()
        graph.reset()
        with pytest.raises(RuntimeError):
            graph.replay()
    with pytest.raises(ValueError, match="Unknown capture error mode"):
        accelerator.Graph().capture_begin("nonsense")


def test_graph_dump(tmp_path):
    graph = accelerator.Graph()
    graph.enable_debug_mode()
    with weir.stream(weir.Stream()):
        x = weir.buffer(16)
        with graph:
            x.fill_(1)
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert "digraph" in (tmp_path / "graph.dot").read_text()


def test_names():
    assert all(hasattr(accelerator, name) for name in accelerator.__all__)
    assert accelerator.memory.get_memory_info is accelerator.get_memory_info
    assert "accelerator" in dir(weir)
