"""Allocation, statistics, limits, settings."""
import harness
from harness import equal, near, raises

torch = harness.install()
MIB = 1 << 20


def allocated():
    return torch.cuda.memory_allocated()


def test_who_serves():
    import weir_torch

    equal(weir_torch.is_installed(), True)
    equal(torch.cuda.memory.get_allocator_backend(), "native")
    torch.empty(1, device="cuda")
    assert weir_torch.allocator()


def test_tensor_and_back():
    before = allocated()
    x = torch.arange(1000, device="cuda")
    equal(allocated() - before, 8192, "bytes of a tensor")
    equal(int(x.sum()), 499500)
    address = x.data_ptr()
    del x
    equal(allocated(), before)
    equal(torch.empty(1000, dtype=torch.int64, device="cuda").data_ptr(), address, "the same block again")


def test_empty_tensor():
    x = torch.empty(0, device="cuda")
    equal(x.data_ptr(), 0)


def test_raw_alloc():
    before = allocated()
    p = torch.cuda.caching_allocator_alloc(1000)
    equal(allocated() - before, 1024)
    torch.cuda.caching_allocator_delete(p)
    equal(allocated(), before)
    equal(torch.cuda.caching_allocator_alloc(0), 0)


def test_double_free_says_so():
    p = torch.cuda.caching_allocator_alloc(1000)
    torch.cuda.caching_allocator_delete(p)
    raises(RuntimeError, "invalid device pointer", torch.cuda.caching_allocator_delete, p)


def test_stats_move():
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    equal(stats["segment.large_pool.current"], 1)
    equal(stats["reserved_bytes.large_pool.current"], 20 * MIB)
    equal(stats["allocated_bytes.large_pool.current"], 3 * MIB)
    equal(stats["requested_bytes.large_pool.current"], 3 * MIB)
    equal(stats["inactive_split.large_pool.current"], 1)
    equal(stats["max_split_size"], -1)
    del x
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    equal(stats["allocated_bytes.all.peak"], stats["allocated_bytes.all.current"])
    equal(stats["allocation.all.allocated"], 0)


def test_nested_stats_and_summary():
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert set(nested["allocated_bytes"]) == {"all", "small_pool", "large_pool"}
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary" in text and "Allocated memory" in text
    torch.cuda.memory_summary(abbreviated=True)
    torch.cuda.list_gpu_processes()


def test_accelerator_api():
    x = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    equal(torch.accelerator.memory_allocated(), torch.cuda.memory_allocated())
    equal(torch.accelerator.memory_reserved(), torch.cuda.memory_reserved())
    equal(torch.accelerator.max_memory_allocated(), torch.cuda.max_memory_allocated())
    key = "active_bytes.all.current"
    equal(torch.accelerator.memory_stats()[key], torch.cuda.memory_stats()[key])
    free, total = torch.accelerator.get_memory_info()
    equal(total, torch.cuda.mem_get_info()[1])
    del x
    torch.accelerator.empty_cache()
    equal(torch.cuda.memory_reserved(), 0)
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()


def test_empty_cache():
    x = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del x
    equal(torch.cuda.memory_reserved(), reserved)
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_reserved(), 0)


def test_memory_fraction():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.25)
    equal(torch.cuda.get_per_process_memory_fraction(), 0.25)
    raises(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate",
           torch.empty, int(total * 0.26), dtype=torch.uint8, device="cuda")
    x = torch.empty(int(total * 0.2), dtype=torch.uint8, device="cuda")
    del x
    raises(ValueError, "", torch.cuda.set_per_process_memory_fraction, 1.5)


