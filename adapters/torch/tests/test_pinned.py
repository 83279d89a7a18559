"""Pinned host memory of PyTorch in Weir's memory (PyTorch 2.11 and later)."""
import gc
import threading
import time

import harness
from harness import Waived, equal, raises

torch = harness.install()
MIB = 1 << 20


def install():
    import weir_torch

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11):
        raise Waived("PyTorch 2.11 or later is needed")
    weir_torch.install_pinned()
    weir_torch.install_pinned()
    assert weir_torch.is_pinned_installed()


def stats(name):
    return torch.cuda.host_memory_stats()[name]


def fresh():
    install()
    gc.collect()
    torch.cuda.synchronize()
    torch._C._host_emptyCache()


def pinned(count, dtype=torch.uint8):
    return torch.empty(count, dtype=dtype, pin_memory=True)


def test_memory_is_pinned_and_counted():
    fresh()
    before = stats("allocated_bytes.current")
    x = pinned(3000)
    assert x.is_pinned() and x[10:20].is_pinned()
    equal(stats("allocated_bytes.current"), before + 4096)
    equal(stats("active_requests.current"), 1)
    address = x.data_ptr()
    del x
    equal(stats("active_requests.current"), 0)
    equal(pinned(4096).data_ptr(), address, "the same block again")
    torch._C._host_emptyCache()
    equal(stats("allocated_bytes.current"), before)
    equal(pinned(0).data_ptr(), 0)


def test_copies():
    fresh()
    for count in (1, 1000, 5 * MIB):
        host = torch.arange(count, dtype=torch.int32).pin_memory()
        assert host.is_pinned()
        device = host.to("cuda", non_blocking=True)
        back = pinned(count, torch.int32)
        back.copy_(device, non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(host, back)


def test_memory_waits_for_its_stream():
    fresh()
    stream = torch.cuda.Stream()
    x = pinned(MIB)
    address = x.data_ptr()
    device = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
        device.copy_(x, non_blocking=True)
    del x
    y = pinned(MIB)
    assert not stream.query(), "the device was too fast"
    assert y.data_ptr() != address
    stream.synchronize()
    z, w = pinned(MIB), pinned(MIB)
    assert address in (z.data_ptr(), w.data_ptr())


def test_a_part_that_a_stream_uses():
    fresh()
    x = pinned(MIB)
    address = x.data_ptr()
    device = torch.empty(1000, dtype=torch.uint8, device="cuda")
    torch.cuda._sleep(400_000_000)
    device.copy_(x[5000:6000], non_blocking=True)
    del x
    assert pinned(MIB).data_ptr() != address
    torch.cuda.synchronize()


def test_memory_from_before():
    """A tensor that PyTorch's own allocator pinned keeps its memory, and its uses are passed on."""
    code = """if True:
        import torch, weir_torch
        weir_torch.install()
        old = torch.arange(1000, dtype=torch.int32).pin_memory()
        address = old.data_ptr()
        weir_torch.install_pinned()
        device = torch.empty(1000, dtype=torch.int32, device="cuda")
        torch.cuda._sleep(200_000_000)
        device.copy_(old, non_blocking=True)
        del old
        new = torch.empty(1000, dtype=torch.int32, pin_memory=True)
        assert new.data_ptr() != address
        torch.cuda.synchronize()
        assert int(device.sum()) == 499500
        assert new.is_pinned() and torch.cuda.host_memory_stats()["active_requests.current"] == 1
    """
    import subprocess
    import sys

    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 11):
        raise Waived("PyTorch 2.11 or later is needed")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_graph():
    fresh()
    source = torch.arange(1000, dtype=torch.int32).pin_memory()
    device = torch.zeros(1000, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        inside = pinned(1000, torch.int32)
        device.copy_(source, non_blocking=True)
        inside.copy_(device, non_blocking=True)
    address = inside.data_ptr()
    del inside
    others = [pinned(1000, torch.int32) for _ in range(10)]
    assert address not in [other.data_ptr() for other in others], "the graph uses it at every replay"
    source.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    equal(int(device.sum()), 7000)
    del graph, others
    gc.collect()
    torch.cuda.synchronize()
    for _ in range(100):  # the driver may report the end of the graph later
        if address in [other.data_ptr() for other in [pinned(1000, torch.int32) for _ in range(20)]]:
            return
        time.sleep(0.05)
    raise AssertionError("the memory is not reused after the end of the graph")


def test_large_memory_has_one_registration():
    fresh()
    before = stats("allocated_bytes.current")
    size = 2048 * MIB
    x = pinned(size)
    assert x.is_pinned() and x[-1:].is_pinned()
    device = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    for begin in (0, size // 2 - 32 * MIB, size - 64 * MIB):
        device.copy_(x[begin : begin + 64 * MIB], non_blocking=True)
        torch.cuda.synchronize()
    del x
    torch._C._host_emptyCache()
    equal(stats("allocated_bytes.current"), before)


def test_threads():
    fresh()
    failed = []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for step in range(100):
                    host = torch.full((1000 + 100 * number,), step, dtype=torch.int32, pin_memory=True)
                    device = host.to("cuda", non_blocking=True)
                    del host
                    equal(int(device.sum()), step * (1000 + 100 * number))
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_data_loader():
    fresh()
    data = torch.utils.data.TensorDataset(torch.arange(256, dtype=torch.float32).reshape(64, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    total = 0.0
    for (batch,) in loader:
        assert batch.is_pinned()
        total += float(batch.to("cuda", non_blocking=True).sum())
    equal(total, float(sum(range(256))))


def test_statistics():
    fresh()
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    bytes_before, blocks_before = stats("active_bytes.current"), stats("allocations.current")
    x, y = pinned(1000), pinned(1000)
    equal(stats("num_host_alloc"), 2)
    equal(stats("active_bytes.peak"), bytes_before + 2048)
    equal(stats("host_alloc_time.count"), 2)
    del x, y
    torch._C._host_emptyCache()
    equal(stats("num_host_free"), 2)
    equal(stats("allocations.current"), blocks_before)


def test_out_of_memory():
    fresh()
    raises(RuntimeError, "pinned host memory", pinned, 1 << 50)
    assert pinned(100).is_pinned()


if __name__ == "__main__":
    harness.main(globals())
