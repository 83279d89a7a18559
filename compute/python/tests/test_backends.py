"""Settings of matrix products (weir.backends), handles of cuBLAS, deterministic algorithms."""

from __future__ import annotations

import threading
import warnings

import pytest
from conftest import run_python

import weir
from weir import _C, backends

matmul = backends.cuda.matmul


@pytest.fixture(autouse=True)
def restored():
    """Restores the settings after each test."""
    yield
    weir.set_float32_matmul_precision("highest")
    backends.fp32_precision = "none"
    backends.cudnn.fp32_precision = "none"
    matmul.fp32_precision = "none"
    matmul.allow_fp16_reduced_precision_reduction = True
    matmul.allow_bf16_reduced_precision_reduction = True
    matmul.allow_fp16_accumulation = False
    weir.use_deterministic_algorithms(False)


def test_import_is_lazy():
    run_python(
        """
        import sys, weir
        assert "weir.backends" not in sys.modules
        assert weir.backends.cuda.matmul.allow_tf32 is False and "weir.backends.cudnn" in sys.modules
        import weir.backends.cuda
        assert not weir.is_initialized()
        """
    )


def test_is_built():
    assert backends.cuda.is_built() is True
    assert backends.cuda.preferred_blas_library() == backends.cuda.preferred_blas_library("cublas") == "cublas"
    with pytest.raises(RuntimeError, match="Unknown input value. Choose from: default, cublas, cublaslt."):
        backends.cuda.preferred_blas_library("mkl")
    with pytest.raises(RuntimeError, match="Unknown input value type."):
        backends.cuda.preferred_blas_library(3)


# ---- PyTorch's tests ----


def test_cublas_allow_tf32_get_set():
    orig = matmul.allow_tf32
    assert _C._get_cublas_allow_tf32() is orig
    matmul.allow_tf32 = not orig
    assert _C._get_cublas_allow_tf32() is (not orig)
    matmul.allow_tf32 = orig


