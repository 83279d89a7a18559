"""weir.tunable: torch.cuda.tunable's functions, files, and the tuning of matrix products."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import warnings

import pytest
from conftest import is_soft, run_python

import weir
from weir import _C, tunable

SOLUTIONS = ("Default", "Gemm_Block_1x32", "Gemm_Block_4x8") if is_soft else ("Default", "Gemm_Cublas")


@pytest.fixture(autouse=True)
def clean_results(tmp_path):
    """Each test has a file of its own, and no results."""
    tunable.set_filename(str(tmp_path / "results%d.csv"), True)
    for device in range(weir.device_count()):
        with weir.device(device):
            _C._compute._tunable_forget()
    tunable.set_rotating_buffer_size(0)
    tunable.set_max_tuning_iterations(2)
    yield
    tunable.enable(False)
    tunable.tuning_enable(True)
    tunable.record_untuned_enable(False)
    tunable.write_file_on_exit(True)
    tunable.set_max_tuning_duration(30)
    tunable.set_max_tuning_iterations(100)
    tunable.set_rotating_buffer_size(-1)
    tunable.set_numerical_check_tolerances(False)
    tunable.set_filename("")
    for device in range(weir.device_count()):
        with weir.device(device):
            _C._compute._tunable_forget()


@pytest.fixture
def matrices():
    return weir.rand(40, 32, device="cuda"), weir.rand(32, 24, device="cuda")


def test_settings():
    assert not tunable.is_enabled()
    tunable.enable()
    assert tunable.is_enabled()
    tunable.enable(False)
    assert not tunable.is_enabled()
    assert tunable.tuning_is_enabled()
    tunable.tuning_enable(False)
    assert not tunable.tuning_is_enabled()
    assert not tunable.record_untuned_is_enabled()
    tunable.record_untuned_enable()
    assert tunable.record_untuned_is_enabled()
    for setter, getter in (
        (tunable.set_max_tuning_duration, tunable.get_max_tuning_duration),
        (tunable.set_max_tuning_iterations, tunable.get_max_tuning_iterations),
    ):
        setter(17)
        assert getter() == 17
        setter(-3)
        assert getter() == 0
    tunable.set_rotating_buffer_size(3)
    assert tunable.get_rotating_buffer_size() == 3 * 1024
    tunable.set_rotating_buffer_size(-1)
    assert tunable.get_rotating_buffer_size() == weir.get_device_properties(0).L2_cache_size // 1024


def test_defaults():
    run_python(
        """
        from weir import tunable

        assert (tunable.is_enabled(), tunable.tuning_is_enabled()) == (False, True)
        assert (tunable.get_max_tuning_duration(), tunable.get_max_tuning_iterations()) == (30, 100)
        assert tunable.record_untuned_is_enabled() is False
        assert tunable.get_filename() == "tunableop_results0.csv"
        """
    )


@pytest.mark.parametrize("prefix", ["PYTORCH", "WEIR"])
def test_environment(prefix, tmp_path):
    """It takes precedence over calls, as in PyTorch, and Weir's names over PyTorch's."""
    settings = {
        "ENABLED": "1",
        "TUNING": "0",
        "RECORD_UNTUNED": "1",
        "MAX_TUNING_DURATION_MS": "7",
        "MAX_TUNING_ITERATIONS": "-9",
        "ROTATING_BUFFER_SIZE": "5",
        "FILENAME": str(tmp_path / "x%dy.csv"),
        "UNTUNED_FILENAME": str(tmp_path / "untuned.csv"),
    }
    environment = {f"{prefix}_TUNABLEOP_{name}": value for name, value in settings.items()}
    if prefix == "WEIR":
        environment["PYTORCH_TUNABLEOP_MAX_TUNING_DURATION_MS"] = "99"
    run_python(
        """
        import weir
        from weir import tunable

        tunable.enable(False), tunable.tuning_enable(True), tunable.record_untuned_enable(False)
        tunable.set_max_tuning_duration(3), tunable.set_max_tuning_iterations(3), tunable.set_rotating_buffer_size(0)
        assert (tunable.is_enabled(), tunable.tuning_is_enabled(), tunable.record_untuned_is_enabled()) == (1, 0, 1)
        assert (tunable.get_max_tuning_duration(), tunable.get_max_tuning_iterations()) == (7, 0)
        assert tunable.get_rotating_buffer_size() == 5 * 1024
        assert tunable.get_filename().endswith("/x0y.csv")
        a = weir.ones(8, 4, device="cuda")
        for _ in range(3):
            a.t() @ a
        assert tunable.get_results() == ()
        """,
        **environment,
    )
    assert (tmp_path / "untuned0.csv").read_text() == "GemmTunableOp_float_NT,nt_4_4_8_ld_4_4_4\n"


def test_damaged_environment():
    result = run_python(
        "from weir import tunable; print(tunable.get_max_tuning_duration())",
        WEIR_TUNABLEOP_MAX_TUNING_DURATION_MS="soon",
        WEIR_TUNABLEOP_NUMERICAL_CHECK="1e-5",
    )
    assert result.stdout == "30\n"


def test_verbose(tmp_path):
    result = run_python(
        f"""
        import weir
        from weir import tunable

        tunable.enable()
        tunable.set_filename({str(tmp_path / "results.csv")!r})
        weir.ones(4, 4, device="cuda") @ weir.ones(4, 4, device="cuda")
        """,
        WEIR_TUNABLEOP_VERBOSE="3",
        WEIR_TUNABLEOP_MAX_TUNING_ITERATIONS="2",
    )
    assert "Enable TunableOp" in result.stderr
    assert "finding fastest for GemmTunableOp_float_NN(nn_4_4_4_ld_4_4_4) out of" in result.stderr
    assert "found fastest for GemmTunableOp_float_NN(nn_4_4_4_ld_4_4_4) " in result.stderr


def test_matmul(matrices, tmp_path):
    a, b = matrices
    expected = (a @ b).tolist()
    tunable.enable()
    for _ in range(2):
        found = a @ b
        if is_soft:
            assert found.tolist() == expected
        else:
            assert weir.allclose(found, weir.tensor(expected, device="cuda"), rtol=1e-4)
        ((op, params, solution, time),) = tunable.get_results()
    assert (op, params) == ("GemmTunableOp_float_NN", "nn_24_40_32_ld_24_32_24")
    assert solution.startswith(SOLUTIONS)
    assert time > 0
    text = (tmp_path / "results0.csv").read_text()
    keys = [line.split(",")[1] for line in text.splitlines() if line.startswith("Validator,")]
    assert keys == [key for key, _ in tunable.get_validators()]
    assert {"WEIR_VERSION", "DRIVER_VERSION", "DEVICE"} <= set(keys)
    assert text.splitlines()[-1].startswith(f"{op},{params},{solution},")


def test_read_and_write(matrices, tmp_path):
    a, b = matrices
    tunable.enable()
    a @ b
    results = tunable.get_results()
    other = str(tmp_path / "other.csv")
    assert tunable.write_file(other) is True
    assert tunable.write_file() is True
    assert (tmp_path / "other.csv").read_text() == (tmp_path / "results0.csv").read_text()
    (tmp_path / "results0.csv").unlink()
    _C._compute._tunable_forget()
    assert tunable.get_results() == ()
    assert tunable.read_file(other) is True
    assert [result[:3] for result in tunable.get_results()] == [result[:3] for result in results]
    assert tunable.read_file(str(tmp_path / "missing.csv")) is False
    with pytest.warns(UserWarning, match="cannot write"):
        assert tunable.write_file("/nowhere/at/all") is False
    # Another driver.
    text = (tmp_path / "other.csv").read_text().replace("Validator,DRIVER_VERSION,", "Validator,DRIVER_VERSION,old ")
    (tmp_path / "other.csv").write_text(text)
    with pytest.warns(UserWarning, match='are stale: the validator DRIVER_VERSION is "old .*" in the file and "'):
        assert tunable.read_file(other) is False
    (tmp_path / "other.csv").write_bytes(b"Validator,\0")
    with pytest.warns(UserWarning, match="is not a text"):
        assert tunable.read_file(other) is False


def test_stale_file_is_replaced(matrices, tmp_path):
    a, b = matrices
    # As PyTorch on ROCm writes it.
    (tmp_path / "results0.csv").write_text(
        "Validator,PT_VERSION,2.11.0\nGemmTunableOp_float_NN,nn_24_40_32_ld_24_32_24,Gemm_Rocblas_1216,0.033\n"
    )
    tunable.enable()
    with pytest.warns(UserWarning, match="tuning results are not used: the results in .* are stale"):
        a @ b
    ((_, _, solution, _),) = tunable.get_results()
    assert solution.startswith(SOLUTIONS)
    assert "PT_VERSION" not in (tmp_path / "results0.csv").read_text()


def test_write_file_on_exit(matrices, tmp_path):
    a, b = matrices
    tunable.enable()
    tunable.write_file_on_exit(False)
    a @ b
    assert not (tmp_path / "results0.csv").exists()
    tunable.write_file_on_exit(True)
    assert (tmp_path / "results0.csv").exists()


def test_devices(two_devices, tmp_path):
    tunable.enable()
    for device in range(2):
        with weir.device(device):
            a = weir.ones(4, 4 + device, device="cuda")
            a.t() @ a
    for device in range(2):
        with weir.device(device):
            ((_, params, _, _),) = tunable.get_results()
            assert params.startswith(f"nt_{4 + device}_")
            assert tunable.get_filename() == str(tmp_path / f"results{device}.csv")
            assert (tmp_path / f"results{device}.csv").exists()


def test_capture(matrices):
    """Nothing is tuned during a capture; results that are known are used."""
    a, b = matrices
    expected = (a @ b).tolist()
    tunable.enable()
    with weir.stream(weir.Stream()):
        for known in (False, True):
            graph = weir.CUDAGraph()
            with weir.graph(graph):
                out = a @ b
            assert bool(tunable.get_results()) is known
            graph.replay()
            weir.synchronize()
            if is_soft:
                assert out.tolist() == expected
            a @ b
            assert len(tunable.get_results()) == 1


def test_threads(matrices):
    a, b = matrices
    tunable.enable()
    weir.synchronize()
    threads = [threading.Thread(target=lambda: [a @ b for _ in range(5)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tunable.get_results()) == 1


def record_untuned(tmp_path, code):
    run_python(
        f"import weir\n{code}",
        WEIR_TUNABLEOP_ENABLED="1",
        WEIR_TUNABLEOP_TUNING="0",
        WEIR_TUNABLEOP_RECORD_UNTUNED="1",
        WEIR_TUNABLEOP_UNTUNED_FILENAME=str(tmp_path / "untuned.csv"),
    )
    return tmp_path / "untuned0.csv"


PRODUCTS = """
for dtype in (weir.float32, weir.float64, weir.float16, weir.bfloat16, weir.complex64, weir.complex128):
    a, b = weir.ones(12, 8, device="cuda", dtype=dtype), weir.ones(8, 20, device="cuda", dtype=dtype)
    a @ b, b.t() @ a.t(), b.t() @ weir.ones(8, 3, device="cuda", dtype=dtype)
    a @ weir.ones(20, 8, device="cuda", dtype=dtype).t()
    a[:, :4] @ b[:4, :10]
    weir.ones(3, 12, 8, device="cuda", dtype=dtype) @ weir.ones(3, 20, 8, device="cuda", dtype=dtype).transpose(1, 2)
