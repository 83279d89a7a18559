"""Moving pages under PyTorch: data, settings, pools, graphs, and that nothing waits."""
import functools
import os
import random
import subprocess
import sys

import harness
from harness import equal, raises

os.environ.setdefault("WEIR_DRIVER_TIMING", "1")
torch = harness.install()
MIB = 1 << 20
BLOCKS, BLOCK = 16, 40 * MIB
# The stress test ends after this many moves, or allocations and frees. scripts/test-gpu sets fewer for
# compute-sanitizer.
MOVES = int(os.environ.get("WEIR_STRESS_MOVES", 5000))
OPERATIONS = int(os.environ.get("WEIR_STRESS_OPERATIONS", 10 * MOVES))


def moving(test):
    """Runs a test with moving_pages:True, without slack, which would let pages be made where some could move, and
    without cached memory, in which a large block could lie without a move."""

    @functools.wraps(test)
    def wrapped():
        import weir_torch

        torch.cuda.init()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        weir_torch.configure("moving_pages:True,moving_pages_slack:0")
        try:
            test()
        finally:
            torch.cuda.synchronize()
            weir_torch.configure("moving_pages:False,moving_pages_slack:0.01,expandable_segments:False")

    return wrapped


def count(name):
    import weir_torch

    return weir_torch.memory_stats()["moving." + name]


def remapped():
    """Pages that have left their place: for a new address, or for one where they were still mapped."""
    return count("pages_moved") + count("pages_returned")


def bytes_on_device(size, value=0):
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")


def reach_the_peak():
    """Returns memory with which as much is live as ever was: below that, pages are made rather than moved."""
    return bytes_on_device(torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())


def holes():
    """Returns blocks that lie between free ones."""
    blocks = [bytes_on_device(BLOCK, i) for i in range(BLOCKS)]
    del blocks[::2]
    return blocks


def check_holes(blocks):
    for i, block in enumerate(blocks):
        assert bool((block == 2 * i + 1).all()), f"block {2 * i + 1} has changed"