def test_tf32_override():
    code = """
        import weir
        assert weir.backends.cuda.matmul.allow_tf32 is True and weir.get_float32_matmul_precision() == "high"
        """
    run_python(code, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")


def test_float32_matmul_precision_get_set():
    assert matmul.allow_tf32 is False and weir.get_float32_matmul_precision() == "highest"
    for p in ("medium", "high"):
        weir.set_float32_matmul_precision(p)
        assert weir.get_float32_matmul_precision() == p
        assert matmul.allow_tf32 is True
    weir.set_float32_matmul_precision("highest")
    assert weir.get_float32_matmul_precision() == "highest"
    assert matmul.allow_tf32 is False
    with pytest.warns(UserWarning, match="low is not one of 'highest', 'high', or 'medium'; the current"):
        weir.set_float32_matmul_precision("low")
    assert weir.get_float32_matmul_precision() == "highest"
    with pytest.raises(RuntimeError, match="set_float32_matmul_precision expects a str, but got int"):
        weir.set_float32_matmul_precision(3)


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_cublas_allow_reduced_precision_reduction_get_set(kind):
    """test_cublas_allow_fp16_reduced_precision_reduction_get_set, and the same for bf16."""
    name = f"allow_{kind}_reduced_precision_reduction"
    get = getattr(_C, f"_get_cublas_{name}")
    assert getattr(matmul, name) is True and getattr(matmul, name + "_split_k") is True and get() is True
    setattr(matmul, name, False)
    assert getattr(matmul, name) is False and get() is False
    setattr(matmul, name, (False, False))
    assert getattr(matmul, name) is False and getattr(matmul, name + "_split_k") is False and get() is False
    setattr(matmul, name, [True])
    assert get() is True
    for wrong, text in (
        (3, f"{name} expects a bool or a tuple/list of bools, but got <class 'int'>"),
        ((), f"{name} expects at least one boolean argument"),
        ((True, True, True), f"{name} expects at most two boolean arguments"),
        ((1,), f"{name} expects a bool for allow_reduced_precision, but got <class 'int'>"),
        ((True, None), f"{name} expects a bool for allow_splitk, but got <class 'NoneType'>"),
    ):
        with pytest.raises(TypeError) as raised:
            setattr(matmul, name, wrong)
        assert str(raised.value) == text
    with pytest.raises(RuntimeError, match="allow_splitk=False is not supported when reduced precision reductions are"):
        setattr(matmul, name, (True, False))
    with pytest.raises(RuntimeError, match=f"set_allow_{kind}_reduction_cublas expects a bool for allow_reduced_"):
        getattr(_C, f"_set_cublas_{name}")(3)
    assert get() is True


def test_cudnn_allow_tf32_get_set():
    with backends.cudnn.flags(enabled=None, benchmark=None, deterministic=None, allow_tf32=False):
        assert backends.cudnn.allow_tf32 is False
    with backends.cudnn.flags(enabled=None, benchmark=None, deterministic=None, allow_tf32=True):
        assert backends.cudnn.allow_tf32 is True


# ---- Further ----


def test_wrong_values():
    with pytest.raises(RuntimeError, match="set_allow_tf32_cublas expects a bool, but got int"):
        matmul.allow_tf32 = 1
    with pytest.raises(RuntimeError, match="set_allow_fp16_accumulation_cublas expects a bool, but got str"):
        matmul.allow_fp16_accumulation = "yes"
    with pytest.raises(AttributeError, match="Unknown attribute allow_fp8"):
        matmul.allow_fp8 = True
    with pytest.raises(AttributeError, match="Unknown attribute allow_fp8"):
        matmul.allow_fp8
    matmul.allow_fp16_accumulation = True
    assert _C._get_cublas_allow_fp16_accumulation() is True


def test_fp32_precision():
    assert matmul.fp32_precision == backends.fp32_precision == backends.cudnn.fp32_precision == "none"
    assert backends.cudnn.conv.fp32_precision == backends.cudnn.rnn.fp32_precision == "tf32"
    backends.fp32_precision = "tf32"  # inherited
    assert matmul.fp32_precision == "tf32" and matmul.allow_tf32 is True
    backends.cudnn.fp32_precision = "ieee"  # of all of CUDA
    assert matmul.fp32_precision == "ieee" and matmul.allow_tf32 is False
    matmul.fp32_precision = "tf32"
    assert matmul.allow_tf32 is True and weir.get_float32_matmul_precision() == "high"
    backends.cudnn.fp32_precision = "none"
    backends.fp32_precision = "ieee"
    assert matmul.fp32_precision == "tf32"
    matmul.allow_tf32 = False
    assert matmul.fp32_precision == "ieee"
    matmul.fp32_precision = "none"
    backends.fp32_precision = "tf32"
    assert matmul.allow_tf32 is True
    weir.set_float32_matmul_precision("highest")
    assert matmul.fp32_precision == "ieee" and matmul.allow_tf32 is False
    with backends.flags(fp32_precision="ieee"):
        assert backends.fp32_precision == "ieee"
    assert backends.fp32_precision == "tf32"
    backends.fp32_precision = "bf16"
    matmul.fp32_precision = "none"
    assert matmul.fp32_precision == "none" and matmul.allow_tf32 is False  # CUDA has none
    for wrong in ("fp8", "TF32", 3):
        with pytest.raises(RuntimeError, match="Unknown precision"):
            matmul.fp32_precision = wrong
    with pytest.raises(RuntimeError, match="backend 'cuda' does not support precision 'bf16'"):
        matmul.fp32_precision = "bf16"


def test_cudnn_flags():
    cudnn = backends.cudnn
    assert cudnn.is_available() is False and cudnn.version() is None and cudnn.is_acceptable(None) is False
    assert (cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic) == (True, False, 10, False)
    with cudnn.flags(enabled=False, benchmark=True, benchmark_limit=3, deterministic=True, allow_tf32=False):
        assert (cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic) == (False, True, 3, True)
    assert (cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic) == (True, False, 10, False)
    assert cudnn.allow_tf32 is True
    with pytest.raises(RuntimeError, match="set_enabled_cudnn expects a bool, but got int"):
        cudnn.enabled = 1
    with pytest.raises(RuntimeError, match="set_benchmark_limit_cudnn expects an int, but got str"):
        cudnn.benchmark_limit = "3"
    _C._cuda_set_cudnn_benchmark_limit(7)
    assert _C._cuda_get_cudnn_benchmark_limit() == cudnn.benchmark_limit == 7
    cudnn.benchmark_limit = 10


def test_disable_global_flags():
    run_python(
        """
        import weir
        from weir import backends
        assert not backends.flags_frozen()
        backends.disable_global_flags()
        assert backends.flags_frozen()
        try:
            backends.cudnn.enabled = False
        except RuntimeError as error:
            assert "not allowed to set weir.backends.cudnn flags after disable_global_flags" in str(error), error
        else:
            raise AssertionError
        with backends.cudnn.flags(enabled=False):
            assert backends.cudnn.enabled is False
        assert backends.cudnn.enabled is True
        """
    )


# ---- Handles ----


def test_current_blas_handle():
    handle = weir.current_blas_handle()
    assert isinstance(handle, int) and handle != 0
    assert weir.current_blas_handle() == handle == _C._cuda_getCurrentBlasHandle()
    with weir.stream(weir.Stream()):
        assert weir.current_blas_handle() == handle  # of the thread, set to another stream
    others, both = [], threading.Barrier(2)

    def ask():
        others.append(weir.current_blas_handle())
        both.wait()  # both threads have a handle at this moment

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({handle, *others}) == 3
    run_python("import weir; weir.current_blas_handle(); assert weir.is_initialized()")


def test_handles_of_two_devices(two_devices):
    first = weir.current_blas_handle()
    with weir.device(1):
        assert weir.current_blas_handle() != first


def test_workspace_sizes(monkeypatch):
    """The sizes of test_cublas_workspace_explicit_allocation."""
    default = 4096 * 8 * 1024 if weir.get_device_capability()[0] == 9 else 4096 * 2 * 1024 + 16 * 8 * 1024
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert weir.compute._compute._blas_workspace_size(0) == default
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":128:8:64:16:32:32")
    assert weir.compute._compute._blas_workspace_size(0) == 3072 * 1024
    for config in ("", "-1"):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one warning per process
            assert weir.compute._compute._blas_workspace_size(0) == default
    code = "import weir; weir.compute._compute._blas_workspace_size(0)"
    result = run_python(code, check=False, CUBLAS_WORKSPACE_CONFIG="-1")
    assert "UserWarning: Could not parse CUBLAS_WORKSPACE_CONFIG, using default workspace size of" in result.stderr