def test_whole_fraction_is_no_limit():
    torch.cuda.set_per_process_memory_fraction(0.5)
    torch.cuda.set_per_process_memory_fraction(1.0)
    equal(torch.cuda.get_per_process_memory_fraction(), 1.0)
    part = torch.cuda.get_device_properties(0).total_memory // 100
    torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.001")
    try:
        x = torch.empty(part, dtype=torch.uint8, device="cuda")
        del x
        before = torch.cuda.memory_reserved()
        y = torch.empty(2 * part, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() >= before + 2 * part, "nothing is collected without a limit"
        del y
    finally:
        torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.999")


def test_caching_off_and_on():
    torch.cuda.caching_allocator_enable(False)
    try:
        before = torch.cuda.memory_stats().get("requested_bytes.all.allocated", 0)
        x = torch.ones(1000, device="cuda")
        equal(float(x.sum()), 1000)
        equal(torch.cuda.memory_stats()["requested_bytes.all.allocated"], before)
    finally:
        torch.cuda.caching_allocator_enable(True)
    y = torch.ones(1000, device="cuda")
    del x, y


def test_settings_reach_weir():
    import weir_torch

    torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:4")
    assert "roundup_power2_divisions" in weir_torch.settings(), weir_torch.settings()
    before = allocated()
    x = torch.empty(1200 * 1024, dtype=torch.uint8, device="cuda")
    equal(allocated() - before, 1280 * 1024)
    del x
    torch._C._accelerator_setAllocatorSettings("max_split_size_mb:64")
    assert "max_split_size_mb:64" in weir_torch.settings(), weir_torch.settings()
    assert "roundup" not in weir_torch.settings(), "settings that are not given return to their defaults"
    equal(torch.cuda.memory_stats()["max_split_size"], -1, "PyTorch's statistics have the value of the start")
    torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.5")
    assert "garbage_collection_threshold:0.5" in weir_torch.settings()
    equal(torch.cuda.memory_stats()["max_split_size"], -1)
    for wrong in ("foo:1", "max_split_size_mb:2", "garbage_collection_threshold:1.2", "roundup_power2_divisions:7"):
        raises(ValueError, "", torch._C._accelerator_setAllocatorSettings, wrong)
    torch._C._accelerator_setAllocatorSettings("")
    equal(torch.cuda.memory.memory_snapshot() is not None, True)


def test_expandable_switched_at_run_time():
    plain = torch.ones(3 * MIB, dtype=torch.uint8, device="cuda")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    grown = torch.ones(30 * MIB, dtype=torch.uint8, device="cuda")
    kinds = sorted(s["is_expandable"] for s in torch.cuda.memory_snapshot())
    equal(kinds, [False, True])
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    again = torch.ones(50 * MIB, dtype=torch.uint8, device="cuda")
    kinds = sorted(s["is_expandable"] for s in torch.cuda.memory_snapshot())
    equal(kinds, [False, False, True])
    equal([int(t.sum(dtype=torch.int64)) // MIB for t in (plain, grown, again)], [3, 30, 50])
    del plain, grown, again
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_reserved(), 0)


def test_fuzz_data():
    import random

    random.seed(1)
    for conf in ("expandable_segments:False", "expandable_segments:True"):
        torch._C._accelerator_setAllocatorSettings(conf)
        live = []
        for i in range(1500):
            if live and random.random() < 0.5:
                t, value = live.pop(random.randrange(len(live)))
                assert bool((t == value).all()), "memory changed under a tensor"
            else:
                shape = (random.randrange(1, 1 << random.randrange(8, 22)),)
                t = torch.full(shape, i % 251, dtype=torch.uint8, device="cuda")
                live.append((t, i % 251))
            if i % 300 == 299:
                torch.cuda.empty_cache()
        for t, value in live:
            assert bool((t == value).all())


def test_cudnn_asks_for_the_largest_block():
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        x = torch.randn(8, 16, 32, 32, device="cuda")
        y = torch.nn.functional.conv2d(x, torch.randn(16, 16, 3, 3, device="cuda"))
    equal(y.shape, (8, 16, 30, 30))


def test_threads():
    import threading

    errors = []

    def work(seed):
        try:
            g = torch.Generator(device="cpu").manual_seed(seed)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for i in range(300):
                    n = int(torch.randint(1, 200000, (1,), generator=g))
                    x = torch.full((n,), float(seed), device="cuda")
                    if i % 50 == 0:
                        stream.synchronize()
                        assert bool((x == seed).all()), f"thread {seed}, step {i}: {n} elements are not all {seed}"
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    equal(errors, [])
    torch.cuda.synchronize()


def test_clone_and_resize():
    x = torch.arange(100000, device="cuda")
    y = x.clone()
    equal(bool((x == y).all()), True)
    x.untyped_storage().resize_(x.untyped_storage().nbytes() * 2)
    equal(bool((x == y).all()), True)


if __name__ == "__main__":
    harness.main(globals())
