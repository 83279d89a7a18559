"""Streams, pinned memory, other processes, the profiler."""
import gc
import os

import harness
from harness import equal, raises

torch = harness.install()
MIB = 1 << 20


def test_record_stream():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # loading a kernel at its first use may wait for the device
        torch.ones(10, device="cuda") + 1
        torch.cuda._sleep(1000)
    torch.full((10,), 5.0, device="cuda")
    for cycles in (200_000_000, 2_000_000_000, 8_000_000_000):
        harness.clean()
        x = torch.ones(10 * MIB, device="cuda")
        torch.cuda.synchronize()
        address = x.data_ptr()
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            y = x + 1
        x.record_stream(side)
        del x
        z = torch.full((10 * MIB,), 5.0, device="cuda")
        states = [b["state"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["address"] == address]
        if side.query():  # too short: the memory that the side stream read may already have been free
            torch.cuda.synchronize()
            del y, z
            continue
        assert z.data_ptr() != address, "the side stream still reads it"
        equal(states, ["active_pending_free"])
        torch.cuda.synchronize()
        equal(float(y.sum()), 20.0 * MIB)
        again = torch.empty(10 * MIB, device="cuda")
        equal(again.data_ptr(), address, "free once the side stream has finished")
        return
    raise AssertionError("the side stream was never busy for long enough")


def test_contexts_of_threads():
    # A thread that gets memory from the driver has the device's context, as after any call of the CUDA runtime.
    import ctypes
    import threading

    driver, seen = ctypes.CDLL("libcuda.so.1"), []

    def current():
        context = ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        return context.value

    def work():
        before = current()
        pointer = torch.cuda.caching_allocator_alloc(50 * MIB)
        seen.append((before, current()))
        torch.cuda.caching_allocator_delete(pointer)

    torch.empty(1, device="cuda")
    mine = current()
    assert mine
    for _ in range(2):
        torch.cuda.empty_cache()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    for before, after in seen:
        assert after == mine, f"the thread's context was {before}, then {after}; the device's is {mine}"
    equal(torch.cuda.current_device(), 0)


def test_record_stream_of_a_view():
    side = torch.cuda.Stream()
    x = torch.ones(1000, device="cuda")
    x[10:20].record_stream(side)
    del x
    torch.cuda.synchronize()


def test_record_stream_of_foreign_memory():
    x = torch.ones(100, device="cuda")
    interface = type("Foreign", (), {"__cuda_array_interface__": x.__cuda_array_interface__})()
    y = torch.as_tensor(interface, device="cuda")
    y.record_stream(torch.cuda.Stream())
    del y, x


def test_streams_have_their_own_blocks():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.empty(1000, device="cuda")
    equal({s["stream"] for s in torch.cuda.memory_snapshot()
           if s["active_size"] and s["blocks"][0]["address"] <= x.data_ptr() < s["address"] + s["total_size"]},
          {side.cuda_stream})


def test_pinned_loader():
    data = torch.utils.data.TensorDataset(torch.arange(4096).float().reshape(512, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=64, num_workers=2, pin_memory=True)
    side, seen = torch.cuda.Stream(), 0.0
    for (batch,) in loader:
        assert batch.is_pinned()
        with torch.cuda.stream(side):
            moved = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        moved.record_stream(torch.cuda.current_stream())
        seen += float(moved.sum())
    equal(seen, 4096 * 4095 / 2)


def child(queue, back):
    import torch
    import weir_torch

    tensor = queue.get()
    mine = torch.full((1000,), 9.0, device="cuda")
    back.put((bool(weir_torch.is_installed()), float(tensor.sum()), float(mine.sum())))
    tensor.mul_(2)
    torch.cuda.synchronize()
    queue.get()
    del tensor


def share(conf):
    import torch.multiprocessing as mp

    torch._C._accelerator_setAllocatorSettings(conf)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf
    context = mp.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(queue, back))
    process.start()
    try:
        pad = torch.empty(5000, device="cuda")
        x = torch.ones(1 << 20, device="cuda")
        queue.put(x)
        equal(back.get(timeout=90), (True, float(1 << 20), 9000.0))
        queue.put(None)
        process.join(60)
        equal(process.exitcode, 0)
        torch.cuda.synchronize()
        equal(float(x.sum()), 2.0 * (1 << 20), "written by the other process")
        del pad, x
    finally:
        if process.is_alive():
            process.kill()
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF")
    gc.collect()
    torch.cuda.ipc_collect()


def test_other_process():
    share("expandable_segments:False")


def test_other_process_expandable():
    share("expandable_segments:True")


def test_profiler():
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        x = torch.ones(3 * MIB, device="cuda")
        y = x * 2
        del x, y
    used = sum(max(0, e.device_memory_usage) for e in profile.events() if hasattr(e, "device_memory_usage"))
    assert used >= 24 * MIB, used
    memory = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [e.nbytes() for e in memory if e.device_type() == torch.autograd.DeviceType.CUDA]
    equal(sorted(sizes), [-12 * MIB, -12 * MIB, 12 * MIB, 12 * MIB])


def test_profiler_is_not_asked_for_each_time():
    import ctypes
    import os
    import weir_torch

    adapter = ctypes.CDLL(os.path.join(os.path.dirname(weir_torch.__file__), "libweir_torch.so"))
    equal(adapter.weir_torch_knows_pushed_place(), 1)


def test_gpu_trace():
    from torch.cuda import _gpu_trace  # noqa: F401
    import subprocess
    import sys

    code = """
import torch
import torch.cuda._gpu_trace as trace
torch._C._activate_gpu_trace()
seen = []
trace.register_callback_for_memory_allocation(lambda p: seen.append(("a", p)))
trace.register_callback_for_memory_deallocation(lambda p: seen.append(("f", p)))
x = torch.empty(1000, device="cuda")
p = x.data_ptr()
del x
assert seen == [("a", p), ("f", p)], seen
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "fine" in done.stdout, done.stdout + done.stderr


def test_late_install_explains_itself():
    import subprocess
    import sys

    code = """
import torch
torch.ones(1, device="cuda")
import weir_torch
try:
    weir_torch.install()
except RuntimeError as error:
    assert "before anything uses the device" in str(error), error
    print("fine", weir_torch.is_installed())
"""
    env = dict(os.environ, WEIR_TORCH="0")
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    equal(done.stdout.strip(), "fine False", done.stderr)


def test_autoload():
    import subprocess
    import sys

    code = "import torch, weir_torch; torch.ones(1, device='cuda'); print(weir_torch.is_installed())"
    for value in ("1", "0"):
        env = dict(os.environ, WEIR_TORCH=value)
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
        equal(done.stdout.strip(), str(value == "1"), done.stderr)


def test_no_context_before_use():
    import subprocess
    import sys

    code = "import torch; print(torch.cuda.is_initialized(), torch._C._cuda_hasPrimaryContext(0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    equal(done.stdout.strip(), "False False", done.stderr)


def test_no_context_on_another_device():
    import subprocess
    import sys

    if torch.cuda.device_count() < 2:
        raise harness.Waived("needs two devices")
    code = """
import threading, torch
torch.cuda.set_device(1)
other = torch.cuda.Stream()
kept = [torch.ones(1 << 20, device="cuda")]
kept[0].record_stream(other)
thread = threading.Thread(target=kept.clear)  # it has not chosen a device, so it is on the first one
thread.start()
thread.join()
torch.ones(1 << 20, device="cuda")
print(torch._C._cuda_hasPrimaryContext(1), torch._C._cuda_hasPrimaryContext(0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    equal(done.stdout.strip(), "True False", done.stderr)


def test_context_of_the_first_device():
    """A thread that allocates on its default device has the context afterwards, with any number of devices."""
    import subprocess
    import sys

    code = """
import ctypes, torch
x = torch.empty(1 << 20, device="cuda")
current = ctypes.c_void_p()
assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(current)) == 0
print(bool(current.value))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    equal(done.stdout.strip(), "True", done.stderr)


if __name__ == "__main__":
    harness.main(globals())