def test_workspaces_are_cleared():
    _C._cuda_clearCublasWorkspaces()
    before = weir.memory_allocated()
    weir.current_blas_handle()
    assert weir.memory_allocated() - before == weir.compute._compute._blas_workspace_size(0)
    with weir.stream(weir.Stream()):
        weir.current_blas_handle()
    assert weir.memory_allocated() - before == 2 * weir.compute._compute._blas_workspace_size(0)
    _C._cuda_clearCublasWorkspaces()
    assert weir.memory_allocated() == before


# ---- Deterministic algorithms ----


def test_deterministic_debug_mode():
    assert weir.get_deterministic_debug_mode() == 0 and not weir.are_deterministic_algorithms_enabled()
    for mode, number in (("default", 0), ("warn", 1), ("error", 2), (0, 0), (1, 1), (2, 2)):
        weir.set_deterministic_debug_mode(mode)
        assert weir.get_deterministic_debug_mode() == number
        assert weir.are_deterministic_algorithms_enabled() is (number > 0)
        assert weir.is_deterministic_algorithms_warn_only_enabled() is (number == 1)
    with pytest.raises(RuntimeError, match="expected one of `default`, `warn`, `error`, but got loud"):
        weir.set_deterministic_debug_mode("loud")
    with pytest.raises(RuntimeError, match="invalid value of debug_mode, expected 0, 1, or 2, but got 3"):
        weir.set_deterministic_debug_mode(3)
    with pytest.raises(TypeError, match="debug_mode must be str or int, but got <class 'float'>"):
        weir.set_deterministic_debug_mode(1.0)
    with pytest.raises(TypeError):
        weir.use_deterministic_algorithms(1)
    with pytest.raises(TypeError):
        weir.use_deterministic_algorithms(True, True)


@pytest.mark.parametrize(
    "config, is_reproducible", [(None, False), (":4096:2", False), (":4096:8", True), (":16:8", True)]
)
def test_cublas_config_alert(monkeypatch, config, is_reproducible):
    if config is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    else:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
    weir.compute._compute._check_deterministic()
    weir.use_deterministic_algorithms(True)
    if is_reproducible:
        weir.compute._compute._check_deterministic()
        return
    text = r"Deterministic behavior was enabled with `torch.use_deterministic_algorithms\(True\)`, but this operation is"
    with pytest.raises(RuntimeError, match=text) as raised:
        weir.compute._compute._check_deterministic()
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in str(raised.value) and ":16:8" in str(raised.value)
    weir.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="Deterministic behavior was enabled"):
        weir.compute._compute._check_deterministic()


def test_operations_that_are_not_deterministic():
    x, w = weir.tensor([0, 2, 2], device="cuda"), weir.tensor([0.5, 1.0, 2.0], device="cuda")
    weir.use_deterministic_algorithms(True)
    text = r"^_bincount_cuda does not have a deterministic implementation, but you set 'torch.use_deterministic_algo"
    with pytest.raises(RuntimeError, match=text + r"rithms\(True\)'\. You can turn off determinism just for this"):
        x.bincount(w)
    assert x.bincount().tolist() == [1, 0, 2]  # integers can be added in any order
    assert x.cpu().bincount(w.cpu()).tolist() == [0.5, 0, 3]
    weir.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=text + r"rithms\(True, warn_only=True\)'"):
        assert x.bincount(w).tolist() == [0.5, 0, 3]
