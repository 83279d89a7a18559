"""Out of memory: the error, observers, and that the program can continue."""
import os

import harness
from harness import equal, raises

torch = harness.install()
MIB = 1 << 20


def total():
    return torch.cuda.get_device_properties(0).total_memory


def test_message():
    text = str(raises(torch.OutOfMemoryError,
                      "CUDA out of memory. Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of",
                      torch.empty, 800000000 << 30, dtype=torch.uint8, device="cuda"))
    for part in ("is free. ", "Of the allocated memory ", " is allocated by PyTorch, ",
                 " is reserved by PyTorch but unallocated.",
                 "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"):
        assert part in text, text
    assert "Weir" not in text, text
    raises(torch.cuda.OutOfMemoryError, "CUDA out of memory. Tried to allocate more than 1EB memory.",
           torch.empty, 1 << 60, dtype=torch.uint8, device="cuda")
    equal(int(torch.ones(10, device="cuda").sum()), 10)


def test_limit_in_message():
    torch.cuda.set_per_process_memory_fraction(0.01)
    raises(torch.OutOfMemoryError, " allowed; ", torch.empty, int(total() * 0.02), dtype=torch.uint8, device="cuda")


def test_counters_and_retry():
    torch.cuda.set_per_process_memory_fraction(0.1)
    half = int(total() * 0.051)
    x = torch.empty(half, dtype=torch.uint8, device="cuda")
    raises(torch.OutOfMemoryError, "CUDA out of memory", torch.empty, half, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    equal(stats["num_ooms"], 1)
    equal(stats["num_alloc_retries"], 1)
    del x
    y = torch.empty(half + 4 * MIB, dtype=torch.uint8, device="cuda")
    equal(torch.cuda.memory_stats()["num_alloc_retries"], 2)
    del y


def test_observer():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    torch.cuda.set_per_process_memory_fraction(0.05)
    raises(torch.OutOfMemoryError, "", torch.empty, int(total() * 0.06), dtype=torch.uint8, device="cuda")
    equal(len(seen), 1)
    device, bytes_, limit, free = seen[0]
    equal(device, 0)
    assert bytes_ >= int(total() * 0.06) and abs(limit - total() * 0.05) < 2 and 0 < free <= total()


def test_trace_entry():
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python")
    torch.cuda.set_per_process_memory_fraction(0.01)
    raises(torch.OutOfMemoryError, "", torch.empty, int(total() * 0.02), dtype=torch.uint8, device="cuda")
    entry = torch.cuda.memory._snapshot()["device_traces"][0][-1]
    equal(entry["action"], "oom")
    assert entry["device_free"] > 0 and entry["frames"]


def test_record_stream_is_reclaimed():
    torch.cuda.set_per_process_memory_fraction(0.02)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(60):
            x = torch.empty(int(total() * 0.0011), dtype=torch.uint8, device="cuda")
            x.record_stream(torch.cuda.default_stream())
            del x
    torch.cuda.synchronize()


def test_max_split_and_oom():
    for conf in ("", "max_split_size_mb:1024"):
        torch._C._accelerator_setAllocatorSettings(conf)
        torch.cuda.set_per_process_memory_fraction(0.05)
        raises(torch.OutOfMemoryError, "CUDA out of memory",
               torch.empty, int(total() * 0.06), dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()


def test_oom_in_capture():
    torch.cuda.set_per_process_memory_fraction(0.02)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            raises(torch.OutOfMemoryError, "out of memory",
                   torch.zeros, int(total() * 0.03), dtype=torch.uint8, device="cuda")
        finally:
            try:
                graph.capture_end()
            except RuntimeError:
                pass
    del graph
    torch.cuda.synchronize()
    equal(int(torch.ones(10, device="cuda").sum()), 10)


def test_fault_is_no_shortage():
    """After a kernel has failed, allocations report it: a program that retries with smaller batches must end."""
    import subprocess
    import sys

    code = """
import torch
x = torch.zeros(4, device="cuda")
try:
    x[torch.tensor([100], device="cuda")].sum().item()
except RuntimeError:
    pass
for attempt in (lambda: torch.empty(1 << 28, device="cuda"), torch.cuda.empty_cache):
    try:
        attempt()
        print("nothing")
    except Exception as error:
        print(type(error).__name__, "device-side assert" in str(error))
"""
    both = [subprocess.run([sys.executable, "-c", code], env=dict(os.environ, WEIR_TORCH=weir), capture_output=True,
                           text=True, timeout=120)
            for weir in ("0", "1")]
    native, weir = (done.stdout.split("\n") for done in both)
    assert "True" in native[0] and "OutOfMemory" not in native[0], both[0]
    equal(weir[0], native[0], str(both[1]))
    equal(weir[1], native[1], str(both[1]))


if __name__ == "__main__":
    harness.main(globals())
