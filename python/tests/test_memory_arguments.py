"""Wrong types and values: every function rejects them with an exception, and keeps working."""

from __future__ import annotations

import pytest
import weir
from memory_tools import cleaned  # noqa: F401
from weir import _weir

# Values that no argument of any function accepts.
STRANGE = [object(), 1.5, [], {}, b"x", "no such thing", (1, 2, 3), -1, 1 << 70, float("nan"), None]

FUNCTIONS = [name for name in dir(_weir) if name.startswith("_cuda_") and callable(getattr(_weir, name))]
FUNCTIONS += [
    "buffer", "host_empty", "from_dlpack", "_memory_stats_flat", "_memory_stat", "_memory_summary", "_gpu_processes",
    "_mem_get_info", "_set_memory_limit", "_record_stream", "_fix_pages", "_base_allocation", "_largest_block",
    "_buffer_from_data_pointer", "_history_info", "_dump_snapshot", "_mark_memory_history", "_record_annotation",
    "_enter_phase", "_leave_phase",
    "_enter_compile_context", "_leave_compile_context", "_attach_tracker", "_detach_tracker",
    "_detach_out_of_memory_observer", "_MemPool", "_pool_use_count", "_empty_pool", "_has_Standard_Deleter",
    "_free_And_Remove_DeleterFn", "_open_shared", "_send_buffer", "_receive_buffer", "_time_frames", "_time_pairs",
]  # fmt: skip

# These accept such an argument, with an effect that would disturb other tests.
LEFT_OUT = {"_dump_snapshot", "_cuda_cudaCachingAllocator_enable", "_cuda_customAllocator"}

REFUSALS = (TypeError, ValueError, RuntimeError, OverflowError, BufferError, AttributeError, OSError)


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - LEFT_OUT))
def test_strange_arguments(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function = getattr(_weir, name)
    refused = 0
    for count in range(5):
        for strange in STRANGE:
            try:
                function(*[strange] * count)
            except REFUSALS:
                refused += 1
    try:
        function(no_such_keyword=1)
    except TypeError:
        refused += 1
    assert refused > 0
    assert weir.buffer(512).fill_(1).tobytes() == b"\1" * 512


@pytest.mark.parametrize("name", ["copy_", "copy_to", "fill_", "record_stream", "__dlpack__", "__getitem__"])
def test_strange_arguments_of_buffers(name):
    buffer = weir.buffer(64)
    for strange in STRANGE:
        if name == "__dlpack__" and strange in (None, -1):
            continue
        with pytest.raises(REFUSALS):
            getattr(buffer, name)(strange)
    with pytest.raises(TypeError):
        getattr(buffer, name)(1, 2, 3, 4, 5)
    assert buffer.zero_().tobytes() == bytes(64)


def test_buffer_arguments():
    with pytest.raises(TypeError, match="missing required argument 'nbytes'"):
        weir.buffer()
    with pytest.raises(TypeError, match="unexpected argument 'size'"):
        weir.buffer(size=8)
    with pytest.raises(TypeError, match="multiple values for argument 'nbytes'"):
        weir.buffer(8, nbytes=8)
    with pytest.raises(TypeError):
        weir.buffer("8")
    with pytest.raises(TypeError):
        weir.buffer(8.0)
    with pytest.raises(ValueError, match="Invalid memory size"):
        weir.buffer(1 << 65)
    assert len(weir.buffer(nbytes=8)) == 8

    class Eight:
        def __index__(self):
            return 8

    assert len(weir.buffer(Eight())) == 8


def test_no_such_device():
    for call in [
        lambda: weir.buffer(8, device=99),
        lambda: weir.memory_stats(99),
        lambda: weir.memory_allocated(99),
        lambda: weir.reset_peak_memory_stats(99),
        lambda: weir.memory_summary(99),
        lambda: weir.mem_get_info(99),
        lambda: weir.set_per_process_memory_fraction(0.5, 99),
        lambda: weir.get_per_process_memory_fraction(99),
        lambda: weir.caching_allocator_alloc(8, 99),
        lambda: weir.list_gpu_processes(99),
        lambda: weir.use_mem_pool(weir.MemPool(), 99).__enter__(),
    ]:
        with pytest.raises(RuntimeError, match="99"):
            call()
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        weir.buffer(8, device="cpu")


def test_every_name_of_the_interface_is_there():
    names = """caching_allocator_alloc caching_allocator_delete caching_allocator_enable empty_cache
        get_per_process_memory_fraction set_per_process_memory_fraction memory_stats memory_stats_as_nested_dict
        reset_accumulated_memory_stats reset_peak_memory_stats reset_max_memory_allocated reset_max_memory_cached
        host_memory_stats host_memory_stats_as_nested_dict reset_accumulated_host_memory_stats
        reset_peak_host_memory_stats memory_allocated max_memory_allocated memory_reserved max_memory_reserved
        memory_cached max_memory_cached memory_snapshot
        memory_summary list_gpu_processes mem_get_info get_allocator_backend CUDAPluggableAllocator
        change_current_allocator MemPool use_mem_pool""".split()
    for name in names:
        assert name in weir.memory.__all__ and getattr(weir, name) is getattr(weir.memory, name)
    for name in ["_record_memory_history", "_snapshot", "_dump_snapshot", "_set_allocator_settings"]:
        assert callable(getattr(weir.memory, name))
    assert callable(weir.memory._get_current_allocator)
    for name in weir.memory.__all__:
        assert getattr(weir.memory, name).__doc__, name