@moving
def test_free_pages_serve_a_large_block():
    kept = holes()
    reserved, before = torch.cuda.memory_reserved(), remapped()
    large = bytes_on_device(BLOCKS // 2 * BLOCK, 77)
    equal(torch.cuda.memory_reserved(), reserved, "reserved")
    assert remapped() > before
    check_holes(kept)
    assert bool((large == 77).all())


@moving
def test_under_a_running_kernel():
    """Pages move while kernels still write through the old addresses; the next work of the stream sees the new data."""
    total = BLOCKS // 2 * BLOCK
    for round in range(20):
        kept = holes()
        torch.cuda._sleep(20_000_000)
        old = [bytes_on_device(BLOCK, 200) for _ in range(BLOCKS // 2)]  # the holes again, written after the sleep
        del old
        large = bytes_on_device(total, round)
        equal(int((large != round).sum()), 0, f"bytes written before the move, in round {round}")
        check_holes(kept)
        del kept, large


@moving
def test_nothing_waits():
    import weir_torch

    if weir_torch.driver_timing() is None:
        raise harness.Waived("CUDA was initialized without WEIR_DRIVER_TIMING")
    waiting = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemFree")

    def calls():
        timing = weir_torch.driver_timing()
        return [timing.get(name, (0,))[0] for name in waiting]

    filler = reach_the_peak()
    before, left = calls(), remapped()
    for _ in range(10):
        torch.cuda._sleep(5_000_000)
        kept = holes()
        large = bytes_on_device(BLOCKS // 2 * BLOCK)
        del kept, large
    assert remapped() > left
    equal(calls(), before, ", ".join(waiting))
    del filler


class Stress:
    """Random tensors on several streams. Kernels fill and check them, and the host never waits: errors are counted on
    the device."""

    def __init__(self, seed, streams, live_bytes):
        self.random, self.live_bytes = random.Random(seed), live_bytes
        self.streams = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(streams - 1)]
        self.bad = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in self.streams]
        self.live, self.bytes, self.start = [], 0, 0
        torch.cuda.synchronize()

    def size(self):
        kind = self.random.random()
        if kind < 0.1:
            return self.random.randrange(self.live_bytes // 16, self.live_bytes // 6)
        return int(MIB * 2 ** self.random.uniform(-4, 6.5))

    def add(self):
        at, n = self.random.randrange(len(self.streams)), max(1, self.size() // 4)
        self.start = (self.start + 7919) % 1_000_000
        with torch.cuda.stream(self.streams[at]):
            tensor = torch.empty(n, dtype=torch.int32, device="cuda")
            torch.arange(self.start, self.start + n, dtype=torch.int32, out=tensor)
        self.live.append((at, tensor, self.start, n))
        self.bytes += 4 * n

    def check(self, at, tensor, start, n):
        """Counts an error, in work of stream `at`, unless the tensor has the values that were written."""
        expected = n * start + n * (n - 1) // 2
        self.bad[at].add_(tensor.sum(dtype=torch.int64) != expected)
        self.bad[at].add_((tensor[0] != start) | (tensor[-1] != start + n - 1))

    def remove(self):
        at, tensor, start, n = self.live.pop(self.random.randrange(len(self.live)))
        reader = at
        if self.random.random() < 0.2:  # another stream reads it while it is freed
            reader = self.random.randrange(len(self.streams))
            self.streams[reader].wait_stream(self.streams[at])
            tensor.record_stream(self.streams[reader])
        with torch.cuda.stream(self.streams[reader]):
            self.check(reader, tensor, start, n)
        self.bytes -= 4 * n

    def step(self):
        if self.bytes > self.live_bytes or (self.live and self.random.random() < 0.47):
            self.remove()
        else:
            self.add()

    def end(self):
        while self.live:
            self.remove()
        torch.cuda.synchronize()
        equal([int(bad) for bad in self.bad], [0] * len(self.streams), "wrong tensors by stream")


def stress(seed, streams, conf=""):
    import weir_torch

    if conf:
        weir_torch.configure(conf)
    torch.cuda.empty_cache()
    work, moved, operations = Stress(seed, streams, 2 << 30), count("pages_moved"), 0
    # The limit leaves little room, so holes must be used.
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((5 << 30) / total)
    while operations < OPERATIONS and (operations % 64 or count("pages_moved") - moved < MOVES):
        work.step()
        operations += 1
    work.end()
    made = count("pages_moved") - moved
    print(f"    {operations} operations, {made} moves, {count('pages_returned')} returned", flush=True)
    assert made > 0, "no page moved"


@moving
def test_data_stress():
    stress(1, 4)


@moving
def test_data_stress_of_one_stream():
    stress(2, 1)


@moving
def test_data_stress_with_few_aliases():
    import weir_torch

    try:
        stress(3, 3, "moving_pages_max_aliases:16")
        assert count("aliases_unmapped") > 0
    finally:
        weir_torch.configure("moving_pages_max_aliases:8192")


@moving
def test_data_stress_across_streams():
    import weir_torch

    try:
        stress(4, 4, "moving_pages_across_streams:True")
    finally:
        weir_torch.configure("moving_pages_across_streams:False")


@moving
def test_data_stress_of_completed_pages():
    import weir_torch

    try:
        stress(5, 2, "moving_pages_completed_only:True")
    finally:
        weir_torch.configure("moving_pages_completed_only:False")


@moving
def test_statistics():
    import weir_torch

    kept = holes()
    large = bytes_on_device(BLOCKS // 2 * BLOCK)
    ours, theirs = weir_torch.memory_stats(), torch.cuda.memory_stats()
    assert not [key for key in theirs if key.startswith("moving")], "PyTorch's keys are unchanged"
    equal(ours["reserved_bytes.all.current"], theirs["reserved_bytes.all.current"])
    snapshot = torch.cuda.memory_snapshot()
    equal(sum(segment["total_size"] for segment in snapshot), theirs["reserved_bytes.all.current"])
    assert all(segment["is_expandable"] for segment in snapshot)
    equal(torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"], True)
    del kept, large


@moving
def test_pages_of_a_pool_stay():
    pool, moved = torch.cuda.MemPool(), count("pages_moved")
    with torch.cuda.use_mem_pool(pool):
        kept = holes()
    outside = bytes_on_device(BLOCKS // 2 * BLOCK, 1)
    equal(count("pages_moved"), moved, "pages moved out of the pool")
    check_holes(kept)
    del kept, outside, pool


@moving
def test_fixed_pages_stay():
    import weir_torch

    blocks = [bytes_on_device(BLOCK, i) for i in range(BLOCKS)]
    for block in blocks[::2]:
        weir_torch.fix_pages(block[10:])
    del block, blocks[::2]
    moved = count("pages_moved")
    large = bytes_on_device(BLOCKS // 2 * BLOCK)
    equal(count("pages_moved"), moved)
    raises(RuntimeError, "invalid device pointer", weir_torch.fix_pages, 12345)
    check_holes(blocks)
    del blocks, large


@moving
def test_graphs_replay_while_pages_move():
    x = torch.ones(MIB, device="cuda")
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (x * 2).add_(1)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        y = x
        for _ in range(8):
            y = y * 2 + x
    filler, before = reach_the_peak(), remapped()
    for round in range(5):
        kept = holes()
        x.fill_(float(round))
        graph.replay()
        large = bytes_on_device(BLOCKS // 2 * BLOCK, round)
        graph.replay()
        equal(float(y.sum()), round * 511.0 * MIB, f"round {round}")
        assert bool((large == round).all())
        check_holes(kept)
        del kept, large
    assert remapped() > before
    del graph, y, filler


SENDER = """
import torch, warnings, weir_torch
weir_torch.install()
torch.cuda.init()
weir_torch.configure("moving_pages:True")
MIB, kind = 1 << 20, b""
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for size in range(22, 200, 2):  # until its pages differ in size
        block = torch.empty(size * MIB, dtype=torch.uint8, device="cuda")
        kind = block.untyped_storage()._share_cuda_()[1][1:2]
        if kind == b"v":
            break
        del block
    block.untyped_storage()._share_cuda_()
print(kind == b"v", sum("only if it uses Weir" in str(w.message) for w in caught))
"""


def test_a_receiver_may_lack_weir():
    """The sender warns, once, unless the variable gives Weir to the processes that it starts."""
    for selected, warnings in (("0", "1"), ("1", "0")):
        environment = dict(os.environ, WEIR_TORCH=selected)
        done = subprocess.run([sys.executable, "-c", SENDER], env=environment, capture_output=True, text=True,
                              timeout=200)
        equal(done.stdout.split(), ["True", warnings], done.stderr[-2000:])


PROGRAM = """
import torch, weir_torch
torch.cuda.init()
has = lambda: "moving_pages:True" in weir_torch.settings()
change = torch._C._accelerator_setAllocatorSettings
print(has(), end=" ")
change("garbage_collection_threshold:0.5"); print(has(), end=" ")
change("expandable_segments:True"); print(has(), end=" ")
change("expandable_segments:False"); print(has(), end=" ")
change("expandable_segments:True"); print(has(), end=" ")
weir_torch.configure("moving_pages:False"); print(has())
"""


def test_settings():
    environment = dict(os.environ, WEIR_ALLOC_CONF="moving_pages:True")
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=200)
    equal(done.stdout.split(), ["True", "True", "True", "False", "True", "False"], done.stderr[-2000:])


def test_pytorch_refuses_the_key():
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF="moving_pages:True")
    done = subprocess.run([sys.executable, "-c", "import torch; torch.empty(1, device='cuda')"], env=environment,
                          capture_output=True, text=True, timeout=200)
    assert done.returncode, "PyTorch accepts the key: docs/python/torch.md says that it does not"
    assert "moving_pages" in done.stderr, done.stderr[-2000:]


if __name__ == "__main__":
    harness.main(globals())
