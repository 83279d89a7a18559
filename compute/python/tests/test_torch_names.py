"""Names of torch.cuda and torch._C that the core does not have: architectures, the state of generators, torch._C."""

from __future__ import annotations

import ast
import re
import tarfile
import warnings
from pathlib import Path

import pytest
from conftest import is_soft, run_python

import weir
from weir import _C
from weir.compute import _architectures

ROOT = Path(__file__).resolve().parents[3]


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
            weir.compute, weir.init()
        texts = [str(w.message) for w in caught]
        assert len(texts) == weir.device_count() == 2, texts
        for device, text in enumerate(texts):
            assert f"Found GPU{device} {weir.get_device_name(device)} which is of cuda capability 6.1." in text, text
            assert "The minimum cuda capability supported by Weir's kernels is 7.5" in text, text
        """
    run_python(code, WEIR_SOFT_CAPABILITY="6.1")


def test_supported_devices_get_no_warning():
    run_python("import weir; weir.compute, weir.init()")  # warnings are errors


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
    monkeypatch.setattr(_architectures, "get_arch_list", lambda: archs)
    monkeypatch.setattr(_architectures, "get_device_capability", lambda device=None: capability)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weir._check_cubins()
    assert len(caught) == (weir.device_count() if warns else 0)
    for warning in caught:
        text = str(warning.message)
        assert f"with CUDA capability sm_{capability[0]}{capability[1]} is not compatible with the current" in text
        assert f"supports CUDA capabilities {' '.join(archs)}." in text


# ---- Random numbers ----


def test_rng_state_offset():
    before = weir._get_rng_state_offset()
    weir._set_rng_state_offset(before + 8)
    assert weir._get_rng_state_offset() == before + 8 == weir._get_generator("cuda:0").get_offset()
    weir._set_rng_state_offset(before, "cuda")
    assert weir._get_device(0) == weir._get_device("cuda:0") == weir.Device("cuda", 0)
    assert weir._get_device(weir.Device("cuda", 0)) == weir.Device("cuda", 0)


# ---- torch._C ----


def test_compiled_version():
    version = _C._cuda_getCompiledVersion()
    header = (ROOT / "include" / "weir" / "driver_entries.h").read_text()
    assert version == max(int(n) for n in re.findall(r", (\d{4,5}), (?:REQUIRED|OPTIONAL)", header)) >= 11020


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
    a, b = weir.buffer(512), weir.buffer(512)
    pointers = [a.data_ptr(), b.data_ptr() + 1]
    assert _C._tensors_data_ptrs_at_indices_equal([a, b], pointers, [0])
    assert not _C._tensors_data_ptrs_at_indices_equal([a, b], pointers, [0, 1])
    with pytest.raises(AttributeError, match="module 'weir._C' has no attribute 'nonsense'"):
        _C.nonsense
    with pytest.raises(AttributeError, match="module 'weir' has no attribute 'nonsense'"):
        weir.nonsense
    _C._cuda_lock_mutex()
    assert weir.memory._free_lock.locked()
    _C._cuda_unlock_mutex()
    assert not weir.memory._free_lock.locked()
    assert weir.memory._host_allocator() == _C._cuda_cudaHostAllocator()
    assert _C._cuda_ipc_collect() is None


def test_bad_arguments_of_c():
    """torch._C takes an int where the functions of the package take any device, and says so with these texts."""
    one = {
        "_cuda_setDevice": "setDevice",
        "_cuda_exchangeDevice": "exchangeDevice",
        "_cuda_maybeExchangeDevice": "exchangeDevice",
        "_cuda_getCurrentStream": "getCurrentStream",
        "_cuda_getCurrentRawStream": "getCurrentStream",
        "_cuda_getDefaultStream": "getDefaultStream",
        "_cuda_hasPrimaryContext": "has_primary_context",
        "_cuda_memoryStats": "memory_allocated",
        "_cuda_resetAccumulatedMemoryStats": "reset_accumulated_memory_stats",
        "_cuda_resetPeakMemoryStats": "reset_peak_memory_stats",
        "_cuda_set_sync_debug_mode": "set_sync_debug_mode",
    }
    for name, what in one.items():
        for wrong in ("cuda:0", "0", None, 0.0, True, weir.device(0), weir.tensor(0)):
            with pytest.raises(RuntimeError, match=f"^invalid argument to {what}$"):
                getattr(_C, name)(wrong)
        getattr(_C, name)(0)
    for wrong in [("x", 0), (0, None)]:
        with pytest.raises(RuntimeError, match="^invalid argument to canDeviceAccessPeer$"):
            _C._cuda_canDeviceAccessPeer(*wrong)
    with pytest.raises(RuntimeError, match="^invalid value of debug_mode, expected one of 0,1,2$"):
        _C._cuda_set_sync_debug_mode(3)
    for wrong in ("1", 1.5, True):
        with pytest.raises(RuntimeError, match=r"^torch\.cuda\._sleep\(\): expected 'int'$"):
            _C._cuda_sleep(wrong)
    combinations = {
        ("_cuda_canDeviceAccessPeer", 1): "can_device_peer_access/(int)/(int device, int peer_device)",
        ("_cuda_cudaCachingAllocator_raw_alloc",): "caching_allocator_alloc/()/(ssize_t size, intptr_t stream)",
        ("_cuda_setMemoryFraction", 0.5, "x", 0): "set_memory_fraction/(float, str, int)/(double fraction, int device)",
    }
    for (name, *args), texts in combinations.items():
        function, given, expected = texts.split("/")
        text = f"{function} received an invalid combination of arguments - got {given}, but expected {expected}"
        with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
            getattr(_C, name)(*args)
    _C._cuda_setMemoryFraction(1.0, 0)
    pointer = _C._cuda_cudaCachingAllocator_raw_alloc(512, 0)
    _C._cuda_cudaCachingAllocator_raw_delete(pointer)


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
    count = _C._storage_Use_Count(storage._cdata)
    metadata = {"dtype": x.dtype, "size": (2, 2), "stride": (3, 1), "storage_offset": 1}
    view = _C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage)
    assert view.tolist() == [[1, 2], [4, 5]] and view.data_ptr() == x.data_ptr() + 8
    assert _C._storage_Use_Count(storage._cdata) == count + 1
    del view
    assert _C._storage_Use_Count(storage._cdata) == count


def test_pinned_memory_of_c():
    pinned = weir.empty(1 << 20, pin_memory=True)
    del pinned
    assert weir.host_memory_stats()["allocated_bytes.current"] > 0
    _C._host_emptyCache()
    assert weir.host_memory_stats()["allocated_bytes.current"] == 0


def test_storages_by_address():
    x = weir.arange(4, device="cuda", dtype=weir.uint8)
    storage = x.untyped_storage()
    assert storage._cdata == x.untyped_storage()._cdata != weir.empty(1).untyped_storage()._cdata
    view = _C._construct_storage_from_data_pointer(x.data_ptr(), x.device, 2)
    assert view.tolist() == [0, 1] and view.data_ptr() == x.data_ptr()
    with pytest.raises(ValueError, match="3 is not the _cdata of a storage"):
        _C._storage_Use_Count(3)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_set(device):
    x, y = weir.arange(6.0, device=device), weir.zeros(3, device=device)
    held = y.untyped_storage()
    assert y.set_(x.untyped_storage(), 2, (2, 2), (1, 1)) is y
    assert y.tolist() == [[2, 3], [3, 4]] and y.data_ptr() == x.data_ptr() + 8 and held.nbytes() == 12
    assert y.set_(x.untyped_storage()).tolist() == x.tolist() and y.set_(x).shape == (6,)
    assert y.set_().shape == (0,) and x.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="the source must have the dtype"):
        y.set_(weir.zeros(2, dtype=weir.int32, device=device))


def test_snapshot_and_reductions():
    assert set(_C._cuda_memorySnapshot()) == set(weir.memory._snapshot())
    pool = weir.MemPool()
    with weir.use_mem_pool(pool):
        kept = weir.buffer(512)
    assert len(_C._cuda_memorySnapshot(pool.id)["segments"]) == 1 and kept
    for kind in ("fp16", "bf16"):
        assert getattr(_C, f"_get_cublas_allow_{kind}_reduced_precision_reduction")() is True


# ---- Coverage ----


COVERAGE = (ROOT / "compute" / "docs" / "compute-coverage.md").read_text()


def test_names_of_torch_cuda():
    """The coverage table lists the names that exist, and the pages state their number."""
    section = COVERAGE.split("\n## The names of torch.cuda\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!about|---)(.*?) \| (.*?) \| (.*?) \|$", section, re.MULTILINE)
    here, elsewhere = [], []
    for _, names, where in rows:
        (here if where == "here" else elsewhere).extend(re.findall(r"`(\w+)`", names))
    assert len(set(here + elsewhere)) == len(here + elsewhere) > 100
    assert [name for name in here if not hasattr(weir, name)] == []
    assert [name for name in elsewhere if hasattr(weir, name)] == []
    count = f"{len(here)} of the {len(here + elsewhere)}"
    assert section.lstrip().startswith(f"{count} names ")
    assert f"Python: {count} [names that `torch.cuda` had in mid-2024]" in (ROOT / "docs" / "evidence" / "features.md").read_text()
    assert f"[{count} names]" in (ROOT / "README.md").read_text()


def names_of_today(title="The names of PyTorch 2.15"):
    """The tables of the page: the owner of each name, the name, and what the page says of it."""
    section = COVERAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    for part in section.split("\n### ")[1:]:
        for name, where in re.findall(r"^\| `([\w.]+)` \| (.*) \|$", part, re.MULTILINE):
            yield part.split("\n")[0], name, where


@pytest.mark.parametrize("owner, name, where", list(names_of_today()), ids=lambda text: text.replace(" ", "_")[:40])
def test_names_of_today(owner, name, where):
    """A name is there if a test uses it, which the table names."""
    if where.startswith("outside: "):
        return
    value = weir.accelerator if owner == "torch.accelerator" else weir
    for part in name.split("."):
        value = getattr(value, part)
    if owner == "torch.cuda.memory":
        assert value is getattr(weir.memory, name)
    check_that_the_test_uses(name, where)


def check_that_the_test_uses(name, where):
    file, test = re.fullmatch(r"`python/(\w+): (test_\w+)`", where).groups()
    paths = [folder / f"test_{file}.py" for folder in (ROOT / "python" / "tests", Path(__file__).parent)]
    text = next(path for path in paths if path.exists()).read_text()
    tests = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    body = ast.get_source_segment(text, tests[test])
    assert re.search(rf"\b{name.split('.')[-1]}\b", body), f"{test} does not use it"


PARTS = "Parts of the names of PyTorch 2.15"


@pytest.mark.parametrize("owner, name, where", names_of_today(PARTS))
def test_parts_of_names_of_today(owner, name, where):
    """Methods and names with an underscore, under the same rule. What is outside must be absent."""
    value = weir
    for part in owner.split(".")[2:]:
        value = getattr(value, part)
    if where.startswith("outside: "):
        assert not hasattr(value, name)
    else:
        assert hasattr(value, name)
        check_that_the_test_uses(name, where)


def test_the_number_of_parts_of_names():
    names = list(names_of_today(PARTS))
    here = [name for _, name, where in names if not where.startswith("outside: ")]
    assert len({(owner, name) for owner, name, _ in names}) == len(names)
    section = COVERAGE.split(f"\n## {PARTS}\n")[1]
    assert section.startswith(f"\n{len(here)} of the {len(names)} methods ")


def test_the_number_of_names_of_today():
    names = list(names_of_today())
    here = [name for _, name, where in names if not where.startswith("outside: ")]
    assert len({(owner, name) for owner, name, _ in names}) == len(names)
    assert f"\n{len(here)} of the {len(names)} names " in COVERAGE and len(here) >= 0.95 * len(names)


def test_names_of_torch_c():
    """The same for weir._C."""
    section = COVERAGE.split("\n## The names of torch._C\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!about|---)(.*?) \| (.*?) \| (.*?) \|$", section, re.MULTILINE)
    here, elsewhere = [], []
    for about, names, where in rows:
        owner = weir._C._CUDAPluggableAllocator if about.startswith("methods") else weir._C
        for name in re.findall(r"`(\w+)`", names):
            assert hasattr(owner, name) is (where == "here"), name
            (here if where == "here" else elsewhere).append(name)
    assert len(set(here + elsewhere)) == len(here + elsewhere)
    assert f"had {len(here + elsewhere)} names. {len(here)} of them" in " ".join(section.split())


# ---- The names that the package gets from here ----


def test_all_names_are_there():
    assert len(set(weir.__all__)) == len(weir.__all__)
    for name in weir.__all__:
        assert hasattr(weir, name), name
        assert getattr(weir, name).__doc__, f"{name} says nothing of itself"


def test_dir():
    run_python("""
        import weir
        names = dir(weir)
        assert {"FloatTensor", "amp", "autocast", "load", "nccl", "save", *weir.__all__} <= set(names)
        assert all(hasattr(weir, name) for name in names)
        assert not weir.is_initialized()
        """)


def test_names_are_found_when_they_are_used():
    """What the package finds at the first use is what the modules have; the list says so of each name."""
    code = """
        import sys, weir
        from weir import _names
        for name, module in _names.NAMES.items():
            value = getattr(weir, name)
            assert value is getattr(sys.modules[f"weir.{module}"], name), name
        for name in _names.MODULES:
            assert getattr(weir, name) is sys.modules[f"weir.{name}"], name
        """
    run_python(code)


def test_a_start_before_the_first_use():
    run_python("""
        import sys, weir
        weir.init()
        weir.memory_allocated()
        assert "weir.compute" not in sys.modules
        assert len(weir.default_generators) == weir.device_count() and "weir.compute" in sys.modules
        assert weir.zeros(3, device="cuda").tolist() == [0, 0, 0]
        """)


def test_questions_start_nothing():
    run_python("import weir; weir.get_arch_list(), weir.get_gencode_flags(); assert not weir.is_initialized()")


def test_generators_after_the_start():
    run_python("""
        import weir
        assert weir.default_generators == () == weir.compute.default_generators
        weir.init()
        assert len(weir.default_generators) == weir.device_count()
        assert weir.default_generators is weir.compute.default_generators
        """)


@pytest.mark.parametrize("name", [name for name, value in vars(weir.compute._compute).items() if isinstance(value, type)])
def test_everything_explains_itself(name):
    kind = getattr(weir.compute._compute, name)
    assert kind.__doc__, name
    for member, value in vars(kind).items():
        if not member.startswith("_") and callable(value):
            assert value.__doc__, f"{name}.{member}"