weir.backends.cuda.matmul.allow_tf32 = True
weir.ones(12, 8, device="cuda") @ weir.ones(8, 20, device="cuda")
"""


def test_tune_gemm_in_file(tmp_path):
    """What one process recorded, another one tunes: with the same keys."""
    path = record_untuned(tmp_path, PRODUCTS)
    recorded = path.read_text().splitlines()
    assert len(recorded) == 6 * 6 + 1
    with pytest.raises(AssertionError, match="TunableOp is not enabled"):
        tunable.tune_gemm_in_file(str(path))
    tunable.enable()
    tunable.tuning_enable(False)
    with pytest.raises(AssertionError, match="Tuning is not enabled"):
        tunable.tune_gemm_in_file(str(path))
    tunable.tuning_enable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tunable.tune_gemm_in_file(str(path))
    assert sorted(f"{op},{params}" for op, params, _, _ in tunable.get_results()) == sorted(recorded)
    assert weir.backends.cuda.matmul.allow_tf32 is False


@pytest.mark.parametrize(
    "line, problem",
    [
        ("ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_1_1_1_ld_1_1_1", "damaged"),
        ("GemmAndBiasTunableOp_float_TN,tn_8_8_8_ld_8_8_8", "GemmAndBiasTunableOp is not implemented"),
        ("GemmTunableOp_float_NN,nn_8_8", "damaged"),
        ("GemmTunableOp_float_NN", "damaged"),
        ("GemmTunableOp_int_NN,nn_8_8_8_ld_8_8_8", "damaged"),
        ("GemmTunableOp_float_NN,nn_-8_8_8_ld_8_8_8", "damaged"),
        ("GemmTunableOp_float_NN,nn_8_8_8_ld_4_8_8", "a leading dimension is too small"),
        ("GemmTunableOp_float_NN,nn_8_8_8_ld_8_8_16", "other parameters"),
        (f"GemmTunableOp_float_NN,nn_{10**30}_8_8_ld_{10**30}_8_8", "damaged"),
        ("GemmTunableOp_float_NN,nn_8_99999999_99999999_ld_8_99999999_8", "has too little memory"),
    ],
)
def test_lines_that_are_not_tuned(line, problem, tmp_path):
    (tmp_path / "untuned.csv").write_text(f"{line}\nGemmTunableOp_float_NN,nn_8_8_4_ld_8_4_8\nsomething else\n")
    tunable.enable()
    with pytest.warns(UserWarning, match=f"is not tuned: .*{problem}"):
        tunable.tune_gemm_in_file(str(tmp_path / "untuned.csv"))
    assert ("GemmTunableOp_float_NN", "nn_8_8_4_ld_8_4_8") in [result[:2] for result in tunable.get_results()]


def test_mgpu_tune_gemm_in_file(two_devices, tmp_path):
    for number in range(2):
        lines = [f"GemmTunableOp_float_NN,nn_8_{n}_8_ld_8_8_8\n" for n in range(4 + number, 9 + number)]
        (tmp_path / f"untuned{number}.csv").write_text("".join(lines))
    tunable.enable()
    with pytest.raises(AssertionError, match="num_gpus must be between 1 and"):
        tunable.mgpu_tune_gemm_in_file(str(tmp_path / "untuned?.csv"), 1000)
    tunable.mgpu_tune_gemm_in_file(str(tmp_path / "untuned?.csv"), 2)
    counts = []
    for device in range(2):
        with weir.device(device):
            counts.append(len(tunable.get_results()))
    assert counts == [3, 3]
    for device in range(2):
        with weir.device(device):
            _C._compute._tunable_forget()
            assert tunable.read_file(str(tmp_path / f"results_full{device}.csv"))
            assert len(tunable.get_results()) == 6


def test_processes_share_a_file(tmp_path):
    """Each process keeps the results of the others, which it has not read."""
    path = tmp_path / "results.csv"
    code = textwrap.dedent(
        f"""
        import sys
        import weir
        from weir import tunable

        tunable.enable()
        tunable.set_filename({str(path)!r})
        tunable.set_max_tuning_iterations(1)
        tunable.set_rotating_buffer_size(0)
        assert not tunable.get_results()  # the file does not exist
        print("ready", flush=True)
        sys.stdin.read()
        rows = int(sys.argv[1])
        for n in range(8, 16):
            weir.ones(rows, n, device="cuda") @ weir.ones(n, 4, device="cuda")
        assert len(tunable.get_results()) == 8
        """
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rows)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rows in (8, 16, 24)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.close()
    for process in processes:
        assert process.wait(120) == 0
        process.stdout.close()
    assert [file.name for file in tmp_path.iterdir()] == ["results.csv"]
    tunable.set_filename(str(path))
    tunable.enable()
    found = {params for _, params, _, _ in tunable.get_results()}
    assert found == {f"nn_4_{rows}_{n}_ld_4_{n}_4" for rows in (8, 16, 24) for n in range(8, 16)}


def test_numbers_and_dots_of_folders(two_devices, tmp_path):
    folder = tmp_path / "run0.d"
    folder.mkdir()
    (tmp_path / "untuned.csv").write_text("GemmTunableOp_float_NN,nn_8_8_8_ld_8_8_8\n")
    tunable.enable()
    tunable.set_filename(str(folder / "results"), True)
    assert tunable.get_filename() == str(folder / "results0")
    tunable.set_filename(str(folder / "results%d"))
    assert tunable.get_filename() == str(folder / "results%d")
    tunable.set_filename(str(folder / "results"))
    tunable.mgpu_tune_gemm_in_file(str(tmp_path / "untuned.csv"), 2)
    assert sorted(path.name for path in folder.iterdir()) == ["results", "results_full0", "results_full1"]


@pytest.mark.parametrize(
    "name, argument, text",
    [
        ("enable", 1, "expects a bool, but got int"),
        ("tuning_enable", None, "expects a bool, but got NoneType"),
        ("write_file_on_exit", "yes", "expects a bool, but got str"),
        ("set_max_tuning_duration", 1.5, "expects an int, but got float"),
        ("set_max_tuning_duration", True, "expects an int, but got bool"),
        ("set_max_tuning_iterations", "1", "expects an int, but got str"),
        ("set_filename", 3, "expects a string, but got int"),
        ("write_file", 3, "expects a string, but got int"),
        ("read_file", b"x", "expects a string, but got bytes"),
    ],
)
def test_wrong_types(name, argument, text):
    """The texts are those of torch._C."""
    with pytest.raises(RuntimeError, match=f"^cuda_tunableop_{name} {text}$"):
        getattr(_C, f"_cuda_tunableop_{name}")(argument)
    with pytest.raises(RuntimeError, match=f"^cuda_tunableop_{name} {text}$"):
        getattr(tunable, name)(argument) if argument is not None else tunable.tuning_enable(None)


def test_wrong_values():
    with pytest.raises(RuntimeError, match="cuda_tunableop_set_filename expects a bool, but got int"):
        tunable.set_filename("x", 1)
    with pytest.raises((RuntimeError, ValueError), match="Numerical check tolerances must be positive"):
        tunable.set_numerical_check_tolerances(True, 0.0, 1.0)
    with pytest.raises(OverflowError):
        tunable.set_max_tuning_duration(1 << 40)
    with pytest.raises(ValueError, match="embedded null character"):
        tunable.read_file("a\0b")


def test_bytes_that_are_no_text(tmp_path):
    tunable.enable()
    validators = "".join(f"Validator,{key},{value}\n" for key, value in tunable.get_validators())
    path = tmp_path / "results.csv"
    path.write_bytes(validators.encode() + b"GemmTunableOp_float_NN,nn_\xff,Default,1\nOp,p,Default,1\n")
    with pytest.warns(UserWarning, match="1 line was skipped"):
        assert tunable.read_file(str(path))
    assert ("Op", "p", "Default", 1) in tunable.get_results()
